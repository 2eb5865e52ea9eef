"""What one half hour on a GPU should answer, in the order of its worth.

    python benchmarks/gpu.py --out gpu.json                      # on a GPU
    python benchmarks/gpu.py --out gpu.json --device cpu --rehearse   # the same at toy size

    contract     the contract tests of every family on the device
    training     tokens per second, MFU and peak memory of each family at 124M parameters, in turns with its baseline
    decoding     tokens per second of each family at batches of 1, 8 and 64, against the baseline's
    compiled     a training step under `train.compile` over the plain one
    suite        the mechanism suite at a larger size
    forks        arms of Thoughtbubbles: no forks, constant scores, learned scores
    fast_tokens  decoding with compiled layers over the plain one
    fixed_cache  the same with CUDA graphs on a cache of fixed size
    answers      seconds per question of SmolLM2 with written steps and with latents; needs
                 `mentalese models --fetch smollm2` and the package of models
    compiled     the same step, tuned by `max-autotune-no-cudagraphs`
    float8       a compiled step with linear maps in float8 over one without; needs torchao

Each part is a list of items; each item runs in a process of its own with a time limit, and its result is written to
`--out` at once. The same command continues where it stopped: items that are in the file are not run again, those that
failed are, with `--again`; trainings go on from their checkpoints or finished runs. Processes are forked from one that
has imported everything and never used the device. Texts are generated or Python's own documentation, so that no
network is needed.
"""

from __future__ import annotations

import argparse
import contextlib
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

from mentalese import answer, load, provenance
from mentalese.compare.bench import Contender, measure
from mentalese.data.store import prepare
from mentalese.files import read_json, write_json
from mentalese.models.base import as_model
from mentalese.models.build import build_model
from mentalese.recipe import DataConfig, Recipe, TrainConfig
from mentalese.registry import get_recipe
from mentalese.suite.methods import SuiteTask
from mentalese.suite.recipes import SUITE
from mentalese.suite.run import Schedule, run_suite
from mentalese.training.loop import train
from mentalese.training.parallel import setup
from mentalese.training.validation import openings

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
FIXED = {"coconut": "coconut/small", "looped": "looped/small"}
"""Families whose caches may have a fixed size."""
ANSWERING = ("smollm2-words-cot", "smollm2-words-colar")
TESTED = (*FAMILIES, "looped", "mdlm", "md4", "sedd")
WIDE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
"""124M parameters with the vocabulary of GPT-2."""
BATCHES = (1, 8, 64)
PROMPT, NEW = 64, 64  # tokens
PRELOADED = ["mentalese.compare.bench", "mentalese.suite.run"]
PRELOADED += [f"mentalese.families.{name}.model" for name in FAMILIES | FIXED if name != "gpt2"]
PRELOADED += ["transformers.models.gpt2.modeling_gpt2"]
LIMITS = {"contract": 120, "training": 120, "decoding": 60, "compiled": 240, "fast_tokens": 180, "float8": 240}
LIMITS |= {"fixed_cache": 180, "suite": 300, "forks": 120, "answers": 120}
"""Seconds per item; a rehearsal may be on a busy machine and has four times as much."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where items run.

    Attributes:
        folder: of runs that a later call of the same command continues.
    """

    device: str
    rehearse: bool
    folder: Path


def recipe_of(name: str, on: Setting) -> Recipe:
    """A recipe at 124M parameters on text that needs no network; its `tiny` one if this is a rehearsal."""
    recipe = get_recipe(name.replace("/small", "/tiny") if on.rehearse else name)
    changes: dict[str, Any] = {}
    if not recipe.layout.questions:
        vocabulary = 512 if on.rehearse else 16_384
        changes["data"] = dataclasses.replace(
            DataConfig(source="builtin:stdlib", tokenizer=f"bpe:{vocabulary}"),
            max_sentence_tokens=recipe.data.max_sentence_tokens,
        )
    if not on.rehearse:
        model = dict(recipe.model)
        sizes = model
        if "backbone" in model:
            sizes = model["backbone"] = dict(model["backbone"])
        old = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        for field, value in WIDE.items():
            sizes[old[field] if old[field] in sizes else field] = value
        for field, value in {"num_key_value_heads": 12, "intermediate_size": 2048}.items():
            if sizes.get(field) is not None:
                sizes[field] = value
        changes["model"] = model
    precision = "fp32" if on.device == "cpu" else "bf16"
    changes["train"] = TrainConfig(steps=1000, device=on.device, precision=precision)
    return dataclasses.replace(recipe, phases=(), **changes)


# -- items -------------------------------------------------------------------------------------------------------------


def contract(family: str, on: Setting) -> dict[str, Any]:
    """The last line of the tests' output; `RuntimeError` with more of it if a test fails or none is there."""
    files = [f"tests/contract/test_{name}.py" for name in (("contract",) if on.rehearse else ("contract", "training"))]
    chosen = f"{family}/tiny]" + (" and every_parameter" if on.rehearse else "")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"MENTALESE_TEST_DEVICE": on.device},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode:
        raise RuntimeError("\n".join(lines[-40:]))
    return {"tests": lines[-1]}


def training(family: str, on: Setting) -> dict[str, Any]:
    recipe = recipe_of(FAMILIES[family], on)
    own = get_recipe(FAMILIES[family]).baseline or "gpt2/small"
    baseline = recipe_of(own if own.endswith("/small") else "gpt2/small", on)
    return measure(recipe, baseline, rounds=1 if on.rehearse else 3, steps=1 if on.rehearse else 2)


def decoding(family: str, batch: int, on: Setting) -> dict[str, Any]:
    """New tokens per second, greedy, of the same prompt in all rows.

    The prompt is a test document's opening, or a question with its latents.
    """
    model, prompts = _prompted(family, batch, on)
    return _decode(model, prompts, on) | {"prompt": prompts["input_ids"].shape[1], "dtype": str(model.dtype)}


def fast_tokens(family: str, batch: int, on: Setting, fixed: bool = False) -> dict[str, Any]:
    """Tokens per second with compiled layers, after and over those without.

    Args:
        fixed: on a cache of fixed size, for which a GPU captures graphs.
    """
    model, prompts = _prompted(family, batch, on)
    plain = _decode(model, prompts, on)
    options = _backend(on, "reduce-overhead") | {"dynamic": False} if fixed else _backend(on)
    if not as_model(model).compile_parts(**options):
        raise RuntimeError("the model names no parts to compile")
    fast = _decode(model, prompts, on, cache_implementation="static" if fixed else None)
    ratio = fast["tokens_per_second"] / plain["tokens_per_second"]
    return {"ratio": ratio, "compiled": fast, "plain": plain}


def answers(name: str, batch: int, on: Setting) -> dict[str, Any]:
    """Accuracy, and tokens, latents and seconds per question; a batch before them warms up."""
    model, options = load(f"models:{name}", on.device), {"batch_size": batch, "show": False}
    answer(model, documents=1 if on.rehearse else batch, **options)
    return answer(model, documents=2 if on.rehearse else max(32, 2 * batch), **options)


def _prompted(family: str, batch: int, on: Setting) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model, and rows to continue."""
    recipe = recipe_of((FAMILIES | FIXED)[family], on)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    dtype = torch.float32 if on.device == "cpu" else torch.bfloat16
    model = build_model(recipe.model, tokenizer, seed=0).to(on.device, dtype).eval()
    text = openings(store, tokenizer, 1, PROMPT, questions=recipe.layout.questions)[0]
    prompts = recipe.layouts()[-1].encode_prompts([text] * batch, tokenizer, recipe.data)
    return model, {name: value.to(on.device) for name, value in prompts.items()}


def _decode(model: Any, prompts: dict[str, torch.Tensor], on: Setting, **options: Any) -> dict[str, Any]:
    """The median of three calls after one that warms up; `options` of `generate`."""
    new = 4 if on.rehearse else NEW
    options |= {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        with torch.no_grad():
            model.generate(**prompts, **options)
        if on.device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds[1:])[1]
    return {"tokens_per_second": len(prompts["input_ids"]) * new / median, "seconds": seconds}


def compiled(family: str, on: Setting, mode: str | None = None) -> dict[str, Any]:
    """Training tokens per second, compiled over plain."""
    recipe, parallel = recipe_of(FAMILIES[family], on), setup(on.device)
    contenders = {"compiled": Contender(recipe, parallel), "plain": Contender(recipe, parallel)}
    contenders["compiled"].run.step.compile(**_backend(on, mode))
    return _turns(contenders, on)


def float8(family: str, on: Setting) -> dict[str, Any]:
    """Training tokens per second with the blocks' linear maps in float8 over bf16, both compiled.

    Maps of sizes that no float8 kernel takes stay as they are, and so does the head. A rehearsal computes in float32
    what float8 would round. Needs torchao.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe, parallel = recipe_of(FAMILIES[family], on), setup(on.device)
    contenders = {"float8": Contender(recipe, parallel), "plain": Contender(recipe, parallel)}
    step, converted = contenders["float8"].run.step, []
    config = Float8LinearConfig(pad_inner_dim=True, emulate=on.device == "cpu")  # rows are any number

    def taken(module: torch.nn.Module, name: str) -> bool:
        sizes = (getattr(module, "in_features", 1), getattr(module, "out_features", 1))
        if chosen := "blocks." in name and all(size % 16 == 0 for size in sizes):
            converted.append(name)
        return chosen

    convert_to_float8_training(step, module_filter_fn=taken, config=config)
    for each in contenders.values():
        each.run.step.compile(**_backend(on))
    return _turns(contenders, on) | {"maps": len(converted)}


def _backend(on: Setting, mode: str | None = None) -> dict[str, Any]:
    """How to compile. A rehearsal traces graphs and runs them as they are: the CPU's compiler takes minutes."""
    return {"backend": "eager"} if on.rehearse else {"mode": mode}


def _turns(contenders: dict[str, Contender], on: Setting) -> dict[str, Any]:
    """Training tokens per second of the first over the second, turn by turn; the first turn is not counted."""
    first, second = contenders
    began = time.perf_counter()
    contenders[first].train(1)
    compiling = time.perf_counter() - began
    turns = [{name: each.train(2) for name, each in contenders.items()} for _ in range(2 if on.rehearse else 5)][1:]
    ratios = sorted(turn[first] / turn[second] for turn in turns)
    return {"ratio": ratios[len(ratios) // 2], "tokens_per_second": turns, "first_seconds": compiling}


def suite(task: str, on: Setting) -> dict[str, Any]:
    if on.rehearse:
        SUITE[task] = partial(_toy, SUITE[task])
    size, trials, seeds = (0.25, 1, 1) if on.rehearse else (4.0, 1, 3)
    return run_suite([task], on.folder / "suite" / task, Schedule.of(trials, seeds=seeds), size=size)


def _toy(made: Callable[[float], SuiteTask], size: float) -> SuiteTask:
    """A task's first methods, trained for a step or two."""
    task, train = made(size), TrainConfig(tokens=5_000)
    methods = tuple(
        dataclasses.replace(method, recipe=dataclasses.replace(method.recipe, train=train))
        for method in task.methods[:2]
    )
    return dataclasses.replace(task, methods=methods)


def forks(arm: str, on: Setting) -> dict[str, Any]:
    """Validation perplexity of Thoughtbubbles after equal tokens."""
    recipe = recipe_of("thoughtbubbles/small", on)
    fields: dict[str, Any] = {"regular": {"fork_layers": []}, "constant": {"thought_control": "removed"}}.get(arm, {})
    config = dataclasses.replace(recipe.train, steps=2 if on.rehearse else 300, checkpoint_every=100)
    recipe = dataclasses.replace(recipe, name=f"thoughtbubbles/{arm}", model=recipe.model | fields, train=config)
    result = train(recipe, on.folder / "forks" / arm, resume=True, show=False)
    return {name: result[name] for name in ("validation", "test", "tokens", "flops", "seconds", "tokens_per_second")}


ITEMS: dict[str, Callable[..., dict[str, Any]]] = {
    **{f"contract/{family}": partial(contract, family) for family in TESTED},
    **{f"training/{family}": partial(training, family) for family in FAMILIES},
    **{f"decoding/{family}/{batch}": partial(decoding, family, batch) for batch in BATCHES for family in FAMILIES},
    **{f"compiled/{family}": partial(compiled, family) for family in FAMILIES},
    **{f"suite/{task}": partial(suite, task) for task in ("topics", "recall")},
    **{f"forks/{arm}": partial(forks, arm) for arm in ("regular", "constant", "learned")},
    **{f"fast_tokens/{family}/1": partial(fast_tokens, family, 1) for family in FAMILIES},
    **{f"fixed_cache/{family}/1": partial(fast_tokens, family, 1, fixed=True) for family in FIXED},
    **{f"answers/{name}/{batch}": partial(answers, name, batch) for batch in (1, 64) for name in ANSWERING},
    "compiled/gpt2/max-autotune": partial(compiled, "gpt2", mode="max-autotune-no-cudagraphs"),
    "float8/thoughtbubbles": partial(float8, "thoughtbubbles"),
}


# -- running them ------------------------------------------------------------------------------------------------------


def _work(name: str, on: Setting, pipe: Any) -> None:
    os.setsid()  # with the processes that it starts, it can be ended as one
    try:
        pipe.send({"result": ITEMS[name](on=on)})
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc().splitlines()[-12:]})


def run_item(name: str, on: Setting, limit: float) -> dict[str, Any]:
    """The result of an item, or why there is none."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, on, theirs))
    began = time.perf_counter()
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit) else {"error": f"took longer than {limit:.0f} s"}
    except EOFError:
        found = {"error": "its process ended without a result"}
    if "error" in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return found | {"seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="at toy size")
    parser.add_argument("--again", action="store_true", help="run items again that failed")
    parser.add_argument("--seconds", type=float, default=1740, help="end all after this time")
    parser.add_argument("--only", default="", help="items that begin like this")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error("there is no GPU: use --device cpu --rehearse")
    for name in (FAMILIES | FIXED).values():  # a rehearsal finds out too if they cannot be made
        recipe_of(name, Setting(options.device, False, Path()))
    on = Setting(options.device, options.rehearse, options.out.with_suffix(""))
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
        limit = min(LIMITS[name.partition("/")[0]] * (4 if on.rehearse else 1), left)
        found["items"][name] = item = run_item(name, on, limit)
        write_json(options.out, found)
        print(f"{name}: {item.get('error') or 'done'}, {item['seconds']:.0f} s", flush=True)
    failed = [name for name, item in found["items"].items() if "error" in item]
    print(json.dumps({"done": len(found["items"]) - len(failed), "of": len(ITEMS), "failed": failed}))


if __name__ == "__main__":
    main()
