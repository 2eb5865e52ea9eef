"""GPT-2 with a gist mask (Thought Gestalt's section 3.3 and Table 5, after Mu et al., 2023).

The text is one stream with its sentences between markers, `BOS w1..wn EOS BOS ..`. A token attends to the tokens of its
own sentence, and of earlier sentences only to their EOS. The mask hides keys: an EOS reads its whole sentence,
and later tokens read only that EOS. Everything else is transformers' GPT-2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, GPT2Model

from mentalese.errors import InputError
from mentalese.families.baselines.config import GPT2GistConfig
from mentalese.models.anywhere import OpensAnywhere
from mentalese.models.cache import ThoughtCache, check_cache_kind
from mentalese.models.inputs import check_positions
from mentalese.models.lora import adapt_by_default
from mentalese.models.transformers_seam import CACHE, LogitsOutput, OwnCacheGenerationMixin, attention_of, one_cache


def gist_mask(ends: Tensor, attention_mask: Tensor | None, queries: int) -> Tensor:
    """Return a mask, bool [batch, 1, queries, L], of the L tokens that the last `queries` tokens attend to.

    `ends` is bool [batch, L], the tokens that end a sentence. Every token, including padding, attends to itself, so
    that no row is empty.
    """
    sentence = ends.cumsum(1) - ends.long()
    position = torch.arange(ends.shape[1], device=ends.device)
    asking = position[-queries:, None]
    visible = (sentence[:, -queries:, None] == sentence[:, None]) | ends[:, None]
    if attention_mask is not None:
        visible = visible & attention_mask[:, None].bool()
    return ((visible & (position <= asking)) | (position == asking))[:, None]


class GPT2GistModel(GPT2Model):
    """GPT-2's blocks under the gist mask; the cache also records which tokens end sentences."""

    config_class = GPT2GistConfig

    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: ThoughtCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        cache: ThoughtCache | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run as `GPT2Model.forward` does; embeddings are refused, because they do not show where sentences end."""
        if input_ids is None:
            raise InputError("input_ids is None: the gist mask follows the ends of sentences, use token ids")
        check_positions(kwargs.get("position_ids"), attention_mask)
        cache = one_cache(cache, past_key_values)
        if cache is not None and not isinstance(cache, ThoughtCache):
            raise InputError(
                f"{CACHE} is a {type(cache).__name__}: {type(self).__name__} needs a ThoughtCache, so leave it out"
            )
        if (self.config.use_cache if use_cache is None else use_cache) and cache is None:
            cache = ThoughtCache(self.config.num_hidden_layers)
        ends = input_ids == self.config.sentence_end_token_id
        if cache is not None and cache.seen_tokens:
            ends = torch.cat((cache.state["ends"], ends), dim=1)
        mask = gist_mask(ends, attention_mask, input_ids.shape[1])
        if attention_of(self.config) == "eager":  # which adds it to the scores
            mask = torch.zeros_like(mask, dtype=self.dtype).masked_fill(~mask, torch.finfo(self.dtype).min)
        output = super().forward(input_ids, attention_mask=mask, use_cache=use_cache, **{CACHE: cache}, **kwargs)
        if cache is not None:
            cache.state["ends"] = ends
            cache.seen_tokens = ends.shape[1]
        return output


class GPT2GistLMHeadModel(OpensAnywhere, OwnCacheGenerationMixin, GPT2LMHeadModel):
    """GPT-2 with a gist mask as a causal LM over `BOS w1..wn EOS BOS ..`, a document ending in `EOD EOS`."""

    config_class = GPT2GistConfig
    supports_flash_attention = False  # it takes no mask of pairs

    def __init__(self, config: GPT2GistConfig) -> None:
        super().__init__(config)
        self.transformer = GPT2GistModel(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: ThoughtCache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: ThoughtCache | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run as `GPT2LMHeadModel.forward` does; the cache may have either of its two names."""
        output = super().forward(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **{CACHE: one_cache(cache, past_key_values)},
            **kwargs,
        )
        return output if isinstance(output, tuple) else LogitsOutput(**output)

    def cache_for_generation(self, settings: Any, cache: ThoughtCache | None, max_tokens: int) -> ThoughtCache | None:
        check_cache_kind(self, settings.cache_implementation, "it grows with the text")
        if cache is None and settings.use_cache is not False:
            return ThoughtCache(self.config.num_hidden_layers)
        return cache


adapt_by_default(GPT2GistConfig.model_type, ("c_attn",))
