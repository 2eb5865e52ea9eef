"""Another project's own beginning, end and padding of a text: in rows, prompts and generation, grown or not."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mentalese
from mentalese import Recipe, cli
from mentalese.data.layouts import Layout, Marked, Packed, PerDocument, QuestionAnswer, SentenceStreams
from mentalese.data.prompts import PromptEncoder
from mentalese.data.store import open_store, prepare
from mentalese.data.tokenizers import (
    add_markers,
    base_chat_template,
    beginning,
    decode,
    load_pretrained_tokenizer,
    special_token_ids,
    user_turn,
)
from mentalese.errors import InputError
from mentalese.evaluation import answers
from mentalese.evaluation.harness import MentaleseLM
from mentalese.evaluation.options import AnswerOptions
from mentalese.evaluation.questions import QuestionPrompts
from mentalese.families.coconut.questions import QuestionSteps
from mentalese.families.codi.layout import QuestionPairs
from mentalese.families.colar.layout import CompressedSteps
from mentalese.models.generate_options import GenerateOptions
from mentalese.models.grow import grow
from mentalese.models.saved import Saved
from mentalese.models.text_tokenizer import text_tokenizer
from mentalese.models.thinking import document_ids
from mentalese.models.trace import ThoughtTrace
from mentalese.recipe import DataConfig, EvaluationConfig, TrainConfig
from mentalese.training.loop import train
from mentalese.viewer.play import Player

START, END, TURN = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
QUESTION = "Pat has 12 pens. How many?"
TEMPLATE = """{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}\
{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""


def trained(special: list[str], *, like_sentencepiece: bool = False) -> Tokenizer:
    """BPE of a few words, of bytes or with the space that SentencePiece puts before a text."""
    backend = Tokenizer(models.BPE(unk_token="<unk>" if like_sentencepiece else None))
    if like_sentencepiece:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    alphabet = [] if like_sentencepiece else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([QUESTION, "\n### 0123456789 abcdefghijklmnopqrstuvwxyz <<+*=>>. The"] * 9, trainer)
    return backend


def llama_3(folder: Path) -> None:
    """Its post-processor adds the beginning; there is no padding, and there are two ends."""
    backend = trained([START, END, TURN])
    single, known = [f"{START}:0", "$A:0"], [(START, 0)]
    pair = [*single, f"{START}:1", "$B:1"]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=START, eos_token=END)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def llama_2(folder: Path) -> None:
    """Its setting `add_bos_token` adds the beginning; padding is a token of its own."""
    backend = trained(["<unk>", "<s>", "</s>", "<pad>"], like_sentencepiece=True)
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, add_bos_token=True, **names).save_pretrained(folder)


def chat_glm(folder: Path) -> None:
    """Two tokens come before a text, and neither is named."""
    backend = trained(["[gMASK]", "<sop>", "<|user|>", "</s>"])
    known = [("[gMASK]", 0), ("<sop>", 1)]
    single = ["[gMASK]:0", "<sop>:0", "$A:0"]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=known)
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)


def qwen(folder: Path) -> None:
    """It adds nothing and has no beginning; its end is not the token that GPT-2 calls so, which is its padding."""
    backend = trained(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)


def gpt_2(folder: Path) -> None:
    """It adds nothing; one token is its beginning and its end."""
    backend = trained(["<|endoftext|>"])
    names = dict.fromkeys(("bos_token", "eos_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)


def unnamed(folder: Path) -> None:
    """It adds the beginning, and the model's config names it and the ends."""
    backend = trained([START, END, TURN])
    single = [f"{START}:0", "$A:0"]
    known = [(START, 0)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=known)
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)


KINDS = {kind.__name__: kind for kind in (llama_3, llama_2, chat_glm, qwen, gpt_2, unnamed)}
FIRST = {"llama_3": [START], "llama_2": ["<s>"], "chat_glm": ["[gMASK]", "<sop>"], "unnamed": [START]}
"""What each adds."""
ENDS = {"llama_3": [1, 2], "unnamed": [1, 2], "chat_glm": [2, 3], "llama_2": [2], "qwen": [0, 2], "gpt_2": [0]}
"""Where each model's text ends."""
ADDERS = [*FIRST]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def base(kind: str, tmp_path: Path) -> Path:
    """A small model as another project saves it; an unnamed end is in its config alone, further ones in its settings of
    generation."""
    folder = tmp_path / kind
    KINDS[kind](folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=400, max_position_embeddings=256, bos_token_id=0, eos_token_id=ENDS[kind][0], **sizes
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=ENDS[kind])
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["llama_3"])
def test_the_default_of_several_chat_templates_holds(base: Path) -> None:
    one = mentalese.load(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = {"tool_use": "no", "default": tokenizer.chat_template}
    tokenizer.save_pretrained(base)
    several = mentalese.load(base)
    assert isinstance(AutoTokenizer.from_pretrained(base).chat_template, dict)
    assert one.chat
    assert several.chat
    assert torch.equal(several.encode("hi")["input_ids"], one.encode("hi")["input_ids"])
    tokenizer.chat_template = {"tool_use": "no"}
    with pytest.raises(InputError, match="tokenizer is 'tool_use': its chat templates have no default"):
        base_chat_template(tokenizer)


@pytest.mark.parametrize("kind", ["llama_2"])
@pytest.mark.parametrize("turn", ["[INST] {} [/INST]", "user:\n{}\nassistant:\n", "{} ->"])
@pytest.mark.parametrize("space", ["always", "first", "normalizer"])
def test_a_message_is_tokenized_as_in_its_chat(turn: str, space: str, base: Path) -> None:
    """SentencePiece puts a space before a text, and not before each part of a chat."""
    own = json.loads((base / "tokenizer.json").read_text())
    own["pre_tokenizer"] |= {"prepend_scheme": space}
    if space == "normalizer":
        steps = {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        own |= {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": [*steps]}}
    (base / "tokenizer.json").write_text(json.dumps(own))
    tokenizer = AutoTokenizer.from_pretrained(base)
    before, after = turn.split("{}")
    said = "{% for m in messages %}" + before + "{{ m['content'] }}" + after + "{% endfor %}"
    tokenizer.chat_template = "{{ bos_token }}" + said
    tokenizer.save_pretrained(base)
    saved = mentalese.load(base)
    expected = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], return_dict=False)
    assert saved.encode(QUESTION)["input_ids"][0].tolist() == expected


@pytest.mark.parametrize("kind", ["llama_3"])
@pytest.mark.parametrize("filter_of", ["", " | trim"])
def test_message_is_trimmed_if_its_template_trims(filter_of: str, base: Path) -> None:
    tokenizer, text = AutoTokenizer.from_pretrained(base), f" \n{QUESTION} \n"
    tokenizer.chat_template = "{% for m in messages %}{{ m['content']" + filter_of + " }}!{% endfor %}"
    tokenizer.save_pretrained(base)
    expected = tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)
    assert mentalese.load(base).encode(text)["input_ids"][0].tolist() == expected
    spans = [span for span in PromptEncoder(tokenizer, DataConfig()).message(text).spans if span is not None]
    assert "".join(text[start:end] for start, end in spans) == (text.strip() if filter_of else text)


@pytest.mark.parametrize("kind", ["gpt_2"])
def test_a_model_that_lacks_weights_is_refused(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 weights \(first model\.layers\.1\.mlp\.up_proj\.weight\)"):
        mentalese.load(base)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [
        {
            "question": f"Pat has {i} pens. How many?",
            "steps": [f"<<{i}+1={i + 1}>>", f"<<{i}*2={2 * i}>>"],
            "answer": f"{i}",
        }
        for i in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [{"text": f"Pat has {i} pens. How many pens has Pat? The answer is {i}."} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def names(tokenizer: Any, ids: Any) -> list[str]:
    return tokenizer.convert_ids_to_tokens([int(index) for index in ids])


def test_the_beginning_is_what_the_tokenizer_adds(kind: str, base: Path) -> None:
    plain = load_pretrained_tokenizer(str(base))
    whole, bare = (plain(QUESTION, add_special_tokens=added)["input_ids"] for added in (True, False))
    assert names(plain, whole) == FIRST.get(kind, []) + names(plain, bare)
    for tokenizer in (plain, add_markers(plain), add_markers(add_markers(plain))):
        assert names(tokenizer, beginning(tokenizer)) == FIRST.get(kind, [])


def test_a_grown_model_reads_and_ends_as_its_base(kind: str, base: Path, tmp_path: Path) -> None:
    grow(str(base), "coconut", tmp_path / "grown")
    first, grown = mentalese.load(base, "cpu"), mentalese.load(tmp_path / "grown", "cpu")
    assert torch.equal(grown.encode(QUESTION)["input_ids"], first.encode(QUESTION)["input_ids"])
    first, grown = first.as_text(), grown.as_text()
    ids = grown.encode(QUESTION)["input_ids"]
    assert torch.equal(ids, first.encode(QUESTION)["input_ids"])
    plain = AutoTokenizer.from_pretrained(base)
    if kind in ADDERS:
        assert ids[0].tolist() == plain(QUESTION)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path / "grown")(QUESTION)["input_ids"] == ids[0].tolist()
    known = len(plain)
    assert torch.equal(grown.model(ids).logits[..., :known], first.model(ids).logits[..., :known])
    settings = grown.model.generation_config.eos_token_id
    assert (settings if isinstance(settings, list) else [settings]) == ENDS[kind]
    for name in ("bos_token", "eos_token"):
        if (token := getattr(plain, name)) is not None:
            assert getattr(grown.tokenizer, name) == token
    assert grown.tokenizer.chat_template == plain.chat_template
    padding = {"llama_2": "<pad>", "qwen": "<|endoftext|>"}
    assert grown.tokenizer.pad_token == padding.get(kind, "<|pad|>")


@pytest.mark.parametrize("kind", ["llama_3", "qwen"])
def test_a_base_and_what_was_grown_from_it_are_compared(
    base: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six markers that no text uses have a little probability in the grown model; other weights change much more."""
    grow(str(base), "coconut", tmp_path / "grown")
    compared = ["diff", str(tmp_path / "grown"), str(base), "--data", f"file:{texts}", "--json"]
    assert cli.main(compared) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["overall"]["difference"] == pytest.approx(0, abs=0.005)
    assert same["overall"]["tokens"] > 20
    model = LlamaForCausalLM.from_pretrained(base)
    torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    model.save_pretrained(base)
    assert cli.main(compared) == 0
    assert abs(json.loads(capsys.readouterr().out)["overall"]["difference"]) > 0.05


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", ["llama_3"])
def test_generation_stops_at_every_end(base: Path, number: int, tmp_path: Path) -> None:
    """The grown model's head is made to say an end at once."""
    grow(str(base), "coconut", tmp_path / "grown")
    for path in (base, tmp_path / "grown"):
        saved = mentalese.load(path, "cpu")
        head = torch.nn.Linear(32, 400)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        head.bias.data[ENDS["llama_3"][number]] = 9.0
        saved.model.set_output_embeddings(head)
        assert saved.generate(QUESTION, max_new_tokens=5) == [f"{QUESTION}\n"]
        assert "".join(saved.stream(QUESTION, max_new_tokens=5)) == ""


LAYOUTS: list[Layout] = [
    QuestionAnswer(stage=1, stages=2, latents_per_step=2),
    QuestionAnswer(),
    QuestionSteps(stage=1, stages=2, latents_per_step=1),
    QuestionPairs(latents=2),
    CompressedSteps(),
    Packed(sequence_length=64),
    PerDocument(sequence_length=64),
    Marked(sequence_length=64),
    SentenceStreams(),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.kind)
def test_rows_and_prompts_begin_alike(kind: str, base: Path, layout: Layout, records: Path, texts: Path) -> None:
    data = DataConfig(source=f"file:{records if layout.questions else texts}", tokenizer=str(base))
    store, tokenizer = prepare(data, layout, show=False)
    test, first, special = store.splits["test"], FIRST.get(kind, []), layout.special_ids(tokenizer)
    document = test.tokens[test.documents[0] : test.documents[1]].tolist()
    assert names(tokenizer, document[: len(first)]) == first
    assert document[-1] == special["eos_token_id"]
    turn, question = user_turn(tokenizer) if layout.questions else None, test.segment(0).tolist()
    if turn is not None:
        question = question[len(turn.before) : len(question) - len(turn.after)]
    text = decode(question if layout.questions else document, tokenizer)
    prompt = layout.encode_prompts([text], tokenizer, data)["input_ids"][0].tolist()
    rows = layout.evaluation_rows(test, EvaluationConfig())
    batch = layout.assemble(test, rows[np.array([0])], tokenizer, "lexical")
    assert batch["input_ids"][0, : len(prompt)].tolist() == prompt
    opening = [special["sentence_start_token_id"]] if layout.markers else []
    opening += [] if first or layout.questions or layout.markers else [special["bos_token_id"]]
    opening += tokenizer.convert_tokens_to_ids(first)
    assert prompt[: len(opening)] == opening
    around = {*special.values(), *beginning(tokenizer)}
    assert turn is not None or prompt[len(opening)] not in around
    everything = layout.assemble(test, rows, tokenizer, "lexical")
    scored = everything["labels"][everything["labels"] != -100].tolist()
    assert not set(scored) & around
    assert int(rows.lexical_targets(test).sum()) == len(scored)


@pytest.mark.parametrize("layout", [Packed(sequence_length=64), Marked(sequence_length=64)], ids=lambda x: x.kind)
def test_joined_documents_keep_their_beginnings(kind: str, base: Path, layout: Any, texts: Path) -> None:
    data = DataConfig(source=f"file:{texts}", tokenizer=str(base))
    store, tokenizer = prepare(data, layout, show=False)
    split = store.splits["train"]
    rows = layout.training_rows(split, np.random.default_rng(0))
    batch = layout.assemble(split, rows, tokenizer)
    first, end = beginning(tokenizer), special_token_ids(tokenizer)["eos_token_id"]
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    found = 0
    for row, targets in zip(ids, labels):
        for place in range(1, len(row) - 4):
            if row[place] == end and first:
                after = row[place + 1 :] if layout.kind == "packed" else row[place + 3 :]  # EOS BOS are between
                assert after[: len(first)] == first[: len(after)]
                found += 1
        assert not {target for target in targets if target in first}
    assert found > 3 or not first


@pytest.mark.parametrize("kind", [*ADDERS, "qwen"])
def test_a_text_is_scored_after_its_beginning(base: Path, kind: str) -> None:
    """As the base's own tokenizer and model do."""
    saved, tokenizer = mentalese.load(base, "cpu"), AutoTokenizer.from_pretrained(base)
    text = "Pat has 12 pens"
    ids = torch.tensor([[*([] if kind in ADDERS else [0]), *tokenizer(text)["input_ids"]]])
    logits = saved.model(ids).logits.log_softmax(-1)
    given = len(FIRST.get(kind, [END]))
    likelihood = logits[0, :-1].gather(1, ids[0, 1:, None])[given - 1 :].sum()
    [score] = saved.score(text)
    assert score.nll == pytest.approx(-likelihood.item(), rel=1e-5)
    assert score.tokens == ids.shape[1] - given


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama_3", "chat_glm", "qwen"])
@pytest.mark.parametrize("layout", LAYOUTS[:2] + LAYOUTS[3:6], ids=lambda layout: layout.kind)
def test_a_run_of_a_grown_model_keeps_the_beginning(
    kind: str, base: Path, layout: Layout, records: Path, tmp_path: Path
) -> None:
    """Training, answers, thoughts, the saved tokenizer and its chat template begin a text in one way."""
    grow(str(base), "coconut", tmp_path / "grown")
    fields = json.loads((tmp_path / "grown" / "recipe.json").read_text())["model"]
    recipe = Recipe(
        name="coconut/test", description="", model=fields, layout=layout,
        data=DataConfig(source=f"file:{records}", tokenizer=str(tmp_path / "grown")),
        train=TrainConfig(steps=1, init=str(tmp_path / "grown"), device="cpu"),
        evaluation=EvaluationConfig(max_documents=2, sample_tokens=2, batch_size=2, answer_tokens=4),
    )  # fmt: skip
    train(recipe, tmp_path / "run", show=False)
    saved, plain = mentalese.load(tmp_path / "run", "cpu").as_text(), AutoTokenizer.from_pretrained(base)
    prompt = saved.encode(QUESTION)["input_ids"][0].tolist()
    first = plain.convert_tokens_to_ids(FIRST.get(kind, []))
    words = plain(QUESTION + "\n" * layout.questions, add_special_tokens=False)["input_ids"]
    start = [] if first or layout.questions else [plain.convert_tokens_to_ids("<|endoftext|>")]
    opening = first + start + words
    asked = [{"role": "user", "content": QUESTION}]
    if layout.questions and plain.chat_template:
        opening = plain.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert prompt[: len(opening)] == opening
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer(QUESTION)["input_ids"] == prompt
    settings = saved.model.generation_config.eos_token_id
    assert settings == ENDS[kind]
    assert saved.model.config.eos_token_id == ENDS[kind]
    trace = saved.think(QUESTION, **({"max_new_tokens": 1} if layout.questions else {}))
    assert trace.input_ids[: len(prompt)].tolist() == prompt
    if layout.questions:
        chat = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert chat == prompt
        assert answers.run(saved)["questions"] > 0
        assert all(text["prompt"].startswith("Pat has") for text in saved_samples(tmp_path / "run"))
    else:
        assert tokenizer.chat_template == plain.chat_template
        samples = saved_samples(tmp_path / "run")
        sampling = {"max_new_tokens": 2, "do_sample": True, "top_p": 0.9}
        texts = saved.generate([sample["prompt"] for sample in samples], **sampling)
        assert [sample["text"] for sample in samples] == texts, "without the template"
    again = open_store(saved.store("test").folder)
    turn = user_turn(plain)
    assert again.meta.get("beginning", 0) == len(first if turn is None else turn.before)


def saved_samples(run: Path) -> list[dict[str, str]]:
    return json.loads((run / "result.json").read_text())["samples"]


def test_our_own_tokenizers_begin_as_before(tokenizer: Any) -> None:
    special = special_token_ids(tokenizer)
    assert special["bos_token_id"] == special["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert special["pad_token_id"] == tokenizer.convert_tokens_to_ids("<|pad|>")
    assert beginning(tokenizer) == []
    assert AddedToken("<|pad|>", special=True, normalized=False) in tokenizer.added_tokens_decoder.values()


@pytest.mark.parametrize("kind", ["llama_3"])
def test_prompts_of_a_chat_model_are_messages(base: Path) -> None:
    saved, plain = mentalese.load(base, "cpu"), AutoTokenizer.from_pretrained(base)
    message = [{"role": "user", "content": QUESTION}]
    asked = plain.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    assert saved.encode(QUESTION)["input_ids"][0].tolist() == asked
    assert saved.generate(QUESTION, max_new_tokens=2).pop().startswith(f"{QUESTION}\n")
    trace = saved.think(QUESTION, max_new_tokens=2)
    assert trace.input_ids[: trace.written].tolist() == asked
    raw = saved.without_chat()
    assert raw.encode(QUESTION)["input_ids"][0].tolist() == plain(QUESTION)["input_ids"]
    assert raw.generate(QUESTION, max_new_tokens=2).pop().startswith(QUESTION)
    with pytest.raises(InputError, match="chat template"):
        raw.without_chat()
    read = saved.on(mentalese.as_source([QUESTION] * 3))
    document = document_ids(read, read.split("all"), 0)
    assert document.tolist() == plain(QUESTION)["input_ids"], "a text, not a message"
    asked = Instance(request_type="generate_until", doc={}, arguments=(QUESTION, {"max_gen_toks": 4}), idx=0)
    [text] = MentaleseLM(saved).generate_until([asked])
    assert [QUESTION + text] == raw.generate(QUESTION, max_new_tokens=4, do_sample=False), "as likelihoods read it"


@pytest.mark.parametrize("kind", ["llama_3"])
@pytest.mark.parametrize("method", [None, "coconut"])
def test_the_page_to_write_asks_a_chat_model_by_messages(base: Path, method: str | None, tmp_path: Path) -> None:
    if method is not None:
        grow(str(base), method, tmp_path / "grown")
    saved = mentalese.load(base if method is None else tmp_path / "grown", "cpu")
    player, looks = Player(saved), list[ThoughtTrace]()
    options = GenerateOptions(prompt=(QUESTION,), max_new_tokens=6, greedy=True)
    *_, written = player.write(options, threading.Event(), looks.append)
    assert [written] == saved.generate(QUESTION, max_new_tokens=6, do_sample=False)
    message = [{"role": "user", "content": QUESTION}]
    asked = AutoTokenizer.from_pretrained(base).apply_chat_template(
        message, add_generation_prompt=True, return_dict=False
    )
    assert looks[-1].input_ids[: len(asked)].tolist() == asked


@pytest.mark.parametrize("kind", ["llama_3"])
def test_raw_and_the_right_answer_hold_for_both_readings(base: Path, tmp_path: Path, monkeypatch: Any) -> None:
    out, read = tmp_path / "think.html", list[bool]()
    think = Saved.think

    def said(saved: Saved, text: str, **options: Any) -> Any:
        read.append(saved.chat)
        trace = think(saved, text, **options)
        if trace.written is not None:
            new = ["6*7", " is", " **42**", "."]
            trace = dataclasses.replace(trace, tokens=[*trace.tokens[: trace.written], *new])
        return trace

    monkeypatch.setattr(Saved, "think", said)
    command = ["think", str(base), "--text", QUESTION, "--against", str(base), "--out", str(out)]
    assert cli.main([*command, "--raw"]) == 0
    assert read == [False, False]
    assert cli.main([*command, "--answer", "42", "--max-new-tokens", "4"]) == 0
    assert out.read_text().count('"right":true') == 2


@pytest.mark.parametrize("kind", ["llama_3"])
@pytest.mark.parametrize("shots", [0, 2])
def test_questions_of_records_are_one_message(base: Path, records: Path, shots: int) -> None:
    """A store has the turn around a question already, and a prompt gets it again."""
    plain = AutoTokenizer.from_pretrained(base)
    saved = mentalese.load(base, "cpu").on(f"file:{records}").scored_by(max_documents=3)
    asked = QuestionPrompts(
        saved, saved.split("test"), AnswerOptions(answer_tokens=4, shots=shots), saved.split("train")
    )
    assert all(question == f"Pat has {question.split()[2]} pens. How many?\n" for question in asked.questions.values())
    for batch in asked.batches():
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            prompt = plain.decode(ids[mask.bool()])
            assert prompt.count("user: ") == prompt.count("assistant: ") == 1
            assert prompt.count("How many?") == prompt.count("### ") + 1 == shots + 1


@pytest.mark.parametrize("kind", ["llama_3"])
def test_latents_begin_each_turn_of_the_assistant(base: Path) -> None:
    layout = QuestionAnswer(stage=1, stages=2, latents_per_step=2)
    plain = AutoTokenizer.from_pretrained(base)
    plain.chat_template = "<|END_OF_TURN|>" + plain.chat_template
    tokenizer = text_tokenizer(add_markers(plain, latents=True), layout, DataConfig())
    chat = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant", "user")]
    latents = "<|start-latent|><|latent|><|latent|><|end-latent|>"
    expected = plain.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    expected = expected.replace("assistant: ", f"assistant: {latents}")
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == expected
    assert add_markers(tokenizer, latents=True).chat_template == plain.chat_template


@pytest.mark.parametrize("latents", [None, 2])
@pytest.mark.parametrize("kind", ["llama_3", "gpt_2"])
def test_a_model_that_ends_its_thinking_is_asked_up_to_there(base: Path, latents: int | None) -> None:
    """CoLaR goes on after `<start>`; thinking before an answer that is given has ended."""
    marked = add_markers(AutoTokenizer.from_pretrained(base), latents=True)
    tokenizer = text_tokenizer(marked, CompressedSteps(latents=latents), DataConfig())
    asked, answered = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": "### 12"}
    ids = tokenizer.apply_chat_template([asked], add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer(QUESTION)["input_ids"]
    thinking = ["<|start-latent|>"] if latents is None else ["<|start-latent|>", *["<|latent|>"] * 2, "<|end-latent|>"]
    assert names(tokenizer, ids[-len(thinking) :]) == thinking
    text = tokenizer.apply_chat_template([asked, answered], tokenize=False)
    assert f"<|start-latent|>{'<|latent|>' * (latents or 0)}<|end-latent|>### 12" in text


@pytest.mark.parametrize("kind", ["llama_3", "chat_glm", "gpt_2"])
@pytest.mark.parametrize("layout", LAYOUTS[:5], ids=lambda layout: layout.kind)
def test_a_text_that_is_laid_out_is_read_as_it_is(base: Path, layout: Layout) -> None:
    marked = add_markers(AutoTokenizer.from_pretrained(base), latents=True)
    tokenizer = text_tokenizer(marked, layout, DataConfig())
    asked = [{"role": "user", "content": QUESTION}]
    chats = [asked, [*asked, {"role": "assistant", "content": "### 12"}]]
    has_markers = len(tokenizer("a")["input_ids"]) > len(tokenizer("a\n", add_special_tokens=False)["input_ids"])
    for chat in chats if has_markers else chats[:1]:  # an answer without markers before it is part of the line
        options = {"add_generation_prompt": len(chat) == 1}
        text = tokenizer.apply_chat_template(chat, tokenize=False, **options)
        assert tokenizer(text)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["llama_3", "gpt_2"])
def test_a_pair_of_a_model_that_ends_its_thinking_has_an_end(base: Path) -> None:
    marked = add_markers(AutoTokenizer.from_pretrained(base), latents=True)
    tokenizer = text_tokenizer(marked, CompressedSteps(), DataConfig())
    with pytest.raises(InputError, match=r"text_pair is '### 12'.* write them and <\|end-latent\|> before it"):
        tokenizer(QUESTION, "### 12")
    row = tokenizer(QUESTION, "5 + 7 = 12<|end-latent|>### 12", return_token_type_ids=True)
    assert tokenizer.convert_tokens_to_ids("<|end-latent|>") in row["input_ids"]


@pytest.mark.parametrize("kind", ["gpt_2"])
def test_messages_of_the_system_begin_the_question(base: Path) -> None:
    tokenizer = text_tokenizer(add_markers(AutoTokenizer.from_pretrained(base)), QuestionAnswer(), DataConfig())
    system, asked = {"role": "system", "content": " Be\nkind. "}, {"role": "user", "content": "How many?"}
    assert tokenizer.apply_chat_template([system, system, asked], tokenize=False).endswith(
        "Be kind. Be kind. How many?\n"
    )
    for chat in ([asked, system], [asked, asked]):
        with pytest.raises(TemplateError, match="answers one question"):
            tokenizer.apply_chat_template(chat, tokenize=False)


@pytest.mark.parametrize("kind", ["llama_3"])
def test_a_template_with_todays_date_is_the_same_every_day(base: Path) -> None:
    plain = AutoTokenizer.from_pretrained(base)
    clock = """{%- if strftime_now is defined %}{%- set day = strftime_now("%d %b %Y") %}{%- endif %}"""
    plain.chat_template = f"{clock}{{{{- 'Today: ' + day }}}}{plain.chat_template}"
    asked = [{"role": "user", "content": QUESTION}]
    assert "Today: 26 Jul 2024" not in plain.apply_chat_template(asked, tokenize=False)
    marked = add_markers(plain, latents=True)
    for tokenizer in (marked, add_markers(marked), text_tokenizer(marked, QuestionAnswer(), DataConfig())):
        turn = user_turn(tokenizer)
        assert turn is not None
        assert "Today: 26 Jul 2024" in tokenizer.decode(turn.before)
        ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert ids[: len(turn.before)] == turn.before


@pytest.mark.parametrize("kind", ["llama_3"])
def test_chat_template_without_the_message_is_refused(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    for template in ("{{ bos_token }}", "{{ raise_exception('no') }}"):
        tokenizer.chat_template = template
        with pytest.raises(InputError, match="chat template"):
            user_turn(tokenizer)
