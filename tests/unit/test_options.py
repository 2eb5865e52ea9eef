"""Words of a command line become values of dataclass fields, by their types."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from mentalese import InputError
from mentalese.commands.options import read, read_one


@dataclass(kw_only=True)
class Options:
    """Says what it is for.

    Attributes:
        count: how many.
        scale, offset: of the axis.
    """

    RARE: ClassVar[tuple[str, ...]] = ("offset",)

    count: int = 1
    scale: float | None = None
    offset: float = 0.0
    pair: tuple[int, int] = (1, 2)
    words: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    on: bool = False
    maybe: bool | None = None
    kind: Literal["a", "b"] | None = None
    mixed: int | float = 0
    place: Path = Path("here")
    source: str | None = field(default=None, metadata={"flag": "--data"})
    tasks: tuple[str, ...] = field(default=("a",), metadata={"commas": True})


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", {}),
        ("--count 3", {"count": 3}),
        ("--count=3", {"count": 3}),
        ("--count -3", {"count": -3}),
        ("--count 1e6", {"count": 1_000_000}),
        ("--count 3 --count 4", {"count": 4}),
        ("--scale -1e-4", {"scale": -1e-4}),
        ("--scale none", {"scale": None}),
        ("--scale 2", {"scale": 2.0}),
        ("--mixed 2 --offset=.5", {"mixed": 2, "offset": 0.5}),
        ("--mixed 2.5", {"mixed": 2.5}),
        ("--pair 3 4", {"pair": (3, 4)}),
        ("--words a b", {"words": ("a", "b")}),
        ("--words=--a b", {"words": ("--a", "b")}),
        ("--words --on", {"words": (), "on": True}),
        ("--words a b --on --words c --words=d", {"words": ("a", "b", "c", "d"), "on": True}),
        ("--layers 1 --layers 2", {"layers": (1, 2)}),
        ("--layers 1 --layers none", {"layers": None}),
        ("--layers none --layers 2", {"layers": (2,)}),
        ("--pair 3 4 --pair 5 6", {"pair": (5, 6)}),
        ("--tasks a,b --tasks=c", {"tasks": ("a", "b", "c")}),
        ("--layers 1 2", {"layers": (1, 2)}),
        ("--layers None", {"layers": None}),
        ("--on --maybe", {"on": True, "maybe": True}),
        ("--no-on --no-maybe", {"on": False, "maybe": False}),
        ("--on false --maybe True", {"on": False, "maybe": True}),
        ("--maybe=none", {"maybe": None}),
        ("--kind a", {"kind": "a"}),
        ("--kind none", {"kind": None}),
        ("--place there", {"place": Path("there")}),
        ("--data none", {"source": None}),
        ("--data file:a", {"source": "file:a"}),
    ],
)
def test_values_have_their_fields_types(words: str, fields: dict[str, Any]) -> None:
    names, options = read(Options, words.split(), "list")
    assert (names, options) == ([], Options(**fields))
    for name, value in fields.items():
        assert type(getattr(options, name)) is type(value)


def test_dashes_and_underscores_are_the_same() -> None:
    @dataclass(kw_only=True)
    class Long:
        two_words: int = 0

    for words in (["--two-words", "1"], ["--two_words=1"]):
        assert read(Long, words, "list")[1].two_words == 1


def test_what_is_no_option_is_positional_wherever_it_is() -> None:
    assert read(Options, ["a", "--on", "b", "--count", "1", "c"], "list")[0] == ["a", "b", "c"]
    assert read_one(Options, ["--on", "a"], "list", "NAME")[0] == "a"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--count", "--count: it needs a value, use an integer"),
        ("--count --on", "--count: it needs a value"),
        ("--count x", "--count is 'x': use an integer"),
        ("--count 1.5", "--count is '1.5': use an integer"),
        ("--count=x", "--count: use an integer"),
        ("--pair 1", "--pair is '1': use 2 values (an integer each)"),
        ("--kind c", "--kind is 'c': use one of a, b or none"),
        ("--no-count", "--no-count: --count is no switch, use an integer"),
        ("--cuont 1", "--cuont: `mentalese list` has no such option; did you mean '--count'?"),
        ("-c 1", "-c: `mentalese list` has no such option"),
        ("a b", "takes a NAME before its options, and 2 were given (a, b)"),
        ("", "takes a NAME before its options, and none was given"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_one(Options, words.split(), "list", "NAME")
    assert says in str(refused.value)


def test_help_shows_documentation_types_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            read(Options, [option], "list")
        assert stop.value.code == 0
        shown[option] = capsys.readouterr().out
    assert "--count INT" in shown["--help"]
    assert "how many. [1]" in shown["--help"]
    assert "--kind a|b" in shown["--help"]
    assert "--offset" not in shown["--help"]
    assert "--offset NUMBER" in shown["--help-all"]
