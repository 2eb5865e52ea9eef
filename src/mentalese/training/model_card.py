"""The model card: `README.md` next to a run's best model, in Markdown with the front matter that the hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from mentalese.data.store import before_preparing
from mentalese.install import install_command
from mentalese.recipe import Recipe
from mentalese.registry import families

NAME = "README.md"
_FIGURES = {
    "perplexity": "{:,.2f}",
    "bits_per_byte": "{:.4f}",
    "bits_per_byte_with_ends": "{:.4f}",
    "accuracy": "{:.1%}",
    "exact_match": "{:.1%}",
    "f1": "{:.1%}",
    "pass_at_k": "{:.1%}",
    "unfinished": "{:,}",
}
"""Figures of an evaluation, as a card formats them."""
_LIKELIHOODS = ("perplexity", "bits_per_byte", "bits_per_byte_with_ends")


def model_card(recipe: Recipe, about: dict[str, Any]) -> str:
    """Return the card of a trained model.

    Args:
        about: fields of `result.json`: `parameters`, `best_step`, `tokens`, `seed`, `data_hash`, `commit`, `versions`,
            the evaluation `validation`, and after the run `test` and `samples`.
    """
    evaluations = {split: about[split] for split in ("validation", "test") if split in about}
    parts = [
        f"---\n{yaml.safe_dump(front_matter(recipe), sort_keys=False)}---",
        f"# {recipe.name}\n\n{recipe.description[:1].upper()}{recipe.description[1:].rstrip('.')}.",
        _table(("", ""), _facts(recipe, about)),
        "## Load it\n\n" + _loading(recipe, about.get("samples") or [{"prompt": "Once upon a time"}]),
        "## Figures\n\n" + "\n\n".join(_evaluation(split, figure) for split, figure in evaluations.items()),
        "## Limits\n\n" + _limits(about, evaluations),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(recipe: Recipe) -> dict[str, Any]:
    """Return the fields that the hub reads, without the license, which is unknown."""
    family, init = _family(recipe), recipe.train.init or ""
    fields: dict[str, Any] = {
        "library_name": "transformers" if family is None else "mentalese",
        "pipeline_tag": "text-generation",
        "tags": ["mentalese", recipe.model["model_type"], *([family] if family else [])],
    }
    fields["tags"] = list(dict.fromkeys(fields["tags"]))
    if match := re.match(r"(?:[\w-]+:)?hub:([^:@]+)", recipe.data.source):  # also svamp:hub:NAME
        fields["datasets"] = [match[1]]
    if init.startswith("hub:"):
        fields["base_model"] = init.removeprefix("hub:")
    return fields


def _facts(recipe: Recipe, about: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the first table."""
    train, parameters, commit = recipe.train, about["parameters"], about["commit"]
    counted = f"{parameters['total']:,}, {parameters['non_embedding']:,} without embeddings"
    if parameters["trained"] != parameters["total"]:
        counted += f"; {parameters['trained']:,} trained"
    rows = [
        ("recipe", f"`{recipe.name}`; all of it is in `mentalese.json`"),
        ("paper", recipe.paper or ""),
        ("text", f"`{_short(recipe.data.source)}`, hash `{about['data_hash'][:16]}`"),
        ("tokenizer", f"`{_short(before_preparing(recipe.data).tokenizer)}`"),
        ("parameters", counted),
        ("started from", f"`{_short(train.init)}`" if train.init else ""),
        ("adapters", f"rank {train.lora_rank}, merged; apart in `adapter/`" if train.lora_rank else ""),
        ("trained for", f"{about['best_step']:,} steps, {about['tokens']:,} tokens; seed {about['seed']}"),
        ("made with", f"mentalese {about['versions']['mentalese']}, {f'commit `{commit}`' if commit else 'no commit'}"),
    ]
    return [(name, text) for name, text in rows if text]


def _loading(recipe: Recipe, samples: Sequence[dict[str, Any]]) -> str:
    remote = "" if _family(recipe) is None else ", trust_remote_code=True"
    needed = "" if _family(recipe) is None else f"The model's code is in a package: `{install_command()}`.\n\n"
    return f"""{needed}```python
import mentalese

model = mentalese.load("hub:NAME")  # or this folder
print(model.generate({json.dumps(samples[0]["prompt"], ensure_ascii=False)}))
```

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("NAME"{remote})
```"""


def _evaluation(split: str, figure: dict[str, Any]) -> str:
    """Return a split's figures, each with its estimator, and the protocol they share."""
    protocol = figure["protocol"]
    estimator = protocol.get("estimator", "exact")
    rows = [
        (
            f"{split} {name.replace('_', ' ')}",
            form.format(figure[name]),
            estimator if name in _LIKELIHOODS else "answers",
        )
        for name, form in _FIGURES.items()
        if isinstance(figure.get(name), int | float)
    ]
    said = [f"{name.replace('_', ' ')}: {value}" for name, value in protocol.items() if value is not None]
    counts = [f"{figure[name]:,} {name}" for name in ("tokens", "questions") if isinstance(figure.get(name), int)]
    table = _table(("figure", "value", "estimator"), rows)
    return f"{table}\n\nProtocol of {split} ({', '.join(counts)}):\n\n" + "\n".join(f"- {line}" for line in said)


def _limits(about: dict[str, Any], evaluations: Mapping[Any, dict[str, Any]]) -> str:
    lines = [
        f"One run, seed {about['seed']}: how far figures move from seed to seed was not measured.",
        f"A research model of {about['parameters']['total']:,} parameters after {about['tokens']:,} tokens: expect "
        "little of it outside text like its own. Nothing was done to make what it says true or harmless.",
        "Perplexities of other protocols or tokenizers do not compare. Bits per byte do across tokenizers.",
    ]
    estimators = {figure["protocol"].get("estimator", "exact") for figure in evaluations.values()} - {"exact"}
    lines += [f"`{name}` is not the likelihood of one autoregressive pass." for name in sorted(estimators)]
    if "test" not in evaluations:
        lines.append("The run was not over when this was written: the test split has not been scored.")
    return "\n".join(f"- {line}" for line in lines)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _family(recipe: Recipe) -> str | None:
    """Return the family that the model's class belongs to; `None` for transformers' own."""
    kind = recipe.model["model_type"]
    return next((name for name, family in families().items() if kind in family.classes), None)


def _short(place: str) -> str:
    """Return a source, tokenizer or model without its local folders: `file:/home/me/a.txt` -> `file:a.txt`."""
    kind, colon, rest = place.partition(":")
    if kind == "hub" or rest.startswith("hub:") or (colon and "/" not in rest):
        return place
    return kind + colon + PurePath(rest).name if colon else PurePath(place).name
