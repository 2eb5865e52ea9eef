"""Shows what a saved model thinks of a text: token by token as a table, and thought by thought.

python examples/look_at_thoughts.py MODEL [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from mentalese import ThoughtTrace, think

STORY = "Anna has a son called Paul. Paul lives in Rome."


def main(path: Path, folder: Path) -> None:
    trace = think(path, STORY)

    table = trace.to_pandas()  # one row per token; in a notebook, `trace` on a line of its own shows the page
    print(table.to_string(float_format="{:.2f}".format))
    worst = table.loc[table["surprisal"].idxmax()]
    print(f"{worst['token']!r} has the highest surprisal: {worst['surprisal']:.2f} nats")
    for number, thought in enumerate(trace.thoughts):
        print(f"thought {number} represents {''.join(trace.tokens[thought.start : thought.end])!r}")

    trace.save(folder)  # safetensors and JSON
    print(f"{folder} contains the trace of {len(ThoughtTrace.load(folder).tokens)} tokens")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/trace"))
