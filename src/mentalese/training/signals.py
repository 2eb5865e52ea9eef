"""SIGINT and SIGTERM: kept until a step ends, or raised at once if nothing would be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM came; if the message names a step, the run was saved there and can be resumed."""

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message)
        self.signum, self.exit_code = signum, 128 + signum


class StopSignals:
    """The signals of a block of code; `first` is the number of the first one, 0 before."""

    def __init__(self) -> None:
        self.first = 0
        self._raises = False

    def handle(self, signum: int, frame: FrameType | None = None) -> None:
        """Keep a signal, or raise it inside `at_once`."""
        self.first = self.first or signum
        if self._raises:
            self._raises = False  # cleaning up is not interrupted again
            raise Interrupted(signum)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise `Interrupted` as soon as a signal comes, or now if one has come."""
        self._raises = True
        try:
            if self.first:
                self.handle(self.first)
            yield
        finally:
            self._raises = False


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Keep SIGINT and SIGTERM while the block runs, so that nothing in it is interrupted outside `at_once`."""
    signals = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {signum: signal.signal(signum, signals.handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
