"""CoLaR: the fast model is the plain one, groups are found in the tokens, and sampled latents have a density."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mentalese
from mentalese import Recipe, get_recipe, load
from mentalese.analyses.figures import write_figure
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.families.colar.config import ColarConfig
from mentalese.families.colar.layout import CompressedSteps
from mentalese.families.colar.model import ColarForCausalLM, Thinking, merge
from mentalese.families.colar.plain import Colar, Question
from mentalese.models.trace import INFLUENCE
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED
from mentalese.training.loop import train
from mentalese.values import temporarily
from support import metrics, padded, saved, sharing, shrink, training_losses

START, LATENT, END, EOS = 1, 2, 3, 4
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": SIZES | {"num_key_value_heads": 2},
}
QUESTIONS = [
    Question(*map(torch.tensor, parts))
    for parts in (
        ([10, 11, 12], [20, 21, 22, 23, 24, 25, 26], [30, 31, EOS]),
        ([13, 14, 15, 16, 17], [27, 28], [32, 33, 34, EOS]),
        ([9], [24, 25, 20], [35, EOS]),
    )
]
WITHOUT_STEPS = Question(torch.tensor([18, 19]), torch.tensor([], dtype=torch.long), torch.tensor([36, EOS]))


def made(backbone: str = "gpt2", **fields: Any) -> ColarForCausalLM:
    torch.manual_seed(0)
    inner = {"model_type": backbone, "max_position_embeddings": 64} | BACKBONES[backbone]
    markers = {"latent_start_token_id": START, "latent_token_id": LATENT, "latent_end_token_id": END}
    config = ColarConfig(backbone=inner, vocab_size=40, pad_token_id=0, eos_token_id=EOS, **markers, **fields)
    model = ColarForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    return model


class Made:
    """A control that changes nothing and keeps the latents [rows, hidden] that a model makes."""

    def __init__(self) -> None:
        self.latents: list[Tensor] = []

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Any, own: Tensor | None) -> Tensor:
        self.latents.append(thoughts)
        return thoughts


def generated(model: ColarForCausalLM, ids: Tensor, mask: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The tokens of `generate`, and the latents [rows, latents, hidden] that it made."""
    made_latents = Made()
    with temporarily(model.config, thought_control=made_latents):
        tokens = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **options)
    return tokens, torch.stack(made_latents.latents, dim=1)


def plain_of(model: ColarForCausalLM) -> Colar:
    return sharing(Colar(model.config), model)


def row_of(question: Question) -> Tensor:
    start, end = torch.tensor([START]), torch.tensor([END])
    return torch.cat((question.question, start, question.steps, end, question.answer))


def batch(questions: list[Question] = QUESTIONS, left: bool = False) -> dict[str, Tensor]:
    ids, mask = padded([row_of(question) for question in questions], left)
    labels, first = torch.full_like(ids, IGNORED), mask.argmax(1)
    for i, question in enumerate(questions):
        at = slice(int(first[i]) + len(question.question) + 1, int(first[i]) + len(row_of(question)))
        labels[i, at] = ids[i, at]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(model: ColarForCausalLM, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    all_of_them = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, all_of_them))


def plain_loss(model: ColarForCausalLM, questions: list[Question], factor: int) -> Tensor:
    """The mean over what is predicted in all questions, as in one batch."""
    counts = [math.ceil(len(q.steps) / factor) + 1 + len(q.answer) for q in questions]
    plain = plain_of(model)
    return torch.stack([plain.loss(q, factor) * n for q, n in zip(questions, counts)]).sum() / sum(counts)


# -- the fast model is the plain one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("factor", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("backbone", "fields"),
    [
        ("gpt2", {}),
        ("llama", {"latent_loss": "nll"}),
        ("llama", {"latent_weight": 3.0, "entropy_weight": 0.5}),
    ],
)
def test_loss_and_gradients_are_the_plain_ones(backbone: str, fields: dict[str, Any], factor: int, left: bool) -> None:
    model, questions = made(backbone, factor=factor, **fields), [*QUESTIONS, WITHOUT_STEPS]
    fast, slow = model.training_loss(batch(questions, left)).loss, plain_loss(model, questions, factor)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    expected = gradients(model, slow)
    for name, gradient in gradients(model, fast).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-4, rtol=1e-3, msg=name)


def test_the_plain_model_trains_by_itself() -> None:
    torch.manual_seed(0)
    model = Colar(made().config)
    losses = training_losses(model, lambda step: model.loss(QUESTIONS[step % 3], 1 + step % 2), steps=30)
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])


@pytest.mark.parametrize("factor", [1, 4])
def test_batched_answers_are_the_plain_ones(factor: int) -> None:
    model, lengths = made("llama", factor=factor, max_latents=5), []
    torch.manual_seed(9)
    with torch.no_grad():  # so that thinking ends sooner and later
        model.get_output_embeddings().weight[END].normal_(std=0.5)
    prompts = [torch.cat((question.question, torch.tensor([START]))) for question in QUESTIONS]
    ids, mask = padded(prompts, left=True)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    tokens, thoughts = generated(model, ids, mask, max_new_tokens=12)
    for i, (prompt, new) in enumerate(zip(prompts, tokens[:, ids.shape[1] :])):
        latents, tokens = plain_of(model).answer(prompt[:-1], factor, 12, EOS)
        expected = torch.cat((torch.full((len(latents),), LATENT), torch.tensor([END]), tokens))[:12]
        assert torch.equal(new[: len(expected)], expected)
        torch.testing.assert_close(thoughts[i, : len(latents)], latents, atol=1e-5, rtol=1e-5)
        for use_cache in (True, False):
            single = model.generate(prompt[None], use_cache=use_cache, **options)[0, len(prompt) :]
            assert torch.equal(single, new[: len(single)])
            assert not new[len(single) :].any(), "padding follows the end of a text"
        lengths.append(len(latents))
    assert len({*lengths}) > 1, "rows that think equally long prove less"


@pytest.mark.parametrize("factor", [1, 3])
def test_a_cache_continues_after_written_steps(factor: int) -> None:
    model, text = made("llama", factor=factor), batch(left=True)
    ids, mask = text["input_ids"], text["attention_mask"]
    more = torch.tensor([[30, 31], [32, 33], [34, 35]])
    cached = model(ids, attention_mask=mask, use_cache=True).past_key_values
    assert cached.get_seq_length() == ids.shape[1]
    longer = torch.nn.functional.pad(mask, (0, 2), value=1)
    after = model(more, attention_mask=longer, past_key_values=cached).logits
    whole = model(torch.cat((ids, more), 1), attention_mask=longer, use_cache=False).logits
    torch.testing.assert_close(after, whole[:, -2:], atol=1e-5, rtol=1e-5)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_the_unit_of_latents_is_computed_once_a_call() -> None:
    model, tables = made(), []
    ids = torch.tensor([[10, 11, START]])
    model.get_input_embeddings().register_forward_hook(lambda *call: tables.append(call[1][0].numel() == 40))
    tokens = model.generate(ids, do_sample=False, pad_token_id=0, max_new_tokens=4)
    assert (tokens == LATENT).sum() > 1
    assert sum(tables) == 1
    assert model._unit is None  # weights may change before the next call


def test_groups_are_found_between_the_markers() -> None:
    text = batch(QUESTIONS[1:])
    ids, real = text["input_ids"], text["attention_mask"].bool()
    steps = torch.isin(ids, torch.tensor([20, 24, 25, 27, 28]))
    columns = merge(steps, real, 2)
    assert columns is not None
    # 13 14 15 16 17 START (27 28) END 32 33 34 EOS; 9 START (24 25) (20) END 35 EOS
    assert columns.count.tolist() == [[1] * 6 + [2] + [1] * 5, [1, 1, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0]]
    assert columns.at.tolist() == [[6, 0], [2, 3]]
    assert columns.grouped.tolist() == [[True, False], [True, True]]
    assert columns.state[0].tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11], "inside a group the state before it"
    assert merge(torch.zeros_like(steps), real, 2) is None


def test_a_merged_vector_has_the_variance_of_one_embedding() -> None:
    model = made("llama")
    with torch.no_grad():
        table = torch.randn(35, 32)
        model.get_input_embeddings().weight[5:] = table - table.mean(0)
    rows = torch.stack([torch.cat((torch.tensor([10, START]), torch.randint(5, 40, (32,)))) for _ in range(50)])
    for factor in (1, 4, 16):
        encoded = model.encode(rows, factor=factor)
        assert encoded.merged is not None
        assert encoded.merged.vectors.shape == (50, 32 // factor, 32)
        assert encoded.merged.vectors.var().item() == pytest.approx(1, abs=0.1)


def test_a_token_of_a_group_changes_nothing_before_the_groups_end() -> None:
    model, [question, *_] = made("llama", factor=3), QUESTIONS
    row = row_of(question)
    before = model(row[None], use_cache=False).logits[0]
    row[5] = 29  # the second token of the first group, 4 to 6
    after = model(row[None], use_cache=False).logits[0]
    torch.testing.assert_close(before[:6], after[:6])
    assert not torch.allclose(before[6], after[6], atol=1e-3)


def test_the_factor_is_drawn_for_each_step_and_read() -> None:
    model = made(max_factor=3).train()
    factors = []
    for seed in range(12):
        model.before_step(seed)
        factors.append(int(model.training_loss(batch()).metrics["factor"]))
    assert {*factors} == {1, 2, 3}
    prompt = torch.tensor([[10, 11, START]])
    asked = [model.eval().encode(prompt, factor=factor).hidden[0, -1] for factor in (1, 2, 8)]
    assert not torch.allclose(asked[0], asked[1], atol=1e-3)
    assert not torch.allclose(asked[1], asked[2], atol=1e-3)


def test_a_loss_of_one_batch_is_that_of_its_parts() -> None:
    model = made(factor=2)
    whole = model.training_loss(batch())
    parts = [model.training_loss(batch(questions)) for questions in (QUESTIONS[:1], QUESTIONS[1:])]
    weight = sum(part.weight for part in parts)
    torch.testing.assert_close(whole.weight, weight)
    torch.testing.assert_close(whole.loss, sum(part.loss * part.weight for part in parts) / weight)


@pytest.mark.parametrize("control", ["removed", "swapped", "noisy"])
def test_a_control_replaces_merged_and_own_latents(control: str) -> None:
    model, text = made("llama", factor=2), batch(QUESTIONS[:2])
    latents = torch.tensor([[10, 11, START, LATENT, LATENT, END, 30], [13, 14, START, LATENT, LATENT, END, 30]])
    for ids in (text["input_ids"], latents):
        own = model(ids, use_cache=False).logits
        model.config.thought_control = control
        assert not torch.allclose(model(ids, use_cache=False).logits[:, -1], own[:, -1], atol=1e-3)
        model.config.thought_control = None


def test_a_row_with_more_latents_than_the_other_one_reads_the_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = made("llama", factor=1, thought_control="swapped"), []

    def seen(*args: Any) -> Tensor:
        read.append(controlled(*args))
        return read[-1]

    monkeypatch.setattr("mentalese.families.colar.model.controlled", seen)
    monkeypatch.setattr("mentalese.families.coconut.model.controlled", seen)
    constant = model.get_input_embeddings().weight[LATENT]
    few, many = [10, 11, START, 5, 6, END, 30, 30], [13, 14, START, 7, 8, 9, END, 30]
    model(torch.tensor([few, many]))
    torch.testing.assert_close(read[-1][1, 2], constant)
    made_by_it = [[*few[:3], LATENT, LATENT, *few[5:]], [*many[:3], LATENT, LATENT, LATENT, *many[6:]]]
    model(torch.tensor(made_by_it))
    torch.testing.assert_close(read[-1][1], constant)
    assert not torch.allclose(read[-2][1], constant)


def test_a_trace_shows_which_tokens_a_latent_is_made_of() -> None:
    model, [question, *_] = made("llama", factor=3), QUESTIONS
    [trace] = model(row_of(question)[None], output_thoughts=True).thoughts
    assert [(thought.start, thought.end) for thought in trace.thoughts] == [(4, 7), (7, 10), (10, 11)]
    for thought, group in zip(trace.thoughts, question.steps.split(3)):
        torch.testing.assert_close(thought.vector, plain_of(model).merge(group))


@pytest.mark.parametrize("ids", [row_of(QUESTIONS[0]), torch.tensor([10, 11, START, LATENT, LATENT, END, 30])])
def test_a_latent_stands_beside_the_tokens_predicted_for_it(ids: Tensor) -> None:
    model = made("llama", factor=3)
    output = model(ids[None], output_thoughts=True)
    assert output.thoughts[0].thoughts
    for thought in output.thoughts[0].thoughts:
        best = output.logits[0, thought.start - 1].softmax(-1).topk(5)
        assert [token for token, _ in thought.nearest] == best.indices.tolist()
        assert [share for _, share in thought.nearest] == pytest.approx(best.values.tolist(), rel=1e-4)


# -- latents that the model makes --------------------------------------------------------------------------------------


def test_thinking_ends_as_often_as_the_head_predicts_it() -> None:
    scores, config = torch.randn(3, 40), made(max_latents=2).config
    ids = torch.tensor([[5, 5, START], [START, LATENT, LATENT], [LATENT, END, 5]])
    thinking, at_most, writing = Thinking(config)(ids, scores).softmax(-1)
    words = scores.clone()
    words[:, [START, LATENT]] = -math.inf
    assert thinking[END].item() == pytest.approx(words[0].softmax(-1)[END].item(), rel=1e-4)
    assert thinking[LATENT].item() == pytest.approx(1 - thinking[END].item(), rel=1e-4)
    assert at_most[END] == 1
    second_turn = torch.tensor([[START, LATENT, LATENT, END, 5, START], [5, START, LATENT, LATENT, LATENT, LATENT]])
    goes_on, ends = Thinking(config)(second_turn, scores[:2]).softmax(-1)
    assert goes_on[LATENT] > 0
    assert ends[END] == 1
    torch.testing.assert_close(writing, words[2].softmax(-1))


def test_sampled_latents_have_the_density_that_they_were_drawn_from() -> None:
    model = made("llama", latent_temperature=0.7, max_latents=4)
    ids, mask = padded([torch.tensor([10, 11, START]), torch.tensor([9, START])], left=True)
    torch.manual_seed(1)
    drawn, latents = generated(model, ids, mask, max_new_tokens=6)
    merged = model.encode(drawn, torch.nn.functional.pad(mask, (0, 6), value=1), latents=latents).merged
    assert merged is not None
    density = model.latent_log_density(merged)
    assert density.requires_grad
    plain = plain_of(model)
    for row in range(2):
        inputs = plain.prompt(ids[row][mask[row, :3].bool()][:-1], 1)
        for number in range(int((drawn[row] == LATENT).sum())):
            mean, log_std = plain.latent_head(plain.read(inputs)[-1])
            normal = torch.distributions.Normal(plain.scale() * mean, 0.7 * plain.scale() * log_std.exp())
            expected = normal.log_prob(latents[row, number]).sum()
            torch.testing.assert_close(density[row, number], expected, atol=1e-3, rtol=1e-4)
            inputs = torch.cat((inputs, latents[row, number][None]))
    torch.manual_seed(2)
    _, other = generated(model, ids, mask, max_new_tokens=6)
    assert not torch.allclose(other[:, 0], latents[:, 0])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"latent_loss": "nll", "entropy_weight": 0.1}, r"colar.entropy_weight is 0.1: it belongs to latent_loss"),
        ({"factor": 0}, r"colar.factor is 0"),
        ({"parallel_passes": 2}, r"colar.parallel_passes is 2: the model decides how many"),
        ({"step_decoder_layers": 1}, r"colar.step_decoder_layers is 1: latents learn from the embeddings"),
    ],
)
def test_settings_that_do_nothing_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(**fields)


def test_calls_that_cannot_be_right_are_refused() -> None:
    model, ids = made(), torch.tensor([[10, START, LATENT, LATENT, END]])
    merged = model.encode(ids, latents=torch.zeros(1, 2, 32)).merged
    assert merged is not None
    with pytest.raises(InputError, match=r"colar.latent_temperature is 0.0: latents are not sampled"):
        model.latent_log_density(merged)
    with pytest.raises(InputError, match=r"latents is \[1, 1, 32\]: a row of input_ids has 2 latents"):
        model.encode(ids, latents=torch.zeros(1, 1, 32))
    model.config.latent_temperature = 1.0
    with pytest.raises(InputError, match=r"latent_temperature is 1.0: without a cache"):
        model.generate(ids[:, :2], use_cache=False, max_new_tokens=2)
    model.config.latent_end_token_id = None
    with pytest.raises(InputError, match=r"colar.latent_end_token_id is None"):
        model(ids)


# -- the layout -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(corpus: Path) -> Recipe:
    return shrink(get_recipe("colar/tiny"), corpus)


def test_latents_of_another_question_take_their_places(tiny: Recipe, tmp_path: Path) -> None:
    model = mentalese.load(saved(tmp_path / "run", tiny), "cpu")
    own = model.think("Ann has 2 pens. How many?", influence=True, max_new_tokens=12)
    patched = model.think("Ann has 2 pens. How many?", patch="Bob buys 3 books. How many?", max_new_tokens=12)
    assert len(own.thoughts) == len(patched.thoughts) == len(patched.curves[INFLUENCE]) > 0
    assert not torch.equal(patched.curves[INFLUENCE], own.curves[INFLUENCE])


def test_a_row_has_its_steps_between_the_markers(tiny: Recipe) -> None:
    layout = CompressedSteps()
    store, tokenizer = prepare(tiny.data, layout, show=False)
    split = store.splits["train"]
    rows = layout.training_rows(split, np.random.default_rng(0))[np.arange(10)]
    training, scores = layout.assemble(split, rows, tokenizer), layout.assemble(split, rows, tokenizer, "lexical")
    for i in range(10):
        question, *steps, answer = tokenizer.decode(split.tokens[rows.start[i] : rows.stop[i]]).splitlines(True)
        real, labels = training["attention_mask"][i].bool(), training["labels"][i]
        row = f"{question}<|start-latent|>{''.join(steps)}<|end-latent|>{answer}"
        assert tokenizer.decode(training["input_ids"][i][real]) == row
        assert tokenizer.decode(labels[labels != IGNORED]) == "".join(steps) + "<|end-latent|>" + answer
        labels, index = scores["labels"][i], scores["store_index"][i]
        assert tokenizer.decode(labels[labels != IGNORED]) + tokenizer.eos_token == "".join(steps) + answer
        assert np.array_equal(split.tokens[index[index >= 0]], labels[labels != IGNORED])


@pytest.mark.parametrize("latents", [None, 0, 3])
def test_a_question_ends_where_the_model_thinks_on(tiny: Recipe, latents: int | None) -> None:
    layout = CompressedSteps(latents=latents)
    store, tokenizer = prepare(tiny.data, layout, show=False)
    split = store.splits["train"]
    rows = layout.question_rows(split)[np.arange(3)]
    asked = layout.assemble(split, rows, tokenizer, left=True)["input_ids"]
    ends = "<|start-latent|>" + ("" if latents is None else "<|latent|>" * latents + "<|end-latent|>")
    prompts = layout.encode_prompts(["Who is it?"], tokenizer, tiny.data)["input_ids"]
    assert all(tokenizer.decode(row).endswith(f"\n{ends}") for row in (*asked, *prompts))
    if latents is not None:
        with pytest.raises(InputError, match=rf"layout.latents is {latents}: training merges written steps"):
            layout.check(split, tokenizer, 1, 1)


def test_a_run_learns_to_predict_latents(tiny: Recipe, tmp_path: Path) -> None:
    train(tiny.replace(train={"steps": 40}, model={"max_factor": 2}), tmp_path / "run", show=False)
    latents = [record["latent"] for record in metrics(tmp_path / "run") if "latent" in record]
    assert sum(latents[-5:]) < 0.8 * sum(latents[:5])


def test_the_figure_has_the_latents_of_each_answer(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.replace(train={"steps": 1}), tmp_path / "run", show=False)
    monkeypatch.setattr("mentalese.families.colar.figures.QUESTIONS", 3)
    monkeypatch.setattr("mentalese.families.colar.figures.FACTORS", (1, 2))
    numbers = write_figure("colar/compression", [str(tmp_path / "run")], tmp_path / "compression.svg")
    saved = load(tmp_path / "run").scored_by(max_documents=3)
    for factor in (1, 2):
        with temporarily(saved.model.config, factor=factor):
            latents = [record.latents for record in ask(saved, saved.split("test")).records]
        assert numbers["models"][0]["own"][factor][1] == pytest.approx(sum(latents) / 3, abs=0.005)
        assert sum(latents) > 0
