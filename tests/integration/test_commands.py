"""Whole commands, as a user types them: what they print, what they leave behind, and how they refuse bad input."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from mentalese import cli, get_recipe
from mentalese.compare.jobs import Job
from mentalese.compare.jobs import run_jobs as jobs_of_this_process
from mentalese.models.checkpoints import saved_recipe
from mentalese.recipe import TrainConfig
from mentalese.registry import families
from mentalese.suite import demo
from mentalese.suite.demo_models import DEMO, DemoModel
from support import keep_changes, tiny_recipes

SMALL = """
    --data.tokenizer bpe:512 --evaluation.max-documents 4 --evaluation.sample-tokens 8 --train.device cpu
""".split()  # noqa: SIM905
ROWS = ["--layout.sequence-length", "64", "--layout.batch-size", "4"]
STREAMS = ["--layout.tokens-per-batch", "400", "--layout.max-sentences", "6"]


def mentalese(*arguments: str | Path) -> int:
    return cli.main([str(argument) for argument in arguments])


def asks(name: str) -> bool:
    return get_recipe(name).layout.questions


def small(name: str, corpus: Path) -> list[str]:
    """Options of three steps of a `tiny` recipe on texts, or on questions where it reads such."""
    if not asks(name):
        sizes = STREAMS if get_recipe(name).layout.sequential else ROWS
        return ["--data", f"file:{corpus}", "--train.steps", "3", *SMALL, *sizes]
    options = ["--data", f"file:{corpus.with_name('questions.jsonl')}", "--train.steps", "3", *SMALL]
    return [*options, *ROWS, "--layout.sequence-length", "128"]


@pytest.fixture(scope="module", params=tiny_recipes())
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of each family's `tiny` recipe, three steps long."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert mentalese("train", request.param, "--out", out, *small(request.param, corpus)) == 0
    return out


@pytest.fixture(scope="module")
def gpt2(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "gpt2"
    arguments = ("--data", f"file:{corpus}", "--out", out, "--train.steps", "3", *SMALL, *ROWS)
    assert mentalese("train", "gpt2/tiny", *arguments) == 0
    return out


def test_a_run_leaves_its_whole_story(run: Path) -> None:
    assert {"config.json", "metrics.jsonl", "model", "result.json"} <= {path.name for path in run.iterdir()}
    result, config = (json.loads((run / f"{name}.json").read_text()) for name in ("result", "config"))
    assert result["steps"] == 3
    assert result["fingerprint"] == config["fingerprint"]
    assert result["test"]["perplexity"] > 1
    assert config["recipe"]["train"]["steps"] == 3
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 3


def test_a_trained_model_opens_with_the_auto_classes(run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert len(tokenizer) == model.config.vocab_size
    recipe = saved_recipe(str(run))
    assert recipe is not None
    inputs = recipe.layout.encode_prompts(["She had a son."], tokenizer, recipe.data)
    assert model.generate(**inputs, max_new_tokens=4, min_new_tokens=4).shape[1] == inputs["input_ids"].shape[1] + 4


def test_a_finished_run_resumes_to_its_own_result(run: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = json.loads((run / "config.json").read_text())["recipe"]["name"]
    arguments = ("train", name, "--out", run, *small(name, corpus))
    test = json.loads((run / "result.json").read_text())["test"]
    shown = f"test accuracy {test['accuracy']:.1%}" if asks(name) else f"test perplexity {test['perplexity']:.2f}"
    assert mentalese(*arguments, "--resume") == 0
    assert shown in capsys.readouterr().out
    assert mentalese(*arguments) == 2
    assert "--resume" in capsys.readouterr().err


def test_eval_finds_what_training_found(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "eval.json"
    assert mentalese("eval", run, "--tasks", "perplexity", "--out", out) == 0
    result = json.loads((run / "result.json").read_text())["test"]["perplexity"]
    assert json.loads(out.read_text())["perplexity"]["perplexity"] == pytest.approx(result, rel=1e-6)
    assert f"{result:,.4f}" in capsys.readouterr().out


@pytest.fixture(scope="module")
def bubbles(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bubbles") / "run"
    options = ("--data", f"file:{corpus}", "--out", out, "--train.steps", "3", *SMALL)
    assert mentalese("train", "thoughtbubbles/tiny", *options) == 0
    return out


@pytest.mark.slow
def test_eval_says_by_which_estimator_it_scored(
    bubbles: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, names = tmp_path / "eval.json", ["block-not-causal", "causal", "prefix-dynamic"]
    assert mentalese("eval", bubbles, "--estimators", ",".join(names), "--documents", "1", "--out", out) == 0
    results, table = json.loads(out.read_text())["perplexity"], capsys.readouterr().out
    assert list(results) == names
    for name, result in results.items():
        assert result["protocol"]["estimator"] == name
        assert result["protocol"]["documents"] == 1
        assert f"{name}.estimator" in table
    assert mentalese("eval", gpt2, "--estimators", "exact", "--documents", "1") == 0
    assert mentalese("eval", bubbles, "--config", "selection=causal", "--documents", "1", "--out", out) == 0
    other = json.loads(out.read_text())["perplexity"]
    assert other["protocol"]["estimator"] == "causal"
    assert other["nll"] == pytest.approx(results["causal"]["nll"], abs=1e-6)
    for model, options, says in (
        (gpt2, ["--estimators", "causal"], "this model has exact"),
        (bubbles, ["--config", "selection"], "use FIELD=VALUE"),
        (bubbles, ["--config", "selektion=causal"], "no such field; did you mean 'selection'"),
        (bubbles, ["--config", "selection=best"], "selection is 'best'"),
        (bubbles, ["--config", "fork_layers=[2, 3]"], "does not fit the weights"),
        (bubbles, ["--config", "hidden_size=32"], "set fields that change no sizes"),
        (bubbles, ["--tasks", "reversal", "--documents", "1"], "documents is 1: reversal cannot use it, remove it"),
    ):
        assert mentalese("eval", model, *options) == 2
        refusal(capsys.readouterr().err, says)


@pytest.mark.parametrize("selection", ["block", "causal"])
def test_generate_takes_other_values_of_config_fields(
    selection: str, bubbles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the paper's selection by whole passes, with a causal one by the cache."""
    options = ("--prompt", "The first", "--max-new-tokens", "5", "--config", f"selection={selection}")
    assert mentalese("generate", bubbles, *options) == 0
    assert capsys.readouterr().out.startswith("The first")


def test_eval_scores_another_text_in_the_models_own_tokens(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(
        "".join(json.dumps({"text": f"The river number {i} is long. It is old."}) + "\n" for i in range(60))
    )
    for split in ("validation", "test"):
        assert mentalese("eval", gpt2, "--data", f"file:{other}", "--split", split) == 0
        assert "bits_per_byte" in capsys.readouterr().out


def test_diff_scores_both_models_on_the_same_tokens(
    run: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, config = tmp_path / "paired.json", json.loads((run / "config.json").read_text())
    other = run if asks(config["recipe"]["name"]) else gpt2
    assert mentalese("diff", run, other, "--out", out) == 0
    paired = json.loads(out.read_text())
    for name, folder in (("nll", run), ("reference_nll", other)):
        assert paired[name] == pytest.approx(json.loads((folder / "result.json").read_text())["test"]["nll"], abs=1e-5)
    assert paired["overall"]["difference"] == pytest.approx(paired["nll"] - paired["reference_nll"], abs=1e-6)
    assert f"{paired['overall']['difference']:+.4f}" in capsys.readouterr().out


def test_generate_goes_on_with_every_prompt(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mentalese("generate", run, "--prompt", "She had a son.", "The first", "--max-new-tokens", "5") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("She had a son.")
    assert "\n\nThe first" in shown
    file = tmp_path / "prompts.txt"
    file.write_text("One\nTwo\n")
    sampled = ("generate", run, "--file", file, "--temperature", "0.9", "--top-k", "20", "--max-new-tokens", "5")
    texts = []
    for seed in ("1", "1"):
        assert mentalese(*sampled, "--seed", seed) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    beams = mentalese("generate", run, "--prompt", "One", "--num-beams", "2", "--max-new-tokens", "5")
    left_to_right = saved_recipe(run).model["model_type"] != "masked_diffusion"  # else there is nothing to search
    assert beams == (0 if left_to_right else 2)
    assert ("num_beams" in capsys.readouterr().err) == (not left_to_right)


def test_generate_infers_thoughts_as_asked(
    corpus: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By models whose generation has such settings; progress is on standard error alone."""
    run = tmp_path / "run"
    assert mentalese("train", "latent_thought/tiny", "--out", run, *small("latent_thought/tiny", corpus)) == 0
    monkeypatch.setattr("mentalese.screen.SECONDS_BETWEEN_LINES", 0.0)
    prompt = ("--prompt", "She had a son.", "--max-new-tokens", "6", "--fast-steps", "3", "--posterior-seed", "2")
    capsys.readouterr()
    assert mentalese("generate", run, *prompt, "--infer-every", "2") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("She had a son.")
    assert shown.err.count("Inferring thoughts: ") == 3
    for model, options, says in (
        (gpt2, ["--fast-steps", "3"], "--fast-steps is 3: this model infers no thoughts"),
        (gpt2, ["--infer-every", "3"], "--infer-every is 3: this model infers no thoughts"),
        (gpt2, ["--posterior-seed", "3"], "--posterior-seed is 3: this model infers no thoughts"),
        (run, ["--fast-steps", "0"], "fast_steps is 0: it should be greater than"),
        (run, ["--infer-every", "0"], "infer_every is 0: it should be greater than"),
    ):
        assert mentalese("generate", model, "--prompt", "One", *options) == 2
        refusal(capsys.readouterr().err, says)


def test_scores_and_samples_take_fast_steps_as_asked(
    corpus: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "result.json"
    assert mentalese("train", "latent_thought/tiny", "--out", run, *small("latent_thought/tiny", corpus)) == 0
    asked = ("--config", "fast_steps=3", "--out", out)
    assert mentalese("eval", run, "--documents", "1", "--estimators", "elbo-bound,fitted-draw", *asked) == 0
    scored = json.loads(out.read_text())["perplexity"]
    inferred = [scored[name]["protocol"]["inference"] for name in ("elbo-bound", "fitted-draw")]
    assert [(about["fast_steps"], about["noise"]) for about in inferred] == [(3, "resampled"), (3, "fixed")]
    nll = scored["elbo-bound"]["nll"]
    assert mentalese("eval", run, "--documents", "1", "--config", "fast_steps=6", "--out", out) == 0
    assert json.loads(out.read_text())["perplexity"]["nll"] != nll
    samples = ("--judge", gpt2, "--samples", "2", "--sample-tokens", "4", "--decoding", "greedy")
    assert mentalese("sample", run, *samples, *asked) == 0
    capsys.readouterr()
    for command, options in (("eval", ()), ("sample", samples), ("answer", ())):
        assert mentalese(command, gpt2, *options, "--config", "fast_steps=3") == 2
        refusal(capsys.readouterr().err, "config.fast_steps: gpt2 has no such field")
    assert mentalese("eval", run, "--config", "fast_steps=0") == 2
    refusal(capsys.readouterr().err, "fast_steps is 0: it should be greater than")


def test_an_elbo_that_is_not_finite_stops_a_run_in_one_sentence(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = [*small("latent_thought/tiny", corpus), "--model.fast-learning-rate", "1e20"]
    assert mentalese("train", "latent_thought/tiny", "--out", out, *arguments) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("mentalese: error: the ELBO of row 0 is nan at fast step 1: lower model.fast_learning_rate")
    assert not (out / "result.json").exists()
    assert not (out / "model").exists()


def test_one_prompt_streams_on_a_terminal(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("generate", run, "--prompt", "She had a son.", "--max-new-tokens", "5", "--greedy")
    assert mentalese(*arguments) == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert mentalese(*arguments) == 0
    assert capsys.readouterr().out == plain


@pytest.mark.slow
def test_the_demo_ends_in_a_page_of_what_each_model_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And shows each family of the five papers."""
    monkeypatch.chdir(tmp_path)
    trained: list[str] = []

    def short(shown: DemoModel) -> DemoModel:
        name, _, options = shown.task.spec.partition(":")
        spec = ",".join([f"{name}:count=100", *(option for option in options.split(",") if "count" not in option)])
        data = dataclasses.replace(shown.recipe.data, source=f"builtin:{spec}")
        recipe = dataclasses.replace(shown.recipe, data=data, train=TrainConfig(steps=2, device="cpu"), phases=())
        recipe = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, max_documents=2))
        return dataclasses.replace(shown, task=dataclasses.replace(shown.task, spec=spec), recipe=recipe)

    write_pretrained = demo._pretrained

    def pretrained(out: Path) -> Any:
        assert out.is_dir(), "its page is written there"
        return write_pretrained(out)

    def run_jobs(jobs: list[Job], *, count: int) -> list[Any]:
        trained.extend(job.recipe.name for job in jobs if not (job.folder / "result.json").is_file())
        return jobs_of_this_process(jobs)

    monkeypatch.setattr("mentalese.suite.demo.SCORED", 4)
    monkeypatch.setattr("mentalese.suite.demo.TRIED", 4)
    monkeypatch.setattr("mentalese.suite.demo.DEMO", {name: short(shown) for name, shown in DEMO.items()})
    monkeypatch.setattr("mentalese.suite.demo.run_jobs", run_jobs)
    monkeypatch.setattr("mentalese.suite.demo._pretrained", pretrained)
    assert mentalese("demo") == 0
    shown = capsys.readouterr().out
    found = json.loads(Path("runs/demo/demo.json").read_text())["models"]
    page = Path("runs/demo/index.html").read_text()
    with_models = {name for name, family in families().items() if family.classes}
    assert {model["family"] for model in found} == with_models - {
        "baselines",
        "codi",
        "colar",
        "looped",
        "masked_diffusion",
    }
    for model in found:
        assert model["title"] in page
        assert f'href="{model["page"]}"' in page
        assert Path("runs/demo", model["page"]).read_text().startswith("<!doctype html>")
        assert set(model["scores"]) == {"own thoughts", "no thoughts", "another text's"}
        digits = ".1%" if model["levels"]["unit"] == "accuracy" else ".3f"
        assert f"{model['scores']['own thoughts']:{digits}}" in shown
    assert len(trained) == len(found)
    name, models = "smollm2-words-colar", tmp_path / "cache/models"
    monkeypatch.setenv("MENTALESE_CACHE", str(models.parent))
    monkeypatch.setattr("mentalese.suite.demo.ASKED", 4)
    monkeypatch.setattr("mentalese.suite.demo.packaged_models", lambda: {name: models / name})
    shutil.copytree("runs/demo/composition/model", models / name)
    assert mentalese("demo") == 0
    assert len(trained) == len(found), "finished runs are taken as they are"
    assert json.loads(Path("runs/demo/demo.json").read_text())["pretrained"] is None, "its base is not in the cache"
    (models / "smollm2").mkdir()
    assert mentalese("demo") == 0
    page = Path("runs/demo/index.html").read_text()
    assert page.index(f'href="{name}.html"') < page.index(f'href="{found[0]["page"]}"')
    assert Path("runs/demo", f"{name}.html").read_text().startswith("<!doctype html>")


CURRICULA = {
    "yaml": """
base: coconut/tiny
train: {steps: 3, device: cpu}
phases:
  - {start: 1, layout: {stage: 1}}
  - {start: 2, layout: {stage: 2}, reset_optimizer: true}
""",
    "toml": """
base = "thought_gestalt/tiny"
train = { steps = 3, device = "cpu" }
[[phases]]
start = 1
model = { eos_weight = [0.05, 0.5] }
""",
    "json": json.dumps(
        {
            "model": {"model_type": "gpt2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            "train": {"steps": 3, "device": "cpu"},
            "phases": [{"start": 2, "reset_optimizer": True}],
        }
    ),
}


@pytest.mark.parametrize("suffix", CURRICULA)
def test_a_curriculum_in_a_file_trains(
    suffix: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / f"mine.{suffix}", tmp_path / "run"
    path.write_text(CURRICULA[suffix])
    options = small({"yaml": "coconut/tiny", "toml": "thought_gestalt/tiny"}.get(suffix, "gpt2/tiny"), corpus)
    assert mentalese("train", path, "optimizer.learning_rate=2e-3", "--out", out, *options) == 0
    said = capsys.readouterr()
    assert "mine: test" in said.out
    late = "mine: the run ends before 2 of its 2 phases begin, from steps 1 (stage=1) on"
    assert (late in said.err) == (suffix == "yaml"), "an epoch begins after more than three steps"
    config = json.loads((out / "config.json").read_text())["recipe"]
    assert config["name"] == "mine"
    assert config["optimizer"]["learning_rate"] == 2e-3
    assert len(config["phases"]) == CURRICULA[suffix].count("start")
    assert json.loads((out / "result.json").read_text())["steps"] == 3
    assert mentalese("train", path, "train.log_every=1", "optimizer.learning_rate=2e-3", "--out", out, *options) == 2
    refusal(capsys.readouterr().err, "--resume")


def test_json_is_all_that_is_printed(
    gpt2: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str | Path) -> Any:
        assert mentalese(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    capsys.readouterr()
    perplexity = json.loads((gpt2 / "result.json").read_text())["test"]["perplexity"]
    assert printed("eval", gpt2)["perplexity"]["perplexity"] == pytest.approx(perplexity, rel=1e-6)
    assert printed("diff", gpt2, gpt2)["overall"]["difference"] == 0
    [generated] = printed("generate", gpt2, "--prompt", "She had", "--max-new-tokens", "3")
    assert generated["prompt"] == "She had"
    assert generated["text"].startswith("She had")
    mine = tmp_path / "wide.yaml"
    mine.write_text("base: gpt2/tiny\nmodel: {n_inner: 64}\n")
    options = ("--data", f"file:{corpus}", "--out", tmp_path / "runs", "--train.steps", "2", *SMALL)
    comparison = printed("compare", "gpt2/tiny", mine, *options)
    assert [row["name"] for row in comparison["rows"]] == ["gpt2/tiny", "wide"]
    assert comparison == json.loads((tmp_path / "runs" / "compare.json").read_text())


def test_a_prepared_store_trains(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = tmp_path / "store", tmp_path / "run"
    assert mentalese("data", "prepare", f"file:{corpus}", "--out", store, "--tokenizer", "bpe:512") == 0
    assert f"--data store:{store}" in capsys.readouterr().out
    small = [*SMALL[2:], "--train.steps", "2"]  # a store has its tokenizer
    assert mentalese("train", "gpt2/tiny", "--data", f"store:{store}", "--out", out, *small) == 0


BAD_TRAINING = {
    "a missing file": ("--data file:missing.jsonl", "missing.jsonl does not exist"),
    "an empty file": ("--data file:empty.txt", "empty.txt is empty"),
    "a binary file": ("--data file:binary.txt", "binary"),
    "a broken gzip": ("--data file:broken.jsonl.gz", "broken.jsonl.gz cannot be read"),
    "a column that is not there": ("--data file:good.jsonl --data.text-column body", "data.text_column is 'body'"),
    "no such source": ("--data builtin:stdlip", "did you mean 'stdlib'"),
    "no such tokenizer": ("--data file:good.jsonl --data.tokenizer nowhere", "nowhere"),
    "a size that heads do not divide": ("--data file:good.jsonl --model.hidden-size 66", "66"),
    "a size of nothing": ("--data file:good.jsonl --model.hidden-size 0", "n_embd is 0: set 1 or more"),
    "too long for the model": ("--data file:good.jsonl --layout.sequence-length 512", "512"),
    "a tracker that is not there": ("--data file:good.jsonl --train.trackers wandbb", "did you mean 'wandb'"),
    "a file as the run's folder": ("--data file:good.jsonl --out good.jsonl", "is a file, use a folder"),
    "a folder that is no run": ("--data file:good.jsonl --out full", "contains no run"),
}


@pytest.fixture
def inputs(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with good and bad files."""
    shutil.copy(corpus, tmp_path / "good.jsonl")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("private")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", BAD_TRAINING)
def test_bad_input_is_refused_and_leaves_nothing_behind(
    name: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, says = BAD_TRAINING[name]
    before = sorted(inputs.rglob("*"))
    short = "--train.steps 2 --data.tokenizer bpe:512"
    if "--data.tokenizer" in options:
        short = "--train.steps 2"
    assert cli.main(["train", "gpt2/tiny", *short.split(), *options.split()]) == 2
    refusal(capsys.readouterr().err, says)
    assert sorted(inputs.rglob("*")) == before


def refusal(stderr: str, says: str) -> None:
    """The last line is one sentence; only progress may stand before it."""
    *progress, last = stderr.splitlines()
    assert last.startswith("mentalese: error: ")
    assert says in last
    assert not any("Traceback" in line or "error" in line for line in progress)


def test_a_folder_with_another_run_is_refused(gpt2: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in gpt2.rglob("*")}
    arguments = ("train", "gpt2/tiny", "--data", f"file:{corpus}", "--out", gpt2, *SMALL)
    assert mentalese(*arguments, "--train.steps", "4") == 2
    refusal(capsys.readouterr().err, "train.steps was 3 and is 4")
    assert mentalese(*arguments, "--train.steps", "4", "--resume") == 2
    refusal(capsys.readouterr().err, "train.steps was 3 and is 4")
    assert {path: path.stat().st_mtime_ns for path in gpt2.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", ""], "prompts[0] is ''"),
        (["--prompt", "fine", "  "], "prompts[1] is '  '"),
        (["--prompt", "word " * 300], "the model's context is"),
        (["--prompt", "fine", "--max-new-tokens", "300"], "the model's context is"),
        (["--prompt", "fine", "--max-new-tokens", "0"], "max_new_tokens is 0"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused(
    arguments: list[str], says: str, gpt2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mentalese("generate", gpt2, *arguments) == 2
    refusal(capsys.readouterr().err, says)


@pytest.mark.parametrize("command", ["eval {}", "generate {} --prompt hello"])
def test_a_folder_without_a_model_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command.format(tmp_path / "nowhere").split()) == 2
    refusal(capsys.readouterr().err, "contains no model")


def test_an_unknown_task_is_refused(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mentalese("eval", gpt2, "--tasks", "perplexity,perplexitty") == 2
    refusal(capsys.readouterr().err, "did you mean 'perplexity'")


def test_tokenizer_that_does_not_match_checkpoint_is_refused(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mentalese.data.sources import open_source
    from mentalese.data.tokenizers import open_tokenizer

    model = tmp_path / "model"
    shutil.copytree(gpt2 / "model", model)
    open_tokenizer("bpe:600", open_source("builtin:families"), cache=tmp_path, show=False).save_pretrained(model)
    assert mentalese("generate", model, "--prompt", "hello") == 2
    refusal(capsys.readouterr().err, "has changed since it was saved")
    keep_changes(model / "mentalese.json")
    assert mentalese("generate", model, "--prompt", "hello") == 2
    refusal(capsys.readouterr().err, "the tokenizer")


def test_models_of_other_sizes_are_not_matched(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "comparison"
    small = [*SMALL, "--train.steps", "2"]
    arguments = ("compare", "gpt2/tiny", "gpt2/340k", "--match", "params", "--data", f"file:{corpus}", "--out", out)
    assert mentalese(*arguments, *small) == 2
    refusal(capsys.readouterr().err, "43.4% fewer than gpt2/tiny has (599936)")
    assert not out.exists()
