"""The model card: `README.md` next to a run's best model, in Markdown with the front matter that the hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from mentalese.data.store import before_preparing
from mentalese.html import markdown
from mentalese.install import install_command
from mentalese.recipe import Recipe
from mentalese.registry import families

NAME = "README.md"
_LIKELIHOODS = {"perplexity": "{:,.2f}", "bits_per_byte": "{:.4f}", "bits_per_byte_with_ends": "{:.4f}"}
_SHARES = {"accuracy": "{:.1%}", "exact_match": "{:.1%}", "f1": "{:.1%}", "pass_at_k": "{:.1%}", "majority": "{:.1%}"}
_FORMS = _LIKELIHOODS | _SHARES | {"unfinished": "{:,}"}
"""Figures of an evaluation, as a card formats them."""


def model_card(recipe: Recipe, about: Mapping[str, Any]) -> str:
    """Return the card of a trained model.

    Args:
        about: fields of `result.json`: `parameters`, `best_step`, `tokens`, `seed`, `data_hash`, `commit`, `versions`,
            the evaluation `validation`, and after the run `test` and `samples`.
    """
    kind = recipe.model["model_type"]
    family = next((name for name, each in families().items() if kind in each.classes), None)
    evaluations = {split: about[split] for split in ("validation", "test") if split in about}
    estimators = {figure["protocol"].get("estimator", "exact") for figure in evaluations.values()}
    samples = about.get("samples") or [{"prompt": "Once upon a time"}]
    fields: dict[str, object] = {  # that the hub reads, without the license, which is unknown
        "library_name": "transformers" if family is None else "mentalese",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(["mentalese", kind, *([family] if family else [])])),
    }
    if match := re.match(r"(?:[\w-]+:)?hub:([^:@]+)", recipe.data.source):  # also svamp:hub:NAME
        fields["datasets"] = [match[1]]
    if (init := recipe.train.init or "").startswith("hub:"):
        fields["base_model"] = init.removeprefix("hub:")
    return markdown(
        "model_card.md.j2",
        filters={"short": _short, "count": "{:,}".format, "words": lambda name: name.replace("_", " ")},
        recipe=recipe,
        about=about,
        front_matter=yaml.safe_dump(fields, sort_keys=False),
        tokenizer=before_preparing(recipe.data).tokenizer,
        family=family,
        install=install_command(),
        prompt=json.dumps(samples[0]["prompt"], ensure_ascii=False),
        evaluations=evaluations,
        estimators=sorted(estimators - {"exact"}),
        forms=_FORMS,
        likelihoods=_LIKELIHOODS,
    )


def _short(place: str) -> str:
    """Return a source, tokenizer or model without its local folders: `file:/home/me/a.txt` -> `file:a.txt`."""
    kind, colon, rest = place.partition(":")
    if kind == "hub" or rest.startswith("hub:") or (colon and "/" not in rest):
        return place
    return kind + colon + PurePath(rest).name if colon else PurePath(place).name
