"""The commands of `mentalese`, one module each, with `Options` and `run(options)`, or `run_words(words)`."""

COMMANDS = (
    *("list", "demo", "models", "show", "train", "eval", "answer", "ablate", "sample", "diff", "generate", "think"),
    *("play", "compare", "suite", "figure", "grow", "push", "bench", "new", "check", "data", "completion"),
)
