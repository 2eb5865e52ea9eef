"""A perplexity is exact, does not depend on the batch size, and says how it was taken."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese.data.store import Split
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.evaluate.perplexity import evaluate_model, perplexity
from mentalese.models.auto import CausalLMAdapter
from mentalese.models.base import Batch
from mentalese.recipe import DataConfig, EvaluationConfig, Recipe, TrainConfig

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
def model(tokenizer: PreTrainedTokenizerFast) -> CausalLMAdapter:
    """A small GPT-2 whose weights are large enough that context matters."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return CausalLMAdapter(GPT2LMHeadModel(config)).eval()


class Uniform(nn.Module):
    """Gives every token the same likelihood: its perplexity is known."""

    def __init__(self, choices: float) -> None:
        super().__init__()
        self.choices = choices
        self.modes: list[bool] = []

    def token_nll(self, batch: Batch) -> Tensor:
        self.modes.append(self.training)
        return torch.where(batch["labels"] == -100, 0.0, math.log(self.choices))


DATA = DataConfig(batching="documents", sequence_length=32)


def score(model, split, tokenizer, data=DATA, **evaluation):  # type: ignore[no-untyped-def]
    return perplexity(model, split, data, EvaluationConfig(**evaluation), special_token_ids(tokenizer))


def test_a_uniform_model_has_the_perplexity_of_its_choices(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(Uniform(256), split, tokenizer)
    size = sum(len(text.encode()) for text in TEXTS)
    assert result.perplexity == pytest.approx(256)
    assert (result.tokens, result.bytes) == (size, size)  # every byte is one token, scored once
    assert result.bits_per_byte == pytest.approx(8)
    assert result.nll == pytest.approx(math.log(256))


def test_all_tokens_also_counts_the_documents_ends(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    lexical, everything = (score(Uniform(2), split, tokenizer, tokens=t) for t in ("lexical", "all"))
    assert everything.tokens == lexical.tokens + len(TEXTS)
    assert everything.bytes == lexical.bytes


@pytest.mark.parametrize("batching", ["blocks", "documents"])
def test_the_batch_size_changes_nothing(
    batching: str, model: CausalLMAdapter, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Rows of very different lengths are padded on the right in large batches and not at all in batches of one."""
    data = dataclasses.replace(DATA, batching=batching)
    one, *others = (score(model, split, tokenizer, data, batch_size=size) for size in (1, 2, 3, 64))
    for other in others:
        assert other.nll == pytest.approx(one.nll, abs=1e-5)
        assert (other.tokens, other.bytes, other.protocol) == (one.tokens, one.bytes, one.protocol)


def test_it_is_the_likelihood_of_the_documents_token_by_token(
    model: CausalLMAdapter, split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Against a plain loop: one row, one document, no windows, Hugging Face's own logits."""
    end = special_token_ids(tokenizer)["eos_token_id"]
    total, count = 0.0, 0
    for text in TEXTS[:3]:
        ids = torch.tensor([[end, *tokenizer(text)["input_ids"]]])
        with torch.no_grad():
            logits = model.model(input_ids=ids).logits
        total += float(nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    result = score(model, split, tokenizer, context_length=60, max_documents=3)
    assert result.tokens == count
    assert result.nll == pytest.approx(total / count, abs=1e-5)
    assert result.protocol["documents"] == 3


def test_more_context_is_used(model: CausalLMAdapter, split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    short, long = (score(model, split, tokenizer, context_length=n) for n in (4, 60))
    assert abs(short.nll - long.nll) > 1e-3


def test_the_protocol_says_all_that_the_figure_depends_on(split: Split, tokenizer: PreTrainedTokenizerFast) -> None:
    protocol = score(Uniform(2), split, tokenizer, context_length=16, stride=4).protocol
    assert protocol["tokens"] == "lexical"
    assert protocol["context"] == "sliding windows of 16 tokens inside a document, 4 new ones a window"
    assert protocol["estimator"] == "exact"
    assert protocol["documents"] == len(TEXTS)
    assert "end-of-document" in protocol["first_token"]
    assert "batch_size" not in protocol


def test_scoring_happens_in_eval_mode_and_every_module_gets_its_mode_back(
    split: Split, tokenizer: PreTrainedTokenizerFast
) -> None:
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


# -- a saved model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(model: CausalLMAdapter, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    model.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = Recipe(
        name="test/tiny", description="", model={"model_type": "gpt2"}, train=TrainConfig(steps=1),
        data=DataConfig(source="file:/not/there.txt", tokenizer="bpe:300", sequence_length=32),
        evaluation=EvaluationConfig(max_documents=1),
    )  # fmt: skip
    (folder / "mentalese.json").write_text(json.dumps({"recipe": recipe.to_dict(), "step": 1}))
    return folder.parent


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_saved_model_is_scored_on_any_text_in_its_own_tokens(saved: Path, inside: str, corpus: Path) -> None:
    out = saved / f"eval{inside}.json"
    results = evaluate_model(
        str(saved / inside), tasks=["perplexity"], source=f"file:{corpus}", split="train", out=out, show=False
    )
    assert json.loads(out.read_text()) == results
    result = results["perplexity"]
    assert result["tokens"] == result["bytes"]  # its tokens are bytes
    assert result["protocol"]["documents"] > 1  # the recipe's cap is for validation during training
    assert result["protocol"]["context"].startswith("sliding windows of 32 tokens")
    assert result["split"] == "train"
    assert len(result["data_hash"]) >= 16


def test_a_model_without_a_recipe_is_scored_in_blocks_that_fit_it(saved: Path, corpus: Path, tmp_path: Path) -> None:
    for file in (saved / "model").iterdir():
        if file.name != "mentalese.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    result = evaluate_model(str(tmp_path), tasks=["perplexity"], source=f"file:{corpus}", show=False)["perplexity"]
    assert result["protocol"]["context"].startswith("sliding windows of 64 tokens")


def test_an_unknown_task_is_refused_with_the_known_ones(saved: Path) -> None:
    with pytest.raises(InputError, match=r"'perplexty'; did you mean 'perplexity'\? \(known: perplexity\)"):
        evaluate_model(str(saved), tasks=["perplexty"])


def test_a_tokenizer_that_lacks_the_markers_is_refused(saved: Path, corpus: Path, tmp_path: Path) -> None:
    """GPT-2's own tokenizer knows no sentences: the text cannot be prepared in the checkpoint's tokens."""
    for file in (saved / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] == "<|endoftext|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    kept = {k: v for k, v in settings.items() if k in ("tokenizer_class", "bos_token", "eos_token")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(kept))
    with pytest.raises(InputError, match="not the checkpoint's tokenizer"):
        evaluate_model(str(tmp_path), tasks=["perplexity"], source=f"file:{corpus}", show=False)


def test_the_output_folder_is_checked_before_work_starts(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its folder does not exist"):
        evaluate_model(str(saved), tasks=["perplexity"], out=tmp_path / "no" / "where.json")
