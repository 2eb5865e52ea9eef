"""What every model promises, whatever it thinks in between. Runs on every `tiny` recipe that discovery finds."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese import EvaluationConfig, InputError, Recipe, get_recipe
from mentalese.data.batch import Batch
from mentalese.data.store import prepare
from mentalese.data.tokenizers import special_token_ids
from mentalese.models.adapter import as_contract, hugging_face_model
from mentalese.models.build import build_model
from mentalese.models.hf import LatentThoughtModel
from mentalese.models.scoring import perplexity
from mentalese.models.trace import ThoughtTrace
from mentalese.nn.loss import IGNORED
from mentalese.training.plan import Plan
from support import shrink, tiny_recipes

TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}
ROUGH = {"atol": 1e-3, "rtol": 1e-3}  # after an inner optimisation
# The published Thoughtbubbles lets later tokens decide about the streams of earlier ones; what needs causality is asked
# of its causal selection.
NOT_CAUSAL = {"thoughtbubbles/tiny": {"selection": "causal"}}
# Other ways through a family's code than its `tiny` recipe takes.
MODES = [
    *("coconut/tiny-coconut", "coconut/tiny-pause"),
    *("latent_thought/tiny-langevin", "latent_thought/tiny-vae"),
    *(f"conceptlm/tiny-{name}" for name in ("l1", "context", "mtp", "neox", "llama")),
]
STEPS_BY_HEART = {"conceptlm/tiny": 150, "conceptlm/tiny-context": 100, "conceptlm/tiny-mtp": 100}
PROMPTS = [
    "The first",
    "She had a son. He was old and lived in",
    "A father. His",
    "Who is it? They went to the town. There",
]


@dataclass
class Case:
    recipe: Recipe
    model: Any
    tokenizer: Any
    plan: Plan

    @property
    def hugging_face(self) -> Any:
        return hugging_face_model(self.model)

    def batch(self, step: int = 0) -> Batch:
        return self.plan.batch(step)

    def logits(self, batch: Batch) -> torch.Tensor:
        return self.hugging_face(batch["input_ids"], attention_mask=batch.get("attention_mask"), use_cache=False).logits

    def prompts(self, texts: list[str]) -> Batch:
        return self.recipe.layout.encode_prompts(texts, self.tokenizer, self.recipe.data)


@pytest.fixture(params=[*tiny_recipes(), *MODES])
def case(request: pytest.FixtureRequest, corpus: Path) -> Case:
    recipe = shrink(get_recipe(request.param), corpus)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0).eval()
    with torch.no_grad():  # a freshly initialised tied model repeats one token: larger weights tell caches apart
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    plan = Plan(store.splits["train"], recipe, tokenizer)
    return Case(recipe, model, tokenizer, plan)


@pytest.fixture
def causal(case: Case) -> Case:
    """The case in the form of it that is causal, its thresholds found by a training step."""
    if not case.model.causal:
        pytest.skip("it reads in both directions: a later token changes what it says of an earlier one")
    for name, value in NOT_CAUSAL.get(case.recipe.name, {}).items():
        with torch.no_grad():
            case.model.train().training_loss(case.batch())
        setattr(case.model.eval().config, name, value)
    return case


def test_logits_are_aligned_with_the_tokens(case: Case) -> None:
    batch = case.batch()
    assert case.logits(batch).shape == (*batch["input_ids"].shape, len(case.tokenizer))


def test_a_token_never_changes_what_was_predicted_before_it(causal: Case) -> None:
    batch = causal.batch()
    special = set(special_token_ids(causal.tokenizer).values())
    row = batch["input_ids"][0].tolist()
    changed_at = max(t for t in range(len(row) // 2 + 4) if row[t] not in special)
    changed = batch["input_ids"].clone()
    changed[0, changed_at] = next(t for t in range(len(causal.tokenizer)) if t not in special | {row[changed_at]})
    before, after = causal.logits(batch)[0], causal.logits(batch | {"input_ids": changed})[0]
    torch.testing.assert_close(before[:changed_at], after[:changed_at], **TOLERANCE)
    assert not torch.allclose(before[changed_at], after[changed_at], atol=1e-3)


def test_scores_are_the_log_likelihood_of_the_logits(case: Case) -> None:
    if case.model.estimators[0].endswith("-bound"):
        pytest.skip("a bound is no likelihood of these logits")
    batch = case.batch()
    expected = torch.zeros(batch["labels"].shape)
    log_probabilities = case.logits(batch)[:, :-1].log_softmax(-1)
    labels = batch["labels"][:, 1:]
    chosen = log_probabilities.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    expected[:, 1:] = torch.where(labels >= 0, -chosen, 0.0)
    torch.testing.assert_close(case.model.token_nll(batch), expected, **TOLERANCE)


def _generate(case: Case, texts: list[str], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """New tokens [rows, 12] and their logits [rows, 12, vocabulary]."""
    inputs = case.prompts(texts)
    output = case.hugging_face.generate(
        inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=case.tokenizer.pad_token_id,
        **options,
    )
    return output.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(output.logits, dim=1)


def test_cached_generation_equals_uncached_generation(causal: Case) -> None:
    tokens, logits = _generate(causal, PROMPTS, use_cache=True)
    tokens_uncached, logits_uncached = _generate(causal, PROMPTS, use_cache=False)
    assert torch.equal(tokens, tokens_uncached)
    torch.testing.assert_close(logits, logits_uncached, **TOLERANCE)
    assert len(tokens.unique()) > 2, "a model that repeats itself proves nothing"


def test_a_left_padded_batch_equals_its_rows_alone(causal: Case) -> None:
    tokens, logits = _generate(causal, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        tokens_alone, logits_alone = _generate(causal, [prompt])
        assert torch.equal(tokens[row], tokens_alone[0])
        torch.testing.assert_close(logits[row], logits_alone[0], **TOLERANCE)


def test_decoding_by_hand_with_the_returned_cache_equals_generate(causal: Case) -> None:
    """The loop that everybody writes: a plain call, then one token at a time with what it returned."""
    inputs, model = causal.prompts(PROMPTS), causal.hugging_face
    tokens, logits = _generate(causal, PROMPTS)
    mask = inputs["attention_mask"]
    with torch.no_grad():
        # Thoughts that `generate` infers from the prompt are an argument of a plain call.
        given = _inferred(causal, inputs)
        output = model(inputs["input_ids"], attention_mask=mask, position_ids=_positions(mask), **given)
        for step in range(tokens.shape[1]):
            torch.testing.assert_close(output.logits[:, -1], logits[:, step], **TOLERANCE)
            assert output.past_key_values is not None
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            new = tokens[:, step : step + 1]
            output = model(
                new, attention_mask=mask, position_ids=_positions(mask)[:, -1:], past_key_values=output.past_key_values
            )


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """What transformers' own models need to be told if rows are padded."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _inferred(case: Case, inputs: Batch) -> dict[str, torch.Tensor]:
    if "z" not in getattr(case.hugging_face, "forward_options", ()) or not case.model.config.num_latents:
        return {}
    from mentalese.families.latent_thought.inference import infer, prompt_batch

    batch = prompt_batch(inputs["input_ids"], inputs["attention_mask"])
    return {"z": infer(case.hugging_face, batch, seed=torch.zeros(len(batch["input_ids"]), dtype=torch.long)).sample()}


def test_no_cache_is_returned_if_none_is_wanted_or_possible(case: Case) -> None:
    ids, model = case.batch()["input_ids"], case.hugging_face
    assert model(ids, use_cache=False).past_key_values is None
    if getattr(model, "can_cache", True):
        model.config.use_cache = False
        assert model(ids).past_key_values is None
    else:
        assert model(ids).past_key_values is None
        with pytest.raises(InputError, match=r"use_cache is True: .*use_cache=False"):
            model(ids, use_cache=True)


def test_further_outputs_are_what_they_say_or_a_clear_error(case: Case) -> None:
    ids, model = case.batch()["input_ids"], case.hugging_face
    if not isinstance(model, LatentThoughtModel):
        pytest.skip("another project's model")
    with pytest.raises(InputError, match="output_attentions is True"):
        model(ids, output_attentions=True)
    with pytest.raises(InputError, match="pass input_ids alone"):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(InputError, match="no_such_argument"):
        model(ids, no_such_argument=1)
    as_tuple = model(ids, return_dict=False, use_cache=False)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[0], model(ids, use_cache=False).logits)
    if not model.keeps_hidden_states:
        with pytest.raises(InputError, match="output_hidden_states is True"):
            model(ids, output_hidden_states=True)
        return
    states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == model.config.num_hidden_layers + 1
    assert all(state.shape[:2] == ids.shape for state in states)
    torch.testing.assert_close(states[-1], model.encode(ids).hidden)


def test_a_call_in_training_mode_has_the_familys_own_loss(case: Case) -> None:
    """What `transformers.Trainer` trains is what the library's own loop trains."""
    if not isinstance(case.hugging_face, LatentThoughtModel):
        pytest.skip("another project's model")
    batch, model = case.batch(), case.model.train()
    torch.manual_seed(3)
    expected = model.training_loss(batch).loss
    torch.manual_seed(3)
    read = {name: batch[name] for name in ("input_ids", "attention_mask", "labels") if name in batch}
    output = case.hugging_face(**read)
    torch.testing.assert_close(output.loss, expected)
    assert output.logits.shape == (*batch["input_ids"].shape, len(case.tokenizer))
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    for gradient, other in zip(
        gradients, torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
    ):
        torch.testing.assert_close(gradient, other)


def test_the_loss_of_a_call_is_a_mean_whatever_else_a_trainer_passes(case: Case) -> None:
    """`transformers.Trainer` divides a loss by its micro-batches unless the model says that it has done so."""
    if not isinstance(case.hugging_face, LatentThoughtModel):
        pytest.skip("another project's model")
    assert case.hugging_face.accepts_loss_kwargs is False


def test_beam_search_carries_the_whole_state_with_each_beam(causal: Case) -> None:
    inputs = causal.prompts(PROMPTS)
    beams = [
        causal.hugging_face.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=10,
            num_beams=3,
            do_sample=False,
            use_cache=use_cache,
            pad_token_id=causal.tokenizer.pad_token_id,
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*beams)


def test_a_saved_model_opens_with_the_auto_class_and_predicts_the_same(case: Case, tmp_path: Path) -> None:
    case.hugging_face.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin")), "weights are safetensors"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(case.hugging_face)
    assert loaded.config.to_dict().items() >= {"vocab_size": len(case.tokenizer)}.items()
    for (name, tensor), (other, expected) in zip(loaded.state_dict().items(), case.hugging_face.state_dict().items()):
        assert name == other
        assert torch.equal(tensor, expected), name
    batch = case.batch()
    torch.testing.assert_close(
        loaded(batch["input_ids"], attention_mask=batch.get("attention_mask")).logits, case.logits(batch)
    )


def test_a_saved_model_opens_without_naming_the_package(case: Case, tmp_path: Path) -> None:
    """In a process of its own, by `trust_remote_code=True`, where only transformers is imported."""
    case.hugging_face.save_pretrained(tmp_path / "model")
    ids = case.batch()["input_ids"][:1, :8]
    torch.save(ids, tmp_path / "ids.pt")
    code = (
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'model')!r}, trust_remote_code=True).eval()\n"
        f"ids = torch.load({str(tmp_path / 'ids.pt')!r}, weights_only=True)\n"
        f"torch.save(model(ids).logits.detach(), {str(tmp_path / 'logits.pt')!r})\n"
        f"model.save_pretrained({str(tmp_path / 'again')!r})\n"
    )
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "logits.pt", weights_only=True), case.hugging_face(ids).logits)
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert names == {path.name for path in (tmp_path / "model").iterdir()}


def test_a_config_keeps_what_other_tools_have_written_into_it(case: Case, tmp_path: Path) -> None:
    case.hugging_face.config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"another_tools_key": {"bits": 8}}))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(case.hugging_face.config)
    assert config.another_tools_key == {"bits": 8}
    config.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["another_tools_key"] == {"bits": 8}


def test_a_copy_is_independent_and_equal(case: Case) -> None:
    batch = case.batch()
    copied = copy.deepcopy(case.model)
    expected = case.model.token_nll(batch)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    assert torch.equal(copied.token_nll(batch), expected)


@pytest.mark.parametrize("step", [0, 1])
def test_the_flops_formula_is_what_pytorch_counts(case: Case, step: int) -> None:
    batch = case.batch(step)
    # The counter knows matrix products but not the CPU's fused attention: count the unfused form.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        case.logits(batch)
    assert case.model.forward_flops(batch) == counter.get_total_flops()


def test_a_small_batch_is_learnt_by_heart(case: Case) -> None:
    model = build_model(case.recipe.model, case.tokenizer, seed=0).train()
    batch = case.batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(0)
    # Masks hide other words at each step: what is learnt of a row takes longer, and one loss says little.
    steps, share, averaged = (80, 0.35, 1) if model.causal else (250, 0.45, 20)
    steps = STEPS_BY_HEART.get(case.recipe.name, steps)
    losses = []
    for _ in range(steps):
        output = model.training_loss(batch)
        # What else is trained beside the next token (quantisation) follows it, and is no measure of what was learnt.
        losses.append(output.metrics.get("ntp", output.loss).item())
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-averaged:]) / averaged < share * losses[0]


def test_every_parameter_gets_a_gradient(case: Case) -> None:
    case.model.training_loss(case.batch()).loss.backward()
    missing = [name for name, p in case.model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


def test_an_unknown_training_setting_is_refused(case: Case) -> None:
    with pytest.raises((TypeError, ValueError), match="no_such_setting"):
        case.model.training_loss(case.batch(), no_such_setting=1.0)


def _real(batch: Batch) -> torch.Tensor:
    return batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()


def test_a_trace_has_a_number_for_every_token_that_something_predicts(case: Case) -> None:
    batch = case.batch()
    real = _real(batch)
    nll = case.model.token_nll(batch | {"labels": batch["input_ids"].masked_fill(~real, IGNORED)})
    traces = case.model.traces(batch)
    assert [trace.model for trace in traces] == [case.model.config.model_type] * len(real)
    for row, trace in enumerate(traces):
        assert torch.equal(trace.input_ids, batch["input_ids"][row])
        surprisal = trace.scores["surprisal"]
        there = ~surprisal.isnan()
        assert there.any()
        assert not there[~real[row]].any()
        assert not there[0]
        for name, score in trace.scores.items():
            assert score.shape == surprisal.shape, name
            assert not score.isinf().any(), name
            assert score[~real[row]].isnan().all(), name
        if not case.model.estimators[0].endswith("-bound"):
            torch.testing.assert_close(surprisal[there], nll[row][there], **TOLERANCE)
        if case.model.causal:
            entropy = trace.scores["entropy"]
            assert torch.equal(entropy.isnan(), ~there)
            assert ((entropy[there] > 0) & (entropy[there] <= math.log(len(case.tokenizer)) + 1e-4)).all()
            assert torch.equal(trace.readings["predicted"][~there], trace.input_ids[~there])


def test_a_latent_thought_model_shows_its_thoughts_and_they_are_kept_as_they_are(case: Case, tmp_path: Path) -> None:
    if not isinstance(case.hugging_face, LatentThoughtModel) or not case.model.causal:
        pytest.skip("a baseline has no thoughts")
    batch = case.batch()
    assert case.model.about_thoughts
    traces = case.model.traces(batch)
    assert any(trace.thoughts for trace in traces)
    for trace, real in zip(traces, _real(batch)):
        size = len(trace.thoughts)
        for thought in trace.thoughts:
            assert real[thought.start : thought.end].all()
            assert thought.start < thought.end
        for name, values in (trace.curves | trace.links).items():
            assert values.isfinite().all(), name
            assert trace.links.get(name, torch.empty(size, size)).shape == (size, size), name
        for name, said in trace.readings.items():
            assert said.shape == trace.input_ids.shape, name
            assert ((said >= 0) & (said < len(case.tokenizer)) | ~real).all(), name
        assert len({len(column) for column in trace.streams.values()}) <= 1
    trace = max(traces, key=lambda trace: len(trace.thoughts))
    trace.save(tmp_path)
    _assert_same(ThoughtTrace.load(tmp_path), trace)


def _assert_same(trace: ThoughtTrace, expected: ThoughtTrace) -> None:
    for name, value in vars(expected).items():
        found = getattr(trace, name)
        if name == "thoughts":
            for thought, other in zip(found, value, strict=True):
                assert torch.equal(thought.vector, other.vector)
                rest = [{k: v for k, v in vars(t).items() if k != "vector"} for t in (thought, other)]
                assert rest[0] == rest[1]
        elif isinstance(value, dict) and name != "vocabulary":
            assert list(found) == list(value)
            for key, tensor in value.items():
                torch.testing.assert_close(found[key], tensor, atol=0, rtol=0, equal_nan=True)
        else:
            assert found is value or bool((torch.as_tensor(found == value)).all()), name


def test_a_trace_is_the_same_behind_padding(case: Case) -> None:
    inputs = case.prompts(PROMPTS)
    for row, trace in enumerate(case.model.traces(inputs)):
        begin = int((inputs["attention_mask"][row] == 0).sum())
        (alone,) = case.model.traces({"input_ids": inputs["input_ids"][row : row + 1, begin:]})
        for name, score in alone.scores.items():
            torch.testing.assert_close(trace.scores[name][begin:], score, equal_nan=True, **ROUGH)
            assert trace.scores[name][:begin].isnan().all()
        for name, curve in (alone.curves | alone.links).items():
            torch.testing.assert_close((trace.curves | trace.links)[name], curve, **ROUGH)
        spans = [(t.start + begin, t.end + begin, t.label, t.layer, t.codes) for t in alone.thoughts]
        assert [(t.start, t.end, t.label, t.layer, t.codes) for t in trace.thoughts] == spans
        for name, column in alone.streams.items():
            torch.testing.assert_close(trace.streams[name], column + begin if name == "token" else column, **ROUGH)


def test_the_adapter_is_what_makes_a_hugging_face_model_keep_the_contract(case: Case) -> None:
    assert type(as_contract(case.hugging_face)) is type(case.model)


def test_a_perplexity_does_not_depend_on_the_batch_size(case: Case) -> None:
    store, tokenizer = prepare(case.recipe.data, case.recipe.layout, show=False)
    figures = [
        perplexity(
            case.model,
            tokenizer,
            store.splits["train"],
            case.recipe.data,
            case.recipe.layout,
            EvaluationConfig(batch_size=batch_size, max_documents=7),
        )
        for batch_size in (1, 3, 7)
    ]
    assert len({figure.tokens for figure in figures}) == 1
    for figure in figures[1:]:
        assert figure.nll == pytest.approx(figures[0].nll, abs=1e-5)
