"""The fields of configs have types, defaults, other names and documentation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mentalese import InputError, recipes
from mentalese.model_fields import MISSING, field_docs, is_filled_in, model_fields


def model_types() -> list[str]:
    """Of all recipes, and of the models inside their models."""
    models = [recipe.model for recipe in recipes().values()]
    models += [value for model in models for value in model.values() if isinstance(value, dict)]
    return sorted({model["model_type"] for model in models if "model_type" in model})


@pytest.mark.parametrize("model_type", [*model_types(), "qwen3", "mistral"])
def test_fields_that_a_recipe_sets_are_documented(model_type: str) -> None:
    fields = model_fields(model_type).values()
    assert not [field.name for field in fields if not field.doc and not is_filled_in(field.name)]


def test_fields_have_types_and_defaults() -> None:
    fields = model_fields("gpt2")
    assert (fields["n_embd"].hint, fields["n_embd"].default) == (int, 768)
    assert fields["hidden_size"] is fields["n_embd"]
    assert model_fields("coconut")["gates"].default is not MISSING
    assert "output_attentions" not in fields, "every config has it"


def test_text_is_parsed_and_numbers_stay_as_they_are() -> None:
    dropout = model_fields("gpt2")["resid_pdrop"]
    assert dropout.read("model", "1e-3") == 1e-3
    assert type(dropout.read("model", 0)) is int
    with pytest.raises(InputError) as refused:
        model_fields("gpt2")["n_layer"].read("model", "x")
    assert refused.value.field == "model.n_layer"


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'gpt2'") as refused:
        model_fields("gtp2")
    assert refused.value.field == "model.model_type"


def test_names_share_an_entry_of_a_docstring() -> None:
    @dataclass
    class Thing:
        """A thing.

        Attributes:
            a: first,
                and more: of it.
            b, c: both.
        """

    assert field_docs(Thing) == {"a": "first, and more: of it.", "b": "both.", "c": "both."}
