"""Models that other tools save again: transformers, PEFT, the hub. They read texts as they were trained to."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import mentalese
from mentalese import InputError, Saved, get_recipe
from mentalese.data.layouts import QuestionAnswer
from mentalese.evaluation import answers
from mentalese.files import read_json, write_json
from mentalese.models.text_tokenizer import ABOUT
from support import saved, shrink, tiny_recipes

TEXTS = ["She had a son. He lived in the town.", "The old man was a baker, and he had two daughters."]


def save_again(run: Path, folder: Path) -> Path:
    AutoModelForCausalLM.from_pretrained(run / "model").save_pretrained(folder)
    AutoTokenizer.from_pretrained(run / "model").save_pretrained(folder)
    return folder


def assert_reads_alike(again: Saved, first: Saved) -> None:
    assert (again.recipe, again.layout, again.evaluation) == (first.recipe, first.layout, first.evaluation)
    assert dataclasses.replace(again.data, tokenizer="") == dataclasses.replace(first.data, tokenizer="")
    for name, tensor in first.encode(TEXTS).items():
        assert torch.equal(again.encode(TEXTS)[name], tensor)


@pytest.mark.parametrize("name", tiny_recipes())
def test_a_model_saved_again_reads_as_trained(name: str, corpus: Path, tmp_path: Path) -> None:
    run = saved(tmp_path / "run", shrink(get_recipe(name), corpus))
    first, again = mentalese.load(run, "cpu"), mentalese.load(save_again(run, tmp_path / "again"), "cpu")
    assert_reads_alike(again, first)
    assert again.generate(TEXTS, max_new_tokens=4) == first.generate(TEXTS, max_new_tokens=4)
    once_more = save_again(run, tmp_path / "more" / "model").parent
    assert_reads_alike(mentalese.load(save_again(once_more, tmp_path / "third"), "cpu"), first)


def questions(corpus: Path, tmp_path: Path) -> Path:
    """An untrained model that is asked at stage 2."""
    recipe = shrink(get_recipe("coconut/tiny"), corpus)
    layout = QuestionAnswer(batch_size=4, stage=2, stages=2, latents_per_step=1)
    return saved(tmp_path / "run", dataclasses.replace(recipe, layout=layout, phases=()))


def test_answers_are_those_of_the_run(corpus: Path, tmp_path: Path) -> None:
    run = questions(corpus, tmp_path)
    first, again = mentalese.load(run, "cpu"), mentalese.load(save_again(run, tmp_path / "again"), "cpu")
    records = [answers.ask(model, model.split("test"), show=False).records for model in (first, again)]
    assert records[0] == records[1]
    assert {record.text for record in records[0]} != {""}
    results = [answers.run(model) | {"seconds_per_question": 0.0} for model in (first, again)]
    assert results[0] == results[1]


def test_a_copy_in_half_precision_reads_as_trained(corpus: Path, tmp_path: Path) -> None:
    run = questions(corpus, tmp_path)
    AutoModelForCausalLM.from_pretrained(run / "model").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(run / "model").save_pretrained(tmp_path / "half")
    again = mentalese.load(tmp_path / "half", "cpu")
    assert_reads_alike(again, mentalese.load(run, "cpu"))
    assert again.model.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
def test_a_merge_by_peft_reads_as_trained(corpus: Path, tmp_path: Path) -> None:
    run = questions(corpus, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=list(model.lora_targets)))
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(run / "model").save_pretrained(tmp_path / "merged")
    assert_reads_alike(mentalese.load(tmp_path / "merged", "cpu"), mentalese.load(run, "cpu"))


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_from_the_hub_reads_as_trained(
    whole: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's folder as it was pushed, or what `push_to_hub` of the model and of the tokenizer writes."""
    run = questions(corpus, tmp_path)
    cache = tmp_path / "models--me--mine"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    shutil.copytree(run / "model" if whole else save_again(run, tmp_path / "again"), cache / "snapshots" / ("0" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert_reads_alike(mentalese.load("hub:me/mine", "cpu"), mentalese.load(run, "cpu"))


def test_tokenizer_opened_without_the_package_keeps_the_recipe(corpus: Path, tmp_path: Path) -> None:
    """transformers opens it as its own class where `trust_remote_code` is not set."""
    run = questions(corpus, tmp_path)
    save_again(run, tmp_path / "again")
    PreTrainedTokenizerFast.from_pretrained(run / "model").save_pretrained(tmp_path / "again")
    assert_reads_alike(mentalese.load(tmp_path / "again", "cpu"), mentalese.load(run, "cpu"))


@pytest.mark.parametrize("name", ["coconut/tiny", "thought_gestalt/tiny", "codi/tiny"])
def test_layouts_of_earlier_versions_are_kept(name: str, corpus: Path, tmp_path: Path) -> None:
    """Their tokenizers have the layout, and no recipe."""
    run = saved(tmp_path / "run", shrink(get_recipe(name), corpus))
    again = save_again(run, tmp_path / "again")
    settings = read_json(again / "tokenizer_config.json")
    del settings[ABOUT]
    write_json(again / "tokenizer_config.json", settings)
    first, second = mentalese.load(run, "cpu"), mentalese.load(again, "cpu")
    assert second.recipe is None
    assert second.layout == first.layout
    assert second.generate(TEXTS, max_new_tokens=4) == first.generate(TEXTS, max_new_tokens=4)


@pytest.mark.parametrize(
    ("name", "parts"), [("coconut/tiny", "latents"), ("codi/tiny", "latents"), ("thought_gestalt/tiny", "sentences")]
)
def test_a_model_without_its_tokenizers_settings_is_refused(
    name: str, parts: str, corpus: Path, tmp_path: Path
) -> None:
    run = saved(tmp_path / "run", shrink(get_recipe(name), corpus))
    again = save_again(run, tmp_path / "again")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token=tokenizer.eos_token, pad_token=tokenizer.pad_token
    ).save_pretrained(again)
    with pytest.raises(InputError, match=f"the model reads {parts}, and neither mentalese.json nor the tokenizer's"):
        mentalese.load(again, "cpu")
