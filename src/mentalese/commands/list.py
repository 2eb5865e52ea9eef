"""`mentalese list`: families, recipes, built-in data and figures."""

from __future__ import annotations

import fnmatch
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mentalese.errors import InputError, nearest, require
from mentalese.recipe import Recipe
from mentalese.registry import COLLECTIONS, families, recipes, recipes_of
from mentalese.screen import print_json, width
from mentalese.values import checked_dataclass

PUBLISHED = ("/openstax", "/graphs")
"""Endings of the names of recipes with published results."""
_COSTS = """FLOPs of training and evaluation, and hours at 4e14 FLOPs per second.
-, + evaluation: this depends on the text, which `mentalese train NAME --dry-run` reads."""


@checked_dataclass("")
class Options:
    """Families with their main recipes, built-in data and figures.

    A PATTERN (`coconut`, `gpt2*/small`) lists all that have such a name; recipes that are settings of a paper's table
    are only listed by PATTERN, --table or --all.

    Attributes:
        pattern: part of a name, or a pattern.
        family: all recipes of one family, without the settings of tables unless --table names one.
        table: the recipes that are settings of this table or figure of a paper, e.g. "Table 1", and what each costs:
            FLOPs of training and evaluation, and hours at 4e14 FLOPs per second.
        all: everything, one line each.
        json: the same as JSON; everything, if nothing is asked for.
    """

    pattern: Annotated[Positional[str | None], arg(metavar="PATTERN")] = None
    family: str | None = None
    table: str | None = None
    all: bool = False
    json: bool = False


def run(options: Options) -> None:
    from mentalese.analyses.figures import figures
    from mentalese.data.builtin import described

    pattern = options.pattern
    everything = {
        "families": {name: family.description for name, family in families().items()},
        "collections": {name: collection.description for name, collection in COLLECTIONS.items()},
        "recipes": {name: recipe.description for name, recipe in recipes().items()},
        "data": described(),
        "figures": {name: f"{figure.description} ({figure.takes})" for name, figure in figures().items()},
    }
    selected = recipes() if options.family is None else _of_family(options.family)
    if options.table is not None:
        require(bool(options.table.strip()), "--table", options.table, "use 'Table 1', or 'Figures 1 and 4'")
        selected = {name: r for name, r in selected.items() if _is_of(options.table.lower(), (r.paper or "").lower())}
    elif options.family is not None:
        selected = {name: r for name, r in selected.items() if not r.paper}
    elif pattern is None and not (options.all or options.json):
        _print_overview(everything)
        return
    listed = {"recipes": {name: recipe.description for name, recipe in selected.items()}}
    if options.family is None and options.table is None:
        listed = everything | listed
    if pattern is not None:
        glob = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        listed = {
            title: {name: text for name, text in entries.items() if fnmatch.fnmatch(name, glob)}
            for title, entries in listed.items()
        }
    if not any(listed.values()):
        query = pattern or options.table or ""
        all_names = [name for entries in everything.values() for name in entries]
        raise InputError(f"nothing in the list is called {query!r}{nearest(query, all_names)} (`mentalese list`)")
    costs = {}
    if options.table is not None:
        from mentalese.commands.cost import table_cost

        costs = {name: table_cost(selected[name]) for name in listed["recipes"]}
    if options.json:
        priced = {name: vars(cost) for name, cost in costs.items() if cost is not None}
        print_json(listed | ({"costs": priced} if priced else {}))
        return
    if costs:
        column = max(len(str(cost or "-")) for cost in costs.values())
        texts = {name: f"{str(costs[name] or '-').ljust(column)}  {text}" for name, text in listed["recipes"].items()}
        listed["recipes"] = texts
    parts = [_section(title, entries) for title, entries in listed.items() if entries]
    print("\n\n".join([*parts, _COSTS] if costs else parts))


def _is_of(asked: str, paper: str) -> bool:
    """Test if a recipe's place in a paper includes one that is asked for."""
    places = _places(f"table {asked}" if asked[:1].isdecimal() else asked)
    return bool(places & _places(paper)) if places else asked in paper


def _places(text: str) -> set[tuple[str, int]]:
    """Return the tables and figures that a text in small letters names: `tables 1 to 3, figure 4`."""
    places = set[tuple[str, int]]()
    text = re.sub(r"(?<=\d) ?[-–] ?(?=\d)", " to ", text)
    for kind, numbers in re.findall(r"(table|figure)s? (\d+(?:(?:, | and | to )\d+)*)", text):
        for part in re.split(", | and ", numbers):
            bounds = [int(number) for number in part.split(" to ")]
            places |= {(kind, number) for number in range(bounds[0], bounds[-1] + 1)}
    return places


def _of_family(name: str) -> dict[str, Recipe]:
    family_names = (*families(), *COLLECTIONS)
    require(name in family_names, "--family", name, f"no family is called that{nearest(name, family_names)}")
    return {recipe.name: recipe for recipe in recipes_of(name)}


def _section(title: str, entries: Mapping[str, str]) -> str:
    column = max(map(len, entries))
    return "\n".join([f"{title}:", *(f"  {name.ljust(column)}  {text}" for name, text in entries.items())])


def _print_overview(everything: Mapping[str, Mapping[str, str]]) -> None:
    """Print a list that fits a screen: each family with its main recipes, and the names of data and figures."""
    print("families, and their main recipes:")
    for name, description in everything["families"].items():
        print(f"  {textwrap.shorten(f'{name}: {description}', width() - 2, placeholder=' ..')}")
        main_recipes = [recipe.name for recipe in sorted(_of_family(name).values(), key=_rank) if not recipe.paper]
        print(_wrapped(main_recipes, max_lines=2, placeholder=f"  .. (list --family {name})"))
    print()
    for title in ("collections", "data", "figures"):
        print(f"{title}:\n{_wrapped(everything[title])}")
    tables = sum(recipe.paper is not None for recipe in recipes().values())
    print(f"\n{tables} more recipes are settings of papers' tables: --all, --table 'Table 1' or PATTERN lists them.")


def _rank(recipe: Recipe) -> int:
    """Return the place of a recipe in its family: tiny, small, those with published results, the rest."""
    name, first = f"/{recipe.name.partition('/')[2]}", ("/tiny", "/small")
    return first.index(name) if name in first else len(first) + (not name.startswith(PUBLISHED))


def _wrapped(names: Iterable[str], **limits: Any) -> str:
    size = max(width() - 4, len(limits.get("placeholder", "")))
    lines = textwrap.wrap("  ".join(names), size, break_on_hyphens=False, break_long_words=False, **limits)
    return textwrap.indent("\n".join(lines), "    ")
