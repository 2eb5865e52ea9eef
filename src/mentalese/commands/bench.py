"""`mentalese bench`: speed, memory and cost against the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mentalese.commands.options import read
from mentalese.commands.shared import only_result_on_stdout, print_json


@dataclass(kw_only=True)
class Options:
    """Speed, memory and cost of each named family's (or every family's) tiny recipe against its baseline.

    Attributes:
        out: a JSON file for the figures.
        json: print the figures as JSON.
    """

    out: Path | None = None
    json: bool = False


def run(words: list[str]) -> None:
    families, options = read(Options, words, "bench")
    from mentalese.compare.bench import bench, print_bench

    with only_result_on_stdout():
        result = bench(families, options.out)
    if options.json:
        print_json(result)
    else:
        print_bench(result)
