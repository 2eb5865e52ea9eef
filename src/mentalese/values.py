"""Typed fields: ranges, classes that check their fields, and the error that a wrong value becomes.

pydantic does the checking. Values from Python keep their type; values in files and on command lines may also be text.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.dataclasses import dataclass

from mentalese.errors import InputError, nearest

T = TypeVar("T")
_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
_MOST = 2**63 - 1  # the largest integer of numpy and torch
_LONGEST_NAME = 255  # bytes, of a file or folder, on the usual disks


def _as_written(value: object, check: Callable[[object], float]) -> float:
    """Check a number; a whole one stays an integer, as it stands in files and in fingerprints."""
    number = check(value)
    return value if type(value) is int else number


def _without_zero(text: str) -> str:
    if "\0" in text:
        raise ValueError("use a path, which has no character 0")
    return text


def _place(value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ValueError("use a path (str or Path)")
    path = Path(value)
    _without_zero(str(path))
    if any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise ValueError(f"use a path, whose names have at most {_LONGEST_NAME} bytes")
    return path


NonNegative = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Number = Annotated[float, WrapValidator(_as_written)]
PositiveNumber = Annotated[Number, Field(gt=0)]
NonNegativeNumber = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Texts = Annotated[tuple[str, ...], Strict(False)]
Name = Annotated[str, AfterValidator(_without_zero)]
Place = Annotated[Path, BeforeValidator(_place)]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def checked_dataclass(section: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen, keyword-only dataclass whose fields are checked, by `InputError` that names `section.field`."""

    def decorate(cls: type[T]) -> type[T]:
        dataclass_type: Any = dataclass(cls, frozen=True, kw_only=True, config=_CONFIG)
        check = dataclass_type.__init__

        @functools.wraps(check)
        def checked_init(self: Any, **fields: Any) -> None:
            fields = {name: value.item() if isinstance(value, np.generic) else value for name, value in fields.items()}
            try:
                check(self, **fields)
            except ValidationError as error:
                raise _input_error(error, section, dataclass_type) from None

        dataclass_type.__init__ = checked_init
        return dataclass_type

    return decorate


def checked(name: str, hint: Any, value: object, *, parse: bool = False) -> Any:
    """Return a value of this type, parsed from text if `parse`; raise `InputError` that names what is wrong."""
    cls = hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
    try:
        if isinstance(value, str):
            value.encode()  # pydantic lets surrogates pass
        return _adapter(hint, cls is None).validate_python(value, strict=False if parse else None)
    except ValidationError as error:
        raise _input_error(error, name, cls) from None
    except UnicodeEncodeError:
        raise InputError(f"{name} is {shown(value)}: use text in Unicode", name) from None


@functools.cache
def _adapter(hint: Any, configured: bool) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=_CONFIG if configured else None)


def _input_error(error: ValidationError, section: str, cls: type | None) -> InputError:
    """Return the first error of pydantic, as one sentence."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    unknown = first["type"] == "unexpected_keyword_argument"
    place = first["loc"] if unknown else _within(cls, first["loc"])
    name = section
    for part in place:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    if unknown:
        return InputError(f"{name}: no such field{nearest(place[-1], _fields_at(cls, place[:-1]))}", name)
    if first["type"] == "missing":
        return InputError(f"{name} is missing: set it", name)
    message = first["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    if first["type"] == "too_short":
        message = f"set at least {first['ctx']['min_length']}"
    return InputError(f"{name} is {shown(first['input'])}: {message}", name)


def _within(cls: type | None, loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return pydantic's place of an error in a dataclass, up to the field: members of a union are named after it."""
    for number, part in enumerate(loc):
        if cls is None or (isinstance(part, str) and part not in _fields_at(cls, loc[:number])):
            return loc[:number]
    return loc


def _fields_at(cls: Any, place: tuple[int | str, ...]) -> list[str]:
    """Return the names of fields of the dataclass at a place in a dataclass; none of another value."""
    for part in place:
        if isinstance(part, str):
            hint = typing.get_type_hints(cls)[part]
            cls = next((kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)), None)
    return [] if cls is None else [field.name for field in dataclasses.fields(cls)]


def shown(value: object) -> str:
    """Return a value for a message; a long one is cut, and an object with a page is named by its type."""
    value = str(value) if isinstance(value, Path) else value
    text = repr(value) if isinstance(value, str | bytes | numbers.Number | list | tuple | dict | None) else ""
    text = text or f"of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]} .."


@contextmanager
def temporarily(target: object, **values: object) -> Iterator[None]:
    """Attributes of an object, such as a model's config, with other values inside the block."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
