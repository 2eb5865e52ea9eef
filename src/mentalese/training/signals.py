"""SIGINT and SIGTERM, taken between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM while the block runs, so that nothing in it is interrupted."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handled = (signal.SIGINT, signal.SIGTERM)
    before = {s: signal.signal(s, lambda signum, _: received.append(signum)) for s in handled}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
