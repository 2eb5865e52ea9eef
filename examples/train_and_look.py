"""Trains a small Thought Gestalt on generated stories and shows its thoughts.

python examples/train_and_look.py [FOLDER] [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import mentalese

STORY = "Anna has a son called Paul. Paul lives in Rome. Anna is older than"


def main(folder: Path, steps: int) -> None:
    saved = mentalese.train(
        "thought_gestalt/tiny",
        "data.source=builtin:families",
        "data.tokenizer=bpe:1024",
        f"train.steps={steps}",
        out=folder,
    )
    print(f"test perplexity {saved.perplexity(saved.split('test')).perplexity:.2f}")

    trace = saved.think(STORY)
    for i, thought in enumerate(trace.thoughts):
        sentence = saved.tokenizer.decode(trace.input_ids[thought.start : thought.end], skip_special_tokens=True)
        read = ", ".join(f"{weight:.2f}" for weight in trace.links["memory"][i, :i].tolist())
        print(f"{sentence.strip()!r}: a vector of norm {thought.vector.norm():.2f}; read of earlier thoughts: [{read}]")


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example"),
        int(sys.argv[2]) if len(sys.argv) > 2 else 60,
    )
