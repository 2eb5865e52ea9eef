"""The example of reinforcement learning: what TRL's GRPO reads, what its gradient is, and the example as a whole."""

from __future__ import annotations

import copy
import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import mentalese
from mentalese import InputError, get_recipe, override
from mentalese.data.evaluation import question_batches
from mentalese.evaluation.answers import ask
from mentalese.families.coconut.model import CoconutForCausalLM
from mentalese.families.coconut.plain import Coconut
from mentalese.families.colar.plain import Colar
from mentalese.values import temporarily
from support import module_at, saved, sharing, shrink

pytest.importorskip("trl")
pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # trl's own, and those of what it imports
]

SOURCE = "builtin:composition:length=3-4,count=60"
FEW: dict[str, Any] = {"per_device_train_batch_size": 8, "num_generations": 4, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture(scope="module")
def example() -> Any:
    return module_at(Path(__file__).parents[2] / "examples" / "reinforce_latents.py")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An untrained Coconut, or another method, with four latents after a question and no written step."""
    method = getattr(request, "param", "coconut")
    recipe = override(
        get_recipe(f"composition/{method}"),
        f"data.source={SOURCE}",
        "layout.stage=5",
        "model.backbone.hidden_size=32",
        "model.backbone.intermediate_size=64",
    )
    return saved(tmp_path / "model", recipe)


class Gradients(TrainerCallback):
    """Those of the first update, by parameter."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step(example: Any, opened: Any, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """The gradients of one step of GRPO, and its rows: prompt, tokens of the answer, reward."""
    rows: list[Any] = []

    def reward(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = [float(sum(ids) % 7) for ids in completion_ids]  # an untrained model has no right answers
        rows.extend(zip(prompts, completion_ids, rewards))
        return rewards

    monkeypatch.setattr(example, "reward", reward)
    settings = {"max_grad_norm": 0.0, "loss_type": "grpo", "scale_rewards": "none", "max_completion_length": 5}
    training = example.trainer(opened, out, max_steps=1, **FEW | settings)
    gradients = Gradients()
    training.add_callback(gradients)
    training.train()
    return gradients.found, rows


def expected(model: Any, tokenizer: Any, rows: list[Any]) -> dict[str, torch.Tensor]:
    """Gradients of the mean of -A log p(answer | question, latents), by the method as `plain.py` writes it."""
    model.zero_grad()
    plain = sharing(Coconut(model.config), model)
    for start in range(0, len(rows), FEW["num_generations"]):
        group = rows[start : start + FEW["num_generations"]]
        mean = sum(reward for *_, reward in group) / len(group)
        for prompt, answer, reward in group:
            ids = torch.tensor(tokenizer(prompt)["input_ids"] + answer)
            assert int((ids == model.config.latent_token_id).sum()) == 4
            logits = plain(ids)[-len(answer) - 1 : -1]
            said = logits.log_softmax(-1)[torch.arange(len(answer)), ids[-len(answer) :]]
            (-(reward - mean) * said.mean() / len(rows)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def distance(found: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The length of their difference over that of the second."""
    gaps = [(found.get(name, torch.zeros_like(grad)) - grad).square().sum() for name, grad in other.items()]
    return float((sum(gaps) / sum(grad.square().sum() for grad in other.values())) ** 0.5)


@pytest.mark.parametrize("folder", ["coconut", "agclr"], indirect=True)
def test_the_gradient_goes_through_the_latents(
    example: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mentalese.load(folder, "cpu")
    before = copy.deepcopy(opened.model)
    found, rows = step(example, opened, tmp_path / "out", monkeypatch)
    assert len({reward for *_, reward in rows}) > 1
    assert distance(found, expected(before, opened.tokenizer, rows)) < 1e-4

    # Were the latents constants, the gradient would be another one.
    latent = CoconutForCausalLM._latent
    monkeypatch.setattr(CoconutForCausalLM, "_latent", lambda self, *args: latent(self, *args).detach())
    again = mentalese.load(folder, "cpu")
    cut, rows = step(example, again, tmp_path / "cut", monkeypatch)
    assert distance(cut, expected(before, opened.tokenizer, rows)) > 0.05


def sampled(
    example: Any, opened: Any, out: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Any, list[Any]]:
    """The gradients of one step with sampled latents, and its rows: prompt and answer, the answer's length, noise."""
    rows: list[Any] = []
    scored = example.SampledThoughts._generate_and_score_completions

    def keep(self: Any, inputs: Any) -> Any:
        made = scored(self, inputs)
        masks = torch.cat((made["prompt_mask"], made["completion_mask"]), dim=1).bool()
        for number, ids in enumerate(torch.cat((made["prompt_ids"], made["completion_ids"]), dim=1)):
            answer = int(made["completion_mask"][number].sum())
            rows.append((ids[masks[number]], answer, made["advantages"][number], made["noise"][number]))
        return made

    monkeypatch.setattr(example.SampledThoughts, "_generate_and_score_completions", keep)
    monkeypatch.setattr(example, "trainer", partial(example.trainer, thought_noise=2.0, **settings))
    found, _ = step(example, opened, out, monkeypatch)
    return found, rows


def noisy_logits(example: Any, model: Any, row: Any, noise: torch.Tensor) -> torch.Tensor:
    """The logits of the answer's tokens [n, vocabulary] of one row under a noise [latents, hidden]."""
    ids, answer, *_ = row
    with temporarily(model.config, thought_control=example.DrawnNoise(2.0, [*noise[:, None]])):
        return model(ids[None]).logits[0, -answer - 1 : -1]


@pytest.mark.parametrize("folder", ["coconut", "agclr"], indirect=True)
def test_each_answer_trains_under_its_own_noise(
    example: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mentalese.load(folder, "cpu")
    before = copy.deepcopy(opened.model)
    found, rows = sampled(example, opened, tmp_path / "out", monkeypatch)

    def gradients(noises: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        before.zero_grad()
        for row, noise in zip(rows, noises):
            ids, answer, advantage, _ = row
            chances = noisy_logits(example, before, row, noise).log_softmax(-1)
            said = chances[torch.arange(answer), ids[-answer:]]
            (-advantage * said.mean() / len(rows)).backward()
        return {name: p.grad.clone() for name, p in before.named_parameters() if p.grad is not None}

    noises = [noise for *_, noise in rows]
    assert distance(found, gradients(noises)) < 1e-4
    assert distance(found, gradients(noises[1:] + noises[:1])) > 0.05


def test_each_answer_is_sampled_under_its_own_noise(
    example: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mentalese.load(folder, "cpu")
    before = copy.deepcopy(opened.model)
    _, rows = sampled(example, opened, tmp_path / "out", monkeypatch, temperature=1e-4)
    for row in rows:
        ids, answer, _, noise = row
        assert noisy_logits(example, before, row, noise).argmax(-1).tolist() == ids[-answer:].tolist()
    questions: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for ids, answer, *_ in rows:
        questions.setdefault(tuple(ids[:-answer].tolist()), set()).add(tuple(ids[-answer:].tolist()))
    assert max(len(answers) for answers in questions.values()) > 1


def action(plain: Colar, state: torch.Tensor, token: torch.Tensor, thinks: bool) -> torch.Tensor:
    """The log-probability of a token after a state: while a row thinks, the end, or all others, which are a latent."""
    said = plain.words(state).log_softmax(-1)
    if thinks and token != plain.end:
        return (1 - said[plain.end].exp()).log()
    return said[token]


def colar_objective(plain: Colar, row: dict[str, torch.Tensor], noise: float) -> torch.Tensor:
    """The mean of log p over an answer's tokens and latents, one after the other, as `plain.py` reads them."""
    question = row["prompt_ids"][row["prompt_mask"].bool()][:-1]
    tokens, inputs = row["completion_ids"][row["completion_mask"].bool()], plain.prompt(question, plain.config.factor)
    latents, chances, thinks = iter(row["latents"]), [], True
    for number, token in enumerate(tokens):
        state, at_most = plain.read(inputs)[-1], number == plain.config.max_latents
        chances.append(action(plain, state, token, thinks) * (not (thinks and at_most)))
        if token == plain.config.latent_token_id:
            latent, (mean, log_std) = next(latents), plain.latent_head(state)
            if noise:
                normal = torch.distributions.Normal(plain.scale() * mean, plain.scale() * noise * log_std.exp())
                chances[-1] = chances[-1] + normal.log_prob(latent).sum()
            inputs = torch.cat((inputs, latent[None] if noise else plain.scale() * mean[None]))
        else:
            thinks, inputs = False, torch.cat((inputs, plain.embed(token[None])))
    return torch.stack(chances).mean()


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_colar_is_rewarded_for_latents_and_for_their_end(
    noise: float, example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = override(get_recipe("colar/composition"), f"data.source={SOURCE}", "model.max_latents=3")
    opened = mentalese.load(saved(tmp_path / "model", recipe), "cpu")
    opened.model.double()  # a processor's rounding of float32 is a thousandth of these gradients
    with torch.no_grad():  # so that thinking ends sooner and later
        opened.model.get_output_embeddings().weight[opened.model.config.latent_end_token_id] *= 8
    before, rows = copy.deepcopy(opened.model), {}
    scored = example.ThinkingPolicy._generate_and_score_completions
    monkeypatch.setattr(
        example.ThinkingPolicy,
        "_generate_and_score_completions",
        lambda self, inputs: rows.update(scored(self, inputs)) or dict(rows),
    )
    monkeypatch.setattr(example, "trainer", partial(example.trainer, thought_noise=noise))
    found, _ = step(example, opened, tmp_path / "out", monkeypatch)
    lengths = {int((ids == before.config.latent_token_id).sum()) for ids in rows["completion_ids"]}
    assert len(lengths) > 1, "rows that think equally long prove less"
    plain = sharing(Colar(before.config), before)
    for number, advantage in enumerate(rows["advantages"]):
        row = {name: rows[name][number] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
        row["latents"] = rows["latents"][number]
        (-advantage * colar_objective(plain, row, noise) / len(rows["advantages"])).backward()
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert distance(found, expected) < 1e-4


def test_questions_are_those_of_evaluation(example: Any, folder: Path, tmp_path: Path) -> None:
    opened = mentalese.load(folder, "cpu")
    split, asked = opened.split("train"), example.questions(opened)
    records = ask(opened, split).records
    assert [record.expected for record in records] == asked["right"]
    tokenizer = example.trainer(opened, tmp_path / "out", **FEW).processing_class
    alone = dataclasses.replace(opened.evaluation, batch_size=1)
    for batch in question_batches(split, opened.layout, alone, opened.tokenizer):
        prompt = asked[int(batch["documents"])]["prompt"]
        assert tokenizer(prompt)["input_ids"] == batch["input_ids"][0].tolist()
    texts = ["### cab", "cab", "### cab cab", "bca\n### cab", "###"]
    assert example.reward(texts, ["cab"] * 5) == [1.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("options", [[], ["--thought-noise", "0.1"]], ids=["own", "sampled"])
def test_the_example_runs(
    example: Any,
    folder: Path,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "reward", lambda completions, **_: [float(len(set(text))) for text in completions])
    monkeypatch.setattr(example, "SETTINGS", example.SETTINGS | FEW)
    monkeypatch.setattr(mentalese, "answer", partial(mentalese.answer, documents=50))
    before = mentalese.load(folder, "cpu").model.state_dict()
    example.main([str(folder), "--steps", "2", "--out", str(tmp_path / "out"), *options])
    line = r"^(before|after): ([\d.]+)% of (\d+) test questions, [\d.]+% without thoughts"
    said = re.findall(line, capsys.readouterr().out, re.MULTILINE)
    assert [when for when, *_ in said] == ["before", "after"]
    after = mentalese.load(tmp_path / "out" / "after", "cpu")
    assert not any(p.isnan().any() for p in after.model.state_dict().values())
    assert any(not torch.equal(p, before[name]) for name, p in after.model.state_dict().items())
    asked = mentalese.answer(after, show=False)
    assert (f"{100 * asked['accuracy']:.1f}", str(asked["questions"])) == said[1][1:]


def test_a_model_that_answers_no_questions_is_refused(example: Any, tmp_path: Path, corpus: Path) -> None:
    texts = saved(tmp_path / "text", shrink(get_recipe("gpt2/tiny"), corpus))
    with pytest.raises(InputError, match="is not a Coconut or CoLaR model that answers"):
        example.main([str(texts)])
