"""Zero-shot questions: the CPU time of our log-likelihoods and of lm-eval's `hf`, for the same questions.

    python benchmarks/zero_shot.py MODEL FOLDER [LIMIT] [ROUNDS]

`MODEL` is a folder that transformers opens; `FOLDER` has the files of the sets (`mentalese eval --task-files`).
The first LIMIT questions of each set are asked. Prints the CPU time of both (median, fastest-slowest turn), their ratio
turn by turn, and of *ours, whole texts too*: choices are also ranked by the perplexity of their whole texts, which `hf`
does not do. Log-likelihoods differ by the rounding of the model's weights, which are read in their own type.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import mentalese
from measuring import in_turns, print_times
from mentalese.evaluation.harness import MentaleseLM
from mentalese.evaluation.measures import read_questions
from mentalese.evaluation.options import EvaluationOptions

SETS = ("lambada_openai", "hellaswag", "arc_easy", "arc_challenge", "piqa", "sciq")


def requests(name: str, folder: Path, limit: int) -> list[Instance]:
    """All requests of a set's first questions; one of a whole text has no context."""
    options = EvaluationOptions(task_files=folder, limit=limit)
    [task] = read_questions(name, options).tasks["tasks"].values()
    task.build_all_requests(limit=limit)
    return task.instances


def main(model: str, folder: Path, limit: int = 20, rounds: int = 3) -> None:
    ours = MentaleseLM(mentalese.load(model, "cpu"))
    theirs = HFLM(pretrained=model, device="cpu", batch_size=ours.batch_size)
    for name in SETS:
        asked = requests(name, folder, limit)
        continued = [request for request in asked if request.args[0]]
        contenders: dict[str, Callable[[], list[Any]]] = {
            "hf": partial(theirs.loglikelihood, continued, disable_tqdm=True),
            "ours": partial(ours.loglikelihood, continued),
        }
        if len(asked) > len(continued):
            contenders["ours, whole texts too"] = partial(ours.scores, asked)
        pairs = zip(contenders["hf"](), contenders["ours"](), strict=True)
        apart = statistics.median(abs(one - other) for (one, _), (other, _) in pairs)
        print(f"\n{name}: {limit} questions, {len(continued)} log-likelihoods, {apart:.3f} nats apart (median)")
        print_times(in_turns(contenders, rounds, time.process_time), "hf")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *(int(argument) for argument in sys.argv[3:5]))
