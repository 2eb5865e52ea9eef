"""The card of a saved model says where it comes from and what its figures are; `push` uploads both."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import yaml
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

import mentalese
from mentalese import DataConfig, Recipe, get_recipe
from mentalese.cli import main
from mentalese.data.store import prepare
from mentalese.network import transport_error
from mentalese.training.loop import train
from mentalese.training.model_card import model_card
from support import shrink


def small(name: str, corpus: Path) -> Recipe:
    return shrink(get_recipe(name), corpus, steps=2, eval_every=1)


@pytest.fixture(scope="module", params=["gpt2/tiny", "thoughtbubbles/tiny", "coconut/tiny"])
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train(small(request.param, corpus), out, show=False)
    return out


def card(run: Path) -> tuple[dict[str, Any], str]:
    """The front matter and the text."""
    _, matter, text = (run / "model" / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(matter), text


def test_a_run_leaves_a_card_with_its_facts(run: Path, corpus: Path) -> None:
    result, (matter, text) = json.loads((run / "result.json").read_text()), card(run)
    recipe = Recipe.from_dict(result["config"])
    for fact in (
        recipe.name,
        f"`{recipe.data.source.partition(':')[0]}:{Path(recipe.data.source).name}`, hash `{result['data_hash'][:16]}`",
        recipe.data.tokenizer,
        f"{result['parameters']['total']:,}, {result['parameters']['non_embedding']:,} without embeddings",
        f"{result['best_step']} steps, ",
        f"mentalese {mentalese.__version__}, ",
        result["commit"] or "no commit",
        "One run, seed 0",
    ):
        assert fact in text, fact
    assert str(corpus.parent) not in text  # folders of this machine concern nobody
    assert "license" not in matter
    assert "mentalese" in matter["tags"]
    huggingface_hub.ModelCard((run / "model" / "README.md").read_text())


def test_the_card_names_the_tokenizer_of_a_prepared_text(run: Path, corpus: Path, tmp_path: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    prepare(DataConfig(source=f"file:{corpus}", tokenizer="bpe:320"), out=tmp_path / "store", show=False)
    data = DataConfig(source=f"store:{tmp_path / 'store'}")
    text = model_card(dataclasses.replace(Recipe.from_dict(result["config"]), data=data), result)
    assert "| tokenizer | `bpe:320` |" in text


def test_every_figure_has_its_value_protocol_and_estimator(run: Path) -> None:
    result, (_, text) = json.loads((run / "result.json").read_text()), card(run)
    for split in ("validation", "test"):
        figure = result[split]
        estimator = figure["protocol"]["estimator"]
        assert f"| {split} perplexity | {figure['perplexity']:,.2f} | {estimator} |" in text
        if "accuracy" in figure:
            assert f"| {split} accuracy | {figure['accuracy']:.1%} | answers |" in text
        for name, value in figure["protocol"].items():
            if value is not None:
                assert f"- {name.replace('_', ' ')}: {value}" in text
    hedge = "is not the likelihood of one autoregressive pass"
    assert (hedge in text) == (result["test"]["protocol"]["estimator"] != "exact")


def test_its_code_opens_the_model(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = card(run)[1]
    own = json.loads((run / "model" / "config.json").read_text())["model_type"] != "gpt2"
    assert ("trust_remote_code=True" in text) == ("pip install 'mentalese @" in text) == own
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(codes) == 2
    for code in codes:
        exec(code.replace("hub:NAME", str(run / "model")).replace("NAME", str(run / "model")), {})


def test_unfinished_run_states_that_its_test_is_not_scored(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mentalese.training.loop import Run

    monkeypatch.setattr(Run, "_finish", lambda self: {})
    train(small("gpt2/tiny", corpus), tmp_path / "run", show=False)
    text = card(tmp_path / "run")[1]
    assert "validation perplexity" in text
    assert "test perplexity" not in text
    assert "the test split has not been scored" in text


@pytest.mark.parametrize("place", [":wikitext-2-raw-v1", "@refs/convert/parquet", "@main:wikitext-2-raw-v1:train[:9]"])
def test_the_front_matter_names_sets_and_bases_of_the_hub(run: Path, corpus: Path, place: str) -> None:
    result = json.loads((run / "result.json").read_text())
    recipe = Recipe.from_dict(result["config"])
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, source=f"hub:Salesforce/wikitext{place}"),
        train=dataclasses.replace(recipe.train, init="hub:openai-community/gpt2", lora_rank=8),
    )
    text = model_card(recipe, result)
    matter = yaml.safe_load(text.split("---\n")[1])
    assert matter["datasets"] == ["Salesforce/wikitext"]
    assert matter["base_model"] == "openai-community/gpt2"
    assert "rank 8, merged; apart in `adapter/`" in text


# -- push --------------------------------------------------------------------------------------------------------------


class Hub:
    """What `push` asks of `HfApi`, kept for the test; `fails` is raised where it is named."""

    def __init__(self, **fails: Exception) -> None:
        self.fails = fails
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self) -> Hub:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> str:
            if name in self.fails:
                raise self.fails[name]
            self.calls.append((name, {"arguments": arguments} | options))
            return "https://example.org/me/mine"

        return call


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    return made


def test_a_dry_run_lists_files_and_card_and_uploads_nothing(run: Path, hub: Hub, capsys: Any) -> None:
    assert main(["push", str(run), "me/mine", "--dry-run"]) == 0
    said = capsys.readouterr().out
    for file in (run / "model").iterdir():
        assert file.name in said
        assert f"{file.stat().st_size:,}" in said
    assert (run / "model" / "README.md").read_text() in said
    assert "Nothing was uploaded to me/mine" in said
    assert not hub.calls


def test_push_uploads_the_model_folder(run: Path, hub: Hub, capsys: Any) -> None:
    assert main(["push", str(run), "me/mine", "--private"]) == 0
    asked, made, sent = hub.calls
    assert asked[0] == "whoami"
    assert made == ("create_repo", {"arguments": ("me/mine",), "private": True, "exist_ok": True})
    assert sent[0] == "upload_folder"
    assert sent[1]["repo_id"] == "me/mine"
    assert sent[1]["folder_path"] == run / "model"
    assert "me/mine is at https://example.org/me/mine" in capsys.readouterr().out


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("POST", "https://example.org"))


@pytest.mark.parametrize("run", ["gpt2/tiny"], indirect=True)
@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ({"whoami": LocalTokenNotFoundError("no token")}, "(no token), run `hf auth login`"),
        (
            {"whoami": OfflineModeIsEnabled("offline mode is enabled")},
            "(offline mode is enabled), connect and try again",
        ),
        (
            {"create_repo": transport_error()("no route")},
            "(no route), connect and try again",
        ),
        (
            {"upload_folder": HfHubHTTPError("403 Forbidden", response=response(403))},
            "(403 Forbidden), use a token that may write there",
        ),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_sentence(
    fails: dict[str, Exception], says: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub(**fails))
    assert main(["push", str(run), "me/mine"]) == 2
    assert f"REPO is 'me/mine': the upload failed {says}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["RUN"], "Missing from mentalese push"),
        (["RUN", "my mine/!"], "REPO is 'my mine/!': use NAME/NAME"),
        (["nowhere", "me/mine"], "MODEL is 'nowhere': it contains no model"),
    ],
)
def test_what_cannot_be_pushed_says_why(words: list[str], says: str, run: Path, hub: Hub, capsys: Any) -> None:
    assert main(["push", *(word.replace("RUN", str(run)) for word in words)]) == 2
    assert says in capsys.readouterr().err
    assert not hub.calls


def test_the_best_model_is_not_pushed_in_a_checkpoints_place(run: Path, hub: Hub, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    checkpoint = tmp_path / "checkpoints" / "step-3"
    checkpoint.mkdir(parents=True)
    for name in (".metadata", "info.json", "checksums.json"):
        (checkpoint / name).touch()
    assert main(["push", str(checkpoint), "me/mine"]) == 2
    assert "it is a checkpoint and has no card" in capsys.readouterr().err
    assert not hub.calls


@pytest.mark.parametrize(("file", "says"), [("README.md", "has no card, write"), ("model.safetensors", "has changed")])
def test_model_without_card_or_with_other_weights_is_refused(
    file: str, says: str, run: Path, hub: Hub, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "model" / file).unlink()
    assert main(["push", str(tmp_path / "model"), "me/mine"]) == 2
    assert says in capsys.readouterr().err
    assert not hub.calls
