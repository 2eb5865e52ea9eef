"""A perplexity is exact, does not depend on the batch size, and says how it was taken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel
from tokenizers.normalizers import NFD, Lowercase
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import evaluate
from mentalese.data.batch import Batch
from mentalese.data.layouts import Layout, Marked, Packed, PerDocument, QuestionAnswer, SentenceStreams, layout_class
from mentalese.data.split import Split
from mentalese.data.store import split_of
from mentalese.data.tokenizers import add_markers, special_token_ids
from mentalese.errors import InputError
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.scoring import text_scores
from mentalese.recipe import DataConfig, EvaluationConfig, Recipe, TrainConfig
from support import MARKERS, make_split, opened

TEXTS = ["One.", "A dog ran. It was fast.", "Überall ist Wunderland, überall ist Leben.", "No. " * 30, "x"]


@pytest.fixture(scope="module")
def split(tokenizer: PreTrainedTokenizerFast) -> Split:
    """Each text is one document of one segment."""
    end = special_token_ids(tokenizer)["eos_token_id"]
    documents = [[*tokenizer(text)["input_ids"], end] for text in TEXTS]
    offsets = np.cumsum([0, *map(len, documents)])
    return Split(
        tokens=np.concatenate(documents).astype(np.uint16),
        documents=offsets,
        segments=offsets,
        document_segments=np.arange(len(TEXTS) + 1),
        document_bytes=np.array([len(text.encode()) for text in TEXTS]),
    )


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    """A small GPT-2 whose weights are large enough that context matters."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return as_model(GPT2LMHeadModel(config)).eval()


class OnCpu(nn.Module, LanguageModel):
    """A model without weights."""

    device = torch.device("cpu")


class Uniform(OnCpu):
    """Gives every token the same likelihood: its perplexity is known."""

    def __init__(self, choices: float) -> None:
        super().__init__()
        self.choices = choices
        self.modes: list[bool] = []

    def token_nll(self, batch: Batch) -> Tensor:
        self.modes.append(self.training)
        return torch.where(batch["labels"] == -100, 0.0, math.log(self.choices))


class ByNumber(OnCpu):
    """A token's score is its number."""

    def token_nll(self, batch: Batch) -> Tensor:
        return batch["labels"].double().masked_fill(batch["labels"] == -100, 0.0)


LAYOUT = PerDocument(sequence_length=32)
KINDS = ("packed", "per_document", "marked", "sentence_streams")


def score(model, split, tokenizer, layout=LAYOUT, **evaluation):  # type: ignore[no-untyped-def]
    return opened(model, tokenizer, layout, **evaluation).perplexity(split)


def layout_of(kind: str, length: int) -> Layout:
    return SentenceStreams() if kind == "sentence_streams" else layout_class(kind)(sequence_length=length)  # type: ignore[call-arg]


def test_a_uniform_model_has_the_perplexity_of_its_choices(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(Uniform(256), split, tokenizer)
    size = sum(len(text.encode()) for text in TEXTS)
    assert result.perplexity == pytest.approx(256)
    assert (result.tokens, result.bytes) == (size, size)  # every byte is one token, scored once
    assert result.bits_per_byte == pytest.approx(8)
    assert result.nll == pytest.approx(math.log(256))


@pytest.mark.parametrize(
    ("model", "normalizer", "text", "lost"),
    [
        (WordLevel({"[UNK]": 0, "He": 1}, unk_token="[UNK]"), None, "He sees", "the words of 1 unknown tokens"),
        (WordLevel({"[UNK]": 0, "He": 1}, unk_token="[UNK]"), None, "He He", None),
        (Unigram([("He", -1.0), ("?", -1.0)], unk_id=1), None, "He sees", "the words of 1 unknown tokens"),
        (WordLevel({"he": 0}), Lowercase(), "He", "capital letters or accents"),
        (WordLevel({"He": 0}), NFD(), "He", None),
    ],
)
def test_what_tokens_lost_is_not_paid_for_and_said(
    model: Any, normalizer: Any, text: str, lost: str | None, tmp_path: Path
) -> None:
    backend = Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer = normalizer, Whitespace()
    words = add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))
    split = split_of([text], words, DataConfig())
    result = score(Uniform(2), split, words)
    (one,) = text_scores(opened(Uniform(1), words, LAYOUT), split)
    assert result.protocol.get("lost") == one.lost == lost
    bits = (result.bits_per_byte, result.bits_per_byte_with_ends, one.bits_per_byte)
    assert all((found is None) == (lost is not None) for found in bits)


def test_all_tokens_also_counts_the_documents_ends(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    lexical, everything = (score(Uniform(2), split, tokenizer, tokens=t) for t in ("lexical", "all"))
    assert everything.tokens == lexical.tokens + len(TEXTS)
    assert everything.bytes == lexical.bytes


@pytest.mark.parametrize("kind", KINDS)
def test_bits_with_ends_include_sentence_and_document_ends(kind: str) -> None:
    """The rest of the figures is the text's alone, with whichever tokens the protocol counts."""
    split = make_split([2, 7, 1], [0], [5], [1] * 9, [40, 3])
    lexical, everything = (score(ByToken(), split, MARKERS, layout_of(kind, 16), tokens=t) for t in ("lexical", "all"))
    ids = split.tokens[split.tokens >= 10].astype(np.float64)
    assert lexical.tokens == len(ids)
    assert lexical.nll == pytest.approx((1 + ids / 7).mean())
    markers = special_token_ids(MARKERS)
    ends = 5 * (1 + markers["eos_token_id"] / 7)
    if kind in ("marked", "sentence_streams"):
        ends += (len(split.segments) - 1) * (1 + markers["sentence_end_token_id"] / 7)
    bits = (lexical.nll * lexical.tokens + ends) / math.log(2) / lexical.bytes
    assert everything.bits_per_byte == pytest.approx(bits)
    assert lexical.bits_per_byte_with_ends == everything.bits_per_byte_with_ends == pytest.approx(bits)
    assert lexical.bits_per_byte < bits


def test_bounds_have_no_bits_with_ends(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    """A bound is of all that is asked for at once: with the ends it would be another bound."""
    assert score(Bound(2), split, tokenizer).bits_per_byte_with_ends is None


@pytest.mark.parametrize("kind", ["packed", "per_document"])
def test_the_batch_size_changes_nothing(
    kind: str, model: LanguageModel, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Rows of very different lengths are padded on the right in large batches and not at all in batches of one."""
    layout = layout_of(kind, 32)
    one, *others = (score(model, split, tokenizer, layout, batch_size=size) for size in (1, 2, 3, 64))
    for other in others:
        assert other.nll == pytest.approx(one.nll, abs=1e-5)
        assert (other.tokens, other.bytes, other.protocol) == (one.tokens, one.bytes, one.protocol)


def test_it_is_the_likelihood_of_the_documents_token_by_token(
    model: LanguageModel, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Against a plain loop: one row, one document, no windows, Hugging Face's own logits."""
    end = special_token_ids(tokenizer)["eos_token_id"]
    total, count = 0.0, 0
    for text in TEXTS[:3]:
        ids = torch.tensor([[end, *tokenizer(text)["input_ids"]]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        total += float(nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    result = score(model, split, tokenizer, context_length=60, max_documents=3)
    assert result.tokens == count
    assert result.nll == pytest.approx(total / count, abs=1e-5)
    assert result.protocol["documents"] == 3


def test_more_context_is_used(model: LanguageModel, split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    short, long = (score(model, split, tokenizer, context_length=n) for n in (4, 60))
    assert abs(short.nll - long.nll) > 1e-3


def test_the_protocol_says_all_that_the_figure_depends_on(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    said = score(Uniform(2), split, tokenizer, context_length=16, stride=4).protocol
    assert said["tokens"] == "lexical"
    assert said["context"] == "sliding windows of 16 tokens inside a document, 4 new tokens per window"
    assert said["estimator"] == "exact"
    assert said["documents"] == len(TEXTS)
    assert "end-of-document" in said["first_token"]
    assert "batch_size" not in said


def test_scoring_uses_eval_mode_and_restores_all_modes(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    model = Uniform(2)
    model.frozen, model.trained = nn.Dropout().eval(), nn.Dropout()
    model.train(True)
    model.frozen.eval()
    score(model, split, tokenizer)
    assert not any(model.modes)
    assert (model.training, model.frozen.training, model.trained.training) == (True, False, True)


def test_a_likelihood_that_is_not_finite_names_its_batch(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(FloatingPointError, match=r"evaluation batch 0 \(12 rows of 32 tokens\) is nan"):
        score(Uniform(float("nan")), split, tokenizer)


# -- token by token ----------------------------------------------------------------------------------------------------


class ByToken(OnCpu):
    """A token's likelihood is its own, whatever stands before it."""

    def token_nll(self, batch: Batch) -> Tensor:
        return torch.where(batch["labels"] == -100, 0.0, 1 + batch["labels"].float() / 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [8, 1024])
def test_every_kind_scores_the_same_tokens_each_in_its_place(kind: str, length: int) -> None:
    split = make_split([2, 7, 1], [0], [5], [1] * 9, [40, 3])
    scores = opened(ByToken(), MARKERS, layout_of(kind, length), batch_size=2, tokens="all").token_scores(split)
    assert scores.dtype == np.float32
    text = split.tokens >= 10
    np.testing.assert_allclose(scores[text], 1 + split.tokens[text] / 7, rtol=1e-6)
    assert np.isnan(scores[~text]).all()


class Bound(Uniform):
    """Pays 3 nats a token for what it knows of the text; by its other way it scores the second token of each row."""

    estimators = ("elbo-bound", "second")

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        labels = super().scored_labels(batch, estimator).clone()
        if estimator == "second":
            labels[:, 2:] = -100
        return labels

    def nll_parts(self, batch: Batch, estimator: str = "elbo-bound") -> dict[str, Tensor]:
        scored = self.scored_labels(batch, estimator) != -100
        parts = {"nll": self.token_nll(batch), "kl": torch.full(scored.shape, 3.0)}
        return {name: parts[name] * scored for name in (["nll"] if estimator == "second" else parts)}


def test_a_bound_is_published_with_its_parts(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(Bound(2), split, tokenizer)
    assert result.parts == pytest.approx({"nll": math.log(2), "kl": 3.0})
    assert result.nll == pytest.approx(sum(result.parts.values()))
    assert "parts" not in score(Uniform(2), split, tokenizer).to_dict()


def test_what_an_estimator_leaves_out_does_not_count(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    """And bits a byte have no meaning then: nobody knows which bytes were scored."""
    result = score(Bound(2), split, tokenizer, estimator="second", context_length=1000, stride=999)
    assert (result.tokens, result.parts, result.bits_per_byte) == (len(TEXTS), {}, None)
    assert result.perplexity == pytest.approx(2)
    saved = opened(Bound(2), tokenizer, LAYOUT, estimator="second", context_length=1000, stride=999)
    scores = saved.token_scores(split)
    assert (~np.isnan(scores)).sum() == len(TEXTS)


@pytest.mark.parametrize("kind", ["packed", "per_document"])
@pytest.mark.parametrize("length", [2, 8, 1024])
def test_joined_blocks_score_each_token_in_its_place(kind: str, length: int) -> None:
    split = make_split([2, 7, 1], [0], [5], [1] * 9, [40, 3])
    scores = opened(ByToken(), MARKERS, layout_of(kind, length), joined=True).token_scores(split)
    text = split.tokens >= 10
    np.testing.assert_allclose(scores[text], 1 + split.tokens[text] / 7, rtol=1e-6)
    assert np.isnan(scores[~text]).all()


def test_joined_documents_are_context_of_each_other(
    model: LanguageModel, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Against a plain loop: blocks of the joined text one by one, Hugging Face's own logits."""
    special = special_token_ids(tokenizer)
    text = torch.from_numpy(np.concatenate([[special["eos_token_id"]], split.tokens]).astype(np.int64))
    expected = np.full(len(split.tokens), np.nan)
    for start in range(0, len(text) - 1, 15):
        ids = text[None, start : start + 16]
        with torch.no_grad():
            nll = -model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        expected[start : start + 15] = nll
    expected[split.documents[1:] - 1] = np.nan
    saved = opened(model, tokenizer, LAYOUT, context_length=16, joined=True, batch_size=3)
    scores = saved.token_scores(split)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert saved.protocol["context"] == (
        "windows of 16 tokens of the documents joined by end-of-document tokens, 15 new tokens per window"
    )


def test_protocol_separates_markers_without_latents_from_none() -> None:
    for fields, latents in (({}, None), ({"latents": 0}, 0), ({"latents_per_step": 2, "stage": 3, "stages": 3}, 6)):
        layout = QuestionAnswer(**fields)  # type: ignore[arg-type]
        assert opened(ByToken(), MARKERS, layout).protocol["latents"] == latents


@pytest.mark.parametrize("kind", ["packed", "per_document", "marked"])
def test_a_perplexity_is_the_mean_of_its_tokens(
    kind: str, model: LanguageModel, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    saved = opened(model, tokenizer, layout_of(kind, 32), max_documents=4, batch_size=3)
    result, scores = saved.perplexity(split), saved.token_scores(split)
    assert (~np.isnan(scores)).sum() == result.tokens
    assert np.nansum(scores.astype(np.float64)) / result.tokens == pytest.approx(result.nll, abs=1e-6)
    assert np.isnan(scores[split.documents[4] :]).all()


def test_marked_windows_give_the_likelihood_between_markers(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Against a plain loop: one row, one document, no windows, Hugging Face's own logits."""
    special = special_token_ids(tokenizer)
    bos, eos = special["sentence_start_token_id"], special["sentence_end_token_id"]
    split = make_split([3, 5], [4, 2, 2])
    expected = []
    for document in ([[10, 11, 12], [13, 14, 15, 16, 17]], [[19, 20, 21, 22], [23, 24], [25, 26]]):
        ids = torch.tensor([[token for sentence in document for token in (bos, *sentence, eos)]])
        with torch.no_grad():
            nll = -model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        expected += nll[(ids[0, 1:] != bos) & (ids[0, 1:] != eos)].tolist()
    split.tokens[split.documents[1:] - 1] = special["eos_token_id"]
    scores = opened(model, tokenizer, Marked(sequence_length=64)).token_scores(split)
    np.testing.assert_allclose(scores[~np.isnan(scores)], expected, rtol=1e-4)


def test_the_protocol_says_after_what_a_sentence_begins() -> None:
    first = {kind: opened(ByToken(), MARKERS, layout_of(kind, 32)).protocol["first_token"] for kind in KINDS}
    assert first["packed"] == first["per_document"]
    assert "after the sentence before it" in first["packed"]
    for kind, context in (("marked", "before it in the window"), ("sentence_streams", "memory of earlier sentences")):
        assert "after its sentence-start token" in first[kind]
        assert context in first[kind]


# -- a saved model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(model: LanguageModel, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = Recipe(
        name="test/tiny", description="", model={"model_type": "gpt2"}, train=TrainConfig(steps=1),
        data=DataConfig(source="file:/not/there.txt", tokenizer="bpe:300"), layout=Packed(sequence_length=32),
        evaluation=EvaluationConfig(max_documents=1),
    )  # fmt: skip
    (folder / "mentalese.json").write_text(json.dumps({"recipe": recipe.to_dict(), "step": 1}))
    return folder.parent


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_saved_model_is_scored_on_any_text_in_its_own_tokens(saved: Path, inside: str, corpus: Path) -> None:
    out = saved / f"eval{inside}.json"
    results = evaluate(saved / inside, source=f"file:{corpus}", split="train", out=out, show=False)
    assert json.loads(out.read_text()) == results
    result = results["perplexity"]
    assert result["tokens"] == result["bytes"]  # its tokens are bytes
    assert result["protocol"]["documents"] > 1  # the recipe's cap is for validation during training
    assert result["protocol"]["context"].startswith("sliding windows of 32 tokens")
    assert result["split"] == "train"
    assert len(result["data_hash"]) >= 16


def test_model_without_a_recipe_is_scored_in_blocks_that_fit(saved: Path, corpus: Path, tmp_path: Path) -> None:
    for file in (saved / "model").iterdir():
        if file.name != "mentalese.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    result = evaluate(tmp_path, source=f"file:{corpus}", show=False)["perplexity"]
    assert result["protocol"]["context"].startswith("sliding windows of 64 tokens")


def test_an_unknown_task_is_refused_with_the_known_ones(saved: Path) -> None:
    with pytest.raises(InputError, match=r"tasks is 'perplexty': .*did you mean 'perplexity'"):
        evaluate(saved, ["perplexty"])


def test_a_tokenizer_that_lacks_the_markers_is_refused(saved: Path, corpus: Path, tmp_path: Path) -> None:
    """GPT-2's own tokenizer knows no sentences, and the recipe asks for them."""
    for file in (saved / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] == "<|endoftext|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    kept = {k: v for k, v in settings.items() if k in ("tokenizer_class", "bos_token", "eos_token")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(kept))
    about = json.loads((tmp_path / "mentalese.json").read_text())
    about["recipe"]["layout"]["kind"] = "marked"
    (tmp_path / "mentalese.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="lacks the markers"):
        evaluate(tmp_path, source=f"file:{corpus}", show=False)


def test_the_output_folder_is_checked_before_work_starts(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its folder does not exist"):
        evaluate(saved, out=tmp_path / "no" / "where.json")


@pytest.mark.parametrize("kind", ["packed", "per_document", "marked", "sentence_streams"])
def test_random_documents_score_as_they_do_among_all(kind: str) -> None:
    split = make_split(*([4 + i % 3] * (2 + i % 2) for i in range(9)))
    saved = opened(ByNumber(), MARKERS, layout_of(kind, 32))
    whole = saved.token_scores(split)
    drawn = saved.scored_by(max_documents=4, documents_seed=1, batch_size=3)
    numbers = drawn.evaluation.chosen(9)
    assert len(set(numbers.tolist())) == 4
    assert numbers.tolist() != [0, 1, 2, 3]
    assert numbers.tolist() != EvaluationConfig(max_documents=4, documents_seed=2).chosen(9).tolist()
    expected = np.full_like(whole, np.nan)
    for number in numbers:
        tokens = slice(*split.documents[number : number + 2])
        expected[tokens] = whole[tokens]
    np.testing.assert_array_equal(drawn.token_scores(split), expected)
    result = drawn.perplexity(split)
    assert result.nll == pytest.approx(np.nanmean(expected.astype(np.float64)))
    assert result.bytes == split.document_bytes[numbers].sum()
    assert (result.protocol["documents_seed"], result.protocol["documents_available"]) == (1, 9)
    assert "documents_seed" not in saved.scored_by(max_documents=9, documents_seed=1).perplexity(split).protocol


def test_a_seed_without_a_number_of_documents_is_refused() -> None:
    with pytest.raises(InputError, match=r"evaluation.documents_seed is 3: set evaluation.max_documents too"):
        Recipe(
            name="a/b", description="", model={"model_type": "gpt2"}, train=TrainConfig(steps=1),
            evaluation=EvaluationConfig(documents_seed=3),
        )  # fmt: skip
