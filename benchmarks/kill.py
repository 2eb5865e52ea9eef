"""Kills runs of every family with SIGKILL at random moments, resumes them, and compares them with unbroken runs.

    python benchmarks/kill.py [--runs 5] [--seed N] [--only NAME ..] [--out results/kill.json]

For each `tiny` recipe, shrunk to a few seconds, with one process and with two (DDP over gloo): one run to the end, then
`--runs` runs that are killed once or twice, each time at a moment drawn evenly from a run's whole length, start and end
included. Of two processes one is killed first and the other up to 0.2 s later. Then the run is resumed to its end.

A run is equal if these are, bit for bit: the weights of the best model, the newest checkpoint (weights, buffers,
optimiser), every line of `metrics.jsonl` and everything in `result.json` but times and memory; and if its folder has
the same files.

Processes are forked from one that has imported everything, or most of the time would be imports. They get the variables
that `torchrun` sets. Exit code 1 if one run differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch

from mentalese import Recipe, get_recipe, provenance, recipes
from mentalese.data.store import prepare
from mentalese.files import read_json, write_json
from mentalese.model_fields import model_fields
from mentalese.models.build import build_model
from mentalese.testing.cases import write_corpus
from mentalese.testing.runs import checkpoint, metrics, shrink, weights
from mentalese.training.loop import train

STEPS, CHECKPOINT, VALIDATE = 12, 2, 3
TIMES = {"seconds", "tokens_per_second", "peak_memory_bytes", "command"}
LIMIT = 240.0


def short(name: str, text: Path) -> Recipe:
    """The recipe for a run of seconds, with dropout if its model has some, so that each step draws numbers."""
    recipe = shrink(get_recipe(name), text, steps=STEPS, checkpoint_every=CHECKPOINT, eval_every=VALIDATE)
    model = recipe.model
    if "resid_pdrop" in model_fields(model["model_type"]):
        model = model | {"resid_pdrop": 0.1}
    evaluation = dataclasses.replace(recipe.evaluation, answer_tokens=8)
    return dataclasses.replace(recipe, model=model, evaluation=evaluation)


# -- processes ---------------------------------------------------------------------------------------------------------


def start(recipe: Recipe, out: Path, processes: int) -> list[int]:
    """Forks the processes of a run, which resumes if there is something to resume; their ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            _work(recipe, out, rank, processes, port)
        pids.append(pid)
    return pids


def _work(recipe: Recipe, out: Path, rank: int, processes: int, port: int) -> None:
    """One process of a run; never returns."""
    code = 1
    try:
        log = os.open(out.with_name(f"{out.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if processes > 1:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
            os.environ |= place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        train(recipe, out, resume=True, show=False)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(pids: list[int], out: Path) -> float:
    """Waits for a run's processes; seconds."""
    began = time.monotonic()
    for pid in pids:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > began + LIMIT:
                stop(pids)
                raise RuntimeError(f"{out} hangs: {out.with_name(f'{out.name}.log').read_text()}")
            time.sleep(0.01)
    if not (out / "result.json").exists():
        raise RuntimeError(f"{out} failed: {out.with_name(f'{out.name}.log').read_text()}")
    return time.monotonic() - began


def stop(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def killed(pids: list[int], after: float, chance: random.Random) -> bool:
    """Kills a run's processes after this number of seconds, one of them first; `False` if the run was over by then."""
    time.sleep(after)
    over = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0]]
    alive = [pid for pid in pids if pid not in over]
    chance.shuffle(alive)
    for number, pid in enumerate(alive):
        if number:
            time.sleep(chance.uniform(0, 0.2))
        stop([pid])
    return not over


# -- comparison --------------------------------------------------------------------------------------------------------


def untimed(value: Any) -> Any:
    """JSON without what no two runs share."""
    if isinstance(value, dict):
        return {name: untimed(part) for name, part in value.items() if name not in TIMES}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def differences(out: Path, whole: Path) -> Iterator[str]:
    """In what a resumed run differs from one that was never killed."""
    if not same(weights(out), weights(whole)):
        yield "weights of the best model"
    if not same(checkpoint(out), checkpoint(whole)):
        yield "newest checkpoint"
    if untimed(metrics(out)) != untimed(metrics(whole)):
        yield "metrics.jsonl"
    results = [read_json(folder / "result.json") for folder in (out, whole)]
    if untimed(results[0]) != untimed(results[1]):
        yield "result.json"
    files = [{path.relative_to(folder).as_posix() for path in folder.rglob("*")} for folder in (out, whole)]
    if files[0] != files[1]:
        yield f"files ({', '.join(sorted(files[0] ^ files[1]))})"


# -- the table ---------------------------------------------------------------------------------------------------------


def cell(recipe: Recipe, folder: Path, processes: int, runs: int, chance: random.Random) -> dict[str, Any]:
    """One recipe with this number of processes: the line of the table."""
    whole, length = folder / "whole", 0.0
    for out in (folder / "first", whole):  # the first one also fills caches, and is longer
        length = finish(start(recipe, out, processes), out)
    kills, equal, steps, found = 0, 0, [], []
    for number in range(runs):
        out = folder / f"cut-{number}"
        wanted, done = chance.randint(1, 2), 0
        while done < wanted:
            if not killed(start(recipe, out, processes), chance.uniform(0, length), chance):
                if done:  # it was resumed and got to its end before the second kill
                    break
                shutil.rmtree(out)
                continue
            done += 1
            lines = metrics(out) if (out / "metrics.jsonl").exists() else []
            steps.append(lines[-1]["step"] if lines else 0)
        kills += done
        finish(start(recipe, out, processes), out)
        differ = list(differences(out, whole))
        equal += not differ
        found += [f"run {number}: {name}" for name in differ]
        if not differ:
            shutil.rmtree(out)
    line = {"recipe": recipe.name, "processes": processes, "runs": runs, "kills": kills, "equal": equal}
    return line | {"seconds": round(length, 2), "steps_at_kill": sorted(steps), "differences": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="runs that are killed, per recipe and number of processes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31), help="of the moments")
    parser.add_argument("--only", nargs="*", default=[name for name in recipes() if name.endswith("/tiny")])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    provenance.commit()  # kept, so that no process asks git again
    chance, lines, began = random.Random(asked.seed), [], time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="mentalese-kill-"))
    os.environ["MENTALESE_CACHE"] = str(folder / "cache")
    text = write_corpus(folder)
    for name in asked.only:
        recipe = short(name, text)
        _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
        build_model(recipe.model, tokenizer, seed=0)  # its modules are imported here, once
        for processes in (1, 2):
            place = folder / f"{name.replace('/', '-')}-{processes}"
            place.mkdir()
            lines.append(cell(recipe, place, processes, asked.runs, chance))
            shown = {key: value for key, value in lines[-1].items() if key != "steps_at_kill"}
            print(f"{time.monotonic() - began:6.0f} s", json.dumps(shown), flush=True)
    total = {key: sum(line[key] for line in lines) for key in ("runs", "kills", "equal")}
    print(f"{total['equal']} of {total['runs']} runs equal after {total['kills']} kills (seed {asked.seed})")
    if asked.out is not None:
        about = {"commit": provenance.commit(), "seed": asked.seed, "seconds": round(time.monotonic() - began)}
        about |= {"steps": STEPS, "checkpoint_every": CHECKPOINT, "eval_every": VALIDATE}
        about |= {"hardware": provenance.hardware(torch.device("cpu")), "versions": provenance.versions()}
        write_json(asked.out, about | {"total": total, "table": lines})
    if total["equal"] < total["runs"]:
        print(f"the runs that differ are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
