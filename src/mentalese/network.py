"""The Hugging Face hub: asked whether it can be reached before it is used, so that a missing network is said at once.

By itself the hub's client tries each request six times, for half a minute and more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mentalese.errors import InputError

_SECONDS = 10
"""How long an answer of the hub is waited for."""


def unreachable() -> str | None:
    """Why the hub cannot be reached, in a few words; `None` if it answers."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS, follow_redirects=False)
    except Exception as error:  # httpx's or httpx2's, by the hub's version, or a proxy's
        return " ".join(str(error).split()) or type(error).__name__
    return None


def transport_error() -> type[Exception]:
    """What the hub's client raises if a connection breaks: that of httpx or httpx2, by the hub's version."""
    from huggingface_hub import get_session

    client = sys.modules[type(get_session()).__module__.partition(".")[0]]
    error: type[Exception] = client.TransportError
    return error


@contextmanager
def hub_or_cache(field: str, name: str) -> Iterator[bool]:
    """Runs a block that reads from the hub; without the network, from what Hugging Face's libraries have kept.

    Args:
        field: what the user set, for the message.
        name: its value.

    Yields:
        Whether the hub can be reached.

    Raises:
        InputError: it cannot, and the block failed.
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
        raise InputError(
            f"{field} is {name!r}: the hub cannot be reached ({reason}) and this machine has no copy: connect, "
            "or use a local folder or file"
        ) from error
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
