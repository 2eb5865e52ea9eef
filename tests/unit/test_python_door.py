"""What is wrong from Python is one sentence, as from the command line."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import mentalese
from mentalese import DataConfig, InputError, Saved, as_source, cli, get_recipe, load
from mentalese.data.tokenizers import decode_after
from mentalese.models.generation import _Streamer
from mentalese.models.thinking import token_texts
from mentalese.recipe import OptimizerConfig
from support import keep_changes, saved, shrink


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("door") / "run", shrink(get_recipe("gpt2/tiny"), corpus))


@pytest.fixture(scope="module")
def model(run: Path) -> Saved:
    return load(run, device="cpu")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


CALLS: dict[str, tuple[Callable[[Saved], Any], str]] = {
    "no texts": (lambda m: m.encode(None), "texts is None: pass a text"),  # type: ignore[arg-type]
    "a dict of texts": (lambda m: m.encode({"a": "b"}), "texts is {'a': 'b'}: pass a text"),  # type: ignore[arg-type]
    "bytes": (lambda m: m.generate(b"She"), "texts is b'She': pass a text"),  # type: ignore[arg-type]
    "not Unicode": (lambda m: m.score(["fine", "\ud800"]), r"texts\[1\] is .*: use text in Unicode"),
    "a number to think of": (lambda m: m.think(3), "text is 3: it should be a valid string"),  # type: ignore[arg-type]
    "an answer of a text": (lambda m: m.think("She", max_new_tokens=5), "max_new_tokens is 5: .* remove it"),
    "a list to stream": (lambda m: m.stream(["She"]), r"text is \['She'\]: it should be a valid string"),  # type: ignore[arg-type]
    "tokens in rows": (lambda m: m.trace(torch.zeros(1, 4, dtype=torch.long)), "input_ids is .*: pass a tensor"),
    "no tokens": (lambda m: m.trace(torch.zeros(0, dtype=torch.long)), "input_ids has the shape"),
    "unknown tokens": (lambda m: m.trace(torch.full((4,), 10**6)), "input_ids contains 1000000"),
    "no split": (lambda m: m.perplexity("test"), "split is 'test'"),  # type: ignore[arg-type]
    "a list as split": (lambda m: m.split([]), r"split is \[\]: it should be a valid string"),  # type: ignore[arg-type]
    "a stray field of the text": (lambda m: m.on(None, text_colum="x"), "data.text_colum: no such .* 'text_column'"),
    "a stray field of the protocol": (lambda m: m.scored_by(strid=3), "evaluation.strid: no such .* 'stride'"),
    "a protocol of another type": (
        lambda m: m.scored_by(batch_size="16"),
        "evaluation.batch_size is '16': it should be a valid int",
    ),
    "no new tokens": (
        lambda m: m.generate("She", max_new_tokens=None),
        "max_new_tokens is None: it should be a valid int",
    ),
    "half a token": (
        lambda m: m.generate("She", max_new_tokens=2.5),
        "max_new_tokens is 2.5: it should be a valid int",
    ),
    "batches of none": (lambda m: m.generate("She", batch_size=0), "batch_size is 0: "),
    "no seed": (lambda m: m.generate("She", seed=None), "seed is None: it should be a valid int"),
    "no beams": (lambda m: m.generate("She", num_beams=0), "num_beams is 0: "),
    "a cold model": (lambda m: m.generate("She", do_sample=True, temperature=0.0), "generate refused .*temperature"),
    "a stray setting": (lambda m: m.generate("She", max_new_tokens=2, num_beam=2), "generate refused .*num_beam"),
    "a config of generation": (
        lambda m: m.generate("She", generation_config={}),
        r"generation_config is \{\}: ",
    ),
    "scores of a text": (lambda m: m.generate("She", output_scores=True), "output_scores is True: texts are passed"),
    "all of it": (lambda m: m.generate("She", return_dict_in_generate=True), "call saved.model.generate with"),
    "tokens for texts": (lambda m: m.generate("She", input_ids=torch.ones(1, 1)), "input_ids is of type Tensor: texts"),
    "a length of tokens": (lambda m: m.generate("She", max_length=5), "max_length is 5: texts are passed"),
    "a tokenizer": (lambda m: m.generate("She", tokenizer=m.tokenizer), r"tokenizer is of type .*: texts are passed"),
    "a mask of a stream": (lambda m: m.stream("She", attention_mask=None), "attention_mask is None: texts are passed"),
    "a stream of a stream": (
        lambda m: m.stream("She", streamer=None),
        "streamer is None: the pieces are returned here",
    ),
    "a text to evaluate": (lambda m: mentalese.evaluate(3), "path is 3: use a path"),  # type: ignore[arg-type]
    "a long text for a path": (
        lambda m: load("She. " * 90),
        r"path is 'She. .* \.\.: use a path, whose names",
    ),
    "a text for a source": (
        lambda m: mentalese.evaluate(m, data="She. " * 90),
        r"data.source is 'She. .*: use builtin:",
    ),
    "a text for a file": (
        lambda m: mentalese.evaluate(m, data=f"file:{'She. ' * 90}"),
        "She. .* does not exist",
    ),
    "a text for a result": (lambda m: mentalese.evaluate(m, out="She. " * 90), r"out is 'She. .* \.\.: use a path"),
    "no tasks": (lambda m: mentalese.evaluate(m, None), "tasks is None: it should be a valid tuple"),  # type: ignore[arg-type]
    "documents in words": (
        lambda m: mentalese.evaluate(m, documents="2"),
        "documents is '2': it should be a valid int",
    ),
    "half a shot": (lambda m: mentalese.answer(m, shots=0.5), "shots is 0.5: it should be a valid int"),
    "a recipe of another type": (lambda m: mentalese.train(3), "recipe is 3: use a path"),  # type: ignore[arg-type]
    "a setting of another type": (lambda m: mentalese.train("gpt2/tiny", 3), "a setting is 3: "),  # type: ignore[arg-type]
    "two texts": (
        lambda m: mentalese.train("gpt2/tiny", "data.source=builtin:stdlib", data=["a", "b"], out="/dev/null"),
        "a setting is 'data.source=builtin:stdlib': data is set too, set one of them",
    ),
    "a folder of another type": (
        lambda m: mentalese.train("gpt2/tiny", out=3),
        "out is 3: use a path",
    ),  # type: ignore[arg-type]
    "another device": (lambda m: load(m.path, "gpu"), "device is 'gpu': "),
    "a device that is not there": (lambda m: load(m.path, "cuda:99"), "device is 'cuda:99': "),
    "a config of another type": (lambda m: load(m.path, config=3), "config is 3: it should be a valid dict"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_one_sentence(model: Saved, name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message):
        call(model)


def test_a_models_own_settings_return_texts_too(model: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate("She", max_new_tokens=3)
    monkeypatch.setattr(model.model.generation_config, "return_dict_in_generate", True)
    assert model.generate("She", max_new_tokens=3) == expected


def test_a_result_replaces_no_file_of_a_run(model: Saved, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "config.json").write_text("{}")
    (copy / "result.json").write_text("{}")
    for place in (copy / "result.json", copy / "config.json", copy / "model" / "config.json"):
        before = place.read_bytes()
        with pytest.raises(InputError, match="belongs to the run or model in that folder: use another name"):
            mentalese.evaluate(model, out=place, show=False)
        for words in (["eval"], ["ablate"], ["think", "--text", "She"]):
            assert cli.main([*words, str(copy), "--out", str(place)]) == 2
            assert "belongs to the run or model" in capsys.readouterr().err
        assert place.read_bytes() == before
    assert mentalese.evaluate(model, out=copy / "perplexity.json", show=False)


def test_a_result_replaces_no_text_that_is_read(model: Saved, tmp_path: Path, capsys: Any) -> None:
    folder, name = tmp_path / "texts", str(model.path)
    folder.mkdir()
    text, table = folder / "text.txt", folder / "questions.jsonl"
    text.write_text("She had a son. " * 20)
    table.write_text(json.dumps({"question": "1+1", "answer": "2"}))
    for call in (mentalese.evaluate, mentalese.answer):
        with pytest.raises(InputError, match="that file is read: use another name"):
            call(model, source=f"file:{text}", out=text, show=False)
    for words in (
        ["eval", name, "--data", f"file:{text}", "--out", str(text)],
        ["eval", name, "--data", f"file:{folder}", "--out", str(text)],
        ["answer", name, "--data", f"file:{table}", "--out", str(table)],
        ["answer", name, "--data", f"file:{table}", "--out", str(folder / "questions.jsonl")],
        ["think", name, "--file", str(text), "--out", str(text)],
    ):
        assert cli.main(words) == 2
        assert "that file is read" in capsys.readouterr().err
    assert text.read_text().startswith("She")
    assert table.read_text().startswith("{")


def test_a_wrong_value_of_the_config_is_named(model: Saved) -> None:
    for fields, says in (
        ({"n_layer": "two"}, "config.n_layer is 'two': it should be a valid integer"),
        ({"attn_pdrop": [1]}, "config.attn_pdrop"),
    ):
        with pytest.raises(InputError, match=says):
            load(model.path, config=fields)


def test_one_task_needs_no_list(model: Saved) -> None:
    assert mentalese.evaluate(model, "perplexity", show=False) == mentalese.evaluate(model, show=False)


def test_a_frame_of_pandas_is_refused() -> None:
    """Its items are the names of its columns."""
    frame = datasets.Dataset.from_list([{"text": "She had a son."}] * 9).to_pandas()
    for refused in (frame, {"test": frame}, lambda: frame):
        with pytest.raises(InputError, match=r"of pandas: use data\.to_dict\('records'\)"):
            as_source(refused)
    assert as_source(frame["text"]) == as_source(list(frame["text"]))


def test_a_data_set_is_not_the_name_of_one(model: Saved) -> None:
    rows = datasets.Dataset.from_list([{"text": f"She had a son. He was {i}."} for i in range(100)])
    for refused in (lambda: DataConfig(source=rows), lambda: model.on(rows)):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"data.source is of type Dataset: .* mentalese.as_source\(texts\)"):
            refused()
    with pytest.raises(InputError, match="source is of type Dataset: it should be a valid string"):
        mentalese.evaluate(model, source=rows, show=False)
    assert model.on(as_source(rows)).store("test").splits["test"].document_bytes.sum() > 0


def test_numbers_of_numpy_are_numbers() -> None:
    rate = OptimizerConfig(learning_rate=np.float32(0.5)).learning_rate  # type: ignore[arg-type]
    assert (rate, type(rate)) == (0.5, float)
    assert OptimizerConfig(betas=[0.5, 0.9]).betas == (0.5, 0.9)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"optimizer.learning_rate is True: it should be a valid number"):
        OptimizerConfig(learning_rate=True)
    with pytest.raises(InputError, match=r"optimizer.learning_rate is inf: it should be a finite number"):
        OptimizerConfig(learning_rate=math.inf)
    with pytest.raises(
        InputError, match=r"optimizer.schedule is 'cosin': it should be 'cosine', 'linear' or 'constant'"
    ):
        OptimizerConfig(schedule="cosin")  # type: ignore[arg-type]


def test_weights_that_are_not_finite_are_refused_when_opened(copy: Path) -> None:
    broken = load(copy, device="cpu")
    with torch.no_grad():
        broken.model.transformer.h[1].mlp.c_fc.weight[0, 0] = math.nan
    broken.model.save_pretrained(copy / "model")
    (copy / "model" / "mentalese.json").unlink()
    with pytest.raises(InputError, match=r"the weight .*h.1.mlp.c_fc.weight is not finite"):
        load(copy, device="cpu")
    with pytest.raises(FloatingPointError, match="probabilities are not finite"):
        broken.generate("She had", do_sample=True, max_new_tokens=2)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("mentalese.json", "{", "mentalese.json cannot be read"),
        ("mentalese.json", "[]", "mentalese.json cannot be read"),
        ("mentalese.json", '{"weights": 3}', "weights in .* is 3"),
        ("mentalese.json", '{"files": 3}', "files in .* is 3"),
        ("mentalese.json", '{"recipe": 3}', "recipe is 3: use what"),
        ("mentalese.json", '{"recipe": {}}', "name is missing: set it"),
        ("config.json", "null", "cannot be loaded"),
        ("config.json", '{"model_type": "gpt2", "n_embd": "x"}', "cannot be loaded .*n_embd"),
        ("config.json", '{"model_type": "gpt2", "vocab_size": -1}', "cannot be loaded"),
    ],
)
def test_a_damaged_file_of_a_model_is_named(copy: Path, file: str, content: str, message: str) -> None:
    keep_changes(copy / "model" / "mentalese.json")
    (copy / "model" / file).write_text(content)
    with pytest.raises(InputError, match=message):
        load(copy, device="cpu")


def test_a_damaged_config_of_a_run_is_named(copy: Path, corpus: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json cannot be read"):
        mentalese.train(shrink(get_recipe("gpt2/tiny"), corpus), out=copy, resume=True, show=False)
    assert json.loads((copy / "model" / "config.json").read_text())["model_type"] == "gpt2"


def test_a_stream_keeps_the_spaces_that_begin_a_line() -> None:
    """Llama 2's decoder removes a text's first space, and transformers decodes each line as a text."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "▁f:", "<0x0A>", "▁▁▁", "▁return", "</s>"])}
    inner = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")
    streamer = _Streamer(tokenizer)
    for token in (1, 2, 5, 3, 4):  # the prompt; an end of another text is not text
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert "".join(streamer) == "\n    return"


@pytest.fixture(scope="module")
def bytes_as_tokens() -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2's: a character that it does not know is a token for each of its bytes."""
    known = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghi"]
    inner = Tokenizer(BPE(vocab={token: i for i, token in enumerate(known)}, merges=[], byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


@pytest.mark.parametrize(
    ("before", "after"), [("a 😀", "\nb c"), ("a 日", "本 b"), ("é", "é"), ("\n", "\n"), ("", "😀")]
)
def test_text_after_a_character_of_several_tokens_is_whole(
    before: str, after: str, bytes_as_tokens: PreTrainedTokenizerFast
) -> None:
    ids, start = bytes_as_tokens.encode(before + after), len(bytes_as_tokens.encode(before)) if before else 0
    assert decode_after(ids, start, bytes_as_tokens) == after
    assert "".join(token_texts(ids, bytes_as_tokens)) == before + after
    streamer = _Streamer(bytes_as_tokens)
    for part in (ids[:start], *([i] for i in ids[start:])):  # the prompt first
        streamer.put(torch.tensor(part))
    streamer.end()
    assert "".join(streamer) == after


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_part_of_a_character_is_no_more_than_that(count: int, bytes_as_tokens: PreTrainedTokenizerFast) -> None:
    """The decoder then shows the bytes of the character before it as broken ones, too."""
    ids, start = bytes_as_tokens.encode("a 😀🎉"), len(bytes_as_tokens.encode("a 😀"))
    assert decode_after(ids[: start + count], start, bytes_as_tokens) == "�" * count


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_text_cut_within_a_character_is_not_repeated(cut: int, bytes_as_tokens: PreTrainedTokenizerFast) -> None:
    ids = bytes_as_tokens.encode("a b日c 😀")
    begins, goes_on = bytes_as_tokens.decode(ids[:cut]).rstrip("�"), decode_after(ids, cut, bytes_as_tokens)
    assert (begins + goes_on).replace("�", "") == "a b日c 😀"
