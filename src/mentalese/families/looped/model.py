"""Recurrent depth, fast: padded rows, a cache, and any decoder of Hugging Face. `plain.py` has the method.

Training draws r at each step and sends gradients through the last k turns. At test time r is any number, and a token
may stop when its state hardly moves, or when a gate lets it exit. Each turn has its own keys and values.

A token costs, with w weights of the linear maps of a layer, a its attention to L tokens, 2 L times the heads' width,
d hidden size and v vocabulary, in multiply-adds:

    C(r) = (l_P + l_C) (w + a) + r (l_R (w + a) + 2 d^2) + d v

A forward pass is 2 C(r) FLOPs, a step of training 6 C(r) less 4 for each turn without a gradient. With a gate, training
runs the coda and the head after every turn.

Sections and equations are the paper's, or named as Ouro's (`plain.py`). Letters in shapes: B rows of L tokens, d
hidden size, r turns.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicLayer, GradientCheckpointingLayer
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.looped.config import LoopedConfig
from mentalese.families.looped.plain import LEAST, SLOPE, drawn_turns, initial_state
from mentalese.models.backbone import attention_masks, attention_width, linear_weights
from mentalese.models.base import LossOutput, follows
from mentalese.models.cache import FixedKeys, ThoughtCache, fixed_columns, write_at
from mentalese.models.hf import Encoded, Limits
from mentalese.models.lora import BACKBONE_TARGETS
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import CACHE, attention_of
from mentalese.models.wrapped import LayeredDecoder, TokenLayout
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED, linear_nll, linear_nll_sum
from mentalese.nn.noise import shared_seed

DRAWS = 256  # of r, for the mean cost of a step
Pair = tuple[Tensor, Tensor]
"""Keys and values [B, heads, tokens, d / heads]."""


class SandwichLayer(GradientCheckpointingLayer):
    """A decoder layer, whose modules, names and weights remain, with two more norms, one after each sum (section 3.2).

    x = n_2(x + Attn(n_1(x))),  x = n_4(x + MLP(n_3(x)))
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.attention_out_norm = copy.deepcopy(layer.input_layernorm)
        self.mlp_out_norm = copy.deepcopy(layer.input_layernorm)

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the states [B, L, d] after the layer; the options go to the decoder's attention."""
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        x = self.attention_out_norm(hidden_states + attended)
        return self.mlp_out_norm(x + self.mlp(self.post_attention_layernorm(x)))


class LoopedCache(ThoughtCache):
    """Keys and values of layers in the order in which a token passes through them, the block once per slot.

    Turn t writes slot t mod `slots` (section 6.2).

    Attributes:
        turns: turns of the model that writes the cache.
        turn: the current turn.
        stopped: bool [B, 1, L, 1], tokens of this call that have stopped and keep their last keys and values
            (section 6.1). `None`: none.
    """

    def __init__(self, config: LoopedConfig, slots: int | None = None) -> None:
        self.turns, self.turn = config.turns, 0
        self.slots = slots or min(config.turns, config.cache_turns or config.turns)
        self.block = config.parts[1]
        self.stopped: Tensor | None = None
        super().__init__(config.num_hidden_layers + (self.slots - 1) * len(self.block))

    def of(self, layer: int) -> DynamicLayer | StoppedKeys:
        """Return the keys and values of a layer from earlier calls, to which this turn appends."""
        stopped = self.stopped if layer in self.block else None
        latest = None if stopped is None else self._of_call(layer, self.turn - 1, stopped.shape[2])
        cache = self._emptied(layer, self.turn)
        return cache if stopped is None or latest is None else StoppedKeys(cache, stopped, latest)

    def fill(self, length: int) -> None:
        """Copy this turn's keys and values of a call to the slots of turns that all its tokens skip.

        Slots that an earlier turn wrote are among them, as for a token that stops while others of its batch go on.
        """
        skipped = range(self.turn + 1, min(self.turns, self.turn + self.slots))
        for turn, layer in itertools.product(skipped, self.block):
            self._emptied(layer, turn).update(*self._of_call(layer, self.turn, length))

    def _emptied(self, layer: int, turn: int) -> Any:
        """Return what `_held` does, without keys and values of this call, which an earlier turn has written."""
        cache = self._held(layer, turn)
        if cache.get_seq_length() > self.seen_tokens and not isinstance(cache, FixedKeys):
            cache.keys, cache.values = cache.keys[:, :, : self.seen_tokens], cache.values[:, :, : self.seen_tokens]
        return cache

    def _held(self, layer: int, turn: int) -> Any:
        """Return the `DynamicLayer` or `FixedKeys` of a layer at a turn."""
        before = turn % self.slots if layer in self.block else 0 if layer < self.block.start else self.slots - 1
        return self.layers[layer + before * len(self.block)]

    def _of_call(self, layer: int, turn: int, length: int) -> Pair:
        """Return the keys and values of this call's tokens after a turn."""
        layer_cache, now = self._held(layer, turn), slice(self.seen_tokens, self.seen_tokens + length)
        return layer_cache.keys[:, :, now], layer_cache.values[:, :, now]


class StoppedKeys:
    """The cache `held` of a layer in a turn that some tokens skip.

    Tokens of this call that are `stopped`, bool [B, 1, L, 1], keep their `latest` keys and values, from the
    previous turn.
    """

    def __init__(self, held: DynamicLayer, stopped: Tensor, latest: Pair) -> None:
        self.held, self.stopped, self.latest = held, stopped, latest

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> Pair:
        keys = torch.where(self.stopped, self.latest[0], keys)
        return self.held.update(keys, torch.where(self.stopped, self.latest[1], values))


@dataclass(kw_only=True)
class LoopedEncoded(Encoded):
    """Final hidden states and, for a trace, the states of all turns.

    Attributes:
        taken: [B, L], the number of turns of each token.
        states: s_t [B, L, d] after each turn, only for a trace.
        by_turn: [B, L, d] for each turn, the input of the head if this turn were the last; only for a trace all turns.
        moved: [B, L] for each turn, the distance that it moved the state, as a share of the state's length.
    """

    taken: Tensor | None = None
    states: list[Tensor] = field(default_factory=list)
    by_turn: list[Tensor] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)


def exit_distribution(gates: Tensor) -> Tensor:
    """Return log p(t) [r, ..], the chances of an exit after each turn (Ouro, Eq. 3), for logits of lambda like them."""
    go_on, last = F.logsigmoid(-gates[:-1]).cumsum(0), torch.zeros_like(gates[-1:])
    return torch.cat((last, go_on)) + torch.cat((F.logsigmoid(gates[:-1]), last))


class LoopedForCausalLM(LayeredDecoder[LoopedEncoded]):
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
        self.exit_gate = nn.Linear(config.hidden_size, 1) if config.exit_entropy is not None else None
        self.post_init()

    def initialize(self, module: nn.Module) -> None:
        """Initialise by the backbone's rule; sandwich layers write less in deeper models (section 4.1).

        The release also makes the MLP's up map smaller, which the paper does not state (README).
        """
        super().initialize(module)
        if module is not self or self.config.norms == "own":  # called last: the backbone initialises its own layers
            return
        passed = self.config.num_hidden_layers + (self.config.turns - 1) * len(self.config.parts[1])  # layers, l
        std = self.config.initializer_range / math.sqrt(2 * passed)
        for name, weight in self.layers.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                init.normal_(weight, std=std)

    @property
    def limits(self) -> Limits:
        loss = "drawn numbers of turns" if self.exit_gate is None else "turns before the last one"
        return Limits(static_cache=None, loss=loss)

    # -- growing -----------------------------------------------------------------------------------------------------

    def cut(self, base: Any) -> Any:
        """Remove the layers of a trained decoder between prelude and block that this model lacks."""
        layers, first = getattr(base.base_model, self.places.layers), self.config.prelude_layers
        after = first + max(0, len(layers) - self.config.num_hidden_layers)
        setattr(base.base_model, self.places.layers, nn.ModuleList([*layers[:first], *layers[after:]]))
        base.config.num_hidden_layers -= after - first
        if getattr(base.config, "layer_types", None):
            base.config.layer_types = [*base.config.layer_types[:first], *base.config.layer_types[after:]]
        return base

    def start_from_backbone(self) -> None:
        """Make the block read only e, so that any number of turns predicts as the layers in sequence do."""
        remedy = "a trained decoder does not have these norms, and the model would not start as it; set 'own'"
        self.config.require(self.config.norms == "own", "norms", remedy)
        with torch.no_grad():
            width = self.config.hidden_size
            self.adapter.weight.copy_(torch.cat((torch.zeros(width, width), torch.eye(width)), dim=1))

    # -- a pass ------------------------------------------------------------------------------------------------------

    def new_cache(self) -> LoopedCache:
        return LoopedCache(self.config)

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        turns: int | None = None,
        seed: int = 0,
    ) -> LoopedEncoded:
        """Return final hidden states [B, L, d] after some turns, that continue and update `cache`.

        Args:
            turns: number of turns, without a cache; `None`: `config.turns`.
            seed: seeds the noise that states begin with.

        Raises:
            InputError: a cache that another number of turns wrote.
        """
        assert cache is None or isinstance(cache, LoopedCache)
        turns = self.config.turns if turns is None else turns
        if cache is not None and cache.turns != turns:
            raise InputError(
                f"config.turns is {turns}: the cache was written at {cache.turns}; set that, or begin with a new cache"
            )
        config, (prelude, block, coda) = self.config, self.config.parts
        past = 0 if cache is None else cache.seen_tokens
        layout = self.token_layout(input_ids, attention_mask, cache)
        positions = layout.positions
        if positions is None:
            positions = torch.arange(past, past + input_ids.shape[1], device=input_ids.device)[None]
        embedded = config.embedding_scale * self.get_input_embeddings()(input_ids)
        options = self._options(embedded, layout, positions, cache)
        may_stop = config.may_stop and not self.training
        keys = cache
        if cache is None and may_stop:  # needed after a token has stopped
            keys = LoopedCache(config, slots=1)

        injected = self._run(prelude, embedded, options, keys)
        start = initial_state(input_ids, positions, config.hidden_size, seed).to(injected.dtype)
        state, encoded = start, LoopedEncoded(hidden=start)
        running = torch.ones_like(input_ids, dtype=torch.bool) if layout.real is None else layout.real
        survival: Tensor | float = 1.0  # the chance that a token has not exited
        for turn in range(turns):
            if keys is not None:
                keys.turn = turn
            read = controlled(state, config.thought_control, start, turn - 1, layout.real) if turn else state
            with torch.set_grad_enabled(torch.is_grad_enabled() and turn >= config.turns_without_gradient(turns)):
                new = self._run(block, self.adapter(torch.cat((read, injected), dim=-1)), options, keys)
                new = new if self.block_norm is None else self.block_norm(new)  # R(e, s), section 3.2
            encoded.taken = running.long() if encoded.taken is None else encoded.taken + running
            if not trace and not may_stop:
                state = new
                continue
            change, length = (x.detach().float().norm(dim=-1) for x in (new - state, new))
            state = torch.where(running[..., None], new, state) if may_stop else new
            if trace:
                encoded.states.append(state)
                encoded.moved.append((change / length).masked_fill(~running, 0.0))
            if may_stop and keys is not None:
                if config.exit_distance is not None:
                    running = running & (change >= config.exit_distance * length)
                elif self.exit_gate is not None and config.exit_probability is not None:
                    survival = survival * torch.sigmoid(-self.exit_gate(new)[..., 0].float())
                    running = running & (survival > 1 - config.exit_probability)
                keys.stopped = ~running[:, None, :, None]
                if not trace and not bool(running.any()):  # a trace has all turns: windows of a text are joined
                    keys.fill(input_ids.shape[1])
                    break
        if keys is not None:
            keys.stopped = None
        encoded.by_turn = [self.final_norm(self._run(coda, seen, options, keys)) for seen in encoded.states or [state]]
        encoded.hidden = encoded.by_turn[-1]
        if cache is not None:
            cache.advance(input_ids.shape[1])
        return encoded

    def _run(self, numbers: range, hidden: Tensor, options: dict[str, Any], keys: LoopedCache | None) -> Tensor:
        """Return the states [B, L, d] after these layers."""
        for number in numbers:
            hidden = self.layers[number](hidden, **options, **{CACHE: None if keys is None else keys.of(number)})
        return hidden

    def _options(
        self, hidden: Tensor, layout: TokenLayout, positions: Tensor, cache: LoopedCache | None
    ) -> dict[str, Any]:
        """Return positions and, where attention needs it, a mask; set the columns of a fixed-size cache."""
        past = 0 if cache is None else cache.seen_tokens
        length, end, tokens = hidden.shape[1], past + hidden.shape[1], layout.mask
        columns = None if cache is None else fixed_columns(cache.layers, end)
        (rotary,) = self.places.positions(self.backbone.base_model, hidden, positions, 1)
        causal = attention_of(self.backbone.config) == "sdpa" and not past  # it creates such a mask itself
        if columns is None and tokens is None and (length == 1 or causal):
            return {"attention_mask": None, **rotary}
        if cache is not None and columns is not None:
            write_at(cache.layers, past, end)
        if tokens is None:
            tokens = torch.ones(1, end, dtype=torch.bool, device=hidden.device)
        tokens = F.pad(tokens, (0, (columns or end) - end))
        masks = attention_masks(self.backbone.config, tokens, tokens.cumsum(1) - 1, past, hidden.dtype, end)
        return {"attention_mask": masks["full_attention"] if isinstance(masks, dict) else masks, **rotary}

    # -- training and cost -------------------------------------------------------------------------------------------

    def training_settings(self) -> dict[str, tuple[float, float]]:
        ranges = {"turns": (1.0, math.inf), "gate_only": (1.0, 1.0)}
        return ranges if self.exit_gate is not None else {"turns": ranges["turns"]}

    def training_loss(self, batch: Batch, **settings: float) -> LossOutput:
        """Return the mean next-token cross-entropy after r turns (section 3.3), in training mode drawn for the step.

        Outside `mentalese train`, where steps are unknown, r is drawn for each batch, the same on all ranks; in
        evaluation mode it is the mean. With a gate r is not drawn, and the loss is Ouro's: see `_exit_loss`.

        Args:
            settings: `turns`, the mean of r, instead of the config's; `gate_only`: the gate learns and the rest of
                the model gets no gradient (Ouro, section 3.4).
        """
        mean = settings.pop("turns", self.config.turns)
        gate_only = self.exit_gate is not None and bool(settings.pop("gate_only", 0))
        weights = self.target_weights(batch, **settings)
        turns, seed = round(mean), 0
        if self.training:
            seed = shared_seed() if self.step_seed is None else self.step_seed
            turns = drawn_turns(mean, seed) if self.exit_gate is None else turns
        if self.exit_gate is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not gate_only):
                encoded = self.encode(
                    batch["input_ids"], batch.get("attention_mask"), trace=True, turns=turns, seed=seed
                )
            return self._exit_loss(encoded, batch["labels"], gate_only)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"), turns=turns, seed=seed)
        loss = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        return LossOutput(*loss, {"turns": loss[1].new_tensor(float(turns))}, encoded=lambda: encoded)

    def _exit_loss(self, encoded: LoopedEncoded, labels: Tensor, gate_only: bool) -> LossOutput:
        """Return the mean over targets of sum_t p(t) L_t - beta H(p) (Ouro, Eq. 4), or the gate's loss (Eq. 5, 6).

        Metrics are the cross-entropy of the last turn, and the mean number of turns before an exit.
        """
        gate, beta = self.exit_gate, self.config.exit_entropy
        assert gate is not None
        assert beta is not None
        gates = torch.stack([gate(state[:, :-1])[..., 0].float() for state in encoded.states])
        log_p, turns = exit_distribution(gates), len(gates)
        p = log_p.exp()
        hidden = torch.stack(encoded.by_turn)[:, :, :-1].flatten(0, 2)  # of a turn's targets, then the next one's
        targets = labels[:, 1:].expand(turns, -1, -1).flatten()
        counted = (labels[:, 1:] != IGNORED).float()
        share = counted / counted.sum().clamp(min=1)
        if gate_only:
            nll = linear_nll(hidden, self.loss_head(), targets).view_as(p)
            label = torch.sigmoid(SLOPE * ((nll[:-1] - nll[1:]).clamp(min=0) - LEAST))
            each = F.binary_cross_entropy_with_logits(-gates[1:], label, reduction="none").sum(0) / turns
            loss = (share * each).sum()
        else:
            weights = (p.detach() * share).flatten()
            loss, nll = linear_nll_sum(hidden, self.loss_head(), targets, target_weights=weights)
            nll = nll.view_as(p)  # without a gradient: p gets its own by a term whose value is zero
            loss = loss + (share * ((p - p.detach()) * nll + beta * p * log_p).sum(0)).sum()
        number = torch.arange(1, turns + 1, device=p.device)[:, None, None]
        metrics = {"nll": (share * nll[-1]).sum(), "turns": (share * number * p.detach()).sum()}
        return LossOutput(loss, counted.sum(), metrics, encoded=lambda: encoded)

    def _flops(self, batch: Batch) -> tuple[int, int, int]:
        """Return the FLOPs of a forward pass before the turns, of one turn, and of coda and head."""
        rows, length = batch["input_ids"].shape
        config, inner = self.config, self.backbone.config
        prelude, block, coda = (
            linear_weights(nn.ModuleList(self.layers[i] for i in part))
            + len(part) * (2 * length * attention_width(inner) // inner.num_hidden_layers)
            for part in config.parts
        )
        tokens = 2 * rows * length
        turn = block + 2 * config.hidden_size**2
        return tokens * prelude, tokens * turn, tokens * (coda + self.output_weight().numel())

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`; at `config.turns`, without early stops."""
        once, turn, read = self._flops(batch)
        gate = 0 if self.config.exit_probability is None else 2 * batch["input_ids"].numel() * self.config.hidden_size
        return once + self.config.turns * (turn + gate) + read

    def training_flops(self, batch: Batch, **settings: float) -> int:
        """See `LanguageModel.training_flops`; at the r of the step, outside a step at the mean of r."""
        mean = settings.pop("turns", self.config.turns)
        once, turn, read = self._flops(batch)
        seeds = range(DRAWS) if self.step_seed is None else (self.step_seed,)
        samples = [drawn_turns(mean, seed) for seed in seeds]
        if self.exit_gate is not None:  # every turn is read
            samples = [round(mean)]
            read = samples[0] * (read + 2 * batch["input_ids"].numel() * self.config.hidden_size)
            if settings.pop("gate_only", 0):
                return once + samples[0] * turn + read
        without = sum(map(self.config.turns_without_gradient, samples))
        return 3 * (once + read) + turn * (3 * sum(samples) - 2 * without) // len(samples)

    def scoring_protocol(self, estimator: str) -> dict[str, object]:
        values = {name: getattr(self.config, name) for name in ("turns", "exit_distance", "exit_probability")}
        return {name: value for name, value in values.items() if value is not None}

    # -- traces ------------------------------------------------------------------------------------------------------

    def fill(self, traces: list[ThoughtTrace], encoded: LoopedEncoded, real: Tensor) -> None:
        """Add the predictions for each turn as the last, and the distance that each turn moved the state.

        The thoughts are the last states, one per token. Scores `surprisal.TURN` and readings `predicted.TURN` hold if
        that turn were the last.
        """
        assert encoded.taken is not None
        turns = encoded.taken.float().masked_fill(~real, torch.nan)
        for row, trace in enumerate(traces):
            trace.scores["turns"] = turns[row]
            trace.curves["moved"] = torch.stack([moved[row][real[row]].mean() for moved in encoded.moved])
        ids, scored = torch.stack([trace.input_ids for trace in traces]), follows(real)
        as_encoded = [Encoded(hidden=hidden) for hidden in encoded.by_turn]
        by_turn = [self.text_traces(ids, scored, partial(self.logits, each)) for each in as_encoded]
        for row, trace in enumerate(traces):
            as_last = [others[row] for others in by_turn]
            trace.scores |= {f"surprisal.{t}": other.scores["surprisal"] for t, other in enumerate(as_last, 1)}
            trace.readings |= {f"predicted.{t}": other.readings["predicted"] for t, other in enumerate(as_last, 1)}
            if bool(scored[row].any()):
                means = [other.scores["surprisal"].nanmean() for other in as_last]
                trace.curves["surprisal_by_turn"] = torch.stack(means)
            for column in real[row].nonzero()[:, 0].tolist():
                trace.thoughts.append(Thought(encoded.states[-1][row, column].detach(), column, column + 1, "state"))

    def read_thoughts(self, trace: ThoughtTrace) -> list[int]:
        """See `LanguageModel.read_thoughts`: a thought is a turn of all tokens, and the trace has their states."""
        return []
