"""A trained model and its reading of text, as one object: `mentalese.load(path)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mentalese.data.batch import Batch, to_device
from mentalese.data.config import AS_IT_IS, READING, DataConfig, EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.data.sources import is_one_text
from mentalese.data.split import Split
from mentalese.data.store import TokenStore, before_preparing, is_divided, prepare, source_fingerprint, split_of
from mentalese.data.tokenizers import add_markers, base_chat_template, tokenizer_fingerprint
from mentalese.errors import InputError, require
from mentalese.files import JsonObject
from mentalese.models import generation, scoring, thinking
from mentalese.models.base import LanguageModel
from mentalese.models.build import as_is
from mentalese.models.checkpoints import load_model, model_folder, saved_about, saved_recipe, trained_texts
from mentalese.models.inputs import check_tokens
from mentalese.models.text_tokenizer import mask_token_id, saved_reading
from mentalese.models.trace import ThoughtTrace
from mentalese.recipe import Recipe
from mentalese.values import checked, shown


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A trained model, its tokenizer, and the settings by which it reads, scores and continues text.

    Attributes:
        path: the folder or name that it was loaded from.
        model: the model, in eval mode.
        tokenizer: the tokenizer of its training, markers included.
        data: the text of its training, its tokens and sentences.
        layout: arrangement of texts in its rows and its prompts.
        evaluation: the protocol of its results; whole splits are scored.
        recipe: the recipe of its training; `None` for another project's model.
        chat: prompts are messages of a user, in the tokenizer's chat template, and the model's text is its answer.
    """

    path: str
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    layout: Layout
    evaluation: EvaluationConfig
    recipe: Recipe | None = None
    chat: bool = False

    @property
    def answers(self) -> bool:
        """True if the model answers a prompt; otherwise it continues it."""
        return self.layout.questions or self.chat

    def encode_prompts(self, texts: Sequence[str]) -> Batch:
        """Return prompts for the model to continue or answer, see `Layout.encode_prompts`."""
        mask = mask_token_id(self.model)
        return self.layout.encode_prompts(texts, self.tokenizer, self.data, mask, chat=self.chat)

    def prompt_text(self, prompt: str) -> str:
        """Return a prompt as new text follows it."""
        return f"{prompt}\n" if self.chat else self.layout.prompt_text(prompt)

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return self.model.device

    @property
    def estimator(self) -> str:
        """Name of the scoring rule; raises `InputError` if the model does not have it."""
        return self.model.chosen_estimator(self.evaluation.estimator)

    @property
    def protocol(self) -> dict[str, object]:
        """Tokens, context and estimator of a score, to publish with it."""
        self.layout.check_evaluation(self.evaluation)
        return {
            "tokens": self.evaluation.tokens,
            **self.layout.protocol(self.evaluation, self.data),
            "estimator": self.estimator,
            **self.model.scoring_protocol(self.estimator),
            **self.layout.asked(),
        }

    # -- the same model with other settings ----------------------------------------------------------------------------

    def at(self, stage: int | None = None, latents: int | None = None) -> Saved:
        """Return the model for another stage or number of latents; raise `InputError` if its layout has neither."""
        return dataclasses.replace(self, layout=self.layout.at(stage, latents))

    def scored_by(self, **protocol: Any) -> Saved:
        """Return the model with other fields of its protocol, `EvaluationConfig`; raise `InputError` for wrong ones."""
        evaluation = dataclasses.replace(self.evaluation, **protocol)
        self.layout.check_evaluation(evaluation)
        return dataclasses.replace(self, evaluation=evaluation)

    def scored_in_pairs(self, **protocol: Any) -> Saved:
        """Return what `scored_by` does, with batches of two rows or more, between which thoughts can be swapped."""
        return self.scored_by(batch_size=max(2, self.evaluation.batch_size), **protocol)

    def without_chat(self) -> Saved:
        """Return the model that continues prompts as they are, without its chat template, which it must have."""
        require(self.chat, "raw", True, f"prompts of {self.path} are not laid out by a chat template, remove it")
        return self.as_text()

    def as_text(self) -> Saved:
        """Return the model that continues prompts as they are, whether or not it has a chat template."""
        return dataclasses.replace(self, chat=False)

    def on(self, source: str | None = None, **read: str | float | None) -> Saved:
        """Return the model with another text (`DataConfig.source`) and with the fields of `DataConfig` in `read`.

        `read` has the `text_column` and `detokenizer` that the text needs. The text of training is read as it was read
        there, also under another name, so that the documents held out in training stay held out.

        Raises:
            InputError: the source is not a name (`mentalese.as_source` names texts), `read` has an unknown field, or
                the text of training, of which some was held out, is read in another way, which holds out other texts.
        """
        given: dict[str, Any] = {name: value for name, value in read.items() if value is not None}
        changes = ({} if source is None else {"source": source, **AS_IT_IS}) | given
        other = dataclasses.replace(self, data=dataclasses.replace(self.data, **changes))
        asked = _prepared(other.data)
        is_store = asked.source != other.data.source
        for own in self._own_texts if changes else ():
            settings = {name: getattr(own.data, name) for name in READING}
            settings |= {name: given[name] for name in given.keys() & {"text_column"}}
            as_trained = dataclasses.replace(asked, **settings)
            if is_store and own.has_fingerprint_of(other.data):
                return other
            # A store is not held against the content of its text, which may be large.
            if not (own.has_name_of(asked) or (not is_store and own.has_fingerprint_of(as_trained))):
                continue
            fixed = settings if is_store else given
            differ = [name for name in _DIVIDING if name in fixed and getattr(asked, name) != settings[name]]
            if differ and is_divided(other.data if is_store else as_trained):
                remedy = f"was trained on this text with {settings[differ[0]]!r}, which held out other documents"
                raise InputError(f"data.{differ[0]} is {getattr(asked, differ[0])!r}: {self.path} {remedy}")
            return other if is_store else dataclasses.replace(other, data=dataclasses.replace(as_trained, **given))
        return other

    @cached_property
    def _own_texts(self) -> list[_OwnText]:
        """The texts on which the model, and the model that it started from, were trained."""
        about, texts = saved_about(self.path), list[_OwnText]()
        if self.recipe is not None:
            texts.append(_OwnText(_prepared(self.recipe.data), about.get("source_fingerprint")))
        return texts + [_OwnText.of(text) for text in about.get("earlier", [])]

    @property
    def reads_own_text(self) -> bool:
        """True if `data` is a text that the model was trained on, wherever it is read from."""
        return any(own.is_in(self.data) for own in self._own_texts)

    @cached_property
    def part(self) -> str:
        """The split that scores are of: `all` of a file that the model was not trained on, `test` of other texts."""
        return "all" if is_one_text(self.data.source) and not self.reads_own_text else "test"

    def compile(self, **options: Any) -> Saved:
        """Compile the model's layers, in place, by `torch.compile(**options)`; the first calls take up to minutes."""
        if not self.model.compile_parts(**options):
            raise InputError(f"{type(self.model).__name__} has no compiled_parts: write that method, or do not compile")
        return self

    # -- texts ---------------------------------------------------------------------------------------------------------

    def encode(self, texts: str | Sequence[str]) -> Batch:
        """Return texts as prompts, padded on the left: `input_ids` and `attention_mask`, int64 [texts, length]."""
        return to_device(self.encode_prompts(_listed(texts)), self.device)

    def generate(self, texts: str | Sequence[str], *, max_new_tokens: int = 40, **options: Any) -> list[str]:
        """Return each text with its continuation or answer, and with what the model fills in for each `<|mask|>`.

        Args:
            max_new_tokens: new tokens per text; 0 only if each text has masks.
            options: `seed` and `batch_size`, which with the same texts yield the same text, sampling included; and
                Hugging Face's own: `do_sample`, `temperature`, `num_beams`, ...

        Returns:
            One text (or `num_return_sequences`) for each of `texts`, in their order; it begins as
            `prompt_text`.

        Raises:
            InputError: an empty text, or one that leaves no room for `max_new_tokens` in the model's context.
        """
        return generation.generate_text(self, _listed(texts), max_new_tokens=max_new_tokens, **options)

    def stream(self, text: str, *, max_new_tokens: int = 40, **options: Any) -> Generator[str, None, None]:
        """Yield the continuation of one text, as `generate` without beams; closing the iterator stops the model.

        A piece comes after each token. It is empty within a word, and after a token without text, such as a latent.
        """
        return generation.stream_text(self, checked("text", str, text), max_new_tokens=max_new_tokens, **options)

    def score(self, texts: str | Sequence[str]) -> list[scoring.TextScore]:
        """Return the score of each text by itself; ends of documents and sentences do not count.

        The windows and the estimator follow the model's protocol; `joined` and `max_documents` apply only to splits.

        Raises:
            InputError: a text without tokens, or a model trained on questions, whose texts have no answers.
        """
        texts = _listed(texts)
        if self.layout.questions:
            raise InputError(f"{self.path} is trained on questions, and a text has no answer: use `mentalese answer`")
        for number, text in enumerate(texts):
            require(bool(text.strip()), f"texts[{number}]", text, "use a text with at least one word")
        split = split_of(texts, self.tokenizer, self.data)
        return scoring.text_scores(dataclasses.replace(self, evaluation=self.evaluation.of_one_text()), split)

    def think(self, text: str, **options: Any) -> ThoughtTrace:
        """Return the trace of a text, or of a question and its answer if the model was trained on questions.

        Args:
            options: `max_new_tokens` of an answer; `influence=True`, to measure what each thought is worth to what
                follows it; `patch`, another text, whose thoughts take their places, one at a time, instead of a
                constant; and options of the model itself (`fast_steps`).

        Raises:
            InputError: a question that leaves no room for its answer in the context, `max_new_tokens` for a model that
                does not answer questions, or an unknown option.
        """
        remedy = f"{self.path} does not answer questions, remove it"
        asked = self.answers or "max_new_tokens" not in options
        require(asked, "max_new_tokens", options.get("max_new_tokens"), remedy)
        return thinking.think(self, checked("text", str, text), **options)

    def trace(self, input_ids: Tensor, **options: object) -> ThoughtTrace:
        """Return the trace of token ids [length]; raise `InputError` for other tensors and unknown options."""
        shape = list(getattr(input_ids, "shape", ()))
        require(len(shape) == 1, "the shape of input_ids", shape, "pass a tensor of token ids [length]")
        return thinking.trace(self, check_tokens(input_ids[None], self.model)[0], **options)

    # -- splits of a text ----------------------------------------------------------------------------------------------

    def store(self, split: str = "test", *, layout: Layout | None = None, show: bool = False) -> TokenStore:
        """Return the text `data.source` in the model's own tokens; documents end in the model's own end of text.

        Args:
            split: the split to be read; `all`: the whole of a text without splits.
            layout: the layout that decides which parts of the text are stored; `None`: the model's layout.

        Raises:
            InputError: the text cannot be read, the tokenizer lacks its markers, or there is no such split.
        """
        whole = checked("split", str, split) == "all"
        store, prepared = prepare(self.data, layout or self.layout, to_train=False, whole=whole, show=show)
        if whole:
            store = dataclasses.replace(store, splits={split: store.splits["test"]})
        marked = add_markers(self.tokenizer, latents=(layout or self.layout).questions)
        if tokenizer_fingerprint(prepared) != tokenizer_fingerprint(marked):
            remedy = "its tokens are of another tokenizer than the model's; make it with the model's, or pass the text"
            raise InputError(f"data.source is {self.data.source!r}: {remedy}", "data.source")
        require(split in store.splits, "split", split, f"{self.data.source} has {', '.join(store.splits)}")
        return store

    def split(self, name: str = "test", *, show: bool = False) -> Split:
        """Return a split of the text in the model's own tokens; raise the same errors as `store`."""
        return self.store(name, show=show).splits[name]

    def perplexity(self, split: Split, *, show: bool = False, **options: Callable[[], None]) -> scoring.Perplexity:
        """Return the perplexity of a split, by the model's protocol, see `mentalese.models.scoring.perplexity`."""
        return scoring.perplexity(self, split, show=show, **options)

    def token_scores(self, split: Split, *, show: bool = False) -> np.ndarray:
        """Return the nats of each token of a split, see `mentalese.models.scoring.token_scores`."""
        return scoring.token_scores(self, split, show=show)


def _prepared(data: DataConfig) -> DataConfig:
    """Return `before_preparing`, or the same config if its store is gone."""
    try:
        return before_preparing(data)
    except InputError:
        return data


def _same(source: str, other: str) -> bool:
    """Test if two sources are the same; of files also if their paths are written in two ways."""
    (kind, _, place), (other_kind, _, other_place) = source.partition(":"), other.partition(":")
    if kind != other_kind or kind in ("builtin", "hub", "python"):
        return source == other
    return Path(place).expanduser().resolve() == Path(other_place).expanduser().resolve()


_DIVIDING = ("detokenizer", "held_out")
"""Fields of `DataConfig` that decide which documents of a text without splits are held out."""


@dataclass(frozen=True)
class _OwnText:
    """A text of a training, as it was prepared; `fingerprint` is of its documents and their splits, if it is known."""

    data: DataConfig
    fingerprint: str | None

    @classmethod
    def of(cls, text: JsonObject) -> _OwnText:
        """Return one of `trained_texts`."""
        return cls(_prepared(DataConfig(**text["data"])), text["source_fingerprint"])

    def is_in(self, data: DataConfig) -> bool:
        """Test if `data` is this text, by its name or its content."""
        return self.has_name_of(_prepared(data)) or self.has_fingerprint_of(data)

    def has_name_of(self, data: DataConfig) -> bool:
        """Test if `data`, as it was prepared, has this text's name."""
        return _same(data.source, self.data.source)

    def has_fingerprint_of(self, data: DataConfig) -> bool:
        """Test if `data` has the same documents and splits."""
        try:
            return self.fingerprint is not None and self.fingerprint == source_fingerprint(data)
        except InputError:  # too short to be split, or split in another way
            return False


def check_start(data: DataConfig, *paths: str | None) -> None:
    """Refuse to train on a text of which the models at `paths`, or their own starts, read what is held out here.

    Raises:
        InputError: such a text was divided in another way in their training.
    """
    here = _prepared(data)
    for own in map(_OwnText.of, trained_texts(*paths)):
        for name in _DIVIDING:
            there, value = getattr(own.data, name), getattr(here, name)
            if there == value:
                continue
            is_same = here is data and own.has_fingerprint_of(dataclasses.replace(here, **{name: there}))
            if (is_same or own.has_name_of(here)) and is_divided(data):
                remedy = f"the weights at the start were trained on it with {there!r}, which held out other documents"
                raise InputError(f"data.{name} is {value!r}: {remedy}; set that")


def on_one_text(models: Sequence[Saved], source: str | None = None, **read: str | float | None) -> list[Saved]:
    """Return models that read one text in one way: `Saved.on`, by default the text of the first one's training.

    Raises:
        InputError: errors of `Saved.on`, or several were trained on it, with other documents held out.
    """
    first = models[0].on(source, **read)
    data = first.data
    others = [one.on(data.source, text_column=data.text_column, detokenizer=data.detokenizer) for one in models[1:]]
    readers = [first, *others]
    trained = [one.data for one in readers if one.reads_own_text]
    chosen = trained[0] if trained else data
    settings = {name: getattr(chosen, name) for name in READING}
    for other in trained if len(trained) > 1 and is_divided(chosen) else ():
        for name in _DIVIDING:
            value = getattr(other, name)
            remedy = f"another model was trained on {data.source} with {value!r}, use another text"
            require(value == settings[name], f"data.{name}", settings[name], remedy)
    return [dataclasses.replace(one, data=dataclasses.replace(one.data, **settings)) for one in readers]


def load(
    path: str | Path, device: str | torch.device | None = None, *, config: Mapping[str, object] | None = None
) -> Saved:
    """Open a trained model.

    Args:
        path: the folder of a run or of a saved model, a checkpoint `RUN/checkpoints/step-*`, `models:NAME` of an
            installed package of models, `gguf:FILE`, or `hub:NAME`, which is any Hugging Face causal LM.
        device: `None`: a GPU if there is one, else the CPU.
        config: other values of fields of the model's config, as far as the weights allow.

    Raises:
        InputError: there is no model, its weights are damaged, its tokenizer is not the one it was trained with, its
            config has no such field, or its layout is unknown.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    model, tokenizer = load_model(path, device, fields=config)
    recipe = saved_recipe(path)
    evaluation = recipe.evaluation if recipe else EvaluationConfig()
    layout, data = (recipe.layout, recipe.data) if recipe else _reading(str(path), model, tokenizer)
    return Saved(
        path=str(path),
        model=model,
        tokenizer=tokenizer,
        data=dataclasses.replace(data, tokenizer=str(model_folder(path))),
        layout=layout,
        evaluation=dataclasses.replace(evaluation, max_documents=None, max_test_documents=None, documents_seed=None),
        recipe=recipe,
        chat=layout.plain and base_chat_template(tokenizer) is not None,
    )


def _reading(path: str, model: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> tuple[Layout, DataConfig]:
    """Return the layout and sentences of a model without a recipe; raise `InputError` if it needs them and has none."""
    if (reading := saved_reading(tokenizer)) is not None:
        return reading
    if not saved_about(path):
        for name, parts in (("sentence_start_token_id", "sentences"), ("latent_token_id", "latents")):
            if getattr(model.config, name, None) is not None:
                raise InputError(
                    f"{path}: the model reads {parts}, and neither mentalese.json nor the tokenizer's settings say how "
                    "its text is laid out: save the tokenizer of the run's model/ with it"
                )
    return as_is(model.config), DataConfig()


def _listed(texts: str | Sequence[str]) -> list[str]:
    """Return the texts as a list; raise `InputError` if there are none, or if one is not a string."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping | Tensor):
        raise InputError(f"texts is {shown(texts)}: pass a text (str) or a list of texts")
    listed = [texts] if isinstance(texts, str) else list(texts)
    require(bool(listed), "texts", texts, "pass at least one text")
    return [checked(f"texts[{number}]", str, text) for number, text in enumerate(listed)]
