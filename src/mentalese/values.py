"""Values of typed fields: typed on a command line, written in a file, or passed from Python."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mentalese.errors import InputError, nearest

_MOST = 2**63 - 1  # what an integer of numpy and torch holds
_NONE = ("none", "null")
_BOOL = {"true": True, "false": False}


@contextmanager
def temporarily(target: Any, **values: Any) -> Iterator[None]:
    """Attributes of an object, such as a model's config, with other values inside the block."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


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
    if typing.get_origin(hint) is dict:
        return "a dict"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def is_flag(hint: Any) -> bool:
    return bool in members(hint)


def is_list(hint: Any) -> bool:
    return any(typing.get_origin(member) in (tuple, list) for member in members(hint))


def is_open_list(hint: Any) -> bool:
    """Whether the type is a list of any length."""
    return any(typing.get_origin(member) is tuple and Ellipsis in typing.get_args(member) for member in members(hint))


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
        return _path(text)
    if any(not is_simple(member) for member in options):
        return check(hint, _json(hint, text))
    raise ValueError(f"use {describe(hint)}")


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("use a path, which has no character 0")
    return Path(text)


def _number(kind: type, text: str) -> Any:
    try:
        number = kind(text)
        return number if kind is int or math.isfinite(number) else None
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


# -- from Python -------------------------------------------------------------------------------------------------------


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_fields(instance: Any, section: str) -> None:
    """Checks each field of a dataclass, frozen or not, against its type; `conform` says what becomes of a value.

    Args:
        section: the name before the fields' in messages; may be empty.

    Raises:
        InputError: a value is of another type.
    """
    for name, hint in _hints(instance.__class__).items():
        value = getattr(instance, name)
        own = checked(f"{section}{section and '.'}{name}", hint, value)
        if own is not value:
            object.__setattr__(instance, name, own)


def checked(name: str, hint: Any, value: Any) -> Any:
    """What `conform` makes of a value; raises `InputError` with its name."""
    try:
        return conform(hint, value)
    except ValueError as error:
        raise InputError(f"{name} is {shown(value)}: {error}") from None


def replaced(instance: Any, section: str, **fields: Any) -> Any:
    """The dataclass with other values; raises `InputError` for a field that it does not have, and what it does."""
    for name in fields:
        if name not in (known := _hints(instance.__class__)):
            raise InputError(f"{section}.{name}: no such field{nearest(name, known)}")
    return dataclasses.replace(instance, **fields)


def shown(value: Any) -> str:
    """A value in a message; one that would fill pages is cut, and one with a page of its own is named by its type."""
    text = repr(value) if isinstance(value, str | bytes | numbers.Number | list | tuple | dict | Path | None) else ""
    text = text or f"of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]} .."


def conform(hint: Any, value: Any) -> Any:
    """A value under this type: lists become tuples, texts paths, and numpy's numbers Python's; no text is parsed.

    Raises:
        ValueError: the value is of another type, not finite, or beyond 64 bits; the message says what to use.
    """
    for member in members(hint):
        own = _conform_one(member, value)
        if own is not _NO:
            return own
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and {int, float} & {*members(hint)}
    if number and not -_MOST <= value <= _MOST:
        raise ValueError("use a finite number, of at most 64 bits if it is an integer")
    raise ValueError(f"use {describe(hint)}")


_NO: Any = object()


def _conform_one(member: Any, value: Any) -> Any:
    """The value under one type of a union, or `_NO`."""
    kind, items = typing.get_origin(member) or member, typing.get_args(member)
    if kind is Any:
        return value
    if kind is Literal:
        return value if any(type(value) is type(item) and value == item for item in items) else _NO
    if kind is tuple:
        return _conform_tuple(items, value) if isinstance(value, list | tuple) else _NO
    if kind in (int, float):
        return _conform_number(kind, value)
    if kind in (str, Path) and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("use text in Unicode") from None
        return value if kind is str else _path(value)
    return value if isinstance(value, kind) else _NO


def _conform_tuple(items: tuple[Any, ...], value: Sequence[Any]) -> Any:
    kinds = (items[0],) * len(value) if Ellipsis in items else items
    if len(kinds) != len(value):
        return _NO
    try:
        own = tuple(conform(kind, part) for kind, part in zip(kinds, value))
    except ValueError:
        return _NO
    return value if isinstance(value, tuple) and all(a is b for a, b in zip(own, value)) else own


def _conform_number(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _NO
    if isinstance(value, numbers.Integral):
        own: Any = int(value)
        return (value if type(value) is int else own) if -_MOST <= own <= _MOST else _NO
    if kind is int or not math.isfinite(value):
        return _NO
    return value if type(value) is float else float(value)
