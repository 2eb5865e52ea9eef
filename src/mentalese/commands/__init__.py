"""The commands of `mentalese`: `Options` and `run(options)`, or `run_words(words)`, in a module of its name."""

COMMANDS = (
    *("list", "demo", "models", "show", "train", "eval", "answer", "ablate", "sample", "diff", "generate", "think"),
    *("play", "compare", "suite", "figure", "grow", "push", "bench", "new", "check", "data", "completion"),
)
MEASURES = {"eval": "Eval", "answer": "Answer", "ablate": "Ablate", "sample": "Sample", "diff": "Diff"}
"""Commands whose options are classes of `measure`."""
