"""Values of typed fields, as they are typed on a command line or written in a file."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

_NONE = ("none", "null")
_BOOL = {"true": True, "false": False}


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(typing.get_args(hint)) if union else (hint,)


def is_simple(hint: Any) -> bool:
    """Whether the type is made of numbers, text, truth values, paths, None and tuples of them."""
    for member in members(hint):
        if typing.get_origin(member) is tuple:
            if not all(item is Ellipsis or is_simple(item) for item in typing.get_args(member)):
                return False
        elif typing.get_origin(member) is not Literal and member not in (int, float, bool, str, Path, type(None)):
            return False
    return True


def describe(hint: Any) -> str:
    """The type in words: `an integer or none`."""
    return " or ".join(dict.fromkeys(map(_describe_one, members(hint))))


def _describe_one(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        items = typing.get_args(hint)
        return f"{'a list' if Ellipsis in items else f'{len(items)} values'} ({describe(items[0])} each)"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def is_flag(hint: Any) -> bool:
    return bool in members(hint)


def is_list(hint: Any) -> bool:
    return any(typing.get_origin(member) in (tuple, list) for member in members(hint))


def parse(hint: Any, text: str) -> Any:
    """The value that `text` is under this type. A list is written with commas, or as JSON.

    Raises:
        ValueError: the text is none; the message says what to use.
    """
    if hint is Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    if not is_list(hint):
        return parse_words(hint, [text])
    if text.startswith("["):
        return check(hint, _json(hint, text))
    return parse_words(hint, [part.strip() for part in text.strip("()").split(",") if part.strip()])


def parse_words(hint: Any, words: Sequence[str]) -> Any:
    """As `parse`, with each value of a list as a word of its own."""
    options = members(hint)
    if type(None) in options and len(words) == 1 and words[0].lower() in _NONE:
        return None
    lists = [member for member in options if typing.get_origin(member) is tuple]
    if not lists:
        return _parse_one(hint, options, words[0])
    items = typing.get_args(lists[0])
    if Ellipsis in items:
        return tuple(parse(items[0], word) for word in words)
    if len(words) != len(items):
        raise ValueError(f"use {describe(lists[0])}")
    return tuple(parse(item, word) for item, word in zip(items, words))


def _parse_one(hint: Any, options: tuple[Any, ...], text: str) -> Any:
    choices = [choice for member in options if typing.get_origin(member) is Literal for choice in member.__args__]
    for choice in choices:
        if str(choice) == text:
            return choice
    if bool in options and text.lower() in _BOOL:
        return _BOOL[text.lower()]
    for kind in (int, float):
        if kind in options and (value := _number(kind, text)) is not None:
            return value
    if str in options:
        return text
    if Path in options:
        return Path(text)
    if any(not is_simple(member) for member in options):
        return check(hint, _json(hint, text))
    raise ValueError(f"use {describe(hint)}")


def _number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        pass
    try:  # 1e9 tokens are an integer
        return int(float(text)) if kind is int and float(text).is_integer() and "e" in text.lower() else None
    except (ValueError, OverflowError):
        return None


def _json(hint: Any, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise ValueError(f"use JSON, {describe(hint)}") from None


def check(hint: Any, value: Any) -> Any:
    """A value from JSON, YAML or TOML under this type: lists become tuples, and text is parsed where none is wanted.

    Raises:
        ValueError: the value is of another type; the message says what to use.
    """
    options = members(hint)
    kinds = {typing.get_origin(member) or member for member in options}
    if hint is Any or any(typing.get_origin(m) is Literal and value in typing.get_args(m) for m in options):
        return value
    if isinstance(value, str) and str not in kinds:  # YAML reads 1e-3 as text
        return parse(hint, value)
    if isinstance(value, list | tuple):
        return _check_list(hint, value)
    if isinstance(value, float) and float not in kinds and int in kinds and value.is_integer():
        return int(value)
    wanted = {float, int} if isinstance(value, int) and not isinstance(value, bool) else {type(value)}
    if not kinds & wanted:
        raise ValueError(f"use {describe(hint)}")
    return value


def _check_list(hint: Any, value: Sequence[Any]) -> Any:
    for member in members(hint):
        kind, items = typing.get_origin(member) or member, typing.get_args(member)
        if kind is list:
            return value
        if kind is not tuple:
            continue
        if Ellipsis in items:
            items = (items[0],) * len(value)
        if len(items) == len(value):
            return tuple(check(item, part) for item, part in zip(items, value))
    raise ValueError(f"use {describe(hint)}")
