"""What the tools of the Hugging Face ecosystem do to a model's modules: they adapt, quantise, cast, checkpoint and move
them, and loss, scores and logits follow alike. Runs on every `tiny` recipe that discovery finds."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Conv1D

from mentalese import InputError, get_recipe
from mentalese.data.batch import Batch
from mentalese.data.store import prepare
from mentalese.models.base import as_model
from mentalese.models.build import build_model
from mentalese.models.hf import LatentThoughtModel
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import enlarged
from mentalese.training.memory import LiveBytes
from mentalese.training.plan import Plan
from support import shrink, tiny_recipes

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),  # of Conv1D, whose matrix is transposed
]

MODES = ["coconut/tiny-coconut", "latent_thought/tiny-vae", "conceptlm/tiny-mtp", "conceptlm/tiny-llama"]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@dataclass
class Case:
    name: str
    model: Any
    batch: Batch

    def needs(self, name: str) -> None:
        """Skips a family of another package that does without; ours all have it."""
        lacks = isinstance(self.model, LatentThoughtModel) and not getattr(self.model, name)
        if lacks and not type(self.model).__module__.startswith("mentalese."):
            pytest.skip(f"no {name}")

    @property
    def read(self) -> dict[str, Tensor]:
        return {name: self.batch[name] for name in ("input_ids", "attention_mask", "labels") if name in self.batch}


@pytest.fixture(params=[*tiny_recipes(), *MODES])
def case(request: pytest.FixtureRequest, corpus: Path) -> Case:
    return made(request.param, corpus)


def made(name: str, corpus: Path, **fields: Any) -> Case:
    recipe = shrink(get_recipe(name), corpus)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    section: dict[str, Any] = dict(recipe.model)
    inner = section.get("backbone", section)
    inner = dict(inner) | fields
    model = build_model(section | {"backbone": inner} if "backbone" in section else inner, tokenizer, seed=0).eval()
    with torch.no_grad():  # an untrained model says much the same of everything
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(enlarged(model))
                if not parameter.any():  # gates of the time, whose zeros stop all gradients behind them
                    parameter.normal_(std=0.02)
    return Case(name, model, Plan(store.splits["train"], recipe, tokenizer).batch(0))


def linear_maps(model: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)}


def adapted(model: Any, targets: Any) -> Any:
    """The model with random adapters, as after some training."""
    torch.manual_seed(1)
    return peft.get_peft_model(
        model, peft.LoraConfig(target_modules=targets, r=2, lora_alpha=1, init_lora_weights=False)
    ).eval()


@torch.no_grad()
def said(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, the loss that a plain call returns for labels, and the scores of the labels."""
    read = case.read
    if not case.model.causal:  # it says something of masks alone
        masked = torch.arange(read["input_ids"].shape[1]) % 3 == 1
        read |= {"input_ids": read["input_ids"].masked_fill(masked, case.model.config.mask_token_id)}
    output = case.model(**read, use_cache=False)
    return output.logits, output.loss, case.model.token_nll(case.batch)


def of_logits(case: Case, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The loss that follows from these logits, and their score of each label."""
    labels = case.batch["labels"]
    if not case.model.causal:
        masked = torch.arange(labels.shape[1]) % 3 == 1
        nll = F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(~masked, IGNORED).flatten(), reduction="none")
        return nll.sum() / (masked & (labels != IGNORED)).sum(), nll.view(labels.shape)
    if getattr(case.model.config, "sentence_start_token_id", None) is not None:
        labels = labels.masked_fill(labels == case.model.config.sentence_start_token_id, IGNORED)
    labels = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    return nll.sum() / (labels != IGNORED).sum(), F.pad(nll, (1, 0))


def test_adapters_on_all_linear_maps_change_loss_and_logits(case: Case, corpus: Path) -> None:
    # Merging an adapter of a tied head would change the embeddings too, as PEFT says.
    case = made(case.name, corpus, tie_word_embeddings=False)
    before = said(case)
    with_adapters = adapted(case.model, list(linear_maps(case.model)))
    logits, loss, nll = said(case)
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip((logits, loss, nll), before))
    expected_loss, expected_nll = of_logits(case, logits)
    torch.testing.assert_close(loss, expected_loss, **CLOSE)
    if not case.model.estimators[0].endswith("-bound"):
        torch.testing.assert_close(nll, expected_nll, **CLOSE)

    case.model.train()
    torch.manual_seed(0)
    case.model.training_loss(case.batch).loss.backward()
    silent = [
        name
        for name, p in case.model.named_parameters()
        if "lora_B" in name and (p.grad is None or not bool(p.grad.any()))
    ]
    assert not silent

    case.model.eval()
    with_adapters.merge_adapter()
    for found, expected in zip(said(case), (logits, loss, nll)):
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def test_plain_head_is_a_matrix_and_hooked_head_is_called(case: Case) -> None:
    head = case.model.get_output_embeddings()
    assert case.model.loss_head() is head.weight
    expected = case.model.token_nll(case.batch)
    calls: list[int] = []
    handle = head.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    assert case.model.loss_head() is head
    torch.testing.assert_close(case.model.token_nll(case.batch), expected, **CLOSE)
    assert calls
    handle.remove()
    assert case.model.loss_head() is head.weight


@pytest.mark.parametrize("targets", [None, "all-linear"])
def test_lora_without_targets_trains_saves_loads_and_merges(case: Case, targets: str | None, tmp_path: Path) -> None:
    if targets is None:
        case.needs("lora_targets")
    case.model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=targets, r=4)
    model = peft.get_peft_model(case.model, config).train()
    trained = {name: p.clone() for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(**case.read).loss.backward()
    optimizer.step()
    moved = [name for name, p in model.named_parameters() if name in trained and not torch.equal(p, trained[name])]
    assert moved
    model.eval()
    expected = case.model.token_nll(case.batch)
    model.save_pretrained(tmp_path / "adapter")

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(as_model(base).eval().token_nll(case.batch), expected, **CLOSE)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(base)
    torch.testing.assert_close(as_model(merged).eval().token_nll(case.batch), expected, **CLOSE)


def test_peft_knows_our_targets_when_it_is_imported_after_us() -> None:
    """Elsewhere in this file it is imported first."""
    code = (
        "import mentalese.families.thoughtbubbles.model\n"
        "from peft.tuners.lora import LoraModel; print(LoraModel.target_module_mapping['thoughtbubbles'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['qkv']"


def trained_step(case: Case) -> tuple[dict[str, Tensor], int]:
    """The gradients of a step, and the bytes held between its forward and its backward pass."""
    case.model.zero_grad()
    torch.manual_seed(0)
    with LiveBytes() as tensors:
        loss = case.model.training_loss(case.batch).loss
    size = tensors.live
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in case.model.named_parameters() if p.grad is not None}
    case.model.zero_grad()
    return gradients, size


def test_checkpointing_keeps_the_gradients_and_less_memory(case: Case) -> None:
    case.needs("supports_gradient_checkpointing")
    case.model.train()
    expected, whole = trained_step(case)
    case.model.gradient_checkpointing_enable()
    assert any(getattr(module, "gradient_checkpointing", False) for module in case.model.modules())
    gradients, size = trained_step(case)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6 * max(1, float(gradient.abs().max())), rtol=0)
    assert size < 0.5 * whole
    if isinstance(case.model, LatentThoughtModel):
        if case.model.limits.cache is None:
            with pytest.raises(InputError, match=r"gradient checkpointing in training"):
                case.model(case.batch["input_ids"], use_cache=True)
        with pytest.raises(InputError, match="use_reentrant is True"):
            case.model.gradient_checkpointing_enable({"use_reentrant": True})
    case.model.gradient_checkpointing_disable()
    assert trained_step(case)[1] == whole


def test_copy_of_a_checkpointed_model_is_checkpointed(corpus: Path) -> None:
    """Of the family that runs its layers in its own way."""
    case = made("coconut/tiny", corpus)
    case.model.train()
    case.model.gradient_checkpointing_enable()
    expected, size = trained_step(case)
    copied = Case(case.name, copy.deepcopy(case.model), case.batch)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    gradients, other = trained_step(copied)
    assert other == size
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:.*quantize_per_tensor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:quantized..linear_dynamic")
def test_int8_maps_say_nearly_the_same(case: Case) -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("needs a processor with int8 kernels of torch")
    with torch.no_grad():
        logits = case.model(**case.read, use_cache=False).logits
    nll = case.model.token_nll(case.batch)
    kinds = {type(module) for module in linear_maps(case.model).values()} - {Conv1D}
    mapping = dict.fromkeys(kinds, torch.ao.quantization.default_dynamic_qconfig)
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(case.model), mapping, torch.qint8)
    model = quantised
    assert isinstance(quantised.loss_head(), nn.Module)
    with torch.no_grad():
        found = model(**case.read, use_cache=False).logits
    assert float((found - logits).abs().mean()) < 0.06 * float(logits.std())  # of a plain Llama 0.05 too
    if hasattr(model, "decode") and getattr(model, "encoder", None) is None:
        with pytest.raises(InputError, match="pass no gradient on to thoughts"):
            quantised.token_nll(case.batch)
        return
    scores = quantised.token_nll(case.batch)
    assert float(scores.sum()) == pytest.approx(float(nll.sum()), rel=0.02)


@pytest.mark.filterwarnings("ignore")  # torchao's, about what it was built for
def test_weights_alone_in_int8_say_nearly_the_same(case: Case) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    logits, _, nll = said(case)
    torchao.quantize_(case.model, torchao.Int8WeightOnlyConfig())
    assert isinstance(case.model.loss_head(), nn.Module)
    found, _, scores = said(case)
    assert float((found - logits).abs().mean()) < 0.05 * float(logits.std())
    assert float(scores.sum()) == pytest.approx(float(nll.sum()), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_cast_model_says_the_same_as_precisely_as_it_can(case: Case, dtype: torch.dtype) -> None:
    logits, loss, nll = said(case)
    thresholds = {name: buffer.clone() for name, buffer in case.model.named_buffers() if "threshold" in name}
    case.model.to(dtype)
    found = said(case)
    for name in thresholds:
        assert case.model.get_buffer(name).dtype == torch.float32
        assert torch.equal(case.model.get_buffer(name), thresholds[name])
    if dtype == torch.float64 and isinstance(case.model, LatentThoughtModel):
        assert found[0].dtype == found[1].dtype == torch.float64
    share = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert float((found[0].double() - logits).abs().mean()) < share * float(logits.std())
    assert float(found[1]) == pytest.approx(float(loss), rel=share)
    assert float(found[2].double().sum()) == pytest.approx(float(nll.sum()), rel=share)
    case.model.train().training_loss(case.batch).loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in case.model.parameters())


@pytest.mark.parametrize("change", [7, -3])
def test_embeddings_are_resized_with_the_head(case: Case, change: int, tmp_path: Path) -> None:
    model = case.model
    size = model.get_input_embeddings().weight.shape[0]
    kept = min(size, size + change)
    case.batch["input_ids"].clamp_(max=kept - 1)
    case.batch["labels"].clamp_(max=kept - 1)
    latent = getattr(model.config, "latent_token_id", None)
    if latent is not None and latent >= kept:
        pytest.skip("its markers are the last tokens")
    with torch.no_grad():
        expected = model(**case.read, use_cache=False).logits[..., :kept]
    model.resize_token_embeddings(size + change, mean_resizing=False)
    with torch.no_grad():
        found = model(**case.read, use_cache=False).logits
    assert found.shape[-1] == model.config.vocab_size == size + change
    if model.config.model_type == "thoughtbubbles":  # whose mixture is one of distributions over all tokens
        found = expected
    torch.testing.assert_close(found[..., :kept], expected, **CLOSE)
    assert case.model.token_nll(case.batch).shape == case.batch["labels"].shape
    case.model.train().training_loss(case.batch).loss.backward()
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(**case.read, use_cache=False).logits, model(**case.read, use_cache=False).logits
        )


def test_offloaded_weights_are_loaded_when_read(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    expected = said(case)
    case.model.save_pretrained(tmp_path / "model")
    room = sum(p.numel() * p.element_size() for p in case.model.parameters()) // 2
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": room}, offload_folder=tmp_path / "disk"
    ).eval()
    assert "disk" in loaded.hf_device_map.values()
    for found, value in zip(said(Case(case.name, as_model(loaded), case.batch)), expected):
        torch.testing.assert_close(found, value, **CLOSE)


def test_a_model_spread_over_several_devices_is_refused(corpus: Path) -> None:
    model = made("conceptlm/tiny", corpus).model
    model.hf_device_map = {"backbone": 0, "concept_layers": 1, "heads": "cpu"}
    with pytest.raises(InputError, match="device_map spreads the model over 2 devices"):
        model(torch.ones(1, 4, dtype=torch.long))
    model.hf_device_map = {"backbone": 0, "concept_layers": "cpu", "heads": "disk"}
    model(torch.ones(1, 4, dtype=torch.long))


def test_the_body_is_the_model_without_its_head(case: Case) -> None:
    model = case.model
    if not isinstance(model, LatentThoughtModel):
        pytest.skip("another project's model")
    if model.limits.token_states is not None:
        with pytest.raises(InputError, match="base_model: "):
            model.base_model(case.batch["input_ids"])
        return
    read = {name: value for name, value in case.read.items() if name != "labels"}
    with torch.no_grad():
        states = model.base_model(**read, use_cache=False).last_hidden_state
        torch.testing.assert_close(model.get_output_embeddings()(states), model(**read, use_cache=False).logits)
    model.train()
    if model.limits.loss is not None:
        with pytest.warns(UserWarning, match=r"trained on next tokens only"):
            model.base_model(**read)
    else:
        model.base_model(**read)
