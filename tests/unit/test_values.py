"""Fields of checked dataclasses have the types and ranges that they declare."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from mentalese import InputError
from mentalese.values import Number, Place, Positive, Share, Texts, checked, checked_dataclass


@checked_dataclass("train")
class Settings:
    steps: Positive = 1
    rate: Number = 0.5
    share: Share = 0.5
    names: Texts = ()
    kind: Literal["a", "b"] | None = None
    seeds: Positive | Literal["auto"] = 1
    place: Place = Path("here")

    def __post_init__(self) -> None:
        if self.kind == "b" and not self.names:
            raise InputError("train.kind is 'b': set names too", "train.kind")


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"steps": np.int64(3)}, {"steps": 3}),
        ({"rate": 1}, {"rate": 1}),
        ({"rate": np.float32(0.5)}, {"rate": 0.5}),
        ({"names": ["a"], "place": "there"}, {"names": ("a",), "place": Path("there")}),
    ],
)
def test_values_from_python_have_their_types(fields: dict[str, Any], values: dict[str, Any]) -> None:
    settings = Settings(**fields)
    for name, value in values.items():
        assert (getattr(settings, name), type(getattr(settings, name))) == (value, type(value))
    assert dataclasses.replace(settings, steps=2).steps == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"steps": 0}, "train.steps"),
        ({"steps": 2**63}, "train.steps"),
        ({"steps": "1"}, "train.steps"),
        ({"steps": True}, "train.steps"),
        ({"rate": float("nan")}, "train.rate"),
        ({"share": 1.5}, "train.share"),
        ({"names": "ab"}, "train.names"),
        ({"names": [1]}, "train.names[0]"),
        ({"kind": "c"}, "train.kind"),
        ({"seeds": 0}, "train.seeds"),
        ({"kind": "b"}, "train.kind"),
        ({"stepz": 1}, "train.stepz"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(fields: dict[str, Any], field: str) -> None:
    for make in (lambda: Settings(**fields), lambda: dataclasses.replace(Settings(), **fields)):
        with pytest.raises(InputError) as refused:
            make()
        assert refused.value.field == field
        assert str(refused.value).startswith(field)


def test_an_unknown_field_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"train\.stepz: no such field; did you mean 'steps'"):
        Settings(stepz=1)  # type: ignore[call-arg]


def test_values_in_files_may_be_text() -> None:
    assert checked("train", Settings, {"steps": "3", "rate": "1e-3"}, parse=True) == Settings(steps=3, rate=1e-3)
    assert checked("steps", int | None, "3", parse=True) == 3
    with pytest.raises(InputError) as refused:
        checked("steps", int | None, "3")
    assert refused.value.field == "steps"
