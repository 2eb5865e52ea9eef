"""Progress with the time left, tables and JSON; drawn on a terminal, plain text elsewhere."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


def width() -> int:
    """Return the characters in a line of text on this terminal, at least 20."""
    return max(20, min(shutil.get_terminal_size().columns, 120))


SECONDS_BETWEEN_LINES = 15.0


def duration(seconds: float) -> str:
    """`75.2` -> `1:15`."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Progress from `start` to `total`, which may grow, on standard error: a bar on a terminal, lines elsewhere."""

    def __init__(self, title: str, total: float, start: float = 0, *, show: bool = True) -> None:
        self.title, self.total, self.start, self.show = title, total, start, show
        self.began = self.printed = time.monotonic()
        self.bar: RichProgress | None = None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn
            from rich.progress import Progress as RichProgress

            named, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
            self.bar = RichProgress(named, BarColumn(), TaskProgressColumn(), note, console=Console(stderr=True))
            self.bar.add_task(title, total=total, completed=int(start), note="")

    def update(self, done: float, note: str = "") -> None:
        """Set how much of `total` is done, with a short note such as the loss."""
        now, gained = time.monotonic(), done - self.start
        remaining = duration((now - self.began) * (self.total - done) / gained) if gained > 0 else "?"
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=self.total, note=f"{note}  {remaining} left")
        elif self.show and now - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = now
            share = done / self.total if self.total else 1.0
            print(f"{self.title}: {share:.0%}  {note}  {remaining} left", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: float, *, start: float = 0, show: bool = True) -> Iterator[Progress]:
    """Show progress on standard error while the block runs."""
    bar = Progress(title, total, start, show=show)
    with bar.bar or nullcontext():
        yield bar


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table on standard output; its first column is text, the others are figures."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text  # its words are not markup

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


def print_json(content: object) -> None:
    print(json.dumps(content, indent=2))


def only_result_on_stdout() -> redirect_stdout[Any]:
    """Send all output of libraries to standard error while the block runs."""
    return redirect_stdout(sys.stderr)
