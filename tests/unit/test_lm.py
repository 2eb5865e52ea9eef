"""Models as lm-eval asks them, and zero-shot questions from files: the scores are the model's own."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install '.[tasks]'")

import datasets
import lm_eval.tasks
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mentalese import cli, evaluate, get_recipe, load, network
from mentalese.data.batch import Batch
from mentalese.data.layouts import AsIs, Layout, Marked, Packed, QuestionAnswer, SentenceStreams
from mentalese.data.split import Split
from mentalese.data.tokenizers import add_markers, special_token_ids
from mentalese.errors import InputError
from mentalese.evaluation.harness import MentaleseLM, zero_shot
from mentalese.evaluation.measures import SETS, read_questions, read_tasks
from mentalese.evaluation.options import EvaluationOptions
from mentalese.models.base import LanguageModel
from mentalese.models.build import build_model
from mentalese.nn.loss import IGNORED
from mentalese.recipe import DataConfig
from support import opened

FAMILIES = ["gpt2/tiny", "thought_gestalt/tiny"]
PAIRS = [
    ("She had a son. His name", " was Paul."),
    ("She had a son.", " His name was Paul."),
    ("", "A son."),
    ("The river is long. It is old. It", " ran to the sea. Then it rained."),
    ("Is", " it?"),
]


def request(*arguments: Any, kind: str = "loglikelihood") -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)  # type: ignore[arg-type]


def build(recipe: str, tokenizer: PreTrainedTokenizerFast) -> tuple[Any, DataConfig, Layout]:
    """Random weights, large enough that predictions differ."""
    found, large = get_recipe(recipe), {"initializer_range": 0.2}
    model = found.model | ({"backbone": found.model["backbone"] | large} if "backbone" in found.model else large)
    return build_model(model, tokenizer, seed=0).eval(), found.data, found.layout


def reader(
    model: Any, tokenizer: Any, data: DataConfig | None = None, layout: Layout | None = None, **options: Any
) -> MentaleseLM:
    length = options.pop("max_length", None)
    return MentaleseLM(opened(model, tokenizer, layout, data, **options), max_length=length)


@pytest.fixture(params=FAMILIES)
def lm(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> MentaleseLM:
    model, *read = build(request.param, tokenizer)
    return reader(model, tokenizer, *read, batch_size=2)


class Bigram(nn.Module, LanguageModel):
    """Logits follow from the last token alone, printable characters are all it would say, and no row may be longer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, longest: int = 1000) -> None:
        super().__init__()
        self.config, self.device = SimpleNamespace(max_position_embeddings=longest), torch.device("cpu")
        self.table = torch.randn(len(tokenizer), len(tokenizer), generator=torch.Generator().manual_seed(0))
        said = tokenizer.convert_tokens_to_ids([chr(i) for i in range(97, 123)])
        self.table[:, [i for i in range(len(tokenizer)) if i not in said]] -= 9

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool = False) -> Any:
        assert input_ids.shape[1] <= self.config.max_position_embeddings
        return SimpleNamespace(logits=self.table[input_ids])

    def token_nll(self, batch: Batch) -> Tensor:
        logits = self(batch["input_ids"], batch["attention_mask"]).logits[:, :-1]
        labels = batch["labels"][:, 1:]
        nll = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        return nn.functional.pad(nll, (1, 0))

    def greedy(self, tokenizer: PreTrainedTokenizerFast, text: str, length: int) -> str:
        ids = tokenizer(text)["input_ids"]
        for _ in range(length):
            ids.append(int(self.table[ids[-1]].argmax()))
        return tokenizer.decode(ids)[len(text) :]


class ByLabel(Bigram):
    """A label costs its id, in nats, whatever stands before it."""

    def token_nll(self, batch: Batch) -> Tensor:
        return batch["labels"].clamp(min=0).float()


# -- scores ------------------------------------------------------------------------------------------------------------


def test_plain_model_score_is_its_log_softmax(tokenizer: PreTrainedTokenizerFast) -> None:
    model, *read = build("gpt2/tiny", tokenizer)
    found = reader(model, tokenizer, *read, batch_size=3).loglikelihood([request(*pair) for pair in PAIRS])
    for (context, continuation), (log_likelihood, greedy) in zip(PAIRS, found):
        ids = torch.tensor([[model.config.eos_token_id, *tokenizer(context + continuation)["input_ids"]]])
        scores = model(ids).logits[0, :-1].detach().log_softmax(-1)
        scores, labels = scores[-len(continuation) :], ids[0, -len(continuation) :]  # a token is a byte
        assert log_likelihood == pytest.approx(float(scores.gather(1, labels[:, None]).sum()), rel=1e-5)
        assert greedy == bool((scores.argmax(-1) == labels).all())


def test_sentence_model_reads_context_between_markers(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    model, *read = build("thought_gestalt/tiny", tokenizer)
    special = special_token_ids(tokenizer)
    start, end = special["sentence_start_token_id"], special["sentence_end_token_id"]
    rows = [tokenizer(text)["input_ids"] for text in ("She had a son.", " His name", " was Paul.")]
    ids = torch.tensor([[start, *rows[0], end, start, *rows[1], *rows[2]]])
    labels = torch.full_like(ids, IGNORED)
    labels[0, -len(rows[2]) :] = ids[0, -len(rows[2]) :]
    expected = model.token_nll({"input_ids": ids, "labels": labels}).sum()
    (score,) = reader(model, tokenizer, *read).score([PAIRS[0]])
    assert (score.nll, score.tokens) == (pytest.approx(float(expected), rel=1e-5), len(" was Paul."))


def test_a_text_is_as_likely_as_its_beginning_and_then_the_rest(lm: MentaleseLM) -> None:
    for context, rest in PAIRS:
        if context:
            whole, first, second = lm.score([("", context + rest), ("", context), (context, rest)])
            assert whole.nll == pytest.approx(first.nll + second.nll, rel=1e-5)
            assert whole.tokens == first.tokens + second.tokens
            ends = (context + rest).count(". ") if lm.layout.markers else 0  # those of sentences, but for the last one
            assert whole.tokens == len(context + rest) + ends  # the first one is scored too


@pytest.mark.parametrize("layout", [SentenceStreams(), Marked()])
def test_choices_share_a_context_and_pay_for_sentence_ends(layout: Layout, tokenizer: PreTrainedTokenizerFast) -> None:
    """A sentence over the cap is cut after a comma, but not in the context because of what follows it."""
    context, data = "One. Red, blue green", DataConfig(max_sentence_tokens=18)
    lm = reader(ByLabel(tokenizer), tokenizer, data, layout)
    short, long, ended = (f"{context}{rest}" for rest in (" x", " yellow black", ". It is so. Ok"))
    rows, labels = lm._encode([(context, text.removeprefix(context)) for text in (short, long, ended)])
    known = len(context) + 3  # `<bos>One.<eos><bos> Red, ..`
    for row, label, text in zip(rows, labels, (short, long, ended)):
        assert lm.tokenizer.decode(row[:known]) == "<|bos|>One.<|eos|><|bos|> Red, blue green"
        assert (label[:known] == IGNORED).all()
        assert lm.tokenizer.decode(row[known:]).replace("<|eos|><|bos|>", "") == text.removeprefix(context)
    assert lm.tokenizer.decode(rows[2][known:]) == ".<|eos|><|bos|> It is so.<|eos|><|bos|> Ok"
    scores = lm.score([(context, " x"), (context, ". It is so. Ok")])
    assert [score.tokens for score in scores] == [2, len(". It is so. Ok") + 2]
    end, letters = special_token_ids(tokenizer)["sentence_end_token_id"], tokenizer(". It is so. Ok")["input_ids"]
    assert scores[1].nll == pytest.approx(sum(letters) + 2 * end)


def test_causal_streams_score_a_choice_without_reading_it(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """A text's score is that of its beginning and then the rest; block-wise the rest moves streams of the beginning."""
    model, *read = build("thoughtbubbles/tiny", tokenizer)
    ids = torch.randint(len(tokenizer), (8, 40), generator=torch.Generator().manual_seed(0))
    model.train().training_loss({"input_ids": ids, "labels": ids})
    model.after_step()
    context, rest = "The river is long. It is old. It", " ran to the sea. Then it rained."
    for selection, estimator in (("block", "block-not-causal"), ("causal", "causal")):
        model.config.selection = selection
        lm = reader(model.eval(), tokenizer, *read)
        whole, first, second = lm.score([("", context + rest), ("", context), (context, rest)])
        assert (abs(whole.nll - first.nll - second.nll) < 1e-3) == (selection == "causal")
        assert lm.protocol()["estimator"] == estimator


def test_scores_depend_neither_on_the_batch_nor_on_the_order(lm: MentaleseLM) -> None:
    lm.model.train()
    found = []
    for size in (1, 2, 100):
        lm.batch_size = size
        found.append(lm.score(PAIRS, greedy=True))
    lm.batch_size = 2
    found.append(lm.score(PAIRS[::-1], greedy=True)[::-1])
    assert len({round(score.nll, 2) for score in found[0]}) == len(PAIRS)
    for other in found[1:]:
        np.testing.assert_allclose([s.nll for s in other], [s.nll for s in found[0]], rtol=1e-5)
        assert [s[1:] for s in other] == [s[1:] for s in found[0]]
    assert lm.model.training


def test_greedy_requires_the_likeliest_token_throughout(tokenizer: PreTrainedTokenizerFast) -> None:
    model = Bigram(tokenizer)
    likeliest = model.greedy(tokenizer, "One", 6)
    worse = ["#" + likeliest[1:], likeliest[:3] + "#" + likeliest[4:], likeliest[:5] + "#"]
    pairs = [("One", likeliest), *(("One", text) for text in worse)]
    found = reader(model, tokenizer, batch_size=4).loglikelihood([request(*pair) for pair in pairs])
    assert [greedy for _, greedy in found] == [True, False, False, False]
    assert found[0][0] > max(log_likelihood for log_likelihood, _ in found[1:])


def test_a_token_that_spans_context_and_continuation_is_scored() -> None:
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary | {"ab": 256, "ĊĠ": 257}, [("a", "b"), ("Ċ", "Ġ")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)  # as Pythia's
    lm = reader(Bigram(tokenizer), tokenizer)
    assert [score.tokens for score in lm.score([("xa", "b"), ("x", "ab"), ("xab", "é"), ("é", "ab")])] == [1, 1, 2, 1]
    assert [score.tokens for score in lm.score([("x\n", "  y"), ("x", "\n  y")])] == [3, 3]


def test_long_texts_are_scored_in_windows_once_per_token(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    pairs = [(text[:cut], text[cut:]) for cut in (0, 3, 20, 41)]
    whole = reader(Bigram(tokenizer), tokenizer).score(pairs, greedy=True)
    for longest in (2, 7, 16, len(text)):
        found = reader(Bigram(tokenizer, longest), tokenizer).score(pairs, greedy=True)
        for one, other in zip(found, whole):
            assert one == (pytest.approx(other.nll, rel=1e-5), other.tokens, other.greedy)


def test_a_rolling_score_is_that_of_the_whole_text(lm: MentaleseLM) -> None:
    texts = [context + rest for context, rest in PAIRS]
    rolling = lm.loglikelihood_rolling([request(text) for text in ["", *texts]])
    assert rolling == [0.0, *(-score.nll for score in lm.score([("", text) for text in texts]))]


def test_a_document_of_white_space_is_scored(tokenizer: PreTrainedTokenizerFast) -> None:
    lm = reader(Bigram(tokenizer), tokenizer)
    (nats,) = lm.loglikelihood_rolling([request(" \n")])
    assert nats < 0
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = add_markers(PreTrainedTokenizerFast(tokenizer_object=words))
    for layout in (AsIs(), Packed()):
        lm = reader(Bigram(tokenizer), tokenizer, layout=layout)
        assert lm.loglikelihood_rolling([request(" \n"), request("a a")])[0] == 0.0
        assert lm.score([("", ""), ("a", " ")]) == [(0.0, 0, None)] * 2


@pytest.mark.parametrize("length", [10, 31, 32, 62, 80])
def test_rolling_score_of_a_long_text_equals_lm_eval(length: int, tokenizer: PreTrainedTokenizerFast) -> None:
    model, *read = build("gpt2/tiny", tokenizer)
    text = "the quick brown fox jumps over the lazy dog, and then it sleeps until the sun has gone"[:length]
    ids, beginning = tokenizer(text)["input_ids"], special_token_ids(tokenizer)["eos_token_id"]
    expected = 0.0
    for context, said in map(make_disjoint_window, get_rolling_token_windows(ids, beginning, 31, 1)):
        scores = model(torch.tensor([context + said])).logits[0].detach().log_softmax(-1)
        expected += float(scores[len(context) - 1 : -1].gather(1, torch.tensor(said)[:, None]).sum())
    lm = reader(model, tokenizer, *read, max_length=32)
    assert lm.loglikelihood_rolling([request(text)]) == [pytest.approx(expected, rel=1e-5)]
    windows = lm.score([("", text)])[0].nll
    assert (windows == pytest.approx(-expected, rel=1e-6)) == (length <= 32)
    assert lm.protocol(blocks=True)["text"].endswith("; blocks of at most 32 tokens that share one")


def test_generation_goes_on_until_the_first_stop(lm: MentaleseLM) -> None:
    letters = set(lm.tokenizer.convert_tokens_to_ids([chr(i) for i in range(97, 123)]))
    others = [i for i in range(len(lm.tokenizer)) if i not in letters]
    contexts = ["She had a son.", "The river"]
    chosen = {"do_sample": False, "suppress_tokens": others}
    texts = lm.saved.generate(contexts, max_new_tokens=8, **chosen)
    free = [text[len(context) :] for context, text in zip(contexts, texts)]
    assert [len(text) for text in free] == [8, 8]
    options = {"max_gen_toks": 8, "temperature": 0.0, **chosen}
    cut = lm.unfinished
    assert lm.generate_until([request(context, options) for context in contexts]) == free
    assert lm.unfinished == cut + 2
    for limit, stop in (("max_new_tokens", ""), ("max_tokens", None)):  # lm-eval's other names, and no stop at all
        [text] = lm.generate_until([request(contexts[0], chosen | {limit: 5, "until": stop})])
        assert text == free[0][:5]
    cut = lm.unfinished - 2
    stops = [free[0][5:], free[0][2:4]]
    stopped = lm.generate_until([request(contexts[0], options | {"until": stops}), request(contexts[1], options)])
    assert stopped == [free[0].partition(stops[1])[0].partition(stops[0])[0], free[1]]
    assert len(stopped[0]) <= 2
    assert lm.unfinished == cut + 3
    ended = {"suppress_tokens": [i for i in range(len(lm.tokenizer)) if i != lm.special_ids["eos_token_id"]]}
    lm.generate_until([request(contexts[0], {"max_gen_toks": 8, "do_sample": False} | ended)])
    lm.model.generation_config.eos_token_id = None  # the tokenizer has one
    lm.generate_until([request(contexts[0], {"max_gen_toks": 8, "do_sample": False} | ended)])
    assert lm.unfinished == cut + 3


def test_a_context_without_room_loses_its_first_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    lm = reader(*build("gpt2/tiny", tokenizer)[:1], tokenizer)
    ids = tokenizer(" The river is long." * 40)["input_ids"]
    context, new = lm.model.config.max_position_embeddings, 6
    assert len(ids) > context
    kept = torch.tensor([ids[new - context :]])
    expected = lm.model.generate(kept, max_new_tokens=new, do_sample=False, pad_token_id=0)[0, kept.shape[1] :]
    [text] = lm.generate_until([request(tokenizer.decode(ids), {"max_gen_toks": new, "do_sample": False})])
    assert text.strip() == tokenizer.decode(expected).strip()


def test_protocol_names_the_scoring_and_the_tokens_read(tokenizer: PreTrainedTokenizerFast) -> None:
    class ByBlock(Bigram):
        estimators = ("block", "prefix-dynamic")

    model = ByBlock(tokenizer, 50)
    protocol = reader(model, tokenizer).protocol()
    assert protocol["estimator"] == "block"
    assert protocol["text"] == "after the beginning-of-text token; windows of at most 50 tokens"
    assert reader(model, tokenizer, max_length=20).protocol()["text"].endswith("of at most 20 tokens")
    marked = reader(model, tokenizer, layout=Marked()).protocol()["text"]
    assert marked == "sentences between markers; windows of at most 50 tokens"
    sentences = reader(model, tokenizer, layout=SentenceStreams()).protocol()["text"]
    assert sentences.endswith("memory of earlier sentences; whole texts")


def test_what_is_not_finite_is_reported_with_its_text(tokenizer: PreTrainedTokenizerFast) -> None:
    model = Bigram(tokenizer)
    model.table.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="of 'One two' is nan"):
        reader(model, tokenizer).score([("One", " two")])


def test_a_model_of_records_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"layout is 'qa'"):
        reader(Bigram(tokenizer), tokenizer, layout=QuestionAnswer())


# -- questions ---------------------------------------------------------------------------------------------------------

ROWS: dict[str, list[dict[str, Any]]] = {
    "lambada_test": [{"text": "He said no and yes"}, {"text": "One two\nthree"}],
    "hellaswag_val": [{"ctx": "A man. he", "endings": ["sits.", "eats wood."], "label": i} for i in (0, 1, 1)],
    "piqa_validation": [{"goal": "Cut", "sol1": "with a knife ", "sol2": "by hand", "label": 0}],
    "arc_easy_test": [{"query": "Question: why?\nAnswer:", "choices": ["a", "b", "cc"], "gold": 2}],
    "arc_challenge_test": [{"query": "Question: how?\nAnswer:", "choices": ["a", "b", "cc", "d", "e"], "gold": 4}],
    "sciq_validation": [
        {"question": "Who?", "correct_answer": "me", "distractor1": "a", "distractor2": "b", "distractor3": "c"}
        | {"support": support}
        for support in ("", "It is me.")
    ],
    "winogrande_validation": [
        {"sentence": "Sue met Ann as _ was late.", "option1": "Sue", "option2": "Ann", "answer": str(answer)}
        for answer in (1, 2)
    ],
}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


ARTICLES = [
    ' = Ann = \n \n Ann , who ran 2 @.@ 5 miles , met " Sue " . \n = = Later = = \n A red @-@ haired dog sat . \n',
    " = Sue = \n Sue met Ann 's dog . They ran . \n",
    " = Dogs = \n \n Dogs run ; cats sleep . It is said that they dream of running , too . \n",
]
"""As WikiText has them."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files in the sets' formats."""
    for name, rows in ROWS.items():
        write(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "lambada_test_plain_text.txt").write_text("he said no and yes\none two three\n")
    (tmp_path / "wikitext-103").mkdir()
    (tmp_path / "wikitext-103" / "test.txt").write_text("".join(ARTICLES))
    for part in range(67):
        good, bad = ("cats run.", "cats runs.") if part % 3 else ("x", "yyyyyy")
        write(tmp_path / "blimp" / f"part_{part}.jsonl", [{"sentence_good": good, "sentence_bad": bad}] * 4)
    return tmp_path


class Priced(Bigram):
    """Each character costs what it is said to, everything else a nat, whatever stands before it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, **prices: float) -> None:
        super().__init__(tokenizer)
        self.prices = torch.ones(len(tokenizer))
        for character, price in prices.items():
            self.prices[tokenizer.convert_tokens_to_ids(character)] = price

    def token_nll(self, batch: Batch) -> Tensor:
        labels = batch["labels"]
        return torch.where(labels == IGNORED, torch.tensor(0.0), self.prices[labels.clamp(min=0)])


def test_the_three_rankings_of_choices_are_what_they_say(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Nats after `aaaaa ` in sum, a character, and a token of the whole: zz 4, 2, 9/8; yyy 4.3, 1.43, 9.3/9;
    xxxxxx 8.2, 1.37, 13.2/12. So each ranking has another winner."""
    rows = [{"query": "aaaaa", "choices": ["zz", "yyy", "xxxxxx"], "gold": gold} for gold in (0, 0, 0, 2, 2, 1)]
    write(tmp_path / "arc_easy.jsonl", rows)
    lm = reader(Priced(tokenizer, z=1.5, y=1.1, x=1.2), tokenizer)
    found = zero_shot(lm, read_questions("arc_easy", EvaluationOptions(task_files=tmp_path)))
    for name, share in (("acc", 3 / 6), ("acc_norm", 2 / 6), ("acc_perplexity", 1 / 6)):
        assert found[name] == pytest.approx(share), name
        assert found[f"{name}_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 5)), name
    assert found["items"] == 6


def test_perplexity_reads_the_bare_premise_of_piqa(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """After its dear goal alone the longer solution is cheaper a token, after lm-eval's whole prompt the shorter is."""
    write(tmp_path / "piqa.jsonl", [{"goal": "qqqq", "sol1": "z", "sol2": "zzz", "label": 0}])
    lm = reader(Priced(tokenizer, q=9.0, z=3.0), tokenizer)
    found = zero_shot(lm, read_questions("piqa", EvaluationOptions(task_files=tmp_path)))
    assert (found["acc"], found["acc_perplexity"], found["acc_stderr"]) == (1.0, 0.0, None)


def test_winogrande_scores_what_follows_the_options(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    class Listener(Priced):
        heard: list[tuple[str, str]]

        def token_nll(self, batch: Batch) -> Tensor:
            for row, label in zip(batch["input_ids"], batch["labels"]):
                self.heard.append((tokenizer.decode(row[label == IGNORED]), tokenizer.decode(row[label != IGNORED])))
            return super().token_nll(batch)

    model = Listener(tokenizer, S=0.5)
    model.heard = []
    found = zero_shot(
        reader(model, tokenizer, batch_size=1), read_questions("winogrande", EvaluationOptions(task_files=folder))
    )
    asked = {(context.rpartition("|>")[2], continuation) for context, continuation in model.heard}
    assert asked == {
        *((f"Sue met Ann as {name}", " was late.") for name in ("Sue", "Ann")),
        *(("", f"Sue met Ann as {name} was late.") for name in ("Sue", "Ann")),
    }
    assert len(model.heard) == 4  # the second question asks the same of the model
    assert (found["acc"], found["acc_perplexity"]) == (0.5, 0.5)


def test_lambada_asks_for_the_final_word(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model = Bigram(tokenizer)
    word = model.greedy(tokenizer, "He said ", 3)
    write(tmp_path / "lambada_test.jsonl", [{"text": f"He said {word}"}, {"text": "One two three"}])
    # The space before the word is a token to be guessed as well: here one that is always the likeliest after a "d".
    model.table[tokenizer.convert_tokens_to_ids("d"), tokenizer.convert_tokens_to_ids("Ġ")] = 20.0
    lm = reader(model, tokenizer)
    found = zero_shot(lm, read_questions("lambada_openai", EvaluationOptions(task_files=tmp_path)))
    scores = lm.score([("He said", f" {word}"), ("One two", " three")])
    nll = [score.nll for score in scores]
    assert (found["acc"], found["items"]) == (0.5, 2)
    assert found["perplexity"] == pytest.approx(math.exp(sum(nll) / 2))
    assert found["perplexity_stderr"] == pytest.approx(found["perplexity"] * abs(nll[0] - nll[1]) / 2)


def test_blimp_is_the_mean_over_its_files(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    write(folder / "blimp" / "part_1.jsonl", [{"sentence_good": a, "sentence_bad": b} for a, b in ("xy", "yx")])
    questions = read_questions("blimp", EvaluationOptions(task_files=folder))
    found = zero_shot(reader(Priced(tokenizer, x=0.5, y=0.25), tokenizer), questions)
    # `x` is shorter than `yyyyyy` but dearer a token; `cats run.` is shorter than `cats runs.` at the same price.
    parts = found["subsets"]
    assert (parts["part_0"]["acc"], parts["part_0"]["acc_perplexity"]) == (1.0, 0.0)
    assert (parts["part_1"]["acc"], parts["part_1"]["items"]) == (0.5, 2)
    assert len(parts) == 67
    for name in ("acc", "acc_perplexity"):
        assert found[name] == pytest.approx(np.mean([part[name] for part in parts.values()]))
        squares = sum(part[f"{name}_stderr"] ** 2 for part in parts.values())
        assert found[f"{name}_stderr"] == pytest.approx(math.sqrt(squares) / 67)
    assert found["items"] == 66 * 4 + 2


def test_blimp_compares_first_words_of_a_model_without_a_beginning(
    tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    for part in range(67):
        write(folder / "blimp" / f"part_{part}.jsonl", [{"sentence_good": "y a", "sentence_bad": "x a"}])
    questions = read_questions("blimp", EvaluationOptions(task_files=folder))
    lm = reader(Priced(tokenizer, x=0.5, y=0.25), tokenizer, layout=AsIs())
    assert zero_shot(lm, questions)["acc"] == 1.0
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=("", text), idx=0) for text in ("y a", "x a")]
    assert [value for value, _ in lm.loglikelihood(asked)] == [-2.25, -2.5]


# -- held to lm-eval ---------------------------------------------------------------------------------------------------

PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "lambada_openai": [{"text": 'He said: "No and\n\nyes'}, {"text": "One two  three"}],
    "lambada_standard": [{"text": "he said `` no and yes"}, {"text": "one two , three"}],
    "wikitext": [{"page": page} for page in ARTICLES],
    "hellaswag": [
        {"activity_label": "Sewing [x]", "ctx_a": "A man sits.", "ctx_b": "he", "label": "1", "ctx": "A man sits. he"}
        | {"endings": ["eats  [step] wood.", "sews. [title] He ends."]},
        {"activity_label": "Tea", "ctx_a": "[header] Tea [title] Boil it.", "ctx_b": "", "label": "0", "ctx": "Tea"}
        | {"endings": ["Drink it.", "Sell it."]},
    ],
    "piqa": [{"goal": "Cut", "sol1": "with a knife ", "sol2": "by hand", "label": label} for label in (0, 1, 1)],
    "arc_easy": [
        {"question": "Why?", "choices": {"text": ["a", "bb", "ccc"], "label": list("ABC")}, "answerKey": key}
        for key in "CAB"
    ],
    "arc_challenge": [
        {"question": "How?", "choices": {"text": ["x", "y", "zz", "q"], "label": list("1234")}, "answerKey": key}
        for key in "42"
    ],
    "sciq": ROWS["sciq_validation"],
    "winogrande": ROWS["winogrande_validation"]
    + [{"sentence": "_ won.", "option1": "Sue", "option2": "Ann", "answer": "1"}],
}
"""Rows as the hub has them."""


def _local_arc(row: dict[str, Any]) -> dict[str, Any]:
    gold = row["choices"]["label"].index(row["answerKey"])
    return {"query": f"Question: {row['question']}\nAnswer:", "choices": row["choices"]["text"], "gold": gold}


def from_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], *folders: Path | str) -> None:
    """lm-eval knows the tasks of these folders alone, and the hub has these rows for each."""
    root = Path(lm_eval.tasks.__file__).parent
    known = lm_eval.tasks.TaskManager(include_path=[root / folder for folder in folders], include_defaults=False)
    manager = lm_eval.tasks.TaskManager
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", lambda **options: manager(**options) if options else known)
    found = {split: datasets.Dataset.from_list(rows) for split in ("train", "validation", "test")}
    monkeypatch.setattr(ConfigurableTask, "download", lambda task, *_, **__: setattr(task, "dataset", found))


class Asked(MentaleseLM):
    """It notes what it is asked."""

    pairs: list[tuple[str, str]]

    def score(self, pairs: Any, **how: bool) -> Any:
        self.pairs = [*getattr(self, "pairs", ()), *pairs]
        return super().score(pairs, **how)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_local_set_asks_and_counts_as_lm_evals_own_task(
    name: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = PUBLISHED[name]
    if name == "lambada_standard":
        (tmp_path / "lambada_test_plain_text.txt").write_text("".join(row["text"] + "\n" for row in rows))
    elif name == "wikitext":
        (tmp_path / "wikitext-2").mkdir()
        (tmp_path / "wikitext-2" / "test.txt").write_text("".join(row["page"] for row in rows))
    else:
        write(tmp_path / f"{name}.jsonl", list(map(_local_arc, rows)) if name.startswith("arc") else rows)
    from_hub(monkeypatch, rows, name.split("_")[0])

    model = Bigram(tokenizer)
    local, own = (Asked(opened(model, tokenizer), max_length=40) for _ in range(2))
    found = zero_shot(local, read_questions(name, EvaluationOptions(task_files=tmp_path)))
    expected = zero_shot(own, read_questions(f"hub:{name}", EvaluationOptions()))
    chosen = set(own.pairs)
    assert len(chosen) > 1
    assert chosen == {pair for pair in local.pairs if pair in chosen or pair[0]}
    figures = [figure for figure in expected if figure not in ("protocol", "perplexity_stderr")]
    assert "items" in figures
    for figure in figures:
        value = expected[figure]
        assert found[figure] == (value if value is None else pytest.approx(value, rel=1e-6)), figure
    assert expected["protocol"]["shots"] == {name: 0}


RACE = {
    "article": "Ann ran.",
    "problems": str([{"question": "Ann is _ .", "answer": "A", "options": ["in", "out", "up", "on"]}]),
}


def test_a_hub_task_is_asked_by_its_own_name(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from_hub(monkeypatch, [RACE] * 3, "race")
    lm = Asked(opened(Bigram(tokenizer), tokenizer))
    found = zero_shot(lm, read_questions("hub:race", EvaluationOptions(limit=2)))
    assert ("Article: Ann ran.\n\nAnn is _ .", " up") in lm.pairs
    assert found["items"] == found["protocol"]["limit"] == 2
    assert found["acc"] in (0.0, 1.0)
    with pytest.raises(InputError, match="'hub:rase': lm-eval has no such task; did you mean 'race'"):
        read_questions("hub:rase", EvaluationOptions())

    def incomplete(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'evaluate'", name="evaluate")

    monkeypatch.setattr(ConfigurableTask, "process_results", incomplete)
    with pytest.raises(InputError, match="task 'hub:race' needs evaluate: pip install evaluate"):
        zero_shot(lm, read_questions("hub:race", EvaluationOptions()))


def test_a_hub_task_that_shuffles_choices_asks_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lm-eval does, whose GPQA shuffles them by Python's own generator."""
    from_hub(monkeypatch, [RACE], "race")
    download, drawn = ConfigurableTask.download, list[tuple[float, float]]()

    def shuffling(self: Any, *args: Any, **options: Any) -> None:
        drawn.append((random.random(), float(np.random.rand())))
        download(self, *args, **options)

    monkeypatch.setattr(ConfigurableTask, "download", shuffling)
    for seed in (1, 2):
        random.seed(seed)
        expected = random.Random(seed).random()
        read_questions("hub:race", EvaluationOptions())
        assert random.random() == expected
    assert len(set(drawn)) == 1
    assert drawn[0] == (random.Random(0).random(), float(np.random.RandomState(1234).rand()))


@pytest.mark.parametrize(("kind", "says"), [("UNSAFE_CODE", "runs code that a model has"), ("MULTIMODAL", "images")])
def test_hub_tasks_of_code_and_images_are_refused(kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from_hub(monkeypatch, [RACE], "race")
    monkeypatch.setattr(ConfigurableTask, kind, True, raising=False)
    with pytest.raises(InputError, match=rf"tasks is 'hub:race': it .*{says}.* is not supported: use another"):
        read_questions("hub:race", EvaluationOptions())


def test_hub_tasks_have_examples_unless_the_task_forbids_them(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"tag": "both", "dataset_path": "somewhere", "test_split": "test", "output_type": "multiple_choice"}
    task |= {"doc_to_text": "{{goal}}", "doc_to_choice": "{{[sol1, sol2]}}", "metric_list": [{"metric": "acc"}]}
    task |= {"doc_to_target": "label", "fewshot_split": "test"}
    for name, own in (("free", {}), ("usual", {"num_fewshot": 2}), ("never", {"num_fewshot": 0})):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task | own | {"task": name}))
    rows = [row | {"goal": f"{row['goal']} {i}"} for i in range(3) for row in PUBLISHED["piqa"]]
    from_hub(monkeypatch, rows, tmp_path)

    def asked(name: str, shots: int | None) -> tuple[dict[str, int], int]:
        lm = Asked(opened(Bigram(tokenizer), tokenizer))
        protocol = zero_shot(lm, read_questions(f"hub:{name}", EvaluationOptions(shots=shots)))["protocol"]
        examples = {context.count("\n\n") for context, _ in lm.pairs}  # lm-eval's line between two of them
        assert len(examples) == 1
        return protocol["shots"], examples.pop()

    assert asked("free", None) == ({"free": 0}, 0)
    assert asked("free", 1) == ({"free": 1}, 1)
    assert asked("usual", None) == ({"usual": 2}, 2)
    assert asked("usual", 1) == ({"usual": 1}, 1)
    with pytest.raises(InputError, match="shots is 99: 'hub:free' has fewer examples; set less"):
        asked("free", 99)
    with pytest.raises(InputError, match="shots is 1: 'hub:never' is asked without examples"):
        read_questions("hub:never", EvaluationOptions(shots=1))
    lm = reader(Bigram(tokenizer), tokenizer)
    both = zero_shot(lm, read_questions("hub:both", EvaluationOptions(shots=1)))
    assert both["protocol"]["shots"] == {"free": 1, "usual": 1, "never": 0}
    with pytest.raises(InputError, match="shots is -1"):
        EvaluationOptions(shots=-1)
    with pytest.raises(InputError, match="shots is 5: piqa cannot use it"):
        read_tasks(EvaluationOptions(tasks=("piqa",), task_files=tmp_path, shots=5))


def test_group_has_a_mean_and_parts_while_a_tag_has_parts(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"tag": "both", "dataset_path": "somewhere", "test_split": "test", "output_type": "multiple_choice"}
    task |= {"doc_to_text": "{{goal}}", "doc_to_choice": "{{[sol1, sol2]}}", "metric_list": [{"metric": "acc"}]}
    group = {"group": "whole", "task": ["first", "second"]}
    group |= {"aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}
    first, second = ({"task": part, "doc_to_target": target} for part, target in (("first", "label"), ("second", 0)))
    for name, config in (("first", task | first), ("second", task | second), ("whole", group)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(config))  # JSON is YAML
    from_hub(monkeypatch, PUBLISHED["piqa"], tmp_path)
    lm = reader(Bigram(tokenizer), tokenizer)
    found = zero_shot(lm, read_questions("hub:whole", EvaluationOptions()))
    parts = found["subsets"]
    assert list(parts) == ["first", "second"]
    assert parts["first"]["acc"] in (1 / 3, 2 / 3)
    assert parts["second"]["acc"] in (0.0, 1.0)
    assert found["acc"] == pytest.approx((parts["first"]["acc"] + parts["second"]["acc"]) / 2)
    assert (found["items"], parts["first"]["items"]) == (6, 3)
    tag = zero_shot(lm, read_questions("hub:both", EvaluationOptions()))
    assert {name: tag[name] for name in parts} == parts
    assert "acc" not in tag


def test_questions_that_the_hub_does_not_give_end_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from_hub(monkeypatch, [{}], "race")

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'EleutherAI/race' on the Hub\nat all")

    monkeypatch.setattr(network, "unreachable", lambda: None)
    monkeypatch.setattr(ConfigurableTask, "download", offline)
    with pytest.raises(InputError, match=r"'hub:race': lm-eval cannot fetch its questions \(Couldn't reach .* Hub\)$"):
        read_questions("hub:race", EvaluationOptions())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gpt2/tiny", "conceptlm/tiny"])
def test_zero_shot_figures_are_those_of_one_question_at_a_time(
    recipe: str, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    model, *read = build(recipe, tokenizer)
    rng = np.random.default_rng(0)
    words = ["a", "cat", "sat", "on", "the", "old", "wooden", "mat", "and", "slept"]
    rows = [
        {"ctx": " ".join(rng.choice(words, rng.integers(1, 12))), "label": int(rng.integers(3))}
        | {"endings": [" ".join(rng.choice(words, n)) for n in rng.integers(1, 9, 3)]}
        for _ in range(20)
    ]
    write(folder / "hellaswag_val.jsonl", rows)
    alone, together = (reader(model, tokenizer, *read, max_length=64, batch_size=size) for size in (1, 32))
    pairs = [(row["ctx"], f" {ending}") for row in rows for ending in row["endings"]]
    scores = [[score.nll for score in lm.score(pairs)] for lm in (alone, together)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=1e-4)
    assert np.std(scores[0]) > 1
    for name in ("hellaswag", "lambada_openai", "winogrande", "wikitext"):
        found = [zero_shot(lm, read_questions(name, EvaluationOptions(task_files=folder))) for lm in (alone, together)]
        assert found[0].keys() == found[1].keys()
        for figure, value in found[0].items():
            exact = figure.startswith("acc") or not isinstance(value, float)
            assert found[1][figure] == (value if exact else pytest.approx(value, rel=1e-5)), figure


@pytest.mark.parametrize("recipe", ["gpt2/tiny", "conceptlm/tiny"])
def test_wikitext_word_perplexity_uses_its_running_text(
    recipe: str, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    model, *read = build(recipe, tokenizer)
    # The last block of an article is full too: a perplexity does not begin it earlier.
    lengths = [len(tokenizer(wikitext_detokenizer({"page": page}))["input_ids"]) for page in ARTICLES]
    pages = [page.replace(" = ", f" = {'x' * (-n % 31)}", 1) for page, n in zip(ARTICLES, lengths)]
    (folder / "wikitext-103" / "test.txt").write_text("".join(pages))
    found = zero_shot(
        reader(model, tokenizer, *read, max_length=32), read_questions("wikitext", EvaluationOptions(task_files=folder))
    )
    texts = [wikitext_detokenizer({"page": page}) for page in pages]
    assert "2.5 miles, met" in texts[0]
    end = special_token_ids(tokenizer)["eos_token_id"]
    documents = [[*tokenizer(text)["input_ids"], end] for text in texts]
    bounds = np.cumsum([0, *map(len, documents)])
    split = Split(
        tokens=np.concatenate(documents).astype(np.uint16),
        documents=bounds,
        segments=bounds,
        document_segments=np.arange(len(texts) + 1),
        document_bytes=np.array([len(text.encode()) for text in texts]),
    )
    own = opened(model, tokenizer, Packed(sequence_length=32), stride=31).perplexity(split)
    nats, words = own.nll * own.tokens, sum(len(re.split(r"\s+", page)) for page in pages)
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len("".join(pages).encode()), rel=1e-5)
    assert found["items"] == 3


@pytest.fixture(scope="module", params=["no recipe", *FAMILIES])
def saved(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("model")
    recipe = get_recipe(FAMILIES[0] if request.param == "no recipe" else request.param)
    build(recipe.name, tokenizer)[0].save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if request.param != "no recipe":
        if isinstance(recipe.layout, Packed):
            recipe = dataclasses.replace(recipe, layout=Packed(sequence_length=32))
        (folder / "mentalese.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    return folder


def test_every_set_is_asked_of_a_saved_model(saved: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.json"
    command = ["eval", str(saved), "--tasks", ",".join(SETS), "--task-files", str(folder), "--limit", "2"]
    assert cli.main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert list(results) == list(SETS)
    for name, result in results.items():
        assert result["items"] == {"blimp": 2 * 67, "piqa": 1, "arc_easy": 1, "arc_challenge": 1}.get(name, 2), name
        first = {"lambada_openai": "acc", "lambada_standard": "acc", "wikitext": "word_perplexity"}
        assert next(iter(result)) == first.get(name, "acc_perplexity")
        assert all(0 <= result[figure] <= 1 for figure in result if figure.startswith("acc") and "std" not in figure)
        assert result["protocol"]["limit"] == 2
        assert result["protocol"]["estimator"] == "exact"
        assert len(result["data_hash"]) == 16
    assert f"{results['hellaswag']['acc']:.4f} ± {results['hellaswag']['acc_stderr']:.4f}" in shown
    assert "part_1" not in shown
    text = results["lambada_openai"]["protocol"]["text"]
    if (saved / "mentalese.json").is_file():
        assert text.endswith("at most 32 tokens" if "after" in text else "; whole texts")
    else:
        assert text.endswith("at most 256 tokens")  # gpt2/tiny has so many positions


def test_a_saved_models_answers_are_those_of_its_scores(saved: Path, folder: Path) -> None:
    found = evaluate(saved, ["hellaswag"], task_files=folder, show=False)["hellaswag"]
    lm = MentaleseLM(load(saved, "cpu"))
    context, endings = ROWS["hellaswag_val"][0]["ctx"], ROWS["hellaswag_val"][0]["endings"]
    sums = [score.nll for score in lm.score([(context, " " + ending) for ending in endings])]
    whole = [score.nll / score.tokens for score in lm.score([("", f"{context} {ending}") for ending in endings])]
    labels = [row["label"] for row in ROWS["hellaswag_val"]]
    assert found["acc"] == pytest.approx(np.mean([np.argmin(sums) == label for label in labels]))
    assert found["acc_perplexity"] == pytest.approx(np.mean([np.argmin(whole) == label for label in labels]))


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("piqa_validation", {"label": -1}, r"label is -1: choices are 0 to 1"),
        ("piqa_validation", {"label": "2"}, r"label is '2': choices are 0 to 1"),
        ("piqa_validation", {"goal": None}, r"line 1: goal is None: a text is missing"),
        ("piqa_validation", {"sol1": ""}, r"line 1: a choice is '': a text is missing"),
        ("winogrande_validation", {"answer": ""}, r"label is '': choices are 1 to 2"),
        ("hellaswag_val", {"endings": ["a", None]}, r"a choice is None: a text is missing"),
    ],
)
def test_a_row_without_a_right_choice_is_refused(folder: Path, name: str, fields: dict[str, Any], says: str) -> None:
    write(folder / f"{name}.jsonl", [ROWS[name][0] | fields])
    with pytest.raises(InputError, match=says):
        read_questions(name.partition("_")[0], EvaluationOptions(task_files=folder))


def test_a_label_in_quotes_is_a_number(folder: Path) -> None:
    write(folder / "piqa_validation.jsonl", [row | {"label": str(row["label"])} for row in ROWS["piqa_validation"]])
    questions = read_questions("piqa", EvaluationOptions(task_files=folder))
    (task,) = questions.tasks["tasks"].values()
    assert task.eval_docs["gold"][:] == [row["label"] for row in ROWS["piqa_validation"]]


def test_files_that_are_missing_or_wrong_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match="task_files is None"):
        read_questions("piqa", EvaluationOptions())
    with pytest.raises(InputError, match=r"needs 1 piqa\*.jsonl or piqa\*.jsonl.gz, not 0"):
        read_questions("piqa", EvaluationOptions(task_files=folder / "blimp"))
    write(folder / "piqa_train.jsonl", ROWS["piqa_validation"])
    with pytest.raises(InputError, match="not 2"):
        read_questions("piqa", EvaluationOptions(task_files=folder))
    (folder / "blimp" / "part_3.jsonl").unlink()
    with pytest.raises(InputError, match=r"'blimp' needs 67 .* not 66"):
        read_questions("blimp", EvaluationOptions(task_files=folder))
    write(folder / "hellaswag_val.jsonl", [{"ctx": "A", "endings": ["b"]}])
    with pytest.raises(InputError, match=r"hellaswag_val.jsonl, line 1: label is None"):
        read_questions("hellaswag", EvaluationOptions(task_files=folder))
    (folder / "sciq_validation.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"sciq_validation.jsonl.*no questions"):
        read_questions("sciq", EvaluationOptions(task_files=folder))
    (folder / "lambada_test.jsonl").write_text("He said no\n")
    with pytest.raises(InputError, match=r"lambada_test.jsonl, line 1 cannot be read"):
        read_questions("lambada_openai", EvaluationOptions(task_files=folder))


def test_without_lm_eval_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(InputError, match=r"task 'piqa' needs lm-eval: pip install 'mentalese\[tasks\]"):
        read_questions("piqa", EvaluationOptions(task_files=folder))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--tasks piqa", "set --task-files FOLDER"),
        ("--tasks piqa --task-files no-such-folder", "task 'piqa' needs 1"),
        ("--tasks piqaa", "did you mean 'piqa'"),
        ("--tasks hub:", "tasks is 'hub:'"),
        ("--task-files .", "task_files is '.': perplexity cannot use it, remove it"),
        ("--tasks hub:race --task-files .", "task_files is '.': hub:race cannot use it, remove it"),
        ("--limit 3", "limit is 3: perplexity cannot use it, remove it"),
        ("--tasks hub:race --limit 0", "limit is 0"),
    ],
)
def test_questions_are_checked_before_the_model_is_opened(
    options: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", "no-such-model", *options.split()]) == 2
    assert says in capsys.readouterr().err
