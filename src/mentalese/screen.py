"""What people see: progress with the time left, and tables; drawn on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 15.0


def duration(seconds: float) -> str:
    """`75.2` -> `1:15`."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """One piece of long work; `update` says how much of `total` is done, with a short note such as the loss.

    Attributes:
        total: may grow.
        start: what was done before, in a run that resumes.
    """

    def __init__(self, title: str, total: float, start: float) -> None:
        self.title, self.total, self.start = title, total, start
        self.started = time.monotonic()

    def eta(self, done: float) -> str:
        elapsed, gained = time.monotonic() - self.started, done - self.start
        return duration(elapsed * (self.total - done) / gained) if gained > 0 else "?"

    def update(self, done: float, note: str = "") -> None: ...


class _Bar(Progress):
    def __init__(self, title: str, total: float, start: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress

        super().__init__(title, total, start)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(title, total=total, completed=int(start), note="")

    def update(self, done: float, note: str = "") -> None:
        self.bar.update(self.task, completed=done, total=self.total, note=f"{note}  {self.eta(done)} left")


class _Lines(Progress):
    def __init__(self, title: str, total: float, start: float) -> None:
        super().__init__(title, total, start)
        self.last = self.started

    def update(self, done: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            share = done / self.total if self.total else 1.0
            print(f"{self.title}: {share:.0%}  {note}  {self.eta(done)} left", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: float, *, start: float = 0, show: bool = True) -> Iterator[Progress]:
    """Shows progress on standard error while the block runs; with `show=False` nothing is shown.

    `start` is what was done before, in a run that resumes.
    """
    if not show:
        yield Progress(title, total, start)
    elif sys.stderr.isatty():
        bar = _Bar(title, total, start)
        with bar.bar:
            yield bar
    else:
        yield _Lines(title, total, start)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on standard output; its first column is text, the others are figures."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text  # its words are no markup

        table = Table(title=Text(title, style="table.title") if title else None)
        for index, name in enumerate(header):  # on a narrow terminal a cell takes more lines; nothing is cut
            table.add_column(name, justify="right" if index else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        first, *others = (text.rjust(w) if i else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths)))
        print("  ".join([first, *others]).rstrip())
