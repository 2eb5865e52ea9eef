"""The commands of `mentalese`, one module each: `Options`, if it has some, and `run(words)`."""

from typing import NamedTuple


class About(NamedTuple):
    """What `mentalese --help` says of a command."""

    usage: str
    summary: str


COMMANDS = {
    "list": About("[PATTERN] [--family F] [--table T] [--all]", "families, recipes, built-in data and figures"),
    "demo": About("[--jobs N] [--out DIR]", "trains small models that think and shows them on a page"),
    "models": About("[--json]", "trained models to open at once"),
    "show": About("RECIPE|FILE [section.field=value ...]", "every field of a recipe, with its meaning"),
    "train": About(
        "RECIPE|FILE [section.field=value ...] [--data SOURCE] [--out DIR] [--resume] [--dry-run]", "trains a recipe"
    ),
    "eval": About(
        "MODEL [--tasks perplexity,blimp,...] [--data SOURCE]", "scores a model on a text and on zero-shot sets"
    ),
    "answer": About("MODEL [--data SOURCE] [--shots N] [--answer-samples K]", "asks a model questions"),
    "ablate": About("MODEL [--data SOURCE] [--documents N]", "scores a model without its thoughts"),
    "sample": About("MODEL --judge MODEL [--kind both]", "scores a model's own text by a second model"),
    "diff": About("MODEL OTHER [--data SOURCE]", "compares two models token by token"),
    "generate": About("MODEL --prompt TEXT ... | --file FILE", "continues a text"),
    "think": About("MODEL --text TEXT | --file FILE [--against MODEL]", "shows what a model thinks of a text"),
    "play": About("MODEL [--port N] [--host ADDRESS]", "a page on this machine to write with a model"),
    "compare": About(
        "RECIPE|FILE ... [section.field=value ...] [--match params|tokens|flops] [--seeds N]",
        "trains recipes on the same text and compares them",
    ),
    "suite": About(
        "[TASK ...] [--trials N] [--seeds N] [--jobs N] [--out DIR]",
        "every family on tasks with a known optimum, beside its control",
    ),
    "figure": About("NAME PATH ... --out FILE.svg", "draws runs, results and models"),
    "grow": About("BASE --family NAME --out DIR", "adds latent thought to a trained Hugging Face model"),
    "push": About("MODEL REPO [--dry-run] [--private]", "uploads a trained model to the Hugging Face hub"),
    "bench": About("[FAMILY ...] [--out FILE]", "speed, memory and cost against the baselines"),
    "new": About("family NAME [--out DIR]", "writes a package with a small family that works, to start from"),
    "check": About("FAMILY|MODULE|FOLDER [--only WORDS]", "runs the contract tests on a family"),
    "data": About("prepare SOURCE --out DIR", "makes a token store"),
    "completion": About("bash|zsh|fish", "a script that completes commands, recipes and figures"),
}
