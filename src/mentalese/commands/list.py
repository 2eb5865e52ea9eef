"""`mentalese list`: families, recipes, built-in data and figures."""

from __future__ import annotations

import fnmatch
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from mentalese.commands.options import read
from mentalese.commands.shared import print_json
from mentalese.errors import InputError, nearest
from mentalese.recipe import Recipe
from mentalese.registry import COLLECTIONS, families, recipes, recipes_of
from mentalese.screen import width
from mentalese.values import checked_dataclass

if TYPE_CHECKING:
    from mentalese.commands.cost import Cost

PUBLISHED = ("/openstax", "/graphs")
"""Endings of the names of recipes with published results."""
_LINES = 2


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


def run(words: list[str]) -> None:
    options = read(Options, words, "list")
    pattern = options.pattern
    everything = _everything()
    matches = dict(recipes()) if options.family is None else _of_family(options.family)
    if options.table is not None:
        matches = {
            name: recipe for name, recipe in matches.items() if options.table.lower() in (recipe.paper or "").lower()
        }
    elif options.family is not None:
        matches = {name: recipe for name, recipe in matches.items() if not recipe.paper}
    if pattern is None and options.family is None and options.table is None and not (options.all or options.json):
        return _overview(everything)
    listed = {"recipes": {name: recipe.description for name, recipe in matches.items()}}
    if options.family is None and options.table is None:
        listed = everything | listed
    if pattern is not None:
        listed = {
            title: {k: v for k, v in entries.items() if _matches(k, pattern)} for title, entries in listed.items()
        }
    if not any(listed.values()):
        query = pattern or options.table
        all_names = [name for entries in everything.values() for name in entries]
        raise InputError(f"nothing in the list is called {query!r}{nearest(query or '', all_names)} (`mentalese list`)")
    costs = {} if options.table is None else _costs([matches[name] for name in listed["recipes"]])
    if options.json:
        priced = {name: vars(cost) for name, cost in costs.items() if cost is not None}
        return print_json(listed | ({"costs": priced} if priced else {}))
    if costs:
        return print(_with_costs(listed["recipes"], costs))
    return print("\n\n".join(_section(title, entries) for title, entries in listed.items() if entries))


def _everything() -> dict[str, dict[str, str]]:
    """Name -> description, by kind."""
    from mentalese.analyses.figures import figures
    from mentalese.data.builtin import described

    return {
        "families": {name: family.description for name, family in families().items()},
        "collections": {name: collection.description for name, collection in COLLECTIONS.items()},
        "recipes": {name: recipe.description for name, recipe in recipes().items()},
        "data": described(),
        "figures": {name: f"{figure.description} ({figure.takes})" for name, figure in figures().items()},
    }


def _of_family(name: str) -> dict[str, Recipe]:
    family_names = (*families(), *COLLECTIONS)
    if name not in family_names:
        raise InputError(f"--family is {name!r}: no family is called that{nearest(name, family_names)}")
    return {recipe.name: recipe for recipe in recipes_of(name)}


def _costs(chosen: list[Recipe]) -> dict[str, Cost | None]:
    from mentalese.commands.cost import table_cost

    return {recipe.name: table_cost(recipe) for recipe in chosen}


def _with_costs(described: Mapping[str, str], costs: Mapping[str, Cost | None]) -> str:
    """Recipes with their costs, and a line about the numbers."""
    column = max(len(str(cost or "-")) for cost in costs.values())
    lines = {name: f"{str(costs[name] or '-').ljust(column)}  {text}" for name, text in described.items()}
    return (
        f"{_section('recipes', lines)}\n\nFLOPs of training and evaluation, and hours at 4e14 FLOPs per second.\n"
        "-, + evaluation: this depends on the text, which `mentalese train NAME --dry-run` reads."
    )


def _matches(name: str, pattern: str) -> bool:
    """Test if a name matches a shell pattern, or contains a word that is not a pattern."""
    return fnmatch.fnmatch(name, pattern) if set(pattern) & set("*?[") else pattern in name


def _section(title: str, entries: Mapping[str, str]) -> str:
    column = max(map(len, entries))
    return "\n".join([f"{title}:", *(f"  {name.ljust(column)}  {text}" for name, text in entries.items())])


def _overview(everything: dict[str, dict[str, str]]) -> None:
    """Print a list that fits a screen: each family with its main recipes, and the names of data and figures."""
    tables = sum(recipe.paper is not None for recipe in recipes().values())
    print("families, and their main recipes:")
    for name, description in everything["families"].items():
        print(f"  {textwrap.shorten(f'{name}: {description}', width() - 2, placeholder=' ..')}")
        main_recipes = [recipe.name for recipe in sorted(_of_family(name).values(), key=_rank) if not recipe.paper]
        print(_names(main_recipes, _LINES, f"list --family {name}"))
    for title in ("collections", "data", "figures"):
        print(f"\n{title}:\n{_names([*everything[title]], len(everything[title]), '')}")
    print(f"\n{tables} more recipes are settings of papers' tables: --all, --table 'Table 1' or PATTERN lists them.")


def _rank(recipe: Recipe) -> int:
    """tiny, small, those with published results, the rest."""
    place = f"/{recipe.name.partition('/')[2]}"
    first = ("/tiny", "/small")
    return first.index(place) if place in first else len(first) + (not place.startswith(PUBLISHED))


def _names(names: list[str], most: int, more: str) -> str:
    """Names in at most this many lines, and the command that lists the others."""
    for count in range(len(names), 0, -1):
        rest = f"(+{len(names) - count}: {more})".replace(" ", "\0") if count < len(names) else ""
        text = "  ".join([*names[:count], rest]).rstrip()
        lines = textwrap.wrap(text, width() - 4, break_on_hyphens=False, break_long_words=False)
        if len(lines) <= most:
            break
    return "\n".join(f"    {line}" for line in lines).replace("\0", " ")
