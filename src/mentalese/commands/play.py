"""`mentalese play`: a page on this machine to write with a model."""

from __future__ import annotations

import importlib.util
from typing import Annotated

from pydantic import Field

from mentalese.commands.options import ModelPath
from mentalese.errors import InputError
from mentalese.install import install_command
from mentalese.values import Positive, checked_dataclass


@checked_dataclass("")
class Options:
    """A page on this machine to write with a model and see its thoughts; Ctrl+C ends it.

    Attributes:
        model: the folder of a run or a model, hub:NAME, models:NAME or gguf:FILE.
        port: the page's port.
        host: an address of this machine; everyone who can reach it can use the page.
    """

    model: ModelPath
    port: Annotated[Positive, Field(le=65535)] = 7860
    host: str = "127.0.0.1"


def run(options: Options) -> None:
    if importlib.util.find_spec("gradio") is None:
        raise InputError(f"the page needs Gradio, which is not installed: {install_command('play')}")
    from mentalese.viewer.play import check_address, play

    check_address(options.host, options.port)
    from mentalese.models.saved import load

    play(load(options.model), options.host, options.port)
