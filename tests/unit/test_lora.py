"""LoRA in the loop: what is trained and what is not, what is saved and how it opens."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import mentalese
from mentalese import DataConfig, EvaluationConfig, Recipe, TrainConfig, get_recipe
from mentalese.cli import main
from mentalese.commands.dry_run import estimate, print_dry_run
from mentalese.data.layouts import Layout, Packed, QuestionAnswer
from mentalese.data.store import prepare
from mentalese.data.tokenizers import LATENT_MARKERS, MARKERS, load_pretrained_tokenizer
from mentalese.errors import InputError
from mentalese.files import RECORD, read_json, sealed, sha256, write_json
from mentalese.models import checkpoints, grow, lora
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.checkpoints import load_model
from mentalese.training.loop import train
from mentalese.training.plan import Plan
from mentalese.training.start import start_model
from support import assert_same, checkpoint, finish, launch, losses, shrink

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks for it

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
FIELDS: dict[str, dict[str, Any]] = {
    "coconut": {"mode": "agclr"},
    "conceptlm": {"num_codes": 8, "num_segments": 4, "concept_layers": 1},
}
NEW = {"coconut": ("concept_stream.",), "conceptlm": ("concept_layers.", "concept_norm.", "codebook.", "heads.")}


def llama(tied: bool, tokenizer: Any, folder: Path) -> Path:
    """A small Llama with random weights, as another project saves it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=tied,
        max_position_embeddings=256, **SIZES,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(False, tokenizer, tmp_path_factory.mktemp("untied"))


@pytest.fixture(scope="module", params=["tied", "untied"])
def any_base(request: pytest.FixtureRequest, base: Path, tokenizer: Any, tmp_path_factory: Any) -> Path:
    return base if request.param == "untied" else llama(True, tokenizer, tmp_path_factory.mktemp("tied"))


def recipe(corpus: Path, base: Path, out: Path, family: str | None, **settings: Any) -> Recipe:
    """Adapters on the family grown on `base`, or on `base` itself."""
    start, model = base, {"model_type": "llama", "num_key_value_heads": 2, "max_position_embeddings": 256, **SIZES}
    model["tie_word_embeddings"] = AutoModelForCausalLM.from_pretrained(base).config.tie_word_embeddings
    if family is not None:
        start = out / "grown"
        command = ["grow", str(base), "--family", family, "--out", str(start)]
        if not start.exists():
            fields = [f"{name}={value}" for name, value in FIELDS[family].items()]
            assert main([*command, "--config", *fields]) == 0
        model = {"model_type": family, "backbone": model, **FIELDS[family]}
    asks = family == "coconut"
    layout: Layout = Packed(batch_size=4, sequence_length=32)
    if asks:
        layout = QuestionAnswer(batch_size=4, stage=1, stages=2, latents_per_step=1)
    trained = {"steps": 4, "init": str(start), "lora_rank": 4, "device": "cpu", "log_every": 1} | settings
    return Recipe(
        name="lora/test",
        description="",
        model=model,
        data=DataConfig(source=f"file:{corpus.with_name('questions.jsonl') if asks else corpus}", tokenizer=str(start)),
        layout=layout,
        optimizer=mentalese.OptimizerConfig(learning_rate=1e-2, warmup=1),
        train=TrainConfig(**trained),
        evaluation=EvaluationConfig(max_documents=2, sample_tokens=2, batch_size=2),
    )


def batch(recipe: Recipe) -> dict[str, Tensor]:
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    drawn = Plan(store.splits["train"], recipe, tokenizer).batch(0)
    return {name: drawn[name] for name in ("input_ids", "attention_mask") if name in drawn}


@pytest.mark.parametrize("family", ["coconut", "conceptlm", None])
def test_grown_model_trains_only_adapters_rows_and_new_parts(
    family: str | None, any_base: Path, corpus: Path, tmp_path: Path
) -> None:
    asked = recipe(corpus, any_base, tmp_path, family, checkpoint_every=4)
    result = train(asked, tmp_path / "run", show=False)
    before, tokenizer = load_model(asked.train.init or "")
    after = mentalese.load(tmp_path / "run", "cpu")
    assert type(after.model) is type(before)  # a plain model: adapters are merged
    vocabulary = tokenizer.get_vocab()
    markers = [vocabulary[name] for name in (*MARKERS, *LATENT_MARKERS.values()) if name in vocabulary]
    others = torch.tensor([i for i in range(len(tokenizer)) if i not in markers])
    weights, moved = after.model.state_dict(), set()
    for name, old in before.state_dict().items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            assert torch.equal(old[others], weights[name][others])
            assert not torch.equal(old[markers], weights[name][markers])
        elif not torch.equal(old, weights[name]):
            moved.add(name)
    new = NEW.get(family or "", ())
    assert any(name.startswith(new) for name in moved) == bool(new)
    adapted = {name for name in moved if not name.startswith(new)}
    assert len(adapted) == 2 * 7  # of each layer: q, k, v, o, gate, up, down
    assert all(name.endswith("_proj.weight") for name in adapted)
    assert result["parameters"]["trained"] < result["parameters"]["total"]
    assert result["parameters"]["total"] == sum(p.numel() for p in after.model.parameters())


@pytest.mark.parametrize("family", ["coconut", "conceptlm", None])
def test_adapter_opens_in_peft_and_equals_the_merged_model(
    family: str | None, any_base: Path, corpus: Path, tmp_path: Path
) -> None:
    asked = recipe(corpus, any_base, tmp_path, family, checkpoint_every=4, eval_every=4)
    train(asked, tmp_path / "run", show=False)
    inputs = batch(asked)
    merged = mentalese.load(tmp_path / "run", "cpu").model
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    saved = mentalese.load(tmp_path / "run" / "checkpoints" / "step-00000004", "cpu").model
    start = AutoModelForCausalLM.from_pretrained(asked.train.init)
    adapted = PeftModel.from_pretrained(start, tmp_path / "run" / "model" / "adapter").eval()
    with torch.no_grad():
        expected = merged(**inputs).logits
        untrained = load_model(asked.train.init or "")[0]
        assert not torch.allclose(expected, untrained(**inputs).logits, atol=1e-3)
        torch.testing.assert_close(plain(**inputs).logits, expected)
        torch.testing.assert_close(saved(**inputs).logits, expected)
        torch.testing.assert_close(adapted(**inputs).logits, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(adapted.merge_and_unload()(**inputs).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["coconut", "conceptlm"])
def test_growing_adapting_and_asking_is_three_commands(
    family: str, base: Path, corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    grown, out = tmp_path / "grown", tmp_path / "run"
    fields = [f"{name}={value}" for name, value in FIELDS[family].items()]
    assert main(["grow", str(base), "--family", family, "--out", str(grown), "--config", *fields]) == 0
    assert f"mentalese train {grown / 'recipe.json'} --data SOURCE" in capsys.readouterr().out
    text = corpus.with_name("questions.jsonl") if family == "coconut" else corpus
    quick = ["--layout.batch-size", "30", "--layout.sequence-length", "256", "--evaluation.sample-tokens", "2"]
    quick += ["--evaluation.max-documents", "2"]
    command = ["train", str(grown / "recipe.json"), "--data", f"file:{text}", "--out", str(out)]
    assert main([*command, "--train.lora-rank", "4", *quick]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["parameters"]["trained"] < result["parameters"]["total"]
    assert ("accuracy" in result["test"]) == (family == "coconut")
    assert main(["generate", str(out), "--prompt", "Paul has 3 apples.", "--max-new-tokens", "3"]) == 0


def test_until_they_are_trained_adapters_change_nothing(base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, "coconut")
    full = dataclasses.replace(asked, train=dataclasses.replace(asked.train, lora_rank=None))
    for name, one in (("lora", asked), ("full", full)):
        train(dataclasses.replace(one, train=dataclasses.replace(one.train, steps=1)), tmp_path / name, show=False)
    assert losses(tmp_path / "lora") == pytest.approx(losses(tmp_path / "full"), rel=1e-6)


@pytest.mark.parametrize("family", ["coconut", "conceptlm"])
def test_resumed_run_has_the_weights_of_a_whole_run(family: str, base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, family, checkpoint_every=2, keep_checkpoints=9)
    train(asked, tmp_path / "whole", show=False)
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    (stopped / "result.json").unlink()
    shutil.rmtree(stopped / "checkpoints" / "step-00000004")
    train(asked, stopped, resume=True, show=False)
    assert_same(checkpoint(stopped), checkpoint(tmp_path / "whole"))
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert_same(load_file(stopped / "model" / name), load_file(tmp_path / "whole" / "model" / name))


def test_only_trained_parameters_are_stored_with_moments(base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, "coconut", checkpoint_every=4)
    result = train(asked, tmp_path / "run", show=False)
    stored = checkpoint(tmp_path / "run")
    for wanted in (r"optimizer\..*\.exp_avg", r"model\..*"):
        sizes = [value.numel() for name, value in stored.items() if re.fullmatch(wanted, name)]
        assert sum(sizes) == result["parameters"]["trained"]


def test_a_base_that_has_changed_is_refused(tokenizer: Any, corpus: Path, tmp_path: Path) -> None:
    base = llama(False, tokenizer, tmp_path / "base")  # it has no record of its weights
    asked, run = recipe(corpus, base, tmp_path, None, checkpoint_every=2), tmp_path / "run"
    train(asked, run, show=False)
    (run / "result.json").unlink()
    other = LlamaForCausalLM.from_pretrained(base)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight[3, 5] += 1e-6
    other.save_pretrained(base)
    step = run / "checkpoints" / "step-00000004"
    with pytest.raises(InputError, match=rf"^train.init has other weights than {step} was trained on: restore them$"):
        train(asked, run, resume=True, show=False)
    with pytest.raises(InputError, match=rf"^train.init has other weights than {step} was trained on"):
        mentalese.load(step, "cpu")


def test_checkpoints_of_all_weights_resume_and_open(
    base: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recipe(corpus, base, tmp_path, None, checkpoint_every=4)
    with monkeypatch.context() as patch:
        patch.setattr("mentalese.training.checkpoint.frozen_weights", lambda model: {})
        result = train(asked, tmp_path / "run", show=False)
    stored = checkpoint(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert sum(v.numel() for n, v in stored.items() if n.startswith("model.")) > result["parameters"]["total"]
    assert train(asked, tmp_path / "run", resume=True, show=False)["test"] == result["test"]
    mentalese.load(tmp_path / "run" / "checkpoints" / "step-00000004", "cpu")


def test_a_dry_run_counts_what_is_trained(base: Path, corpus: Path, tmp_path: Path, capsys: Any) -> None:
    asked = recipe(corpus, base, tmp_path, "conceptlm")
    figures, (_, parameters) = estimate(asked), start_model(asked, load_model(asked.train.init or "")[1])
    assert figures.run.parameters == parameters
    assert figures.memory["Adam's moments"] == 8 * parameters["trained"] < 8 * parameters["total"]
    print_dry_run(asked, 1e12)
    assert f"{parameters['trained']:,} of {parameters['total']:,}" in " ".join(capsys.readouterr().out.split())


def test_targets_and_alpha_are_those_asked_for(base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, None, lora_targets=("q_proj", "v_proj"), lora_alpha=2)
    model, _ = start_model(asked, load_model(base)[1])
    adapters = {name.partition(".lora_")[0]: m for name, m in model.named_modules() if name.endswith("lora_A")}
    assert {name.rpartition(".")[2] for name in adapters} == {"q_proj", "v_proj"}
    assert len(adapters) == 4
    assert all(model.get_submodule(name).scaling == {"default": 0.5} for name in adapters)


def test_new_rows_have_the_loss_and_gradients_of_peft_s_layers(any_base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, any_base, tmp_path, "coconut")
    store, tokenizer = prepare(asked.data, asked.layout, show=False)
    drawn = Plan(store.splits["train"], asked, tokenizer).batch(0)
    model = start_model(asked, tokenizer)[0]

    def found() -> list[Tensor]:
        model.zero_grad()
        loss = model.training_loss(drawn).loss
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.requires_grad and p.grad is not None]
        return [loss.detach(), model(drawn["input_ids"]).logits.detach(), *gradients]

    own = found()
    for module in model.modules():
        if isinstance(module, TrainableTokensLayer):
            assert type(module) is not TrainableTokensLayer
            module.__class__ = TrainableTokensLayer
    for actual, expected in zip(own, found(), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_new_rows_go_with_the_adapters(any_base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, any_base, tmp_path, "coconut")
    store, tokenizer = prepare(asked.data, asked.layout, show=False)
    drawn = Plan(store.splits["train"], asked, tokenizer).batch(0)
    before, model = load_model(asked.train.init or "")[0], start_model(asked, tokenizer)[0].eval()
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "trainable_tokens_delta" in name:
                weights.normal_()
    trained = model.token_nll(drawn)
    for layer in layers:
        layer.enable_adapters(False)
    torch.testing.assert_close(model.token_nll(drawn), before.eval().token_nll(drawn))
    for layer in layers:
        layer.enable_adapters(True)
        layer.merge()
    torch.testing.assert_close(model.token_nll(drawn), trained, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gptj", "phi"])
def test_a_head_s_bias_is_in_the_loss_beside_new_rows(kind: str, tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens([*LATENT_MARKERS.values()])
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer), "tie_word_embeddings": False}
    config = AutoConfig.for_model(kind, **sizes, **({"rotary_dim": 4} if kind == "gptj" else {}))
    model = as_model(AutoModelForCausalLM.from_config(config)).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    batch = {"input_ids": torch.randint(len(tokenizer), (2, 12))}
    batch["labels"] = batch["input_ids"]
    before = model.token_nll(batch)
    lora.add_adapters(model, tokenizer, TrainConfig(steps=1, init="base", lora_rank=2))
    torch.testing.assert_close(model.token_nll(batch), before)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.requires_grad and "lora_A" not in name:
                weights.normal_()
    trained, logits = model.token_nll(batch), model(**batch).logits
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()
    torch.testing.assert_close(model.token_nll(batch), trained, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(**batch).logits, logits, atol=1e-4, rtol=1e-4)


def of_questions(corpus: Path, base: Path, out: Path, family: str | None, **settings: Any) -> Recipe:
    """Adapters on `base` itself for questions, of the decoder or of a family around it."""
    asked = recipe(corpus, base, out, "coconut", **settings)
    backbone = asked.model["backbone"]
    model = backbone if family is None else asked.model | FIELDS[family]
    layout = QuestionAnswer(batch_size=4) if family is None else asked.layout
    return dataclasses.replace(
        asked, model=model, layout=layout, data=dataclasses.replace(asked.data, tokenizer=str(base)),
        train=dataclasses.replace(asked.train, init=str(base)),
    )  # fmt: skip


def test_adapters_go_on_in_a_family_around_the_decoder(any_base: Path, corpus: Path, tmp_path: Path) -> None:
    train(of_questions(corpus, any_base, tmp_path, None), tmp_path / "steps", show=False)
    further = of_questions(corpus, any_base, tmp_path, "coconut", adapter=str(tmp_path / "steps"))
    _, tokenizer = prepare(further.data, further.layout, show=False)
    model = start_model(further, tokenizer)[0]
    saved = load_file(tmp_path / "steps" / "model" / "adapter" / "adapter_model.safetensors")
    own = dict(model.named_parameters())
    for name, value in saved.items():
        inside = name.replace("base_model.model.", "backbone.")
        inside = re.sub(
            r"(lora_[AB])\.|(trainable_tokens_delta)$",
            lambda m: f"{m[1]}.default." if m[1] else f"{m[2]}.default",
            inside,
        )
        assert torch.equal(own[inside], value)
    merged = mentalese.load(tmp_path / "steps", "cpu").model
    ids = torch.tensor([[5, 9, 11, 7]])
    with torch.no_grad():
        torch.testing.assert_close(model.backbone(ids).logits, merged(ids).logits, atol=1e-5, rtol=1e-4)


def test_adapters_merge_with_the_base_that_is_there_now(
    base: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    base = shutil.copytree(base, tmp_path / "base")
    train(of_questions(corpus, base, tmp_path, None), tmp_path / "run", show=False)
    model, folder = tmp_path / "run" / "model", tmp_path / "kept"
    shutil.copytree(model / "adapter", folder)
    (folder / "README.md").write_text("# Mine")
    write_json(folder / RECORD, sealed(read_json(model / RECORD) | {"files": {}}))
    whole = grow.whole_model(folder)
    assert (whole / "README.md").read_text() == "# Mine"
    weights = load_file(base / "model.safetensors")
    changed = {name: value + 0.01 for name, value in weights.items()}
    save_file(changed, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"its adapters were trained on other weights than train.init has"):
        grow.whole_model(folder)
    without = load_file(folder / lora.WEIGHTS)
    save_file(without, folder / lora.WEIGHTS, {"format": "pt"})  # as packages had them
    other = grow.whole_model(folder)
    assert other != whole
    assert not torch.equal(*(load_file(each / "model.safetensors")["model.norm.weight"] for each in (whole, other)))


def test_adapters_without_their_base_open_as_the_whole_model(
    any_base: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(of_questions(corpus, any_base, tmp_path, "coconut"), tmp_path / "run", show=False)
    model, folder = tmp_path / "run" / "model", tmp_path / "kept"
    shutil.copytree(model / "adapter", folder)
    about = read_json(model / RECORD)
    about["files"] = {lora.WEIGHTS: sha256(folder / lora.WEIGHTS)}
    write_json(folder / RECORD, sealed(about))
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    whole = grow.whole_model(folder)
    expected, opened = mentalese.load(model, "cpu"), mentalese.load(whole, "cpu")
    assert_same(opened.model.state_dict(), expected.model.state_dict())
    assert opened.layout == expected.layout
    assert opened.tokenizer.get_vocab() == expected.tokenizer.get_vocab()
    assert checkpoints.adapter_folder(whole).is_dir()  # training may go on from it
    assert grow.whole_model(folder) == whole
    for path, like in ((folder, any_base), (tmp_path / "run", model)):  # adapters have the tokens of their base
        vocabulary = load_pretrained_tokenizer(str(path)).get_vocab()
        assert vocabulary == load_pretrained_tokenizer(str(like)).get_vocab()

    def load_slowly(source: Path, adapted: LanguageModel) -> None:
        lora.load_adapter(source, adapted)
        shutil.move(tmp_path / "aside", whole)  # by another process, which reads it now

    shutil.move(whole, tmp_path / "aside")
    (tmp_path / "aside" / "read").touch()
    monkeypatch.setattr(grow, "load_adapter", load_slowly)
    assert (grow.whole_model(folder) / "read").exists()
    (folder / lora.WEIGHTS).write_bytes(b"other")
    with pytest.raises(InputError, match="is missing or has changed since it was saved"):
        grow.whole_model(folder)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lora_rank": 2}, "its adapters have lora_rank 4 and the run's 2"),
        ({"lora_alpha": 2}, "its adapters have lora_alpha 8 and the run's 2"),
        ({"lora_targets": ("q_proj",)}, "its adapters are of another decoder, other targets"),
        ({"lora_rank": None}, "train.adapter is '.*': set train.lora_rank too"),
    ],
)
def test_adapters_of_another_kind_do_not_go_on(
    base: Path, corpus: Path, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    train(of_questions(corpus, base, tmp_path, None), tmp_path / "steps", show=False)
    with pytest.raises(InputError, match=says):
        train(
            of_questions(corpus, base, tmp_path, "coconut", adapter=str(tmp_path / "steps"), **settings),
            tmp_path / "run",
            show=False,
        )


def test_adapters_of_another_base_do_not_go_on(base: Path, tokenizer: Any, corpus: Path, tmp_path: Path) -> None:
    train(of_questions(corpus, base, tmp_path, None), tmp_path / "steps", show=False)
    other = tmp_path / "other"
    shutil.copytree(base, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: value + 0.01 for name, value in weights.items()}, other / "model.safetensors", {"format": "pt"})
    further = of_questions(corpus, other, tmp_path, None, adapter=str(tmp_path / "steps"))
    with pytest.raises(InputError, match=r"its adapters were trained on other weights than train.init has"):
        train(further, tmp_path / "run", show=False)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_damaged_adapters_are_named(name: str, base: Path, corpus: Path, tmp_path: Path) -> None:
    train(of_questions(corpus, base, tmp_path, None), tmp_path / "steps", show=False)
    further = of_questions(corpus, base, tmp_path, "coconut", adapter=str(tmp_path / "steps"))
    file = tmp_path / "steps" / "model" / "adapter" / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"adapter/{name} is missing or has changed since it was saved"):
        train(further, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
    assert mentalese.load(tmp_path / "steps", "cpu").generate(["a"], max_new_tokens=1), "the merged model is whole"
    about = read_json(tmp_path / "steps" / "model" / RECORD)  # as an earlier version wrote it
    del about["adapter"]
    write_json(tmp_path / "steps" / "model" / RECORD, sealed(about))
    if name == lora.WEIGHTS:
        file.write_bytes(file.read_bytes()[:20])
        with pytest.raises(InputError, match=rf"{name} cannot be read .*: use an intact copy"):
            train(further, tmp_path / "run", show=False)


def test_a_model_without_adapters_has_none_to_go_on_with(base: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train.adapter is .*: it has no adapters"):
        train(of_questions(corpus, base, tmp_path, "coconut", adapter=str(base)), tmp_path / "run", show=False)


def test_flops_count_adapters_and_each_other_map_once(base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, "conceptlm")
    tokenizer, inputs = load_model(base)[1], batch(asked)
    plain = start_model(dataclasses.replace(asked, train=TrainConfig(steps=1)), tokenizer)[0]
    adapted = start_model(asked, tokenizer)[0]
    adapters = sum(p.numel() for name, p in adapted.named_parameters() if ".lora_" in name)
    extra = 2 * inputs["input_ids"].numel() * adapters
    assert adapted.forward_flops(inputs) == plain.forward_flops(inputs) + extra


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lora_targets": ("q_prol",)}, "train.lora_targets is 'q_prol': .* did you mean 'q_proj'"),
        ({"lora_targets": ("lm_head",)}, "train.lora_targets is 'lm_head': use linear maps of the decoder"),
        ({"lora_rank": 0}, "train.lora_rank is 0: it should be"),
        ({"lora_alpha": -1}, "train.lora_alpha is -1: it should be"),
        ({"lora_rank": None, "lora_alpha": 2}, "train.lora_alpha is 2: set train.lora_rank too"),
        ({"init": None}, "train.lora_rank is 4: set train.init to the model that gets adapters"),
        ({"parallel": "fsdp"}, "train.lora_rank is 4: set train.parallel=ddp"),
    ],
)
def test_what_cannot_be_adapted_is_refused_before_the_start(
    settings: dict[str, Any], says: str, base: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        train(recipe(corpus, base, tmp_path, None, **settings), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("found", "said"), [(None, "none"), ("0.19.1", "0.19.1")])
def test_without_peft_the_message_says_what_to_install(
    found: str | None, said: str, base: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [] if found is None else [SimpleNamespace(version=found)]
    monkeypatch.setattr(lora, "distributions", lambda name: installed)
    with pytest.raises(InputError, match=rf"needs PEFT 0.20 or newer and finds {said}: pip install 'mentalese\[lora\]"):
        train(recipe(corpus, base, tmp_path, None), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_learn_what_one_does(base: Path, corpus: Path, tmp_path: Path) -> None:
    asked = recipe(corpus, base, tmp_path, "conceptlm")
    train(asked, tmp_path / "one", show=False)
    finish(launch(asked, tmp_path / "two", processes=2), tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


# -- gradient checkpointing --------------------------------------------------------------------------------------------


def test_checkpointing_trains_to_the_same_losses_and_keeps_less(corpus: Path, tmp_path: Path) -> None:
    kept, seen = {}, {}
    for on in (False, True):
        asked = shrink(get_recipe("conceptlm/tiny"), corpus, checkpointing=on)
        train(asked, tmp_path / str(on), show=False)
        seen[on] = losses(tmp_path / str(on))
        kept[on] = bytes_kept(asked)
    assert seen[True] == pytest.approx(seen[False], rel=1e-6)
    assert kept[True] < 0.8 * kept[False]


def test_checkpointing_with_adapters_reaches_them_all(base: Path, corpus: Path, tmp_path: Path) -> None:
    seen = []
    for on in (False, True):
        asked = recipe(corpus, base, tmp_path, "conceptlm", checkpointing=on)
        train(asked, tmp_path / str(on), show=False)
        seen.append(losses(tmp_path / str(on)))
    assert seen[0] == pytest.approx(seen[1], rel=1e-6)


def bytes_kept(asked: Recipe) -> int:
    """What a training step's forward pass keeps for the backward pass."""
    store, tokenizer = prepare(asked.data, asked.layout, show=False)
    model, _ = start_model(asked, tokenizer)
    model.train()
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    drawn = Plan(store.splits["train"], asked, tokenizer).batch(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.training_loss(drawn).loss.backward()
    return sum(sizes.values())


def test_a_model_without_checkpointing_refuses_before_the_start(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mentalese.families.conceptlm.model import ConceptLMForCausalLM

    monkeypatch.setattr(ConceptLMForCausalLM, "supports_gradient_checkpointing", False)
    with pytest.raises(InputError, match=r"train.checkpointing is True: ConceptLMForCausalLM cannot compute"):
        train(shrink(get_recipe("conceptlm/tiny"), corpus, checkpointing=True), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
