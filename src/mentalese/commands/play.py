"""`mentalese play`: a page on this machine to write with a model."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from mentalese.commands.options import read_one
from mentalese.commands.shared import device
from mentalese.errors import InputError
from mentalese.install import install_command


@dataclass(kw_only=True)
class Options:
    """A page on this machine to write with a model and see its thoughts; Ctrl+C ends it.

    Attributes:
        port: the page's port.
        host: an address of this machine; everyone who can reach it can use the page.
    """

    port: int = 7860
    host: str = "127.0.0.1"


def run(words: list[str]) -> None:
    path, options = read_one(Options, words, "play", "MODEL")
    if importlib.util.find_spec("gradio") is None:
        raise InputError(f"the page needs Gradio, which is not installed: {install_command('play')}")
    from mentalese.viewer.play import check_address, play

    check_address(options.host, options.port)
    from mentalese.models.saved import load

    play(load(path, device()), options.host, options.port)
