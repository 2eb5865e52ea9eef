"""CODI: the fast model is the plain one, pairs are found in the tokens, and the layout makes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mentalese import Recipe, get_recipe, load, open_recipe, override, recipes
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.store import prepare
from mentalese.data.tokenizers import space_id
from mentalese.errors import InputError
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.plain import Coconut
from mentalese.families.codi.config import CodiConfig
from mentalese.families.codi.layout import QuestionPairs
from mentalese.families.codi.model import CodiForCausalLM, distilled_tokens
from mentalese.families.codi.plain import Codi, Pair
from mentalese.models.build import build_model
from mentalese.models.grow import grow
from mentalese.nn.loss import IGNORED
from mentalese.training.loop import train
from mentalese.training.plan import Plan
from support import metrics, padded, saved, sharing, shrink, training_losses

START, LATENT, END, MARK = 1, 2, 3, 4
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neox": SIZES,
    "llama": SIZES | {"num_key_value_heads": 2},
}
# Question, steps, number of latents, answer.
QUESTIONS = [
    ([10, 11, 12], [20, 21, 22, 23], 3, [MARK, 30, 31]),
    ([13, 14, 15, 16, 17], [], 3, [MARK, 32, 33, 34]),
    ([9], [24, 25], 1, [MARK, 35]),
]
PAIRS = [
    Pair(torch.tensor([*q, *s, *a]), torch.tensor([*q, START, *[LATENT] * n, END, *a]), len(q), len(a))
    for q, s, n, a in QUESTIONS
]


def made(backbone: str = "gpt2", **fields: Any) -> CodiForCausalLM:
    torch.manual_seed(0)
    inner = {"model_type": backbone, "max_position_embeddings": 64} | BACKBONES[backbone]
    model = CodiForCausalLM(
        CodiConfig(backbone=inner, vocab_size=60, latent_token_id=LATENT, pad_token_id=0, **fields)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    return model


def plain_of(model: CodiForCausalLM) -> Codi:
    return sharing(Codi(model.config), model)


def batch(pairs: list[Any] = PAIRS, left: bool = False) -> dict[str, Tensor]:
    """The pairs as the layout makes them: all teachers, then all students."""
    ids, mask = padded([teacher for teacher, *_ in pairs] + [student for _, student, *_ in pairs], left)
    labels = torch.full_like(ids, IGNORED)
    first = mask.argmax(1)
    for i, (teacher, student, question, answer) in enumerate(pairs):
        for row, begin, length in ((i, question, len(teacher)), (len(pairs) + i, len(student) - answer, len(student))):
            labels[row, first[row] + begin : first[row] + length] = ids[row, first[row] + begin : first[row] + length]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(model: CodiForCausalLM, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("backbone", "fields"),
    [
        *((backbone, {}) for backbone in BACKBONES),
        ("gpt2", {"distillation_weight": 20.0}),
        ("llama", {"distillation_weight": 0.0}),
        ("gpt2", {"parallel_passes": 2}),
        ("llama", {"space_token_id": 30}),  # of one of the answers
    ],
)
def test_the_loss_is_the_plain_one_and_so_are_its_gradients(backbone: str, fields: dict[str, Any], left: bool) -> None:
    model = made(backbone, **fields)
    fast, slow = model.training_loss(batch(left=left)).loss, plain_of(model).loss(PAIRS)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    expected = gradients(model, slow)
    for name, gradient in gradients(model, fast).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-3, rtol=1e-3, msg=name)


def test_the_plain_model_trains_by_itself() -> None:
    torch.manual_seed(0)
    model = Codi(made().config)
    losses = training_losses(model, lambda _: model.loss(PAIRS), steps=15)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_states_are_the_plain_ones(backbone: str) -> None:
    model, text = made(backbone), batch()
    encoded = model.encode(text["input_ids"], text["attention_mask"], output_hidden_states=True)
    assert encoded.hidden_states is not None
    rows = [teacher for teacher, *_ in PAIRS] + [student for _, student, *_ in PAIRS]
    for i, row in enumerate(rows):
        for fast, slow in zip(encoded.hidden_states[1:], plain_of(model).states(row), strict=True):
            torch.testing.assert_close(fast[i, : len(row)], slow, atol=1e-5, rtol=1e-5)


def test_batched_generation_matches_the_plain_model() -> None:
    model = made("llama")
    prompts = [student[:-answer] for _, student, _, answer in PAIRS]
    ids, mask = padded(prompts, left=True)
    new = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    for row, tokens in zip(prompts, new[:, ids.shape[1] :]):
        assert torch.equal(tokens, plain_of(model).generate(row, 8))
    assert len(new[:, ids.shape[1] :].unique()) > 3, "a model that repeats itself proves nothing"


def test_a_loss_of_one_batch_is_that_of_its_parts() -> None:
    """So that micro-batches and ranks add up to one batch, whatever the lengths of their rows."""
    model = made()
    whole = model.training_loss(batch())
    parts = [model.training_loss(batch(pairs)) for pairs in (PAIRS[:1], PAIRS[1:])]
    weight = sum(part.weight for part in parts)
    torch.testing.assert_close(whole.weight, weight)
    torch.testing.assert_close(whole.loss, sum(part.loss * part.weight for part in parts) / weight)
    found = sum(part.metrics["distillation"] * part.weight for part in parts) / weight
    torch.testing.assert_close(whole.metrics["distillation"], found)


def test_the_teacher_learns_nothing_from_the_distance() -> None:
    """Its row could come closer too; without labels, what the student's row does not use gets no gradient."""
    model, text = made(), batch(PAIRS[:1])
    text["labels"] = torch.full_like(text["labels"], IGNORED)
    table = gradients(model, model._distances(text, encoded(model, text)).sum())["backbone.transformer.wte.weight"]
    used = table.abs().sum(1) > 0
    assert used[[10, 11, 12, START, END, MARK]].all()
    assert not used[[20, 21, 22, 23]].any()


def encoded(model: CodiForCausalLM, text: dict[str, Tensor]) -> Any:
    return model.encode(text["input_ids"], text["attention_mask"], output_hidden_states=True)


def test_rows_are_pairs_only_if_their_questions_are_the_same() -> None:
    text = batch()
    ids, real = text["input_ids"], text["attention_mask"].bool()
    at, pairs = distilled_tokens(ids, real, LATENT)
    assert pairs.tolist() == [True] * 3
    assert ids.gather(1, at[:, None])[:, 0].tolist() == [MARK] * 6
    other = ids.clone()
    other[0, 1] = 50  # another question
    other[4, 7] = 51  # the second student has three tokens of answer after END: another token before it
    assert other[4, 7] != ids[4, 7]
    assert distilled_tokens(other, real, LATENT)[1].tolist()[0] is False
    assert distilled_tokens(ids.flip(0), real.flip(0), LATENT)[1].tolist() == [False] * 3, "students come second"
    assert distilled_tokens(ids[3:], real[3:], LATENT)[1].tolist() == [False], "students alone are no pairs"
    assert distilled_tokens(ids[:3], real[:3], LATENT)[1].tolist() == [False], "teachers alone are no pairs"


def test_a_space_before_an_answer_is_its_token() -> None:
    """`### 12` may be `###`, a space and digits: the state at `###` knows that a space follows, and nothing else."""
    text = batch()
    ids, real, half = text["input_ids"], text["attention_mask"].bool(), len(QUESTIONS)
    at, pairs = distilled_tokens(ids, real, LATENT, 30)
    assert pairs.all()
    assert ids.gather(1, at[:, None])[:, 0].tolist() == 2 * [30, MARK, MARK]
    assert ids.gather(1, at[:, None] + 1)[:half, 0].tolist() == [31, 32, 35]


def test_rows_that_are_no_pairs_are_trained_without_distillation() -> None:
    model = made().train()
    students = {name: tensor[3:] for name, tensor in batch().items()}
    output = model.training_loss(students)
    assert output.metrics["distillation"] == 0
    torch.testing.assert_close(output.loss, 2 * output.metrics["ntp"])
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    text = {"input_ids": torch.tensor([[10, 11, 12]]), "labels": torch.tensor([[10, 11, 12]])}
    model.training_loss(text).loss.backward()


def test_a_loss_keeps_no_copy_of_all_states() -> None:
    output = made().train().training_loss(batch())
    assert output.encoded is not None
    assert output.encoded().hidden_states is None


def test_a_latent_reads_the_projected_state_before_it() -> None:
    model, [_, student, *_] = made(), PAIRS[0]
    [trace] = model(student[None], output_thoughts=True).thoughts
    hidden = model.encode(student[None]).hidden[0]
    assert [(thought.start, thought.label) for thought in trace.thoughts] == [
        (4, "latent"),
        (5, "latent"),
        (6, "latent"),
    ]
    for thought in trace.thoughts:
        expected = plain_of(model).projection(hidden[thought.start - 1])
        torch.testing.assert_close(thought.vector, expected, atol=1e-5, rtol=1e-5)
        assert thought.nearest
    assert trace.curves.keys() == {"retention"}
    similar = torch.cosine_similarity(hidden[3:4], hidden[3:6], dim=-1)
    torch.testing.assert_close(trace.curves["retention"], similar, atol=1e-5, rtol=1e-5)


def test_the_step_decoder_reads_the_students_latents() -> None:
    model = made(step_decoder_layers=1)
    steps = {"steps": torch.tensor([[20, 21], [24, IGNORED]]), "step_rows": torch.tensor([3, 5])}
    text = batch() | steps | {"step_latents": torch.tensor([[0], [0]])}
    output = model.training_loss(text)
    said = [(PAIRS[0][1], [20, 21]), (PAIRS[2][1], [24])]
    vectors = []
    for row, step in said:
        hidden = plain_of(model).states(row[: (row == LATENT).nonzero()[0, 0]])[-1][-1]
        inputs = [
            plain_of(model).projection(hidden),
            *model.get_input_embeddings()(torch.tensor(step[:-1], dtype=torch.long)),
        ]
        assert model.step_decoder is not None
        states = model.step_decoder.body(inputs_embeds=torch.stack(inputs)[None]).last_hidden_state[0]
        vectors.append(torch.nn.functional.cross_entropy(
            model.get_output_embeddings()(states), torch.tensor(step), reduction="none"
        ))  # fmt: skip
    torch.testing.assert_close(output.metrics["step_nll"], torch.cat(vectors).mean().detach(), atol=1e-5, rtol=1e-5)
    whole = plain_of(model).loss(PAIRS) + torch.cat(vectors).mean()
    torch.testing.assert_close(output.loss, whole, atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match=r"codi.step_decoder_layers is 1: the batch has no .* layout 'qa_pairs'"):
        model.training_loss(batch())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"distillation_weight": -1.0}, r"codi.distillation_weight is -1.0"),
        ({"mode": "agclr"}, r"codi.mode is 'agclr': it follows from others, remove it"),
    ],
)
def test_weights_that_train_nothing_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CodiConfig(backbone={"model_type": "gpt2"}, vocab_size=60, **fields)


def test_a_model_that_has_no_token_for_latents_says_so() -> None:
    model = made()
    model.config.latent_token_id = None
    with pytest.raises(InputError, match=r"codi.latent_token_id is None"):
        model(torch.tensor([[10, 11]]))


# -- the layout -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(corpus: Path) -> Recipe:
    return shrink(get_recipe("codi/tiny"), corpus)


@pytest.mark.parametrize("last_step", [False, True])
def test_a_batch_has_a_teacher_and_a_student_of_every_question(tiny: Recipe, last_step: bool) -> None:
    layout = QuestionPairs(latents=3, last_step=last_step)
    store, tokenizer = prepare(tiny.data, layout, show=False)
    split = store.splits["train"]
    rows = layout.training_rows(split, np.random.default_rng(0))[np.arange(10)]
    found = layout.assemble(split, rows, tokenizer)
    ids, labels, mask = (found[name] for name in ("input_ids", "labels", "attention_mask"))
    assert len(ids) == 20
    for i in range(10):
        parts = tokenizer.decode(split.tokens[rows.start[i] : rows.stop[i]]).splitlines(keepends=True)
        kept = parts[1:-1] if last_step else parts[1:-2]
        thoughts = "<|start-latent|>" + 3 * "<|latent|>" + "<|end-latent|>"
        for row, between, targets in ((i, "".join(kept), [*kept, parts[-1]]), (10 + i, thoughts, [parts[-1]])):
            real = mask[row].bool()
            assert tokenizer.decode(ids[row][real]) == parts[0] + between + parts[-1]
            assert tokenizer.decode(labels[row][labels[row] != IGNORED]) == "".join(targets)
            assert found["question_lengths"][row] == len(tokenizer(parts[0])["input_ids"])
    latent, space = tokenizer.convert_tokens_to_ids("<|latent|>"), space_id(tokenizer)
    at, pairs = distilled_tokens(ids, mask.bool(), latent)
    assert pairs.all()
    assert {tokenizer.decode([token]) for token in ids.gather(1, at[:, None])[:, 0].tolist()} == {"###"}
    at, pairs = distilled_tokens(ids, mask.bool(), latent, space)
    assert pairs.all()
    assert space not in ids.gather(1, at[:, None] + 1), "the state predicts the answer"
    assert (found["step_rows"] >= 10).all()


def test_whatever_is_scored_or_asked_is_a_student(tiny: Recipe) -> None:
    layout = QuestionPairs(latents=3)
    store, tokenizer = prepare(tiny.data, layout, show=False)
    split, student = store.splits["train"], QuestionAnswer(stage=1, latents=3)
    rows = layout.evaluation_rows(split, tiny.evaluation)
    for options in ({"scored": "lexical"}, {"left": True}):
        found = layout.assemble(split, rows, tokenizer, **options)
        expected = student.assemble(split, student.evaluation_rows(split, tiny.evaluation), tokenizer, **options)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    prompts = [chosen.encode_prompts(["Who is it?"], tokenizer, tiny.data)["input_ids"] for chosen in (layout, student)]
    assert torch.equal(*prompts)
    assert layout.asked() == {"stage": None, "latents": 3}
    assert layout.at(None, 5) == QuestionPairs(latents=5)
    assert layout.at(0, None) == QuestionAnswer()
    with pytest.raises(InputError, match="stage is 2: layout 'qa_pairs' has only stage 0"):
        layout.at(2, None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"latents": 0}, "layout.latents is 0"), ({"too_long": "cut"}, "layout.too_long is 'cut'")],
)
def test_a_layout_without_pairs_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        QuestionPairs(**fields)


def test_a_base_that_divides_the_mark_can_be_grown_and_trained(
    tiny: Recipe, tokenizer: Any, corpus: Path, tmp_path: Path
) -> None:
    assert len(tokenizer.encode(QuestionPairs.mark, add_special_tokens=False)) == 3
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    grow(str(tmp_path / "base"), "codi", tmp_path / "grown")
    recipe = open_recipe(tmp_path / "grown" / "recipe.json")
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(tiny.data, tokenizer=recipe.data.tokenizer),
        layout=dataclasses.replace(recipe.layout, batch_size=2, sequence_length=1024),
        train=dataclasses.replace(recipe.train, steps=1, epochs=None),
        evaluation=dataclasses.replace(recipe.evaluation, max_documents=1, max_test_documents=1),
    )
    assert train(recipe, tmp_path / "run", show=False)["steps"] == 1


def test_a_tokenizer_without_the_mark_is_refused(tiny: Recipe) -> None:
    store, tokenizer = prepare(tiny.data, tiny.layout, show=False)
    split = store.splits["train"]
    tokens = np.array(split.tokens)
    tokens[split.segments[split.document_segments[1] - 1]] = tokenizer("#")["input_ids"][0]
    with pytest.raises(InputError, match="the tokenizer begins an answer with '#', and CODI finds"):
        tiny.layout.check(dataclasses.replace(split, tokens=tokens), tokenizer, 1, 1)


def test_a_run_draws_the_students_states_to_the_teachers(tiny: Recipe, tmp_path: Path) -> None:
    longer = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, steps=8))
    train(longer, tmp_path / "run", show=False)
    lines = [line for line in metrics(tmp_path / "run") if "distillation" in line]
    assert lines[-1]["distillation"] < lines[0]["distillation"]
    assert lines[0]["loss"] == pytest.approx(2 * lines[0]["ntp"] + lines[0]["distillation"], rel=1e-5)
    assert isinstance(load(tmp_path / "run", "cpu").model, CodiForCausalLM)


def test_the_run_without_distillation_has_two_losses(tiny: Recipe) -> None:
    twin = get_recipe("codi/tiny-no-distillation")
    assert twin.layout == get_recipe("codi/tiny").layout
    store, tokenizer = prepare(tiny.data, tiny.layout, show=False)
    made_batch = Plan(store.splits["train"], tiny, tokenizer).batch(0)
    fields = twin.model["backbone"] | {"max_position_embeddings": 256}
    config = CodiConfig(
        backbone=fields, vocab_size=len(tokenizer), distillation_weight=0.0,
        latent_token_id=tokenizer.convert_tokens_to_ids("<|latent|>"),
    )  # fmt: skip
    output = CodiForCausalLM(config).training_loss(made_batch)
    assert output.metrics.keys() == {"ntp"}
    torch.testing.assert_close(output.loss.detach(), 2 * output.metrics["ntp"])


def test_learned_tokens_cost_the_same_and_feed_nothing_back(tiny: Recipe) -> None:
    twin = get_recipe("codi/tiny-pause")
    assert twin.layout == get_recipe("codi/tiny").layout
    assert twin.model == get_recipe("codi/tiny").model | {"thought_control": "removed"}
    store, tokenizer = prepare(tiny.data, tiny.layout, show=False)
    made_batch = Plan(store.splits["train"], tiny, tokenizer).batch(0)
    model, paused = (
        build_model(one, tokenizer, 0) for one in (tiny.model, tiny.model | {"thought_control": "removed"})
    )
    assert paused.training_flops(made_batch) == model.training_flops(made_batch)
    changes = []
    for one in (model, paused):
        one.eval()
        before = one.training_loss(made_batch).loss
        before.backward()
        with torch.no_grad():
            one.projection[0].weight.mul_(-1)  # type: ignore[union-attr, index]
        changes.append((one.training_loss(made_batch).loss - before).abs())
    assert changes[0] > 0
    assert changes[1] == 0
    assert not paused.projection[0].weight.grad.any()  # type: ignore[union-attr, index]
    assert paused.get_input_embeddings().weight.grad[tokenizer.convert_tokens_to_ids("<|latent|>")].any()


def test_the_papers_recipes_have_the_papers_settings() -> None:
    gpt2, llama = get_recipe("codi/gsm8k-gpt2"), get_recipe("codi/gsm8k-llama")
    for recipe in (gpt2, llama):
        assert (recipe.train.lora_rank, recipe.train.lora_alpha) == (128, 32)
        assert (recipe.layout.batch_size, recipe.layout.latents) == (128, 6)  # type: ignore[attr-defined]
    assert (gpt2.optimizer.learning_rate, gpt2.train.epochs) == (3e-3, 40)
    assert (llama.optimizer.learning_rate, llama.train.epochs) == (8e-4, 10)
    assert llama.model["distillation_weight"] == 20.0
    assert {name for name in recipes() if name.startswith("codi/tiny")} == {
        "codi/tiny", "codi/tiny-no-distillation", "codi/tiny-pause", "codi/tiny-sim-cot", "codi/tiny-cot",
        "codi/tiny-no-cot",
    }  # fmt: skip


def test_the_map_has_two_layers_and_a_norm() -> None:
    with torch.device("meta"):
        model = CodiForCausalLM(CodiConfig(backbone={"model_type": "gpt2"}, vocab_size=50260))
    assert sum(p.numel() for p in model.projection.parameters()) == 1_182_720


@pytest.mark.slow
def test_adapters_and_the_map_train_on_a_frozen_decoder(tiny: Recipe, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = saved(tmp_path / "base", shrink(get_recipe("codi/tiny-cot"), corpus))
    data = dataclasses.replace(tiny.data, tokenizer=str(base / "model"))
    config = dataclasses.replace(tiny.train, init=str(base), lora_rank=4, lora_alpha=1, steps=2)
    decoder = load(base, "cpu").model.state_dict()
    train(dataclasses.replace(tiny, data=data, train=config), tmp_path / "run", show=False)
    model = load(tmp_path / "run", "cpu").model
    assert any((tmp_path / "run" / "model" / "adapter").iterdir())
    moved = {
        name for name, old in decoder.items() if not torch.equal(old, model.backbone.state_dict()[name][: len(old)])
    }
    assert moved
    assert all(name.endswith("_proj.weight") or "embed_tokens" in name or "lm_head" in name for name in moved)
    fresh = build_model(tiny.model, load(tmp_path / "run", "cpu").tokenizer, config.seed)
    assert not torch.equal(model.projection[0].weight, fresh.projection[0].weight)  # type: ignore[union-attr, index]


def test_coconuts_plain_form_is_not_codis() -> None:
    """The map matters: without it latents would be Coconut's."""
    model, [_, student, *_] = made(), PAIRS[0]
    config = CoconutConfig(backbone=model.config.backbone, vocab_size=60, latent_token_id=LATENT)
    coconut = sharing(Coconut(config), model)
    assert not torch.allclose(coconut.hidden_states(student), plain_of(model).states(student)[-1], atol=1e-2)


@pytest.mark.parametrize("name", ["codi/tiny", "codi/tiny-sim-cot", "coconut/tiny-sim-cot"])
def test_questions_without_steps_are_refused_or_counted(name: str, tmp_path: Path) -> None:
    def planned(without: int) -> Plan:
        rows = [
            {"question": f"{i}+1?", "steps": [f"{i}+1={i + 1}"] * (i >= without), "answer": i + 1} for i in range(60)
        ]
        path = tmp_path / f"{without}.jsonl"
        path.write_text("".join(json.dumps(row | {"answer": str(row["answer"])}) + "\n" for row in rows))
        recipe = override(get_recipe(name), f"data.source=file:{path}", "data.train_tokens=None", "layout.batch_size=4")
        store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
        return Plan(store.splits["train"], recipe, tokenizer)

    with pytest.raises(InputError, match=r"learns from written steps, and none of the \d+ training questions has any"):
        planned(60)
    some = planned(30)
    assert 0 < some.without_steps() < len(some.split.document_bytes)
    assert (
        f"{some.without_steps()} of {len(some.split.document_bytes)} training questions have no steps" in some.remarks()
    )
    assert planned(0).without_steps() == 0
