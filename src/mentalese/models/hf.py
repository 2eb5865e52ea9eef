"""Hugging Face's interface for every family: the shared `forward`, and `generate`."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers import logging

from mentalese.data.batch import Batch
from mentalese.errors import InputError, nearest, require
from mentalese.models.anywhere import OpensAnywhere
from mentalese.models.base import ONE_PASS, LanguageModel, LossOutput, follows
from mentalese.models.cache import ThoughtCache, check_cache_kind
from mentalese.models.config import LatentThoughtConfig
from mentalese.models.inputs import check_kept, check_labels, check_mask, check_positions, check_tokens, check_width
from mentalese.models.lora import adapt_by_default
from mentalese.models.trace import ThoughtTrace
from mentalese.models.transformers_seam import CACHE, LogitsOutput, StatesOutput, TransformersModel, one_cache
from mentalese.nn.blocks import ResidualLinear
from mentalese.nn.loss import predictable_labels
from mentalese.nn.packing import PackedRows

logger = logging.get_logger(__name__)


@dataclass
class CausalLMOutputWithThoughts(LogitsOutput):
    """Hugging Face's output, with one `ThoughtTrace` per row if `output_thoughts=True`."""

    thoughts: list[ThoughtTrace] | None = None


@dataclass(kw_only=True)
class Encoded:
    """The result of a family's `encode`, before the head. A family adds fields that its losses and traces need.

    Attributes:
        hidden: [batch, length, hidden], the final hidden states that the head reads.
        hidden_states: [batch, length, hidden] per layer, embeddings first, with `output_hidden_states=True`.
    """

    hidden: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Reasons why a model lacks features that users of transformers expect; `None`: it has the feature.

    Attributes:
        cache: tokens cannot be read one after the other.
        static_cache: a cache cannot have a fixed size; if it can, `encode` ends in `cache.advance(length)`.
        hidden_states: `encode` does not take `output_hidden_states`.
        token_states: no single hidden state of a token predicts the next one.
        continued_traces: a trace cannot begin in the middle of a text, with a cache of the tokens before.
        loss: the part of `training_loss` that a loss computed from hidden states leaves out.
    """

    cache: str | None = None
    static_cache: str | None = "it grows with the text"
    hidden_states: str | None = "it keeps the final ones only; use model.encode(input_ids).hidden"
    token_states: str | None = None
    continued_traces: str | None = "pass the whole text in one call"
    loss: str | None = None


E = TypeVar("E")
"""The type that a family's `encode` returns."""
Out = TypeVar("Out", StatesOutput, LogitsOutput)


class Body(nn.Module):
    """A model without its head, as `base_model`: trainers that compute a loss from hidden states call it."""

    def __init__(self, model: LatentThoughtModel[Any]) -> None:
        super().__init__()
        self.whole = (model,)  # in a tuple, so that the model does not contain itself

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> StatesOutput | tuple[object, ...]:
        """Return `last_hidden_state` [batch, length, hidden]; `LatentThoughtModel.forward` has the options.

        Raises:
            InputError: `forward` would raise it, or no single state of a token predicts the next one.
        """
        (model,) = self.whole
        name, limits = type(model).__name__, model.limits
        if limits.token_states is not None:
            raise InputError(f"{name}.base_model: {limits.token_states}")
        if model.training and limits.loss is not None:
            warnings.warn(
                f"{name} is trained on next tokens only: {limits.loss} take no part in a loss from hidden states; "
                "its own loss is the loss of model(input_ids, labels=labels)",
                stacklevel=2,
            )
        input_ids, cache = model.checked_call(input_ids, attention_mask, options)
        encoded = model.encode(input_ids, attention_mask, cache=cache, **options)
        return model.returned(StatesOutput(model.states(encoded), cache, encoded.hidden_states), return_dict)


class LatentThoughtModel(OpensAnywhere, TransformersModel, LanguageModel, Generic[E]):
    """The base of every family's model: a causal LM of transformers with the interface `LanguageModel`.

    A subclass sets `config_class`, builds its modules in `__init__` (`embed` and `lm_head` among them, ending in
    `self.post_init()`), initialises in `initialize` every parameter that is not part of a plain linear, embedding
    or norm, keeps the state that generation needs between tokens in a `ThoughtCache`, and implements

        encode          tokens to final hidden states, from where a cache left off
        fill            the thoughts that a trace shows
        forward_flops   the cost of a pass

    Attributes:
        forward_options: further keywords of `encode` that `forward` takes.
        lora_targets: names of the linear maps that PEFT adapts if none are named.
    """

    config_class: Any = LatentThoughtConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = False  # losses are means over the batch: `transformers.Trainer` divides by its micro-batches
    input_layer = "embed"
    tied_weights = {"lm_head.weight": "embed.weight"}  # noqa: RUF012 (nothing writes to it)
    cache_class: type[ThoughtCache] = ThoughtCache
    forward_options: tuple[str, ...] = ()
    lora_targets: tuple[str, ...] = ()
    _static_tokens = 0
    embed: nn.Embedding
    lm_head: nn.Linear

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.lora_targets:
            adapt_by_default(cls.config_class.model_type, cls.lora_targets)

    @property
    def limits(self) -> Limits:
        """Reasons why the model, under its config, lacks features that callers expect; a family states its own."""
        return Limits()

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, ResidualLinear):
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)

    @property
    def base_model(self) -> nn.Module:
        """See `Body`."""
        return Body(self)

    def set_checkpointing(self, enable: bool, run: Callable[..., object], every_n_layers: int) -> None:
        """Refuse reentrant checkpointing, which sees only a block's own arguments: blocks also share thoughts."""
        reentrant = getattr(run, "keywords", {}).get("use_reentrant", False)
        require(not reentrant, "use_reentrant", reentrant, "gradients of shared thoughts would be lost, set False")
        super().set_checkpointing(enable, run, every_n_layers)

    # ----------------------------------------------------------------------------------- for families to implement

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: Any = None,
        trace: bool = False,
    ) -> E:
        """Return final hidden states of tokens [batch, length], from where `cache` left off; the cache moves on.

        Args:
            attention_mask: [batch, length or, with a cache, all tokens so far], 0 at padding on either side.
            cache: one of `cache_class`; `None` to keep nothing.
            trace: keep the data that `fill` shows.
        """
        raise NotImplementedError(f"{type(self).__name__} needs encode")

    def fill(self, traces: list[ThoughtTrace], encoded: E, real: Tensor) -> None:
        """Add a family's thoughts to traces that have each token's surprisal, one per row.

        Args:
            encoded: what `encode` returned with `trace=True`.
            real: bool [batch, length], true at tokens that are not padding.
        """

    def logits(self, encoded: Any, at: slice | Tensor) -> Tensor:
        """Return the logits [batch, m, vocabulary] of the tokens in columns `at`: a slice, or indices [m]."""
        return self.output_head()(encoded.hidden[:, at])

    def states(self, encoded: Any) -> Tensor:
        """Return the states [batch, length, hidden] that the head reads; see `Limits.token_states`."""
        return encoded.hidden

    def labels_loss(self, encoded: Any, labels: Tensor) -> Tensor:
        """Return the scalar, in nats per target, that `forward` returns as `loss` for labels [batch, length]."""
        return self.next_token_loss(encoded.hidden, labels)[0]

    def predictable(self, labels: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the labels [batch, length] that are predicted, of tokens that do not directly follow padding."""
        if labels is None or attention_mask is None:
            return labels
        return predictable_labels(labels, attention_mask[:, -labels.shape[1] :].bool())

    def predicted_tokens(self, encoded: E, input_ids: Tensor, real: Tensor) -> Tensor:
        """Return bool [batch, length], true at tokens that the token before them predicts."""
        return follows(real)

    def new_cache(self) -> ThoughtCache:
        """Return an empty cache for `generate`."""
        return self.cache_class(self.config.num_hidden_layers)

    # -------------------------------------------------------------------------------- the same for all families

    def final_hidden_states(self, batch: Batch) -> Tensor:
        return self.states(self.encode(batch["input_ids"], batch.get("attention_mask")))

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        weights = self.target_weights(batch, **settings)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"))
        loss = self.next_token_loss(self.states(encoded), batch["labels"], weights)
        return LossOutput(*loss, encoded=lambda: encoded)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ThoughtCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        output_thoughts: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: ThoughtCache | None = None,
        **options: Any,
    ) -> LogitsOutput | tuple[object, ...]:
        """Return the logits [batch, length, vocabulary], at each position for the token after it.

        Positions follow from `attention_mask`. `position_ids` are not read, and refused if they separate texts that are
        packed in a row.

        Args:
            input_ids: [batch, length].
            attention_mask: [batch, length or, with a cache, all tokens so far], 0 at padding on either side.
            past_key_values: the cache that an earlier call returned, or `new_cache()`.
            cache: the same, by its name since transformers 5.24; set only one of the two.
            use_cache: return a cache; `None` follows `config.use_cache`, but returns none in training mode or for a
                trace.
            labels: [batch, length], see `Batch`; `loss` is then the loss of the next token. In training mode it is the
                family's own (`training_loss`), and the logits are the ones from which it was computed.
            logits_to_keep: only the logits of the last N positions (0: all), or of these positions.
            output_thoughts: also return a `ThoughtTrace` per row.
            output_hidden_states: also return the hidden states of every layer, for families that keep them; `None`,
                here and for `return_dict`: follow the config.
            options: `forward_options` of the family, see its `encode`.

        Returns:
            A `CausalLMOutputWithThoughts`, or a tuple if `return_dict` is False.

        Raises:
            InputError: tokens, a mask or labels of a wrong type, shape or range (`mentalese.models.inputs`; on a GPU
                ids out of range are not detected), a cache of another kind, a trace of a text that began in an earlier
                call, an unknown keyword, or an output that the model does not keep.
        """
        if output_thoughts and use_cache is None:
            use_cache = False
        options |= {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        options |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
        options["cache"] = one_cache(cache, past_key_values)
        input_ids, cache = self.checked_call(input_ids, attention_mask, options)
        check_kept(logits_to_keep, input_ids.shape[1])
        labels = self.predictable(check_labels(labels, input_ids, self.config.vocab_size), attention_mask)
        loss: Tensor | None
        if output_thoughts:
            self._check_traced(cache)
        if labels is not None and self.training:
            remedy = "with labels in training mode, a model's own loss keeps none of them, so pass one of the two"
            require("output_hidden_states" not in options, "output_hidden_states", True, remedy)
        if not (self.training or options or output_thoughts or input_ids.shape[1] == 1):
            self._warn_about_logits(logits_to_keep)
        if labels is not None and self.training and cache is None and not (options or output_thoughts):
            batch = {"input_ids": input_ids, "labels": labels}
            trained = self.training_loss(batch | ({} if attention_mask is None else {"attention_mask": attention_mask}))
            assert trained.encoded is not None
            encoded, loss = trained.encoded(), trained.loss
            self.after_step()
        else:
            encoded = self.encode(input_ids, attention_mask, cache=cache, trace=output_thoughts, **options)
            loss = None if labels is None else self.labels_loss(encoded, labels)
        columns = slice(-logits_to_keep or None, None) if isinstance(logits_to_keep, int) else logits_to_keep
        output = self.output(
            encoded,
            loss=loss,
            logits=self.logits(encoded, columns),
            hidden_states=encoded.hidden_states,
            thoughts=self.trace(input_ids, attention_mask, encoded) if output_thoughts else None,
            **{CACHE: cache},
        )
        return self.returned(output, return_dict)

    def check_prompt(self, input_ids: Tensor | None) -> Tensor:
        """Return the tokens of a call, or raise what `forward` does."""
        devices = set(getattr(self, "hf_device_map", {}).values()) - {"cpu", "disk"}
        if len(devices) > 1:
            remedy = 'layers share thoughts, so put it on one, as device_map={"": 0}'
            raise InputError(f"device_map spreads the model over {len(devices)} devices: {remedy}", "device_map")
        remedy = "this model finds its thoughts by tokens, so pass only input_ids"
        require(input_ids is not None, "input_ids", input_ids, remedy)
        return check_tokens(input_ids, self)

    def _check_traced(self, cache: ThoughtCache | None) -> None:
        """Raise `InputError` if a call with this cache cannot return traces."""
        reason = None
        if not self.causal:
            reason = f": {type(self).__name__} reads in both directions and has none"
        elif cache is not None and cache.seen_tokens and self.limits.continued_traces is not None:
            reason = f" with a cache in use: {self.limits.continued_traces}"
        if reason is not None:
            raise InputError(f"output_thoughts is True{reason}", "output_thoughts")

    def output(self, encoded: E, **fields: Any) -> CausalLMOutputWithThoughts:
        """Return the output of `forward`; families with further fields override it."""
        return CausalLMOutputWithThoughts(**fields)

    def _cache(self, cache: object, use_cache: bool | None) -> ThoughtCache | None:
        """Return the cache of a call: the one passed to it, a new one, or none."""
        if use_cache is None:
            use_cache = self.config.use_cache and self.limits.cache is None and not self.training
        if cache is not None and not isinstance(cache, self.cache_class):
            remedy = f"{type(self).__name__} needs a {self.cache_class.__name__}, as model.new_cache() makes"
            raise InputError(f"{CACHE} is a {type(cache).__name__}: {remedy}", CACHE)
        if cache is None and not use_cache:
            return None
        if (why := self.limits.cache) is not None:
            raise InputError(f"{'use_cache is True' if cache is None else f'{CACHE} is set'}: {why}, use_cache=False")
        if self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules()):
            raise InputError("gradient checkpointing in training would write a cache twice: set use_cache=False")
        return self.new_cache() if cache is None else cache

    def _warn_about_logits(self, logits_to_keep: int | Tensor) -> None:
        """Warn once if another tool would mistake the logits of a whole text for the model's likelihood."""
        score = self.estimators[0]
        if score not in ONE_PASS and isinstance(logits_to_keep, int) and logits_to_keep == 0:
            logger.warning_once(
                f"{type(self).__name__}: a perplexity or log-likelihood from the logits of one call (lm-eval's 'hf', "
                f"an evaluation of transformers.Trainer) is not this model's, whose own score is {score!r}: use "
                "mentalese.load(path).score(texts) or `mentalese eval`"
            )

    def checked_call(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, options: dict[str, Any]
    ) -> tuple[Tensor, ThoughtCache | None]:
        """Return tokens and cache for arguments of `forward`, and leave in `options` the keywords of `encode`."""
        if options.pop("inputs_embeds", None) is not None:
            raise InputError("inputs_embeds is set: this model finds its thoughts by tokens, so pass only input_ids")
        positions = options.pop("position_ids", None)
        input_ids = self.check_prompt(input_ids)
        passed = one_cache(options.pop("cache", None), options.pop("past_key_values", None))
        cache = self._cache(passed, options.pop("use_cache", None))
        check_mask(attention_mask, input_ids, 0 if cache is None else cache.seen_tokens)
        check_positions(positions, attention_mask)
        reasons = {
            "output_attentions": "attention weights are not kept; use output_thoughts=True",
            "output_hidden_states": self.limits.hidden_states,
        }
        for name, reason in reasons.items():
            value = options.pop(name, None)
            wanted = getattr(self.config, name) if value is None else value
            require(not wanted or reason is None, name, wanted, str(reason))
            if wanted:
                options[name] = True
        for name in options.keys() - reasons:
            if name not in self.forward_options:
                hint = nearest(name, [*inspect.signature(self.forward).parameters, *self.forward_options])
                raise InputError(f"{name}: {type(self).__name__}.forward has no such argument{hint}")
        return input_ids, cache

    def returned(self, output: Out, return_dict: bool | None) -> Out | tuple[object, ...]:
        """Return the output, or a tuple of it, as `return_dict` or the config requires."""
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def cache_for_generation(self, settings: Any, cache: ThoughtCache | None, max_tokens: int) -> ThoughtCache | None:
        """See `OwnCacheGenerationMixin`."""
        kind = settings.cache_implementation
        check_cache_kind(self, kind, self.limits.static_cache)
        if cache is not None and kind == "static":
            raise InputError(f"{CACHE} is set with cache_implementation 'static': it is used as it is, remove one")
        if self.limits.cache is not None:
            settings.use_cache = False
        elif settings.use_cache is not False and cache is None:
            cache = self.new_cache()
            if kind == "static":  # as large as the largest so far, to avoid compiling again
                larger = getattr(settings, "max_cache_len", None) or 0
                self._static_tokens = max(max_tokens, larger, self._static_tokens)
                cache.max_tokens = self._static_tokens
        return cache

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of the next call: tokens after the prompt without a mask, as they are not padding."""
        kwargs.pop("tokenizer", None)  # for `stop_strings`; transformers passes it to the model too
        first, cache = kwargs.get("is_first_iteration", False), kwargs.get(CACHE)
        if not first and cache is not None and cache.seen_tokens:
            attention_mask = None
        return super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, attention_mask=attention_mask, **kwargs
        )

    def trace(self, input_ids: Tensor, attention_mask: Tensor | None, encoded: E) -> list[ThoughtTrace]:
        """Return a trace per row: the contents of `text_traces`, completed by the family."""
        with torch.no_grad():
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            real = mask[:, -input_ids.shape[1] :].bool()
            traces = self._scored(input_ids, real, encoded)
            self.fill(traces, encoded, real)
        return traces

    def _scored(self, input_ids: Tensor, real: Tensor, encoded: E) -> list[ThoughtTrace]:
        scored = self.predicted_tokens(encoded, input_ids, real)
        return self.text_traces(input_ids, scored, lambda at: self.logits(encoded, at))

    def read_copies(self, input_ids: Tensor, **options: Any) -> E:
        """Return what `trace` is made of, for copies [batch, length] of one text, whose thoughts start out the same."""
        return self.encode(input_ids, trace=True, **options)

    @torch.no_grad()
    def surprisal_of_copies(self, input_ids: Tensor, **options: Any) -> Tensor:
        """Return the nats of each token of copies [batch, length] of one text, as a trace has them; NaN without any."""
        traces = self._scored(input_ids, torch.ones_like(input_ids).bool(), self.read_copies(input_ids, **options))
        return torch.stack([trace.scores["surprisal"] for trace in traces])

    def traces(self, batch: Batch, **options: Any) -> list[ThoughtTrace]:
        """See `LanguageModel.traces`; `options` are the model's `forward_options`."""
        if not self.causal:
            return super().traces(batch, **options)
        self._check_options(options, self.forward_options)
        read = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        with torch.no_grad():
            return self(**read, output_thoughts=True, use_cache=False, logits_to_keep=1, **options).thoughts

    @staticmethod
    def real_tokens(input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None = None) -> Tensor:
        """Return bool [batch, length], true at this call's tokens; raise `InputError` for a mask that does not fit."""
        if cache is not None:
            cache.check_room(input_ids.shape[1])
        if attention_mask is None:
            return torch.ones_like(input_ids, dtype=torch.bool)
        check_width(attention_mask, input_ids.shape[1] + (0 if cache is None else cache.seen_tokens))
        return attention_mask[:, -input_ids.shape[1] :].bool()

    def packed_rows(self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None) -> PackedRows:
        """Return the columns of this call's tokens; with a cache a row may have no token."""
        if attention_mask is None:
            return PackedRows.unpadded(input_ids)
        rows = PackedRows.of(self.real_tokens(input_ids, attention_mask, cache))
        if cache is None:
            self.check_rows(rows.on_host)
        return rows

    @staticmethod
    def check_rows(tokens: list[int]) -> None:
        """Raise `InputError` if a row contains only padding."""
        if 0 in tokens:
            raise InputError(f"attention_mask[{tokens.index(0)}] is 0 throughout: every row needs a token, remove it")
