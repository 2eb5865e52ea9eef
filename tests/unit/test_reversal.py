"""The father-son probe: what it asks, what it makes of known answers, and that any causal LM can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import evaluate, get_recipe
from mentalese.data.batch import Batch
from mentalese.data.layouts import Marked, QuestionAnswer, SentenceStreams
from mentalese.data.tokenizers import add_markers, special_token_ids
from mentalese.errors import InputError
from mentalese.evaluation import reversal
from mentalese.evaluation.reversal import NAMES, reversal_scores, single_token_names
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.build import build_model
from mentalese.models.generation import generate_text, stream_text
from support import opened

PEOPLE = ["James", "John", "Mark", "Paul"]


def words(*known: str, end: str | None = None) -> PreTrainedTokenizerFast:
    """One token a known word, with its space, and one a byte of all others; GPT-2's way of splitting."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in known:
        left = "Ġ"
        for letter in word:
            if (left, letter) not in merges:
                merges.append((left, letter))
                vocabulary.setdefault(left + letter, len(vocabulary))
            left += letter
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if end is not None:
        backend.add_special_tokens([end])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end)


@pytest.fixture(scope="module")
def marked() -> PreTrainedTokenizerFast:
    return add_markers(words(*PEOPLE))


@pytest.fixture(scope="module")
def plain() -> PreTrainedTokenizerFast:
    """Of another project: none of our markers, and an end of text called otherwise."""
    return words(*PEOPLE, end="</s>")


class Copycat(nn.Module, LanguageModel):
    """Gives 0.5 nats to the son of the context and 2 nats to everybody else, and keeps what it was asked."""

    def __init__(self, names: dict[str, int]) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.names, self.asked = torch.tensor(sorted(names.values())), []  # type: ignore[var-annotated]

    def token_nll(self, batch: Batch) -> Tensor:
        nll = torch.zeros(batch["input_ids"].shape)
        for i, row in enumerate(batch["input_ids"]):
            people = row[:-1][torch.isin(row[:-1], self.names)]
            nll[i, -1] = 0.5 if row[-1] == people[1] else 2.0
            self.asked.append(row[batch["attention_mask"][i] == 1].tolist())
        assert (batch["labels"][:, :-1] == -100).all()
        assert torch.equal(batch["labels"][:, -1], batch["input_ids"][:, -1])
        return nll


def random_gpt2(vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3)
    return as_model(GPT2LMHeadModel(config).eval())


def test_a_model_that_repeats_the_last_name_errs_in_reverse_only(marked: PreTrainedTokenizerFast) -> None:
    result = reversal.run(opened(Copycat(single_token_names(marked)), marked))
    assert (result["names"], result["pairs"]) == (PEOPLE, 12)
    for condition, target, distractor in (("normal", 0.5, 2.0), ("reversed", 2.0, 0.5)):
        expected = {
            "target_nll": target,
            "distractor_nll": distractor,
            "margin": distractor - target,
            "error_rate": float(target > distractor),
        }
        for name, value in expected.items():
            figure = result[condition][name]
            assert figure == {"mean": value, "std": 0.0, "interval": (value, value)}, (condition, name)


def test_all_ordered_pairs_are_asked_in_both_directions(marked: PreTrainedTokenizerFast) -> None:
    model = Copycat(single_token_names(marked))
    reversal.run(opened(model, marked))
    asked = {marked.decode(row) for row in model.asked}
    assert len(asked) == len(model.asked) == 4 * 3 * 2 * 2
    assert "<|endoftext|>The son of Mark is Paul. The father of Paul is Mark" in asked
    assert "<|endoftext|>The son of Mark is Paul. The son of Mark is Mark" in asked


@pytest.mark.slow
def test_sentence_model_query_is_an_open_sentence() -> None:
    tokenizer = add_markers(words(*NAMES))
    names = single_token_names(tokenizer)
    assert list(names) == list(NAMES)
    model = Copycat(names)
    for layout in (SentenceStreams(), Marked()):
        model.asked.clear()
        reversal.run(opened(model, tokenizer, layout))
        special = special_token_ids(tokenizer)
        start, end = special["sentence_start_token_id"], special["sentence_end_token_id"]
        for row in model.asked:
            assert row[0] == start
            assert (row.count(start), row.count(end)) == (2, 1)
            middle = row.index(end)
            assert row[middle + 1] == start
            assert tokenizer.decode(row[1:middle]).endswith(".")
            assert tokenizer.decode(row[middle + 2 : -1]).endswith(" is")


@pytest.mark.parametrize("recipe", ["gpt2/tiny", "thought_gestalt/tiny"])
def test_the_batch_size_changes_nothing(recipe: str, marked: PreTrainedTokenizerFast) -> None:
    found = get_recipe(recipe)
    model = build_model(found.model | {"initializer_range": 0.2}, marked, seed=0).train()
    saved = opened(model, marked, found.layout, found.data)
    scores = [reversal_scores(saved, PEOPLE, batch_size=size)["reversed"] for size in (1, 7, 1000)]
    assert np.nanstd(scores[0]) > 0.01
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], atol=1e-4)
    assert model.training


def test_a_plain_causal_lm_is_asked_in_its_own_tokens(plain: PreTrainedTokenizerFast) -> None:
    model = random_gpt2(len(plain))
    scores = reversal_scores(opened(model, plain), PEOPLE)
    text = "The son of John is Mark. The father of Mark is"
    ids = torch.tensor([[plain.eos_token_id, *plain(text)["input_ids"]]])
    logits = model(ids).logits[0, -1].detach()
    expected = -logits.log_softmax(-1)[[single_token_names(plain)[name] for name in ("John", "Mark")]]
    np.testing.assert_allclose(scores["reversed"][1, 2], expected.numpy(), atol=1e-5)
    assert np.isnan(scores["reversed"][np.eye(4, dtype=bool)]).all()


@pytest.fixture(scope="module")
def folder(plain: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as another project saves it."""
    folder = tmp_path_factory.mktemp("plain")
    random_gpt2(len(plain)).save_pretrained(folder)
    plain.save_pretrained(folder)
    return folder


def test_a_saved_plain_model_is_probed_and_scored(folder: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "eval.json"
    tasks = ["perplexity", "reversal"]
    results = evaluate(folder, tasks, source=f"file:{corpus}", out=out, show=False)
    assert results["reversal"]["pairs"] == 12
    assert json.loads(out.read_text())["reversal"]["normal"] == json.loads(json.dumps(results["reversal"]["normal"]))
    assert results["perplexity"]["tokens"] > 0
    assert results["perplexity"]["protocol"]["context"].startswith("sliding windows of 128 tokens")


def test_plain_model_scores_a_document_after_end_of_text(
    folder: Path, plain: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"Paul has {number} sons."}) for number in range(100)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    found = evaluate(folder, source=f"file:{tmp_path / 'text.jsonl'}", split="test", show=False)
    from mentalese.data.sources import open_source

    model, total, tokens = random_gpt2(len(plain)), 0.0, 0
    for document in open_source(f"file:{tmp_path / 'text.jsonl'}").documents("test"):
        ids = torch.tensor([plain.eos_token_id, *plain(document.text)["input_ids"]])
        scores = model(ids[None]).logits[0, :-1].detach().log_softmax(-1)
        total -= float(scores.gather(1, ids[1:, None]).sum())
        tokens += len(ids) - 1
    assert found["perplexity"]["tokens"] == tokens
    assert found["perplexity"]["nll"] == pytest.approx(total / tokens, rel=1e-5)


def test_a_plain_model_goes_on_with_a_text(plain: PreTrainedTokenizerFast) -> None:
    model = random_gpt2(len(plain))
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    prompts = ["Paul", "The father of Paul"]
    together = generate_text(opened(model, plain), prompts, **options)
    assert [text[: len(prompt)] for text, prompt in zip(together, prompts)] == prompts
    assert together == [generate_text(opened(model, plain), [prompt], **options)[0] for prompt in prompts]
    assert "".join(stream_text(opened(model, plain), "Paul", **options)) == together[0].removeprefix("Paul")


def test_a_tokenizer_without_the_names_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="needs two of 60 first names"):
        reversal.run(opened(nn.Linear(1, 1), tokenizer))
    with pytest.raises(InputError, match=r"tasks is 'reversal': .* reads questions and the probe is a text"):
        reversal.run(opened(nn.Linear(1, 1), tokenizer, QuestionAnswer()))


def test_names_of_an_unknown_word_are_not_probed() -> None:
    backend = Tokenizer(models.WordLevel({"?": 0, "He": 1, "is": 2, "Paul": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert single_token_names(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")) == {"Paul": 3}
