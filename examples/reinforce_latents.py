"""Reinforcement learning on a model with latent thoughts: GRPO from TRL, with right answers as the reward.

pip install trl
python examples/reinforce_latents.py [MODEL] [--source SOURCE] [--thought-noise SCALE] [--steps N] [--out FOLDER]

MODEL is a Coconut, AGCLR or CoLaR model that was trained on questions: a run's folder (also of a model that
`mentalese grow` made), a saved model, or models:NAME. Without one, `composition/coconut` is trained for 4.3 of its 12
epochs, which with what follows takes three minutes of CPU.

GRPO explores answers, which are sampled. Latents are computed, not drawn: the same question has the same thoughts.
`--thought-noise` samples them, too: each answer has its own normal noise on its latents. GRPO's loss reads question,
latents and answer in one pass, so that the gradient of an answer's log-probability passes through the latents into the
passes that made them: good answers change the thoughts, too.

CoLaR also chooses how long it thinks, and has a learned Gaussian for each latent: with `--thought-noise` latents are
drawn from it, with so many times its standard deviation, and their log density is part of the policy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.distributions import Categorical
from trl import GRPOConfig, GRPOTrainer

import mentalese
from mentalese.data.tokenizers import decode
from mentalese.evaluation.answer_rule import AnswerRule, final_answer
from mentalese.families.colar.model import Thinking
from mentalese.models.checkpoints import save_model
from mentalese.models.text_tokenizer import text_tokenizer
from mentalese.nn.controls import Noise
from mentalese.values import temporarily

COMPOSITION = "builtin:composition:length=4-5,count=12000"
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 512,  # answers a step, of which 8 are to the same question
    "num_generations": 8,
    "learning_rate": 5e-5,
    "gradient_checkpointing": False,
    "bf16": False,
    "logging_steps": 50,
    "report_to": [],
    "save_strategy": "no",
}


def trained(source: str, epochs: float, out: Path) -> mentalese.Saved:
    """The suite's Coconut for a task, stopped early, so that there is something left to learn."""
    settings = f"data.source={source}", f"train.epochs={epochs}"
    return mentalese.train("composition/coconut", *settings, out=out, resume=True)


def questions(saved: mentalese.Saved) -> Dataset:
    """Training questions with their right answers."""
    split = saved.split("train")
    rows = []
    for first, end in zip(split.document_segments, split.document_segments[1:]):
        question, answer = (decode(split.segment(number), saved.tokenizer) for number in (first, end - 1))
        rows.append({"prompt": question.strip(), "right": final_answer(answer)})
    return Dataset.from_list(rows)


def reward(completions: list[str], right: list[str], **_: Any) -> list[float]:
    """1 for the right answer."""
    rule = AnswerRule.of("", right)
    return [float(rule.equal(final_answer(text), answer)) for text, answer in zip(completions, right)]


class DrawnNoise:
    """Noise on latents that is drawn once, and is the same when the latents are computed again.

    Args:
        scale: the noise's standard deviation in root mean squares of the latents.
        drawn: the noise [rows, hidden] of each latent; `None`: it is drawn when a latent is first computed.
    """

    def __init__(self, scale: float, drawn: list[Tensor] | None = None) -> None:
        self.scale, self.drawn = scale, drawn or []

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Any, own: Tensor | None) -> Tensor:
        if numbers == len(self.drawn):
            self.drawn.append(Noise(self.scale).read(thoughts, removed, numbers, own) - thoughts)
        return thoughts + self.drawn[numbers]


class SampledThoughts(GRPOTrainer):
    """GRPO on latents that are sampled around the model's own.

    Given its noise, an answer's log-probability is a function of the weights, as without noise. So GRPO's gradient is
    the gradient of the expected reward over answers and noise. The trainer shuffles rows between generation and
    training: the noise is part of a row.
    """

    thought_noise: float

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        noise = DrawnNoise(self.thought_noise)
        with temporarily(self.model.config, thought_control=noise):
            rows = super()._generate_and_score_completions(inputs)
        return rows | {"noise": torch.stack(noise.drawn, dim=1)}

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        noise = DrawnNoise(self.thought_noise, [*inputs["noise"].unbind(1)])
        with temporarily(self.model.config, thought_control=noise):
            return super()._compute_loss(model, inputs)


class MadeLatents:
    """A control that changes nothing and keeps the latents [rows, latents, hidden] that a model makes."""

    def __init__(self, rows: int, hidden_size: int) -> None:
        self.latents = torch.empty(rows, 0, hidden_size)

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Any, own: Tensor | None) -> Tensor:
        self.latents = torch.cat((self.latents.to(thoughts), thoughts[:, None]), dim=1)
        return thoughts


class ThinkingPolicy(GRPOTrainer):
    """GRPO on CoLaR, whose actions are also the end of thinking and, with noise, the latents.

    The log-probability of a latent is the decision to go on, plus the log density of its vector if that is drawn.
    """

    thought_noise: float

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = MadeLatents(len(inputs), self.model.config.hidden_size)
        with temporarily(self.model.config, latent_temperature=self.thought_noise, thought_control=made):
            rows = super()._generate_and_score_completions(inputs)
        return rows | {"latents": made.latents}

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self.latents = inputs["latents"] if self.thought_noise else None
        with temporarily(self.model.config, latent_temperature=self.thought_noise):
            return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **_: Any
    ) -> tuple[Tensor, Tensor, None]:
        encoded, rule = model.encode(input_ids, attention_mask, latents=self.latents), Thinking(model.config)
        first = input_ids.shape[1] - logits_to_keep
        logits = model.logits(encoded, slice(first - 1, -1)).unbind(1)
        scores = [rule(input_ids[:, : first + n], before) for n, before in enumerate(logits)]
        policy = Categorical(logits=torch.stack(scores, dim=1))
        chosen = policy.log_prob(input_ids[:, -logits_to_keep:])
        if self.latents is not None and encoded.merged is not None:
            density = model.latent_log_density(encoded.merged)
            is_latent = (input_ids == model.config.latent_token_id)[:, -logits_to_keep:]
            number = (is_latent.cumsum(1) - 1).clamp(0, density.shape[1] - 1)
            chosen = chosen + density.gather(1, number) * is_latent
        return chosen, policy.entropy().detach(), None


def trainer(saved: mentalese.Saved, out: Path, thought_noise: float = 0.0, **settings: Any) -> GRPOTrainer:
    """GRPO on the model itself, without a reference model. The tokenizer puts the latents after a question."""
    kind: Any = GRPOTrainer
    if saved.model.config.model_type == "colar":
        kind = ThinkingPolicy
    elif thought_noise:
        kind = SampledThoughts
    made: GRPOTrainer = kind(
        saved.model,
        reward,
        args=GRPOConfig(str(out), **SETTINGS | {"max_completion_length": saved.evaluation.answer_tokens} | settings),
        train_dataset=questions(saved),
        processing_class=text_tokenizer(saved.tokenizer, saved.layout, saved.data),
    )
    made.thought_noise = thought_noise
    return made


def report(when: str, saved: mentalese.Saved) -> None:
    """Accuracy on the test questions, greedily, with the model's thoughts and without."""
    own = mentalese.answer(saved, show=False)
    with temporarily(saved.model.config, thought_control="removed"):
        removed = mentalese.answer(saved, show=False)
    asked = f"{own['questions']} test questions"
    print(f"{when}: {own['accuracy']:.1%} of {asked}, {removed['accuracy']:.1%} without thoughts", flush=True)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", help="default: one is trained")
    options.add_argument("--source", help=f"questions; default: the model's own, or {COMPOSITION}")
    options.add_argument("--epochs", type=float, default=4.3, help="of the model that is trained")
    options.add_argument("--thought-noise", type=float, default=0.0, help="on latents; see above")
    options.add_argument("--steps", type=int, default=200, help="of GRPO")
    options.add_argument("--seed", type=int, default=0, help="of GRPO")
    options.add_argument("--out", type=Path, default=Path("runs/reinforce"))
    given = options.parse_args(arguments)

    if given.model is None:
        saved = trained(given.source or COMPOSITION, given.epochs, given.out / "before")
    else:
        saved = mentalese.load(given.model).on(given.source)
    if not (saved.layout.questions and saved.model.config.model_type in ("coconut", "colar")):
        raise mentalese.InputError(f"{saved.path} is not a Coconut or CoLaR model that answers questions: use one")
    report("before", saved)
    trainer(saved, given.out, given.thought_noise, max_steps=given.steps, seed=given.seed).train()
    saved.model.eval()
    report("after", saved)
    save_model(given.out / "after", saved.model, saved.tokenizer, recipe=saved.recipe.to_dict())
    print(f"saved in {given.out / 'after'}")


if __name__ == "__main__":
    main()
