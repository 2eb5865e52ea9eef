"""A run's folder: checks before writing, its present content, and its result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mentalese.data.store import source_fingerprint, tokenizer_in_folder
from mentalese.errors import InputError, require
from mentalese.files import JsonObject, check_folder_place, checksum, read_json, sha256, temporary_name
from mentalese.models.checkpoints import saved_about
from mentalese.models.tensor_files import is_checkpoint
from mentalese.recipe import Recipe
from mentalese.training.tracking import Record

if TYPE_CHECKING:
    from mentalese.training.parallel import Parallel

RunResult = JsonObject
"""The content of a run's `result.json`."""
LOCK = ".lock"
"""A file in a run's folder that the process that trains there has locked."""


def finished_result(recipe: Recipe, out: Path) -> RunResult | None:
    """Return the result of a finished run of this recipe, if `out` contains one."""
    path = out / "result.json"
    result = read_json(path) if path.is_file() else {}
    if not is_run_of(recipe, result.get("config")):
        return None
    check_inputs(recipe, out, result, source_fingerprint=source_fingerprint(recipe.data))
    return result


def first_weights(recipe: Recipe) -> dict[str, str]:
    """Return hashes of the saved weights that a run starts from: `init_weights` and `adapter_weights`, if known."""
    starts = (("init_weights", recipe.train.init, "weights"), ("adapter_weights", recipe.train.adapter, "adapter"))
    hashes = {}
    for name, path, kind in starts:
        if path is None:
            continue
        about = saved_about(path)
        files = about.get(kind) or about.get("weights")  # earlier versions noted no adapter
        if is_checkpoint(path):
            hashes[name] = sha256(Path(path) / "checksums.json")
        elif files:
            hashes[name] = checksum(files)
    return hashes


def check_inputs(recipe: Recipe, out: Path, noted: Mapping[str, object], **now: str) -> None:
    """Raise `InputError` if text, tokenizer or first weights of the run in `out` have changed since they were noted.

    What is missing now or was not noted is accepted. `now` has `source_fingerprint`, and `data_hash` if it is known.
    """
    data, first = recipe.data, first_weights(recipe)
    tokenizer = data.source if data.source.startswith("store:") else data.tokenizer
    for name, place, before, after in (
        ("text", data.source, noted.get("source_fingerprint"), now["source_fingerprint"]),
        ("data", data.source, noted.get("data_hash"), now.get("data_hash")),
        (
            "tokenizer",
            tokenizer,
            saved_about(out).get("tokenizer_fingerprint"),
            tokenizer_in_folder(data, recipe.layout),
        ),
        ("weights", recipe.train.init, noted.get("init_weights"), first.get("init_weights")),
        ("adapters", recipe.train.adapter, noted.get("adapter_weights"), first.get("adapter_weights")),
    ):
        if before is not None and after not in (None, before):
            raise InputError(f"{out} was trained with other {name} than {place} contains now: use another --out")


def _saved_recipe(saved: RunResult | None) -> Recipe | None:
    """Return the recipe of a run; `None` if this version cannot read it."""
    try:
        return Recipe.from_dict(saved) if saved else None
    except InputError:
        return None


def is_run_of(recipe: Recipe, saved: RunResult | None) -> bool:
    """Test if a saved recipe is this one."""
    other = _saved_recipe(saved)
    return other is not None and other.fingerprint() == recipe.fingerprint()


def same_run(recipe: Recipe, out: Path) -> bool:
    """Test if `out` contains a run of this recipe, finished or not."""
    path = out / "config.json"
    return path.is_file() and is_run_of(recipe, read_json(path).get("recipe"))


def check_folder(recipe: Recipe, out: Path, resume: bool) -> None:
    """Raise `InputError` if `out` contains something that this run would destroy."""
    check_folder_place(out, "--out")
    path = out / "config.json"
    leftovers = (LOCK, temporary_name(path).name)  # all that a run has that was killed as it began
    if not out.is_dir() or all(entry.name in leftovers for entry in out.iterdir()):
        return
    require(path.is_file(), "--out", str(out), "it is not empty and contains no run, use another folder")
    saved = read_json(path)
    is_run = "fingerprint" in saved and isinstance(saved.get("recipe"), dict)
    require(is_run, "--out", str(out), "it contains a model and no run, use another folder")
    if not is_run_of(recipe, saved["recipe"]):
        other = _saved_recipe(saved["recipe"])
        changed = _changes(other.to_dict() if other else saved["recipe"], recipe.to_dict())
        raise InputError(f"{out} contains another run ({changed}): undo the change to resume it, or use another --out")
    if not resume:
        raise InputError(f"{out} already contains this run: add --resume to continue it, or use another --out")


@contextmanager
def claimed(recipe: Recipe, out: Path, resume: bool, parallel: Parallel) -> Iterator[None]:
    """Make the folder, and lock it against other processes while the block runs. Collective.

    The lock ends with the process. Systems without such locks (Windows, some network disks) keep no process out.

    Raises:
        InputError: another process trains in `out`, or what `check_folder` raises; on all ranks.
    """
    with ExitStack() as stack:

        def claim() -> None:
            out.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((out / LOCK).open("a"))
            if os.name == "posix":
                import fcntl

                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    remedy = "wait until it ends, or use another --out"
                    raise InputError(f"another process trains in {out}: {remedy}") from None
                except OSError:  # the disk has no locks
                    pass
            check_folder(recipe, out, resume)  # again: another process may have written here since

        parallel.on_main(claim)
        yield


def _changes(before: object, after: object, where: str = "") -> str:
    """Return `"train.seed was 0 and is 1, ..."` for all differences between two recipes."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        return ", ".join(_changes(before.get(n), after.get(n), f"{where}.{n}".lstrip(".")) for n in names)
    return f"{where} was {before!r} and is {after!r}"


def learning_curve(records: list[Record]) -> list[dict[str, float]]:
    """Return the points of training losses (`ntp` too) and of validations, by step, tokens, FLOPs and seconds."""
    curve = []
    seconds = 0.0
    for record in records:
        seconds = record.get("seconds", seconds)
        point = {"step": record["step"], "tokens": record["tokens"], "flops": record["flops"], "seconds": seconds}
        if figure := record.get("validation"):
            point["validation_perplexity"] = figure["perplexity"]
            if "accuracy" in figure:
                point |= {"validation_accuracy": figure["accuracy"], "stage": figure["stage"]}
        else:
            point |= {name: record[name] for name in ("loss", "ntp") if name in record}
        curve.append(point)
    return curve
