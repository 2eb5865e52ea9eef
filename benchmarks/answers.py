"""Answers to questions: the CPU time of models that learned the same questions, in turns.

    python benchmarks/answers.py [--questions N] [--rounds N] MODEL ..

Prints, for one question at a time and for 16 together, each model's CPU time per question (median, fastest-slowest
turn), its ratio to the first model's turn by turn, and its new tokens and latents per question.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import mentalese
from measuring import in_turns, print_times
from mentalese.data.split import Split
from mentalese.evaluation.answers import ask
from mentalese.models.saved import Saved

BATCH_SIZES = (1, 16)


def lengths(saved: Saved, split: Split) -> str:
    """New tokens and latents per question."""
    records = ask(saved, split).records
    tokens, latents = (statistics.fmean(counts) for counts in zip(*((r.tokens, r.latents or 0) for r in records)))
    return f"; {tokens:.1f} tokens, {latents:.1f} latents"


def main(models: list[str], questions: int, rounds: int) -> None:
    asked = {name: mentalese.load(name, "cpu").scored_by(max_documents=questions) for name in models}
    splits = {name: saved.split("test") for name, saved in asked.items()}
    notes = {name: lengths(saved, splits[name]) for name, saved in asked.items()}
    for size in BATCH_SIZES:
        contenders = {
            name: partial(ask, saved.scored_by(batch_size=size), splits[name]) for name, saved in asked.items()
        }
        times = in_turns(contenders, rounds, time.process_time)
        per_question = {name: [seconds / questions for seconds in values] for name, values in times.items()}
        print(f"\n{size} together, {questions} questions")
        print_times(per_question, models[0], notes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.models, given.questions, given.rounds)
