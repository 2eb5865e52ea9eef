"""Trains a small Thought Gestalt on generated stories and looks at what it thought.

python examples/train_and_look.py [FOLDER] [STEPS]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from mentalese import TrainConfig, get_recipe
from mentalese.models.checkpoints import load_model
from mentalese.training.loop import train

STORY = "Anna has a son called Paul. Paul lives in Rome. Anna is older than"


def main(folder: Path, steps: int) -> None:
    recipe = get_recipe("thought_gestalt/tiny")
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, source="builtin:families", tokenizer="bpe:1024"),
        train=TrainConfig(steps=steps),
    )
    result = train(recipe, folder)
    print(f"test perplexity {result['test']['perplexity']:.2f} after {result['tokens']:,} tokens")

    model, tokenizer = load_model(folder)
    prompt = recipe.layout.encode_prompts([STORY], tokenizer, recipe.data)
    trace = model(**prompt, output_thoughts=True).thoughts[0]
    for i, thought in enumerate(trace.thoughts):
        sentence = tokenizer.decode(trace.input_ids[thought.start : thought.end], skip_special_tokens=True)
        read = ", ".join(f"{weight:.2f}" for weight in trace.links["memory"][i, :i].tolist())
        print(f"{sentence.strip()!r}: a vector of norm {thought.vector.norm():.2f}; read of earlier thoughts: [{read}]")


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example"),
        int(sys.argv[2]) if len(sys.argv) > 2 else 60,
    )
