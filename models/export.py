"""Writes the models of this package: from the runs of a suite, of each mechanism that is better than its twin and its
controls, and on text of all mechanisms and GPT-2, the best seed by validation; or from one run.

    python models/export.py runs/suite [--task recall]
    python models/export.py runs/families --name thought_gestalt-families

Parameters are stored in bfloat16, buffers as they are. `config.json` says float32, which is what they are loaded as.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mentalese import load
from mentalese.compare.compare import run_folder
from mentalese.files import RECORD, read_json, sealed, sha256, whole_folder, write_json
from mentalese.models.lora import WEIGHTS as ADAPTERS
from mentalese.suite.judge import verdict

MODELS = Path(__file__).parent / "mentalese_models"
WEIGHTS = "model.safetensors"


def best_seed(folder: Path, recipe: str, seeds: int) -> Path:
    """The run with the best validation score."""

    def score(run: Path) -> float:
        validation = read_json(run / "result.json")["validation"]
        return validation["accuracy"] if "accuracy" in validation else -validation["nll"]

    return max((run_folder(folder, recipe, seed) for seed in range(seeds)), key=score)


def export(run: Path, name: str, summary: str) -> None:
    """One run's model as a folder of the package."""
    saved = load(run, "cpu")
    parameters = {name for name, _ in saved.model.named_parameters()}
    with whole_folder(MODELS / name, replace=True) as folder:
        about = read_json(run / "model" / RECORD) | {"summary": summary}
        if saved.recipe is not None and saved.recipe.train.lora_rank is not None:
            _adapters(run / "model", folder, about)
        else:
            shutil.copytree(run / "model", folder, dirs_exist_ok=True)
            weights = load_file(folder / WEIGHTS)
            rounded = {key: value.to(torch.bfloat16) if key in parameters else value for key, value in weights.items()}
            save_file(rounded, folder / WEIGHTS, {"format": "pt"})
            about |= {"weights": {WEIGHTS: sha256(folder / WEIGHTS)}}
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)
        write_json(folder / RECORD, sealed(about))
        card = (folder / "README.md").read_text(encoding="utf-8")
        card = card.replace("hub:NAME", f"models:{name}").replace("  # or this folder", "")
        card = card.replace('"NAME"', '"path/to/this/folder"')
        head, loading, rest = card.partition("## Load it")
        (folder / "README.md").write_text(f"{head}{summary}\n\n{loading}{rest}", encoding="utf-8")
    print(f"{name}: {summary}")


def _adapters(model: Path, folder: Path, about: dict[str, Any]) -> None:
    """The adapters of a run and its card, without how transformers would load it; the base is not copied."""
    card = (model / "README.md").read_text(encoding="utf-8")
    before, python, rest = card.partition("```python\nfrom transformers")
    (folder / "README.md").write_text(f"{before.rstrip()}{rest[rest.index('```') + 3 :]}" if python else card)
    shutil.copy(model / "adapter" / "adapter_config.json", folder)
    with safe_open(model / "adapter" / ADAPTERS, "pt") as file:
        rounded = {key: file.get_tensor(key).to(torch.bfloat16) for key in file.keys()}  # noqa: SIM118 (not a dict)
        save_file(rounded, folder / ADAPTERS, file.metadata())  # which has the digest of the base
    about["recipe"]["train"]["adapter"] = None  # what they began as is in them
    del about["weights"]
    about["files"] = {ADAPTERS: sha256(folder / ADAPTERS)}


def export_suite(folder: Path, only: str | None) -> None:
    """The models of all tasks, or of one."""
    for task in read_json(folder / "suite.json")["tasks"]:
        for method in task["methods"] if only in (None, task["name"]) else ():
            name, seeds = method["name"].partition("/")[2], len(method["closed"]["seeds"])
            if task["name"] == "text" and (method["role"] == "mechanism" or name == "gpt2-rope"):
                summary = _text_summary(method, seeds)
            elif verdict(method, task["methods"]) == "better":
                summary = _share_summary(method, task["spec"])
            else:
                continue
            name = f"{name}-{task['name']}"
            export(best_seed(folder / task["name"], method["name"], seeds), name, summary)
            _say_of_seeds(MODELS / name / "README.md", seeds)


def _share_summary(method: dict[str, Any], spec: str) -> str:
    shares = method["closed"]
    low, high = shares["interval"]
    return (
        f"Closes {shares['mean']:.0%} ({low:.0%} to {high:.0%}, {len(shares['seeds'])} seeds) of the gap on "
        f"`{spec}`; this is the best of the seeds by validation."
    )


def _text_summary(method: dict[str, Any], seeds: int) -> str:
    score, tokens = method["score"], f"{method['tokens'] / 1e6:.1f}M"
    return (
        f"Trained on {tokens} tokens of OpenStax textbooks: {score['mean']:.3f} ± {score['std']:.3f} bits per byte "
        f"({seeds} seeds; this is the best of them by validation). With {method['parameters']:,} parameters besides "
        "the embeddings it is too small to write good text."
    )


def _say_of_seeds(card: Path, seeds: int) -> None:
    """A run's own card knows of no other seed."""
    text = card.read_text(encoding="utf-8")
    changed = text.replace(
        ": how far figures move from seed to seed was not measured.",
        f", the best of {seeds} by validation: another may do worse, see above.",
    )
    if changed == text:
        raise ValueError(f"{card}: the line on seeds was not found")
    card.write_text(changed, encoding="utf-8")


def export_run(run: Path, name: str) -> None:
    """One model, which nothing is claimed of but its score."""
    result = read_json(run / "result.json")
    config, test = result["config"], result["test"]
    score = f"perplexity {test['perplexity']:.2f} on test documents"
    if "accuracy" in test:
        score = f"{test['accuracy']:.1%} of {test['questions']} test questions are answered correctly"
    began = f"{config['train']['init']} with adapters, trained" if config["train"]["lora_rank"] else "Trained"
    summary = (
        f"{began} on `{config['data']['source']}`, {result['tokens']:,} tokens in all: {score}. "
        "One seed at one learning rate, to look at and to try; no comparison of methods."
    )
    export(run, name, summary)
    card = MODELS / name / "README.md"  # the recipe's description may tell of another length
    card.write_text(
        card.read_text(encoding="utf-8").replace(f"{result['config']['description']}.\n\n", ""), encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a suite, with suite.json and all runs, or of one run")
    parser.add_argument("--task", help="of a suite: one task only")
    parser.add_argument("--name", help="of one run: the model's")
    options = parser.parse_args()
    if (options.folder / "suite.json").is_file():
        export_suite(options.folder, options.task)
    elif options.name is None:
        parser.error("--name is missing: a single run's model needs one")
    else:
        export_run(options.folder, options.name)


if __name__ == "__main__":
    main()
