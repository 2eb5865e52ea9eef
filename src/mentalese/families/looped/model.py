"""Recurrent depth (Geiping et al., "Scaling up Test-Time Compute with Latent Reasoning: A Recurrent Depth Approach").

    prelude     the first layers of a decoder, once: e
    block       A [s, e], the layers between, a norm: s_t = R(e, s_{t-1}), from s_0, which is noise; r turns
    coda        the last layers, once, the final norm, the head

Training draws r at each step and sends gradients through the last k turns. At test r is any number, and a token
may stop as soon as its state hardly moves. Keys and values are kept turn by turn.

A token costs, with w weights of the linear maps of a layer, a its attention to L tokens, 2 L times the heads' width,
d hidden size and v vocabulary, in multiply-adds:

    C(r) = (l_P + l_C) (w + a) + r (l_R (w + a) + 2 d^2) + d v

A forward pass is 2 C(r) FLOPs, a step of training 6 C(r) less 4 for each turn without a gradient.

Sections and equations are the paper's. Letters in shapes: B rows of L tokens, d hidden size, r turns.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.looped.config import LoopedConfig
from mentalese.families.looped.grow import kept_layers
from mentalese.families.looped.layers import Keys, LoopedCache, SandwichLayer
from mentalese.families.looped.turns import drawn_turns, initial_state
from mentalese.models.backbone import attention_width, linear_weights
from mentalese.models.base import LossOutput, follows
from mentalese.models.cache import ThoughtCache, fixed_columns, write_at
from mentalese.models.hf import Encoded, Limits
from mentalese.models.peft_targets import BACKBONE_TARGETS
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import CACHE, attention_of
from mentalese.models.wrapped import LayeredDecoder, TokenLayout
from mentalese.nn.controls import controlled
from mentalese.nn.noise import shared_seed

_DRAWS = 256  # of r, for what a step costs on average


@dataclass(kw_only=True)
class LoopedEncoded(Encoded):
    """Final hidden states, and what a trace shows.

    Attributes:
        taken: [B, L], turns that each token took.
        states: s_t [B, L, d] after each turn, if a trace was asked for.
        by_turn: [B, L, d] after each turn, what the head would read if it were the last.
        moved: [B, L] for each turn, how far it moved the state, as a share of the state's length.
    """

    taken: Tensor | None = None
    states: list[Tensor] = field(default_factory=list)
    by_turn: list[Tensor] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)


class LoopedForCausalLM(LayeredDecoder):
    """A Hugging Face decoder whose middle layers are a block that runs several times."""

    config_class = LoopedConfig
    config: LoopedConfig
    lora_targets = BACKBONE_TARGETS
    cache_class = LoopedCache
    shard_blocks = False  # a block runs several times in a pass
    about_thoughts = (
        "States: every token goes through the same layers several times, and each turn reads what the one before it "
        "left. Shown is what the model would predict if a turn were the last."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal.": Shown("surprisal after turn {}", "The token's cost if that turn were the last.", "nats"),
        "predicted.": Shown("most likely token after turn {}", "The most likely token if that turn were the last."),
        "turns": Shown("turns", "Turns that the token took.", "count"),
        "surprisal_by_turn": Shown("surprisal by turn", "Mean over the text if a turn were the last.", "nats", "turn"),
        "moved": Shown(
            "how far a turn moves the state", "Mean over tokens of the change's share of its length.", "share", "turn"
        ),
    }

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        kind = attention_of(self.backbone.config)
        if kind not in ("sdpa", "eager"):
            raise InputError(f"attn_implementation is {kind!r}: the turns of a looped model run on sdpa or eager")
        self.block_norm: nn.Module | None = None
        if config.norms == "sandwich":
            for number, layer in enumerate(self.layers):
                self.layers[number] = SandwichLayer(layer)
            self.block_norm = copy.deepcopy(self.final_norm)
        self.adapter = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self._step: int | None = None  # the seed of a step of training
        self.post_init()

    def initialize(self, module: nn.Module) -> None:
        """The backbone's rule; what the sandwich's layers add is smaller the deeper a token goes (section 4.1).

        The release also draws the MLP's up map smaller, which the paper does not say (README).
        """
        super().initialize(module)
        if module is not self or self.config.norms == "own":  # it is the last: the backbone initialises its own layers
            return
        std = self.config.initializer_range / math.sqrt(2 * self.config.effective_layers)
        layers: Any = self.layers
        for layer in layers:
            for added in (layer.self_attn.o_proj, layer.mlp.down_proj):
                init.normal_(added.weight, std=std)

    @property
    def limits(self) -> Limits:
        return Limits(static_cache=None, loss=None if self.config.turns_spread is None else "drawn numbers of turns")

    @cached_property
    def _parts(self) -> tuple[range, range, range]:
        """The numbers of the layers of prelude, block and coda."""
        config, layers = self.config, self.config.num_hidden_layers
        first, last = config.prelude_layers, layers - config.coda_layers
        return range(first), range(first, last), range(last, layers)

    # -- growing -----------------------------------------------------------------------------------------------------

    def cut(self, base: Any) -> Any:
        """A trained decoder without the layers that this model does not have, in place; see `kept_layers`."""
        layers = getattr(base.base_model, self.places.layers)
        own = self.config.num_hidden_layers
        kept = kept_layers(len(layers), own, self.config.prelude_layers) if len(layers) > own else range(len(layers))
        setattr(base.base_model, self.places.layers, nn.ModuleList(layers[i] for i in kept))
        base.config.num_hidden_layers = len(kept)
        if getattr(base.config, "layer_types", None):
            base.config.layer_types = [base.config.layer_types[i] for i in kept]
        return base

    def start_from_backbone(self) -> None:
        """The block reads e alone at first: at any number of turns the model predicts what its layers do in a row.

        Raises:
            InputError: `norms` is `sandwich`, whose norms and embeddings a trained decoder does not have.
        """
        if self.config.norms != "own":
            raise InputError(
                f"looped.norms is {self.config.norms!r}: a trained decoder does not have these norms, so the model "
                "would not start as that decoder; set looped.norms to own"
            )
        with torch.no_grad():
            width = self.config.hidden_size
            self.adapter.weight.copy_(torch.cat((torch.zeros(width, width), torch.eye(width)), dim=1))

    # -- a pass ------------------------------------------------------------------------------------------------------

    def new_cache(self) -> LoopedCache:
        return LoopedCache()

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
    ) -> LoopedEncoded:
        """Final hidden states [B, L, d], from where `cache` left off, after `config.turns` turns; the cache moves on.

        Raises:
            InputError: a cache that another number of turns wrote.
        """
        return self._read(input_ids, attention_mask, self.config.turns, 0, cast("LoopedCache | None", cache), trace)

    def _read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        turns: int,
        seed: int,
        cache: LoopedCache | None = None,
        trace: bool = False,
    ) -> LoopedEncoded:
        """`encode` at this many turns, from the noise of a seed."""
        past = self._open(cache, turns)
        layout = self.token_layout(input_ids, attention_mask, cache)
        positions = layout.positions
        if positions is None:
            positions = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)[None]
        embedded = self.config.embedding_scale * self.get_input_embeddings()(input_ids)
        stops = self.config.exit_distance is not None and not self.training
        keys = Keys(cache, past) if stops or cache is not None else None
        end = past + input_ids.shape[1]
        columns = None if cache is None else fixed_columns(cache.layers, end)
        if cache is not None and columns is not None:
            write_at(cache.layers, past, end)
        options = self._options(embedded, layout, positions, past, columns) | {CACHE: keys}
        prelude, _, coda = self._parts
        injected = self._run(prelude, embedded, options)
        start = initial_state(input_ids, positions, self.config.hidden_size, self.config.state_std, seed)
        state, encoded = self._loop(start.to(injected.dtype), injected, options, turns, layout.real, trace)
        if keys is not None:
            keys.slot, keys.stopped = 0, None
        for seen in encoded.states:
            encoded.by_turn.append(self.final_norm(self._run(coda, seen, options)))
        encoded.hidden = self.final_norm(self._run(coda, state, options))
        if cache is not None:
            cache.advance(input_ids.shape[1])
        return encoded

    def _loop(
        self, start: Tensor, injected: Tensor, options: dict[str, Any], turns: int, real: Tensor | None, trace: bool
    ) -> tuple[Tensor, LoopedEncoded]:
        """The state [B, L, d] after all turns, and what is known of them."""
        config, keys = self.config, options[CACHE]
        exit_distance = None if self.training else config.exit_distance
        running = torch.ones(start.shape[:2], dtype=torch.bool, device=start.device) if real is None else real
        taken, state = torch.zeros_like(running, dtype=torch.long), start
        encoded = LoopedEncoded(hidden=start)
        slots = min(turns, config.cache_turns or turns)
        for turn in range(turns):
            if keys is not None:
                keys.slot = turn % slots
            read = controlled(state, config.thought_control, removed=start) if turn else state
            with torch.set_grad_enabled(torch.is_grad_enabled() and turn >= turns - config.backprop_turns):
                new = self._turn(read, injected, options)
            taken = taken + running
            if not (trace or exit_distance is not None):
                state = new
                continue
            change, length = (new - state).float().norm(dim=-1), new.float().norm(dim=-1)
            if exit_distance is not None:
                new = torch.where(running[..., None], new, state)
            state = new
            if trace:
                encoded.states.append(state)
                encoded.moved.append((change / length).masked_fill(~running, 0.0))
            if exit_distance is not None:
                running = running & (change >= exit_distance * length)
                keys.stopped = ~running[:, None, :, None]
                if not bool(running.any()):
                    keys.fill(self._parts[1], range(turn + 1, slots))
                    break
        encoded.taken = taken
        return state, encoded

    def _turn(self, state: Tensor, injected: Tensor, options: dict[str, Any]) -> Tensor:
        """R(e, s) (section 3.2)."""
        new = self._run(self._parts[1], self.adapter(torch.cat((state, injected), dim=-1)), options)
        return new if self.block_norm is None else self.block_norm(new)

    def _run(self, numbers: range, hidden: Tensor, options: dict[str, Any]) -> Tensor:
        """[B, L, d] through these layers."""
        keys = options[CACHE]
        for number in numbers:
            own = None if keys is None else keys.of(number)
            hidden = self.layers[number](hidden, **options | {CACHE: own})
            if keys is not None:
                keys.keep(number, own)
        return hidden

    def _open(self, cache: LoopedCache | None, turns: int) -> int:
        """Tokens in the cache."""
        if cache is None:
            return 0
        if cache.turns not in (None, turns):
            raise InputError(
                f"config.turns is {turns}: the cache was written at {cache.turns}; set that, or begin with a new cache"
            )
        cache.turns = turns
        return cache.seen_tokens

    def _options(
        self, hidden: Tensor, layout: TokenLayout, positions: Tensor, past: int, columns: int | None
    ) -> dict[str, Any]:
        """What every layer is told of a call: positions, and a mask where attention needs one.

        Args:
            columns: of keys of a fixed size; `None`: they grow.
        """
        length, tokens = hidden.shape[1], layout.mask
        (rotary,) = self.places.positions(self.backbone.base_model, hidden, positions, 1)
        causal = attention_of(self.backbone.config) == "sdpa" and not past  # it makes such a mask itself
        if columns is None and tokens is None and (length == 1 or causal):
            return {"attention_mask": None, **rotary}
        column = torch.arange(columns or past + length, device=hidden.device)
        now = column[past : past + length, None]
        seen = (column <= now)[None]
        if tokens is not None and columns is not None:
            tokens = F.pad(tokens, (0, columns - past - length))
        if tokens is not None:  # a column of padding attends to itself: a row without any key has no softmax
            seen = (seen & tokens[:, None]) | (column == now)
        mask = torch.zeros(seen.shape, dtype=hidden.dtype, device=hidden.device)
        return {"attention_mask": mask.masked_fill(~seen, torch.finfo(hidden.dtype).min)[:, None], **rotary}

    # -- training and cost -------------------------------------------------------------------------------------------

    def before_step(self, seed: int) -> None:
        """See `LanguageModel.before_step`: r and the noise are the step's."""
        self._step = seed

    def after_step(self) -> None:
        """See `LanguageModel.after_step`."""
        self._step = None

    def _mean_turns(self, settings: dict[str, Any]) -> float:
        """The mean of r at a step, `settings` without it."""
        mean = settings.pop("turns", self.config.turns)
        if not mean >= 1:
            raise InputError(f"phases.model.turns is {mean}: set 1 or more")
        return mean

    def training_settings(self) -> dict[str, tuple[float, float]]:
        return {"turns": (1, math.inf)}

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """The mean next-token cross-entropy after r turns (section 3.3), in training mode drawn for the step.

        Outside `mentalese train`, where nobody tells the model of its steps, r is drawn for each batch, the same on all
        ranks; in evaluation mode it is the mean.

        Args:
            settings: `turns`, in place of the config's: the mean of r.
        """
        mean = self._mean_turns(settings)
        weights = self.target_weights(batch, **settings)
        turns, seed = round(mean), 0
        if self.training:
            seed = shared_seed() if self._step is None else self._step
            turns = drawn_turns(mean, self.config.turns_spread, seed)
        encoded = self._read(batch["input_ids"], batch.get("attention_mask"), turns, seed)
        loss = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        return LossOutput(*loss, {"turns": loss[1].new_tensor(float(turns))}, encoded=lambda: encoded)

    def _flops(self, batch: Batch) -> tuple[int, int]:
        """FLOPs of a forward pass without any turn, and of one turn."""
        rows, length = batch["input_ids"].shape
        config, inner = self.config, self.backbone.config
        prelude, block, coda = (
            linear_weights(nn.ModuleList(self.layers[i] for i in part))
            + len(part) * (2 * length * attention_width(inner) // inner.num_hidden_layers)
            for part in self._parts
        )
        once = prelude + coda + self.output_weight().numel()
        return 2 * rows * length * once, 2 * rows * length * (block + 2 * config.hidden_size**2)

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`: at `config.turns`, where no token stops before."""
        once, turn = self._flops(batch)
        return once + self.config.turns * turn

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """See `LanguageModel.training_flops`: at the r of the step; outside of one at the mean r."""
        mean, spread = self._mean_turns(settings), self.config.turns_spread
        seeds = range(_DRAWS) if self._step is None else (self._step,)
        drawn = [drawn_turns(mean, spread, seed) for seed in seeds]
        with_gradient = sum(min(r, self.config.backprop_turns) for r in drawn)
        once, turn = self._flops(batch)
        return 3 * once + turn * (sum(drawn) + 2 * with_gradient) // len(drawn)

    def compiled_parts(self) -> list[nn.Module]:
        """The layers: how often they run differs from step to step."""
        return list(self.layers)

    def scoring_protocol(self, estimator: str) -> dict[str, Any]:
        """See `LanguageModel.scoring_protocol`."""
        stops = {} if self.config.exit_distance is None else {"exit_distance": self.config.exit_distance}
        return {"turns": self.config.turns} | stops

    # -- traces ------------------------------------------------------------------------------------------------------

    def _predicted(self, hidden: Tensor, at: Tensor) -> Tensor:
        """Logits [B, m, v] of states [B, L, d] in columns [m]."""
        return self.get_output_embeddings()(hidden[:, at])

    def fill(self, traces: list[ThoughtTrace], encoded: LoopedEncoded, real: Tensor) -> None:
        """What the model would have predicted after each turn, and how far each turn moved the state.

        The thoughts are the last states, one a token. Scores `surprisal.TURN` and readings `predicted.TURN` are those
        if that turn were the last.
        """
        assert encoded.taken is not None
        turns = encoded.taken.float().masked_fill(~real, torch.nan)
        for row, trace in enumerate(traces):
            trace.scores["turns"] = turns[row]
            trace.curves["moved"] = torch.stack([moved[row][real[row]].mean() for moved in encoded.moved])
        ids, scored = torch.stack([trace.input_ids for trace in traces]), follows(real)
        by_turn = [self.text_traces(ids, scored, partial(self._predicted, hidden)) for hidden in encoded.by_turn]
        for row, trace in enumerate(traces):
            as_last = [others[row] for others in by_turn]
            trace.scores |= {f"surprisal.{t}": other.scores["surprisal"] for t, other in enumerate(as_last, 1)}
            trace.readings |= {f"predicted.{t}": other.readings["predicted"] for t, other in enumerate(as_last, 1)}
            if bool(scored[row].any()):
                means = [other.scores["surprisal"].nanmean() for other in as_last]
                trace.curves["surprisal_by_turn"] = torch.stack(means)
            for column in real[row].nonzero()[:, 0].tolist():
                trace.thoughts.append(Thought(encoded.states[-1][row, column].detach(), column, column + 1, "state"))
