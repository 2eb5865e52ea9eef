"""A check whether the Hugging Face hub can be reached: its client itself tries for half a minute and more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mentalese.errors import InputError

_SECONDS = 10
"""The longest wait for an answer of the hub."""


def unreachable() -> str | None:
    """Return why the hub cannot be reached, in a few words; `None` if it answers."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS, follow_redirects=False)
    except Exception as error:  # httpx's or httpx2's, by the hub's version, or a proxy's
        return " ".join(str(error).split()) or type(error).__name__
    return None


def transport_error() -> type[Exception]:
    """Return the error of a broken connection: of httpx or httpx2, by the version of the hub's client."""
    from huggingface_hub import get_session

    client = sys.modules[type(get_session()).__module__.partition(".")[0]]
    error: type[Exception] = client.TransportError
    return error


@contextmanager
def hub_or_cache(field: str, name: str) -> Iterator[bool]:
    """Run a block that reads from the hub; without the network, from the caches of Hugging Face's libraries.

    Yields:
        True if the hub can be reached.

    Raises:
        InputError: the hub cannot be reached, and the block failed; the message names `field`, which is `name`.
    """
    reason = unreachable()
    if reason is None:
        yield True
        return
    from huggingface_hub import constants

    modules: list[Any] = [constants]
    if (copied := sys.modules.get("datasets.config")) is not None:
        modules.append(copied)
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield False
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        remedy = "this machine has no copy: connect, or use a local folder or file"
        raise InputError(f"{field} is {name!r}: the hub cannot be reached ({reason}) and {remedy}") from error
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
