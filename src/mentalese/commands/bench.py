"""`mentalese bench`: speed, memory and cost against the baselines."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.screen import only_result_on_stdout, print_json
from mentalese.values import Place, Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Speed, memory and cost of each named family's (or every family's) tiny recipe against its baseline.

    Attributes:
        families: the families; all, if none is named.
        out: a JSON file for the figures.
        json: print the figures as JSON.
    """

    families: Annotated[Positional[Texts], arg(metavar="FAMILY")] = ()
    out: Place | None = None
    json: bool = False


def run(options: Options) -> None:
    from mentalese.compare.bench import bench, print_bench

    with only_result_on_stdout():
        result = bench(list(options.families), options.out)
    if options.json:
        print_json(result)
    else:
        print_bench(result)
