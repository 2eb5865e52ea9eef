"""What one half hour on a GPU should answer, in the order of its worth.

    python benchmarks/gpu.py --out gpu.json                      # on a GPU
    python benchmarks/gpu.py --out gpu.json --device cpu --rehearse   # the same at toy size

    contract     the contract tests of every model on the device
    training     tokens per second, MFU and peak memory of each family at 124M parameters, in turns with its baseline
    decoding     tokens per second of each family at batches of 1, 8 and 64, against the baseline's
    compiled     a training step under `train.compile` over the plain one
    suite        the mechanism suite at a larger size
    forks        arms of Thoughtbubbles: no forks, constant scores, learned scores

Each part is a list of items; each item runs in a process of its own with a time limit, and its result is written to
`--out` at once. The same command continues where it stopped: items that are in the file are not run again, those that
failed are, with `--again`. Texts are generated or Python's own documentation, so that no network is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mentalese import provenance
from mentalese.compare.bench import measure
from mentalese.files import read_json, write_json
from mentalese.models.adapter import hugging_face_model
from mentalese.models.build import build_model
from mentalese.recipe import DataConfig, Recipe, TrainConfig
from mentalese.registry import get_recipe

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "gpt2": "gpt2/small",
    "thought_gestalt": "thought_gestalt/small",
    "thoughtbubbles": "thoughtbubbles/small",
    "conceptlm": "conceptlm/small",
    "latent_thought": "latent_thought/small",
    "coconut": "coconut/small",
}
"""What is measured of each family; the baseline is the recipe's own, and GPT-2 is measured against itself."""
WIDE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
"""124M parameters with the vocabulary of GPT-2."""
BATCHES = (1, 8, 64)
PROMPT, NEW = 64, 64  # tokens
LIMITS = {"contract": 300, "training": 90, "decoding": 60, "compiled": 90, "suite": 300, "forks": 120}
"""Seconds per item."""


def recipe_of(name: str, device: str, rehearse: bool, **train: Any) -> Recipe:
    """A recipe at 124M parameters on text that needs no network; its `tiny` one if this is a rehearsal."""
    recipe = get_recipe(name.replace("/small", "/tiny") if rehearse else name)
    changes: dict[str, Any] = {}
    if not recipe.layout.questions:
        vocabulary = 512 if rehearse else 16_384
        changes["data"] = dataclasses.replace(
            DataConfig(source="builtin:stdlib", tokenizer=f"bpe:{vocabulary}"),
            max_sentence_tokens=recipe.data.max_sentence_tokens,
        )
    if not rehearse:
        model = dict(recipe.model)
        sizes = model["backbone"] = dict(model["backbone"]) if "backbone" in model else model
        old = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        for field, value in WIDE.items():
            sizes[old[field] if old[field] in sizes else field] = value
        changes["model"] = model
    precision = "fp32" if device == "cpu" else "bf16"
    changes["train"] = TrainConfig(steps=1000, device=device, precision=precision, **train)
    return dataclasses.replace(recipe, phases=(), **changes)


# -- items -------------------------------------------------------------------------------------------------------------


def contract(device: str, rehearse: bool) -> dict[str, Any]:
    """The last lines of the tests' output."""
    words = ["-k", "gpt2 and causal"] if rehearse else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"MENTALESE_TEST_DEVICE": device}
    )
    return {"returncode": done.returncode, "tail": done.stdout.splitlines()[-40:]}


def training(family: str, device: str, rehearse: bool) -> dict[str, Any]:
    recipe = recipe_of(FAMILIES[family], device, rehearse)
    own = get_recipe(FAMILIES[family]).baseline or "gpt2/small"
    baseline = recipe_of(own if own.endswith("/small") else "gpt2/small", device, rehearse)
    return measure(recipe, baseline, rounds=1 if rehearse else 3, steps=1 if rehearse else 2)


def decoding(family: str, batch: int, device: str, rehearse: bool) -> dict[str, Any]:
    """New tokens per second, greedy, of random prompts: the median of three calls after one that warms up."""
    from mentalese.data.store import prepare

    recipe = recipe_of(FAMILIES[family], device, rehearse)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = hugging_face_model(build_model(recipe.model, tokenizer, seed=0)).to(device, dtype).eval()
    new = 8 if rehearse else NEW
    prompts = torch.randint(0, model.config.vocab_size // 2, (batch, PROMPT), device=device)
    options: dict[str, Any] = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        with torch.no_grad():
            model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds[1:])[1]
    return {"tokens_per_second": batch * new / median, "seconds": seconds, "dtype": str(dtype)}


def compiled(family: str, device: str, rehearse: bool) -> dict[str, Any]:
    plain = recipe_of(FAMILIES[family], device, rehearse)
    return measure(
        recipe_of(FAMILIES[family], device, rehearse, compile=True),
        plain,
        rounds=1 if rehearse else 3,
        steps=1 if rehearse else 2,
    )


def suite(task: str, device: str, rehearse: bool) -> dict[str, Any]:
    from mentalese.suite.run import run_suite

    size, trials, seeds = (0.25, 1, 1) if rehearse else (4.0, 1, 3)
    return run_suite([task], Path("runs/gpu-suite"), trials=trials, seeds=seeds, size=size, show=False)


def forks(arm: str, device: str, rehearse: bool) -> dict[str, Any]:
    """Validation perplexity of Thoughtbubbles after equal tokens."""
    from mentalese.training.loop import train

    recipe = recipe_of("thoughtbubbles/small", device, rehearse)
    fields: dict[str, Any] = {"regular": {"fork_layers": []}, "constant": {"thought_control": "removed"}}.get(arm, {})
    config = dataclasses.replace(recipe.train, steps=2 if rehearse else 300)
    recipe = dataclasses.replace(recipe, name=f"thoughtbubbles/{arm}", model=recipe.model | fields, train=config)
    result = train(recipe, Path(f"runs/gpu-forks/{arm}"), resume=True, show=False)
    return {name: result[name] for name in ("validation", "test", "tokens", "flops", "seconds", "tokens_per_second")}


ITEMS: dict[str, Callable[..., dict[str, Any]]] = {
    "contract": contract,
    **{f"training/{family}": partial(training, family) for family in FAMILIES},
    **{f"decoding/{family}/{batch}": partial(decoding, family, batch) for batch in BATCHES for family in FAMILIES},
    **{f"compiled/{family}": partial(compiled, family) for family in FAMILIES},
    **{f"suite/{task}": partial(suite, task) for task in ("topics", "recall")},
    **{f"forks/{arm}": partial(forks, arm) for arm in ("regular", "constant", "learned")},
}


# -- running them ------------------------------------------------------------------------------------------------------


def _work(name: str, device: str, rehearse: bool, pipe: Any) -> None:
    os.setsid()  # with the processes that it starts, it can be ended as one
    try:
        pipe.send({"result": ITEMS[name](device=device, rehearse=rehearse)})
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc().splitlines()[-12:]})


def run_item(name: str, device: str, rehearse: bool, limit: float) -> dict[str, Any]:
    """The result of an item, or why there is none."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, device, rehearse, theirs))
    began = time.perf_counter()
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit) else {"error": f"took longer than {limit:.0f} s"}
    except EOFError:
        found = {"error": "its process ended without a result"}
    if process.is_alive() and "error" in found:
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return found | {"seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="at toy size")
    parser.add_argument("--again", action="store_true", help="run items again that failed")
    parser.add_argument("--seconds", type=float, default=1740, help="begin no item after this time")
    parser.add_argument("--only", default="", help="items that begin like this")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error("there is no GPU: use --device cpu --rehearse")
    ends = time.perf_counter() + options.seconds
    found: dict[str, Any] = read_json(options.out) if options.out.is_file() else {"items": {}}
    found |= {
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(torch.device(options.device)),
        "rehearsal": options.rehearse,
    }
    for name in ITEMS:
        done = found["items"].get(name)
        if not name.startswith(options.only) or (done and not (options.again and "error" in done)):
            continue
        left = ends - time.perf_counter()
        if left < 10:
            print(f"{name}: no time left")
            continue
        limit = min(LIMITS[name.partition("/")[0]], left)
        found["items"][name] = item = run_item(name, options.device, options.rehearse, limit)
        write_json(options.out, found)
        print(f"{name}: {item.get('error') or 'done'}, {item['seconds']:.0f} s", flush=True)
    failed = [name for name, item in found["items"].items() if "error" in item]
    print(json.dumps({"done": len(found["items"]) - len(failed), "of": len(ITEMS), "failed": failed}))


if __name__ == "__main__":
    main()
