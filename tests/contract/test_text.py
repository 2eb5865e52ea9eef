"""What the tokenizer in a model's folder makes of a text is what the model reads, in every tool that people have."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    TextIteratorStreamer,
    Trainer,
    TrainingArguments,
    pipeline,
)

from mentalese import InputError, Saved, get_recipe, load
from mentalese.data.tokenizers import add_markers, tokenizer_fingerprint
from support import keep_changes, saved, shrink, tiny_recipes

TEXTS = [
    "The first",
    "She had a son. He was old and lived in",
    "A father. His",
    "Who is it? They went to the town, naïve.  There \n\n was a river.\n",
]
NAMES = [*tiny_recipes(), "coconut/tiny-coconut", "conceptlm/tiny-mtp"]
ATOL = {"atol": 2e-5, "rtol": 2e-5}


@dataclass
class Case:
    """A model's folder, opened by transformers and by us."""

    name: str
    folder: Path
    saved: Saved
    model: Any
    tokenizer: Any

    def generate(self, texts: list[str], **options: Any) -> torch.Tensor:
        """New tokens [rows, 8]."""
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        torch.manual_seed(0)
        output = self.model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, **{"do_sample": False} | options)
        return output[:, inputs["input_ids"].shape[1] :]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    run = saved(tmp_path_factory.mktemp("text") / "run", shrink(get_recipe(request.param), corpus))
    folder = run / "model"
    opened = AutoModelForCausalLM.from_pretrained(folder).eval()
    return Case(request.param, folder, load(run, "cpu"), opened, AutoTokenizer.from_pretrained(folder))


@pytest.fixture
def causal(case: Case) -> Case:
    if not case.saved.model.causal:
        pytest.skip("it fills in masks")
    return case


# -- the tokens --------------------------------------------------------------------------------------------------------


def test_the_tokenizer_reads_as_the_model_does(case: Case) -> None:
    ours, theirs = case.saved.encode(TEXTS), case.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert theirs.keys() == ours.keys()
    assert torch.equal(theirs["input_ids"], ours["input_ids"])
    assert torch.equal(theirs["attention_mask"], ours["attention_mask"])
    for text in TEXTS:
        (row,) = case.saved.encode(text)["input_ids"].tolist()
        assert case.tokenizer(text)["input_ids"] == case.tokenizer.encode(text) == row
        assert case.tokenizer([text])["input_ids"] == [row]
        assert case.tokenizer.tokenize(text, add_special_tokens=True) == case.tokenizer.convert_ids_to_tokens(row)


def test_a_markers_name_is_the_marker_unless_it_is_to_be_split(case: Case) -> None:
    text = "A son <|endoftext|> and <|latent|>."
    row = case.saved.encode(text)["input_ids"].tolist()
    assert case.tokenizer([text], split_special_tokens=True)["input_ids"] == row
    end = case.tokenizer.eos_token_id
    assert case.tokenizer(text)["input_ids"].count(end) == row[0].count(end) + 1


def test_without_special_tokens_there_is_the_text_alone(case: Case) -> None:
    for text in TEXTS:
        ids = case.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert case.tokenizer.decode(ids) == text
        assert not {*case.tokenizer.all_special_ids} & {*ids}
    lengths = [len(ids) for ids in case.tokenizer(TEXTS, add_special_tokens=False)["input_ids"]]
    assert len(case.tokenizer("")["input_ids"]) < min(lengths) + 5, "a text without characters is legal"


def test_special_tokens_are_skipped_when_a_text_is_decoded(case: Case) -> None:
    ids = case.tokenizer(TEXTS, padding=True)["input_ids"]
    decoded = case.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert decoded == [case.saved.layout.prompt_text(text) for text in TEXTS]


def test_offsets_are_the_characters_of_each_token(case: Case) -> None:
    text = TEXTS[1]
    one = case.tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    for index, (start, end), special in zip(one["input_ids"], one["offset_mapping"], one["special_tokens_mask"]):
        assert special == (index in case.tokenizer.all_special_ids)
        if not special:
            assert text[start:end] == case.tokenizer.decode([index]).rstrip("\n")
    assert "".join(text[start:end] for start, end in one["offset_mapping"]) == text
    assert one.char_to_token(5) == next(i for i, (a, b) in enumerate(one["offset_mapping"]) if a <= 5 < b)
    batch = case.tokenizer([TEXTS[0], text], padding=True, return_offsets_mapping=True)
    assert batch["offset_mapping"][1][-len(one["input_ids"]) :] == one["offset_mapping"]


def test_rows_are_padded_and_cut_as_asked(case: Case) -> None:
    tokenizer, text = case.tokenizer, TEXTS[3]
    pad, row = tokenizer.pad_token_id, tokenizer(text)["input_ids"]
    wide = tokenizer(text, padding="max_length", max_length=100, padding_side="right")
    assert wide["input_ids"] == [*row, *[pad] * (100 - len(row))]
    assert wide["attention_mask"] == [1] * len(row) + [0] * (100 - len(row))
    assert len(tokenizer([text], padding=True, pad_to_multiple_of=16)["input_ids"][0]) == -(-len(row) // 16) * 16
    assert tokenizer.pad({"input_ids": [row, row[:4]]})["input_ids"][1] == [pad] * (len(row) - 4) + row[:4]
    around = [index for index in tokenizer("")["input_ids"] if index in tokenizer.all_special_ids]
    length = len(around) + 5
    for side in ("right", "left"):
        tokenizer.truncation_side = side
        cut = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        tokenizer.truncation_side = "right"
        assert len(cut) in (length, length - 1, length - 2), "a cut on the left may leave a marker out"
        latents = [index for index in row if index in around]
        assert [index for index in cut if index in around][: len(around)] == latents[: len(around)]
        with torch.no_grad():
            assert case.model(torch.tensor([cut])).logits.isfinite().all()
    assert tokenizer(text)["input_ids"] == row, "nothing of it stays"


def test_its_length_is_what_the_model_reads(case: Case) -> None:
    context = getattr(case.model.config, "max_position_embeddings", None)
    expected = context or case.saved.layout.sequence_length
    if expected is None:
        assert case.tokenizer.model_max_length > 10**9, "sentence by sentence it reads any number of tokens"
    else:
        assert case.tokenizer.model_max_length == expected


def test_it_is_saved_copied_and_pickled_like_any_other(case: Case, tmp_path: Path) -> None:
    expected = case.tokenizer(TEXTS)["input_ids"]
    case.tokenizer.save_pretrained(tmp_path)
    for other in (
        AutoTokenizer.from_pretrained(tmp_path),
        copy.deepcopy(case.tokenizer),
        pickle.loads(pickle.dumps(case.tokenizer)),
    ):
        assert other(TEXTS)["input_ids"] == expected
        assert tokenizer_fingerprint(other) == tokenizer_fingerprint(case.saved.tokenizer)
    written = {path.name for path in case.folder.iterdir() if "token" in path.name or "chat" in path.name}
    assert written == {path.name for path in tmp_path.iterdir()}


# -- the uses ----------------------------------------------------------------------------------------------------------


def test_text_to_logits_and_loss(causal: Case) -> None:
    inputs = causal.tokenizer(TEXTS, padding=True, return_tensors="pt")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    with torch.no_grad():
        output = causal.model(**inputs, labels=labels)
    assert output.logits.shape == (*labels.shape, len(causal.tokenizer))
    assert output.loss.isfinite()


def test_text_to_text(causal: Case) -> None:
    together = causal.generate(TEXTS)
    for row, text in zip(together, TEXTS):
        assert torch.equal(row, causal.generate([text])[0])
    assert torch.equal(together, causal.generate(TEXTS, use_cache=False))
    beams = causal.generate(TEXTS, num_beams=3, num_return_sequences=2)
    sampled = causal.generate(TEXTS, do_sample=True, num_return_sequences=2)
    assert len(beams) == len(sampled) == 2 * len(TEXTS)
    assert len({tuple(row.tolist()) for row in sampled}) > len(TEXTS), "samples of a text differ"


def test_text_to_text_is_that_of_our_own_generate(causal: Case) -> None:
    own = causal.saved.generate(TEXTS[1], max_new_tokens=8, min_new_tokens=8, do_sample=False)
    new = causal.tokenizer.decode(causal.generate([TEXTS[1]])[0], skip_special_tokens=True)
    assert own == [causal.saved.layout.prompt_text(TEXTS[1]) + new]


def test_text_is_streamed(causal: Case) -> None:
    streamer = TextIteratorStreamer(causal.tokenizer, skip_prompt=True, skip_special_tokens=True)
    new = causal.generate([TEXTS[1]], streamer=streamer)
    assert "".join(streamer) == causal.tokenizer.decode(new[0], skip_special_tokens=True)


def test_the_pipeline_continues_text(causal: Case) -> None:
    continue_text = pipeline("text-generation", model=causal.model, tokenizer=causal.tokenizer, device="cpu")
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "return_full_text": False}
    found = continue_text(TEXTS[:2], **options)
    new = causal.tokenizer.batch_decode([causal.generate([text])[0] for text in TEXTS[:2]], skip_special_tokens=True)
    assert [row[0]["generated_text"] for row in found] == new


@pytest.mark.slow
def test_the_trainer_trains_on_text(causal: Case, tmp_path: Path) -> None:
    model, tokenizer = copy.deepcopy(causal.model), causal.tokenizer
    rows = [tokenizer(text) for text in TEXTS]
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=2, report_to=[], use_cpu=True, save_strategy="no",
        logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer)
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(losses) == 2
    assert all(math.isfinite(float(loss)) and float(loss) > 0 for loss in losses)
    batch = collator(rows)
    assert torch.equal(batch["labels"] == -100, batch["input_ids"] == tokenizer.pad_token_id)
    assert torch.equal(batch["input_ids"], causal.saved.encode(TEXTS)["input_ids"])


def test_what_a_family_cannot_do_is_refused_in_one_sentence(case: Case) -> None:
    inputs = case.tokenizer(TEXTS[1], return_tensors="pt")
    if not case.saved.model.causal:
        with pytest.raises(InputError, match=r"^num_beams is 2: masks fall in any order, so set 1$"):
            case.model.generate(**inputs, max_new_tokens=4, num_beams=2)
    elif hasattr(case.model, "forward_options"):
        with pytest.raises(ValueError, match=r"^assisted generation is not supported with stateful models, such as"):
            case.model.generate(**inputs, max_new_tokens=4, prompt_lookup_num_tokens=2)
    if hasattr(case.model, "forward_options"):
        says = r"^cache_implementation is 'offloaded': \w+ has no such cache \(.+\), so remove it$"
        with pytest.raises(InputError, match=says):
            case.model.generate(**inputs, max_new_tokens=4, cache_implementation="offloaded")


# -- lm-eval's adapter for Hugging Face models -------------------------------------------------------------------------

ITEMS = [("She had a son. His name", " was Paul."), ("", "A son."), ("They are old. It", " ran to the"), ("Is", " it?")]
"""Contexts, and continuations within their last sentence."""


def asked(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@pytest.fixture
def by_lm_eval(causal: Case) -> Any:
    """The folder as `lm_eval --model hf --model_args pretrained=FOLDER,trust_remote_code=True` opens it."""
    hugging_face = pytest.importorskip("lm_eval.models.huggingface", reason="needs lm-eval")
    return hugging_face.HFLM(pretrained=str(causal.folder), trust_remote_code=True, device="cpu", batch_size=2)


def test_lm_eval_scores_as_we_do_or_is_told_that_it_does_not(
    causal: Case, by_lm_eval: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if causal.saved.layout.questions:
        pytest.skip("its texts are questions, of which there is no likelihood")
    from mentalese.evaluation.harness import MentaleseLM

    _forget_warnings()
    ours = MentaleseLM(causal.saved).loglikelihood([asked("loglikelihood", *item) for item in ITEMS])
    assert not _warnings(caplog), "our own results name their estimator"
    _forget_warnings()
    theirs = by_lm_eval.loglikelihood([asked("loglikelihood", *item) for item in ITEMS], disable_tqdm=True)
    said = _warnings(caplog)
    estimator = causal.saved.model.estimators[0]
    if estimator == "exact":
        assert [score for score, _ in theirs] == pytest.approx([score for score, _ in ours], rel=1e-4)
        assert [greedy for _, greedy in theirs] == [greedy for _, greedy in ours]
        assert not said
    else:
        assert [score for score, _ in theirs] != pytest.approx([score for score, _ in ours], rel=1e-4)
        assert len(said) == 1
        assert repr(estimator) in said[0]


def test_lm_eval_generates_as_we_do(causal: Case, by_lm_eval: Any) -> None:
    stop = {"until": ["zzz"], "max_gen_toks": 6, "do_sample": False}
    theirs = by_lm_eval.generate_until([asked("generate_until", text, stop) for text in TEXTS[1:3]], disable_tqdm=True)
    own = causal.saved.generate(TEXTS[1:3], max_new_tokens=6, do_sample=False)
    assert theirs == [text[len(causal.saved.layout.prompt_text(asked)) :] for text, asked in zip(own, TEXTS[1:3])]


def test_generation_warns_of_nothing(causal: Case, caplog: pytest.LogCaptureFixture) -> None:
    _forget_warnings()
    causal.generate(TEXTS)
    causal.generate(TEXTS, num_beams=2)
    assert not _warnings(caplog)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of likelihoods."""
    return [record.getMessage() for record in caplog.records if "is not this model's" in record.getMessage()]


def _forget_warnings() -> None:
    from transformers.utils.logging import warning_once

    warning_once.cache_clear()


# -- anywhere, and saved before ----------------------------------------------------------------------------------------

OPEN = """
import json, sys
from transformers import AutoTokenizer
folders, texts = json.loads(sys.argv[1])
found = {}
for folder in folders:
    try:
        AutoTokenizer.from_pretrained(folder)(texts)
        without = "opened"
    except ValueError as error:
        without = str(error)
    assert "mentalese" not in sys.modules or found
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    found[folder] = [tokenizer(texts)["input_ids"], without]
    tokenizer.save_pretrained(folder + "-again")
print()  # after the question of transformers
print(json.dumps(found))
"""


@pytest.mark.slow
def test_it_opens_where_nobody_has_imported_us(corpus: Path, tmp_path: Path) -> None:
    names = ["thought_gestalt/tiny", "gpt2/tiny", "mdlm/tiny", "coconut/tiny"]
    runs = {name: saved(tmp_path / name.replace("/", "-"), shrink(get_recipe(name), corpus)) for name in names}
    folders = [str(run / "model") for run in runs.values()]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run(
        [sys.executable, "-c", OPEN, json.dumps([folders, TEXTS])],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, folder in zip(names, folders):
        ids, without = found[folder]
        opened = load(runs[name], "cpu")
        assert ids == [opened.encode(text)["input_ids"][0].tolist() for text in TEXTS]
        if name == "thought_gestalt/tiny":  # before anything has imported the package
            assert "trust_remote_code=True" in without
        again = {path.name for path in Path(f"{folder}-again").iterdir()}
        assert again == {path.name for path in Path(folder).iterdir() if path.name in again}
        assert ("mentalese_tokenizer.py" in again) == (name != "gpt2/tiny")


def test_a_model_saved_before_reads_as_before(corpus: Path, tmp_path: Path) -> None:
    """Its tokenizer adds nothing to a text, and its fingerprint is that of today's."""
    for name in ("gpt2/tiny", "thought_gestalt/tiny", "coconut/tiny"):
        run = saved(tmp_path / name.replace("/", "-"), shrink(get_recipe(name), corpus))
        expected = load(run, "cpu")
        about = json.loads((run / "model" / "mentalese.json").read_text())
        for file in ("mentalese_tokenizer.py", "chat_template.jinja"):
            (run / "model" / file).unlink(missing_ok=True)
        plain = add_markers(expected.tokenizer)
        plain.save_pretrained(run / "model")
        keep_changes(run / "model" / "mentalese.json")
        state = json.loads(plain.backend_tokenizer.to_str())
        del state["truncation"], state["padding"]
        assert about["tokenizer_fingerprint"] == hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        before = load(run, "cpu")
        assert len(before.tokenizer(TEXTS[0])["input_ids"]) < len(expected.tokenizer(TEXTS[0])["input_ids"])
        assert torch.equal(before.encode(TEXTS)["input_ids"], expected.encode(TEXTS)["input_ids"])
        options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
        assert before.generate(TEXTS, **options) == expected.generate(TEXTS, **options)


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def questions(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    recipe = shrink(get_recipe("coconut/tiny"), corpus)
    folder = saved(tmp_path_factory.mktemp("questions") / "run", recipe) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Case(recipe.name, folder, load(folder, "cpu"), AutoModelForCausalLM.from_pretrained(folder), tokenizer)


def test_a_question_is_a_message(questions: Case) -> None:
    tokenizer, question = questions.tokenizer, TEXTS[1]
    user = {"role": "user", "content": question}
    asked = tokenizer.apply_chat_template([user], add_generation_prompt=True, return_dict=False)
    assert asked == tokenizer(question)["input_ids"]
    assert tokenizer.convert_tokens_to_ids("<|latent|>") in asked
    answered = tokenizer.apply_chat_template(
        [user, {"role": "assistant", "content": "1+2=3\n# 3"}], return_dict=True, return_assistant_tokens_mask=True
    )
    assert answered["input_ids"][: len(asked)] == asked
    answer = tokenizer("1+2=3\n# 3<|endoftext|>", add_special_tokens=False)["input_ids"]
    assert answered["input_ids"][len(asked) :] == answer
    assert answered["assistant_masks"] == [0] * len(asked) + [1] * len(answer)
    with pytest.raises(Exception, match="this model answers one question"):
        tokenizer.apply_chat_template([user, user])


def test_a_question_and_its_answer_are_a_row_of_training(questions: Case) -> None:
    split, layout = questions.saved.split("train"), questions.saved.layout
    rows = layout.evaluation_rows(split, questions.saved.evaluation)
    batch = layout.assemble(split, rows[np.arange(3)], questions.saved.tokenizer)
    first, last = split.document_segments[:3], split.document_segments[1:4]
    for row in range(3):
        steps = first[row] + 1 + layout.stage
        parts = [split.segments[first[row] : first[row] + 2], split.segments[[min(steps, last[row] - 1), last[row]]]]
        question, rest = (questions.tokenizer.decode(split.tokens[a:b]) for a, b in parts)
        both = questions.tokenizer(question, rest, return_token_type_ids=True)
        real = batch["labels"][row] != questions.tokenizer.pad_token_id
        labels = [index if second else -100 for index, second in zip(both["input_ids"], both["token_type_ids"])]
        length = len(both["input_ids"])
        assert batch["input_ids"][row].tolist()[:length] == both["input_ids"]
        assert batch["labels"][row].tolist()[:length] == labels
        assert real.any()
        cut = questions.tokenizer(question, rest, truncation=True, max_length=length - 2)
        assert cut["input_ids"] == both["input_ids"][:-2], "the answer is cut, not the question"


def test_what_a_layout_cannot_read_is_refused(case: Case) -> None:
    if type(case.tokenizer).__name__ != "MentaleseTokenizer":
        pytest.skip("a post-processor reads everything")
    with pytest.raises(InputError, match="is_split_into_words and return_overflowing_tokens"):
        case.tokenizer([["a", "b"]], is_split_into_words=True)
    with pytest.raises(InputError, match=r"text is \['a'\]: .*pass whole texts"):
        case.tokenizer([["a"]])
    with pytest.raises(InputError, match=r"max_length is 0: set at least [1-9]"):
        case.tokenizer("A son.", truncation=True, max_length=0)
    if case.saved.layout.markers:
        with pytest.raises(InputError, match="text_pair is"):
            case.tokenizer("A son.", "A father.")


@pytest.mark.slow
def test_lm_evals_command_opens_a_folder(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval.models.huggingface", reason="needs lm-eval")
    from mentalese.evaluation.harness import MentaleseLM

    run = saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus))
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in ITEMS if a))
    task = {
        "task": "items", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(items)}},
        "test_split": "test", "output_type": "loglikelihood", "doc_to_text": "{{a}}", "doc_to_target": "{{b}}",
        "target_delimiter": "", "metric_list": [{"metric": "perplexity", "aggregation": "perplexity"}],
    }  # fmt: skip
    (tmp_path / "items.yaml").write_text(json.dumps(task))
    arguments = f"pretrained={run / 'model'},trust_remote_code=True"
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", arguments, "--device", "cpu"]
    command += ["--tasks", "items", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out.json")]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("out*.json")
    found = json.loads(result.read_text())["results"]["items"]["perplexity,none"]
    own = MentaleseLM(load(run, "cpu")).loglikelihood([asked("loglikelihood", *item) for item in ITEMS if item[0]])
    assert found == pytest.approx(float(np.exp(-np.mean([score for score, _ in own]))), rel=1e-4)
