"""A recipe that cannot start is not a recipe: every listed one reads its source, is built, and takes a step.

Sources are small stand-ins with the fields and kinds of the published ones, in the places where recipes look for them;
tokenizers have the published sizes. A source or a tokenizer that is not known here fails: add what it looks like.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mentalese import Recipe, override, recipes
from mentalese.data import generated, sentences, tokenizers
from mentalese.data.sources import open_source
from mentalese.data.store import prepare
from mentalese.recipe import TrainConfig
from mentalese.suite.tasks import TASKS
from mentalese.suite.tasks.base import HELD_OUT
from mentalese.training.loop import Run
from mentalese.training.parallel import setup
from mentalese.training.start import start_model

pytestmark = pytest.mark.slow

RECIPES = recipes()
TOKENIZERS = {
    "openai-community/gpt2": 50_257,
    "EleutherAI/pythia-70m": 50_277,
    "meta-llama/Llama-3.2-1B": 128_256,
    "meta-llama/Llama-3.2-1B-Instruct": 128_256,
    "meta-llama/Meta-Llama-3-8B": 128_256,
    "meta-llama/Llama-3.1-8B": 128_256,
}
SPLITS = ("train", "validation", "test")


@cache
def texts(count: int, name: str = "families") -> list[str]:
    documents = open_source(f"builtin:{name}").documents("train")
    return [next(documents).text for _ in range(count)]


# -- the hub -----------------------------------------------------------------------------------------------------------


def wikitext(part: str) -> list[dict[str, Any]]:
    """Lines of articles; what lies between them is empty."""
    rows = []
    for i, text in enumerate(texts(40)):
        rows += ["", f" = Article {part} {i} = \n", "", f" {part} {text} \n"]
    return [{"text": row} for row in rows]


def hub_rows() -> dict[tuple[str, str | None, str | None], dict[str, list[dict[str, Any]]]]:
    """By name, config and revision: the rows of each split."""
    dump = {"dump": "CC-MAIN-2013-20", "url": "https://a.example/b", "file_path": "s3://commoncrawl/c.warc.gz"}
    rated = {"language": "en", "language_score": 0.97, "token_count": 90, "score": 2.9, "int_score": 3}
    dates = {"added": "2024-01-01T00:00:00.000Z", "created": "1999-01-01T00:00:00.000Z"}
    plain = [{"text": text} for text in texts(80)]
    return {
        ("Salesforce/wikitext", "wikitext-103-raw-v1", None): {part: wikitext(part) for part in SPLITS},
        ("HuggingFaceFW/fineweb-edu", "sample-10BT", None): {
            "train": [row | {"id": f"<urn:uuid:{i}>"} | dump | rated for i, row in enumerate(plain)]
        },
        ("Skylion007/openwebtext", None, "refs/convert/parquet"): {"train": plain},
        ("allenai/olmo-mix-1124", "pes2o", None): {
            "train": [
                row | dates | {"id": str(i), "source": "s2ag", "version": "v2", "metadata": {"year": 1999}}
                for i, row in enumerate(plain)
            ]
        },
        ("monology/pile-uncopyrighted", None, None): {
            "train": [row | {"meta": {"pile_set_name": "Pile-CC"}} for row in plain],
            **{part: [{"text": f"{part} {text}", "meta": {"pile_set_name": "ArXiv"}} for text in texts(20)]
               for part in ("validation", "test")},
        },
    }  # fmt: skip


def load_dataset(
    name: str, config: str | None = None, *, split: str | None = None, revision: str | None = None, streaming: bool
) -> Any:
    known = hub_rows()
    assert (name, config, revision) in known, f"{name}, {config}, {revision}: no stand-in, say what its rows look like"
    found = known[name, config, revision]
    return found if split is None else found[split]


@cache
def hub_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """BPE as the published ones, of few words, filled up to their size."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    words = [text for name in ("families", "prosqa-small") for text in texts(200, name)]
    backend.train_from_iterator(words, trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    state = json.loads(backend.to_str())
    state["model"]["vocab"] |= {f"word {i}": i for i in range(backend.get_vocab_size(), size - 1)}
    backend = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def chat_tokenizer(folder: Path) -> None:
    """SmolLM2's, as it is fetched into the cache, where a `config.json` says that the folder is a model."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(saved(hub_tokenizer(49_152), folder))
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (saved(tokenizer, folder) / "config.json").write_text("{}")


def saved(tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    tokenizer.save_pretrained(folder)
    return folder


class Hub:
    @staticmethod
    def from_pretrained(path: str, *, trust_remote_code: bool) -> PreTrainedTokenizerFast:
        assert not trust_remote_code
        if Path(path).is_dir():
            return PreTrainedTokenizerFast.from_pretrained(path)
        assert path in TOKENIZERS, f"{path}: no stand-in, say how many tokens it has"
        return hub_tokenizer(TOKENIZERS[path])


class SaT:
    def __init__(self, name: str) -> None:
        assert name == "sat-3l-sm"

    def split(self, text: str, threshold: float) -> list[str]:
        return re.findall(r"[^.!?]+[.!?]*\s*", text) or [text]


# -- files -------------------------------------------------------------------------------------------------------------


def lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def textbooks(folder: Path) -> None:
    for part in SPLITS:
        rows = [
            {"id": f"m{i}", "book": "a-book", "title": "Introduction", "text": f"## {part}\n\n{text}"}
            for i, text in enumerate(texts(60))
        ]
        lines(folder / f"{part}.jsonl.gz", rows)


def equations(folder: Path) -> None:
    for part, first in (("train", 0), ("valid", 300), ("test", 600)):
        rows = [f"What is {i} and 1 twice?||<<{i}+1={i + 1}>> <<{i + 1}*2={2 * i + 2}>> #### {2 * i + 2}"
                for i in range(first, first + 200)]  # fmt: skip
        lines(folder / f"icot_{part}.txt.gz", rows)


def paragraphs(folder: Path) -> None:
    """As published: now and then the two paragraphs that a question needs are very long."""
    for part, name in (("train", "hotpot_train_v1.1.json"), ("dev", "hotpot_dev_distractor_v1.json")):
        rows = []
        for i in range(160):
            sentences = [f"Town {part}{i} is on a river.", *[" It has many old mills."] * (160 if i % 20 == 9 else 2)]
            rows.append(
                {
                    "_id": f"{part}{i}",
                    "answer": "a river",
                    "question": f"What is town {part}{i} on?",
                    "supporting_facts": [["Town", 0], ["Mill", 0]],
                    "context": [["Town", sentences], ["Red Mill", ["No."]], ["Mill", ["A mill.", " It stands."]]],
                    "type": "bridge",
                    "level": "hard",
                }
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(rows))


def graphs(folder: Path) -> None:
    """ProsQA's files, as published but for the fields that no one reads."""
    folder.mkdir(parents=True)
    for seed, part in enumerate(("train", "valid", "test")):
        questions = generated.prosqa_questions(200, seed)
        rows = [{"question": one.question, "steps": list(one.steps), "answer": one.answer} for one in questions]
        (folder / f"prosqa_{part}.json").write_text(json.dumps(rows))


def kinship(path: Path) -> None:
    """Stories of 2 and 3 relations to train on, of up to 10 to be asked about."""
    path.parent.mkdir(parents=True)
    columns = [
        "",
        "id",
        "story",
        "query",
        "text_query",
        "target",
        "text_target",
        "clean_story",
        "proof_state",
        "f_comb",
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, relations in (("1.2,1.3_train", 3), *((f"1.{k}_test", k) for k in range(2, 11))):
            file = io.StringIO()
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            for i in range(200 if "train" in name else 8):
                told = " ".join(
                    f"[Ann{j}] took her son [Ann{j + 1}] to see the old mill of town {i}." for j in range(relations)
                )
                names = [f"Ann{j}" for j in range(relations + 1)]
                rules = ((one, two, names[-1]) for one, two in itertools.pairwise(names[:-1]))
                proof = ", ".join(
                    f"{{('{one}', 'aunt', '{last}'): [('{one}', 'son', '{two}'), ('{two}', 'aunt', '{last}')]}}"
                    for one, two, last in rules
                )
                row = {"id": f"{name}{i}", "story": told, "query": str((names[0], names[-1])), "target": "aunt"}
                writer.writerow(row | {"proof_state": f"[{proof}]"})
            archive.writestr(f"{name}.csv", file.getvalue())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Everything that recipes name, as they name it, and nothing else."""
    root = tmp_path_factory.mktemp("sources")
    (root / "work").mkdir()
    textbooks(root / "shared/data/corpora/openstax")
    kinship(root / "work/data/clutrr/data_089907f8.zip")
    equations(root / "work/data/gsm8k")
    paragraphs(root / "work/data/hotpotqa")
    graphs(root / "work/data/prosqa")
    chat_tokenizer(root / "cache/models/smollm2")
    wtpsplit = ModuleType("wtpsplit")
    wtpsplit.SaT = SaT  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(root / "work")
        patched.setattr("datasets.load_dataset", load_dataset)
        patched.setattr(tokenizers, "AutoTokenizer", Hub)
        patched.setitem(sys.modules, "wtpsplit", wtpsplit)
        version = sentences.version
        patched.setattr(sentences, "version", lambda name: "2.2.0" if name == "wtpsplit" else version(name))
        for split in HELD_OUT:
            patched.setitem(HELD_OUT, split, 50)
        patched.setattr(generated, "TRAIN", 400)
        generated.prosqa.cache_clear()
        patched.setenv("MENTALESE_CACHE", str(root / "cache"))
        yield
    generated.prosqa.cache_clear()


def few(source: str) -> str:
    """A task of the suite with fewer documents; they are the same ones."""
    name, _, options = source.removeprefix("builtin:").partition(":")
    if not source.startswith("builtin:") or name not in TASKS:
        return source
    kept = [option for option in options.split(",") if option and not option.startswith("count=")]
    return f"builtin:{name}:{','.join([*kept, 'count=200'])}"


# -- the tests ---------------------------------------------------------------------------------------------------------

TEXTS = sorted({(recipe.data.source, recipe.data.tokenizer) for recipe in RECIPES.values()})


@pytest.mark.parametrize(("source", "tokenizer"), TEXTS, ids=lambda value: value.replace("/", "-"))
def test_a_recipe_reads_its_source_and_its_model_has_room_for_it(source: str, tokenizer: str, sources: None) -> None:
    """Each distinct model is built in full, without memory for its weights."""
    built, stores = set(), {}
    for recipe in RECIPES.values():
        if (recipe.data.source, recipe.data.tokenizer) != (source, tokenizer):
            continue
        recipe = override(recipe, f"data.source={few(source)}")
        data = dataclasses.replace(recipe.data, train_tokens=None, held_out=min(recipe.data.held_out, 20))
        asked = (data, type(recipe.layout), recipe.layout.sequence_length)
        if asked not in stores:
            stores[asked] = prepare(data, recipe.layout, show=False)
        store, opened = stores[asked]
        assert {"train", "validation", "test"} == set(store.splits)
        for layout in recipe.layouts():
            layout.check(store.splits["train"], opened, 1, recipe.train.gradient_accumulation_steps)
        key = json.dumps([recipe.model, len(opened), [str(layout) for layout in recipe.layouts()]], sort_keys=True)
        if key not in built:
            built.add(key)
            with torch.device("meta"):
                model, sizes = start_model(recipe, opened, weights=False)
            assert sizes["total"] > 0
            assert len(opened) <= model.config.vocab_size, recipe.name


def kinds() -> dict[str, Recipe]:
    """Enough recipes for every choice that one of them makes to occur: those of the rest are these, and numbers."""
    seen: set[str] = set()
    found = {}
    for recipe in RECIPES.values():
        data = {"source": recipe.data.source} if recipe.layout.questions else {"sentences": recipe.data.sentences}
        sections = {
            f"model {recipe.model['model_type']}": recipe.model,
            f"layout {recipe.layout.kind}": vars(recipe.layout) | {"model_type": recipe.model["model_type"]},
            "data": data,
            "train": {"precision": recipe.train.precision},
            "phases": {name: True for phase in recipe.phases for name in (*phase.layout, *phase.model)},
        }
        if new := {choice for where, values in sections.items() for choice in choices(where, values)} - seen:
            seen |= new
            found[recipe.name] = recipe
    return found


def choices(where: str, values: dict[str, Any]) -> Iterator[str]:
    """What is chosen by words, and which numbers are set at all."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from choices(f"{where}.{name} {value.get('model_type')}", value)
        else:
            yield f"{where}.{name} {value if isinstance(value, bool | str) or value is None else type(value)}"


NARROW = {"n_embd": 32, "n_head": 2, "n_layer": 4, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4}
SMALLER = {"num_key_value_heads": 2, "intermediate_size": 48, "encoder_layers": 1, "fast_steps": 2, "memory_size": 4}


def narrow(model: dict[str, Any]) -> dict[str, Any]:
    """The model with few narrow layers, all else as it is."""
    made = model | {name: value for name, value in (NARROW | SMALLER).items() if name in model}
    if model["model_type"] == "gpt2":
        made |= {name: value for name, value in NARROW.items() if name.startswith("n_")}
    if "backbone" in model:
        made["backbone"] = narrow(model["backbone"])
    if model.get("fork_layers"):
        made["fork_layers"] = [1, 2, 3]
    if "sentence_layer" in model:
        made["sentence_layer"] = 3
    if model.get("num_latents"):
        made["num_latents"] = 4
    if model.get("step_decoder_layers"):
        made["step_decoder_layers"] = 4
    if model.get("prelude_layers"):
        made |= {"prelude_layers": 1, "coda_layers": 1}
    return made


def shrunken(recipe: Recipe) -> Recipe:
    sizes: dict[str, Any] = {"tokens_per_batch": 200}
    if recipe.layout.sequence_length is not None:
        sizes = {"batch_size": 2}
        if not recipe.layout.questions:
            sizes["sequence_length"] = 48
    micro = min(2, recipe.train.gradient_accumulation_steps)
    train = TrainConfig(steps=1, precision=recipe.train.precision, gradient_accumulation_steps=micro, device="cpu")
    layout = dataclasses.replace(recipe.layout, **sizes)
    data = dataclasses.replace(recipe.data, source=few(recipe.data.source), held_out=min(recipe.data.held_out, 20))
    if not recipe.layout.questions:
        data = dataclasses.replace(data, tokenizer="bpe:400")
    return dataclasses.replace(recipe, model=narrow(recipe.model), data=data, layout=layout, train=train)


KINDS = kinds()


@pytest.mark.parametrize("name", KINDS)
def test_a_small_version_of_a_recipe_takes_a_step(name: str, sources: None, tmp_path: Path) -> None:
    """Each kind of recipe; what a run refuses before it begins is refused here too."""
    recipe = shrunken(KINDS[name])
    run = Run(recipe, tmp_path, setup("cpu"), show=False)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    run.one_step()
    assert torch.stack(run.buffer.losses).isfinite().all()
    assert any(not torch.equal(*pair) for pair in zip(before, run.model.parameters()))


def test_a_small_recipe_of_questions_starts_on_other_questions(sources: None, tmp_path: Path) -> None:
    """Stories of ten relations fill its context: they are no samples unless somebody asks for them."""
    recipe = override(
        RECIPES["coconut/tiny"],
        "data.source=clutrr:data/clutrr", "data.train_tokens=none", "layout.too_long=skip",
        "train.steps=1", "train.epochs=none", "train.device=cpu",
    )  # fmt: skip
    run = Run(recipe, tmp_path, setup("cpu"), show=False)
    assert len(run.prompts) == 2
