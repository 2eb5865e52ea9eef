"""The health of a mechanism: what its training came to, and what its thoughts are worth to the trained model.

A mechanism that is idle or has collapsed was not trained: its score is not a verdict on the idea. A run is healthy if

    signs   each figure that its family lists (`Family.signs`) is above the line there, as a mean over the last tenth of
            the training's log lines
    worth   its score on test documents falls if it reads the thoughts of another text instead of its own: the 95%
            interval of the loss over documents, or questions, is above zero

Both lines are the same for all tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from mentalese.evaluation import ablation
from mentalese.evaluation.options import AblationOptions
from mentalese.files import JsonObject, read_json, sealed, write_json
from mentalese.models.saved import load
from mentalese.registry import families
from mentalese.training.tracking import read_metrics

DOCUMENTS = 200
"""Documents, or questions, on which the worth of thoughts is measured."""
FILE = "health.json"


Worth = JsonObject | None
"""The `loss` of a model's score, nats per token or accuracy, with another text's thoughts in place of its own, and its
95% `interval` over documents or questions, `None` with too few; `None` if the model has no thoughts to replace."""


def health(runs: Sequence[Path]) -> JsonObject:
    """Return the health of a mechanism's runs, of which each is a seed.

    Returns:
        `signs`, the figures of its training (`Family.signs`), and `worth` for each seed; `healthy`, the number of
        healthy seeds; `reason`, what most other seeds lack, empty if at least half of the seeds are healthy.
    """
    model_type = read_json(runs[0] / "config.json")["recipe"]["model"]["model_type"]
    lines = next((family.signs[model_type] for family in families().values() if model_type in family.signs), {})
    signs, worth = [signs_of(run, lines) for run in runs], [worth_of(run) for run in runs]
    lacks = [_lacks(sign, value, lines) for sign, value in zip(signs, worth, strict=True)]
    healthy = lacks.count("")
    names = dict.fromkeys(name for sign in signs for name in sign)
    return {
        "signs": {name: [sign[name] for sign in signs if name in sign] for name in names},
        "worth": worth,
        "healthy": healthy,
        "reason": "" if 2 * healthy >= len(runs) else statistics.mode(lack for lack in lacks if lack),
    }


def signs_of(run: Path, lines: dict[str, float | None]) -> dict[str, float]:
    """Return means over the last tenth of a run's log lines; a name in `lines` stands for its parts `NAME.PART` too."""
    logged = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    last = logged[-max(1, len(logged) // 10) :]
    found: dict[str, list[float]] = {}
    for record in last:
        for name, value in record.items():
            if name in lines or name.partition(".")[0] in lines:
                found.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def worth_of(run: Path) -> Worth:
    """Return what a run's thoughts are worth, stored in its folder."""
    path = run / FILE
    stored = read_json(path) if path.is_file() else {}
    if stored.get("documents") != DOCUMENTS:
        saved = load(run)
        found = None
        if ablation.has_own_thoughts(saved):
            _, other = ablation.run(saved, AblationOptions(documents=DOCUMENTS), controls=["swapped"])["ablations"]
            sign = -1 if saved.layout.questions else 1  # an accuracy falls where nats rise
            interval = other["interval"] and sorted(sign * bound for bound in other["interval"])
            found = {"loss": sign * other["difference"], "interval": interval}
        stored = {"documents": DOCUMENTS, "worth": found}
        write_json(path, sealed(stored))
    worth: Worth = stored["worth"]
    return worth


def _lacks(signs: dict[str, float], worth: Worth, lines: dict[str, float | None]) -> str:
    """Return why a run is not healthy, in words; empty if it is."""
    for name, least in lines.items():
        if least is not None and not signs.get(name, math.nan) >= least:
            words = name.replace("_", " ")
            return f"{words} is below {least:g}" if name in signs else f"{words} was not measured"
    if worth is not None and not (worth["interval"] and worth["interval"][0] > 0):
        return "its score does not fall with another text's thoughts"
    return ""
