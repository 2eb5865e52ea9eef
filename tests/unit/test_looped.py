"""Recurrent depth: the fast model is the plain one, turn by turn, with and without a cache."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from mentalese import get_recipe
from mentalese.analyses.figures import write_figure
from mentalese.errors import InputError
from mentalese.families.looped import plain
from mentalese.families.looped.config import BACKBONES, LoopedConfig
from mentalese.families.looped.figures import DOCUMENTS, EXIT_DOCUMENTS
from mentalese.families.looped.model import LoopedForCausalLM, exit_distribution
from mentalese.families.looped.plain import Keep, Looped, drawn_turns, initial_state
from mentalese.families.looped.recipes import grown, shape_of
from mentalese.models.checkpoints import load_model
from mentalese.models.grow import grow
from mentalese.models.saved import load
from mentalese.testing.runs import rotary_flops
from support import saved, shrink, training_losses

BACKBONE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
GATED = {"exit_entropy": 0.1, "exit_probability": 0.7}
IDS = torch.tensor([3, 7, 7, 1, 9, 4, 0, 5])
ROWS = torch.stack((IDS, IDS.flip(0).roll(3)))


def made(**fields: Any) -> LoopedForCausalLM:
    """An untrained model in float64, with weights large enough that turns differ."""
    torch.manual_seed(0)
    backbone = BACKBONE | fields.pop("backbone", {})
    model = LoopedForCausalLM(LoopedConfig(backbone=backbone, vocab_size=11, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(6)
    return model.double().eval()


def plain_of(model: LoopedForCausalLM) -> Looped:
    """The plain model with the same weights, in the same mode."""
    return Looped(model.config).double().load(model.state_dict()).train(model.training)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norms": "own", "turns": 3},
        {"turns": 5, "backprop_turns": 2},
        {"turns": 1},
        {"prelude_layers": 0, "coda_layers": 0},
        {"turns": 6, "exit_distance": 0.4},
        {"turns": 6, **GATED},
    ],
    ids=["sandwich", "own", "truncated", "once", "block-alone", "exit", "gate"],
)
def test_the_model_is_the_plain_one(fields: dict[str, Any]) -> None:
    model = made(**fields)
    reading = plain_of(model).read(ROWS, model.config.turns)
    encoded = model.encode(ROWS, trace=True)
    torch.testing.assert_close(encoded.hidden, reading.hidden, atol=1e-6, rtol=1e-6)
    assert torch.equal(encoded.taken, reading.turns)
    for state, expected in zip(encoded.states, reading.states):
        torch.testing.assert_close(state, expected, atol=1e-6, rtol=1e-6)
    if model.config.may_stop:
        assert len(set(encoded.taken.flatten().tolist())) > 1, "the test shows nothing if all tokens stop together"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"turns": 5, "backprop_turns": 2},
        {"norms": "own"},
        {"exit_entropy": 0.3},
        {"turns": 5, "backprop_turns": 2, "exit_entropy": 0.3, "prelude_layers": 0, "coda_layers": 0},
        {"exit_distance": 2.0},
        GATED,
    ],
)
def test_gradients_are_those_of_the_plain_one(fields: dict[str, Any]) -> None:
    """In training; there no token stops early, whatever the rule for test time (section 6.1)."""
    model = made(**fields).train()
    expected = plain_of(model)
    seed = 3  # it draws 5 turns, or 7
    model.before_step(seed)
    model.training_loss({"input_ids": ROWS, "labels": ROWS}).loss.backward()
    expected.loss(ROWS, seed).backward()
    gradients = {plain.plain_name(name): parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-6, msg=name)


def test_a_gate_weighs_turns_that_all_have_a_gradient() -> None:
    """Zhu et al. (arXiv 2510.25741), Eq. 4: `backprop_turns` is of models without a gate."""
    batch, gradients, costs = {"input_ids": ROWS, "labels": ROWS}, [], []
    for last in (1, 5):
        model = made(turns=5, backprop_turns=last, exit_entropy=0.3).train()
        model.before_step(0)
        model.training_loss(batch).loss.backward()
        gradients.append(model.adapter.weight.grad)
        costs.append(model.training_flops(batch))
    torch.testing.assert_close(*gradients)
    assert costs[0] == costs[1]


def test_a_gate_learns_as_the_plain_one_and_nothing_else_does() -> None:
    """Zhu et al. (arXiv 2510.25741), Eq. 5 and 6: the second stage trains the gate of a frozen model."""
    model = made(exit_entropy=0.3)
    expected = plain_of(model)
    output = model.training_loss({"input_ids": ROWS, "labels": ROWS}, gate_only=1)
    output.loss.backward()
    loss = expected.gate_loss(ROWS, 0, model.config.turns)
    loss.backward()
    torch.testing.assert_close(output.loss, loss, check_dtype=False)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.startswith("exit_gate."), name
    for one, other in zip(model.exit_gate.parameters(), expected.exit_gate.parameters()):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_the_chances_of_exits_add_up_to_one(turns: int) -> None:
    """Zhu et al., Eq. 3; the gate of the last turn has no part in it."""
    gates = 4 * torch.randn(turns, 3, 7)
    p = exit_distribution(gates).exp()
    torch.testing.assert_close(p.sum(0), torch.ones(3, 7))
    chances = gates.sigmoid()
    for t in range(turns):
        expected = (1 - chances[:t]).prod(0) * (chances[t] if t < turns - 1 else 1)
        torch.testing.assert_close(p[t], expected)


@pytest.mark.slow
def test_entropy_alone_teaches_a_gate_to_exit_anywhere() -> None:
    """Zhu et al., Eq. 4: with a large beta, exits after all turns become equally likely (the uniform prior)."""
    model, batch = made(exit_entropy=100.0).float(), {"input_ids": ROWS, "labels": ROWS}
    optimizer = torch.optim.Adam(model.exit_gate.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        output = model.training_loss(batch)
        output.loss.backward()
        optimizer.step()
    entropy = (output.metrics["nll"] - output.loss) / 100  # what is left is at most a hundredth of the losses
    assert entropy.item() == pytest.approx(math.log(4), abs=0.1)


@pytest.mark.parametrize(("probability", "turns"), [(0.0, 1), (1.0, 6)])
def test_a_gate_stops_all_tokens_at_zero_and_none_at_one(probability: float, turns: int) -> None:
    gated = made(turns=6, exit_entropy=0.1, exit_probability=probability)
    encoded = gated.encode(ROWS)
    assert encoded.taken.unique().tolist() == [turns]
    gated.config.exit_probability, gated.config.turns = None, turns
    torch.testing.assert_close(encoded.hidden, gated.encode(ROWS).hidden)


@pytest.mark.parametrize("fields", [{}, {"exit_entropy": 0.1}])
def test_the_plain_model_trains_by_itself(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Looped(made(**fields).config)
    losses = training_losses(model, lambda seed: model.loss(ROWS, seed), steps=30)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_turns": 2},
        {"cache_turns": 3, "exit_distance": 0.4},
        {"exit_distance": 0.4},
        {"cache_turns": 3} | GATED,
        GATED,
    ],
)
def test_one_token_after_the_other_is_the_plain_one(fields: dict[str, Any]) -> None:
    """With fewer slots than turns, a token reads what later turns of earlier tokens have left (section 6.2)."""
    model = made(turns=6, **fields)
    cache, hidden = model.new_cache(), []
    with torch.no_grad():
        for token in IDS:
            hidden.append(model.encode(token.view(1, 1), cache=cache).hidden[0, 0])
        expected = token_by_token(plain_of(model), IDS)
    torch.testing.assert_close(torch.stack(hidden), expected, atol=1e-6, rtol=1e-6)


class Slots:
    """Keys and values of one layer: a list of tokens in each slot, of which a later turn may overwrite the newest."""

    def __init__(self, count: int) -> None:
        self.kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(count)]

    def at(self, slot: int, token: int) -> Keep:
        def keep(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.kept[slot][token:] = [(keys, values)]
            both = [torch.cat(parts, dim=2) for parts in zip(*self.kept[slot])]
            return both[0], both[1]

        return keep

    def fill(self, token: int, last: int, turns: int) -> None:
        """Write what a token was at its last turn into the slots of the turns that it skips."""
        count = len(self.kept)
        for turn in range(last + 1, turns):
            self.kept[turn % count][token:] = [self.kept[last % count][token]]


def token_by_token(model: Looped, ids: torch.Tensor) -> torch.Tensor:
    """Return the hidden states [length, hidden] of a row whose tokens take all of their turns one after the other."""
    config, (prelude, block, coda), hidden = model.config, model.parts, []
    count = min(config.turns, config.cache_turns or config.turns)
    once, often = [Slots(1) for _ in model.layers], [Slots(count) for _ in block]
    every = torch.arange(len(ids))
    starts = initial_state(ids[None], every[None], config.hidden_size, 0).double()
    for i, token in enumerate(ids):
        position = every[i : i + 1]
        x = config.embedding_scale * model.embed_tokens(token.view(1, 1))
        injected = plain.run(prelude, x, position, [slots.at(0, i) for slots in once[: len(prelude)]])
        state, survival = starts[:, i : i + 1], 1.0
        for turn in range(config.turns):
            new = model.turn(state, injected, position, [slots.at(turn % count, i) for slots in often])
            small = config.exit_distance is not None and (new - state).norm() < config.exit_distance * new.norm()
            state = new
            if config.exit_probability is not None:
                survival *= 1 - model.exit_chance(state).item()
                small = 1 - survival >= config.exit_probability
            if small:
                break
        for slots in often:
            slots.fill(i, turn, config.turns)
        last = plain.run(coda, state, position, [slots.at(0, i) for slots in once[len(model.layers) - len(coda) :]])
        hidden.append(model.norm(last)[0, 0])
    return torch.stack(hidden)


@pytest.mark.parametrize("fields", [{"exit_distance": 0.4}, GATED])
def test_a_token_stops_at_the_same_turn_in_any_batch(fields: dict[str, Any]) -> None:
    model = made(turns=6, **fields)
    other = torch.tensor([2, 2, 8, 6, 1])
    rows = torch.stack((IDS, torch.nn.functional.pad(other, (3, 0))))
    mask = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
    with torch.no_grad():
        batch, alone = model.encode(rows, mask), [model.encode(row[None]) for row in (IDS, other)]
    for found, begin, one in zip(range(2), (0, 3), alone):
        assert torch.equal(batch.taken[found, begin:], one.taken[0])
        torch.testing.assert_close(batch.hidden[found, begin:], one.hidden[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("cache_turns", [1, 2, 3, None])
@pytest.mark.parametrize("rule", [{"exit_distance": 0.4}, GATED | {"exit_probability": 0.9}])
def test_a_token_leaves_the_same_keys_in_any_batch(rule: dict[str, Any], cache_turns: int | None) -> None:
    """Also where its turns wrap around the slots, and only the tokens beside it go on."""
    model = made(turns=6, cache_turns=cache_turns, **rule)

    def read(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = model.new_cache()
        parts = [model.encode(column, cache=cache) for column in rows.split([4, 1, 1, 2], dim=1)]
        return torch.cat([part.hidden for part in parts], 1), torch.cat([part.taken for part in parts], 1)

    with torch.no_grad():
        (hidden, taken), *single = (read(rows) for rows in (ROWS, *ROWS.split(1)))
    assert (taken[0] != taken[1]).any(), "the test shows nothing if both rows stop together"
    torch.testing.assert_close(hidden, torch.cat([one for one, _ in single]), atol=1e-6, rtol=1e-6)


def test_a_trace_has_all_turns_where_all_tokens_stop_early() -> None:
    """Windows of a long text are joined, and have to have the same scores."""
    model = made(turns=6, exit_distance=2.0)
    traced, encoded = model.encode(ROWS, trace=True), model.encode(ROWS)
    assert len(traced.states) == len(traced.moved) == 6 > int(encoded.taken.max())
    assert torch.equal(traced.taken, encoded.taken)
    torch.testing.assert_close(traced.hidden, encoded.hidden)


def test_nothing_removed_from_turn_to_turn_is_one_turn() -> None:
    """The control costs what all turns do, and predicts what the first of them would."""
    once, control = made(turns=1), made(turns=4, thought_control="removed")
    control.load_state_dict(once.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(control.encode(IDS[None]).hidden, once.encode(IDS[None]).hidden)
        assert not torch.allclose(made(turns=4).encode(IDS[None]).hidden, once.encode(IDS[None]).hidden, atol=1e-2)
    batch = {"input_ids": IDS[None]}
    assert control.forward_flops(batch) == made(turns=4).forward_flops(batch)


def test_one_pass_shows_every_number_of_turns() -> None:
    model = made(turns=5)
    with torch.no_grad():
        by_turn = model.encode(IDS[None], trace=True).by_turn
        for turns, hidden in enumerate(by_turn, 1):
            model.config.turns = turns
            torch.testing.assert_close(hidden, model.encode(IDS[None]).hidden)


def test_the_mean_of_what_is_drawn_is_the_one_asked_for() -> None:
    """Eq. 1 and 2: one turn at least, and a heavy tail."""
    drawn = torch.tensor([float(drawn_turns(8, seed)) for seed in range(4000)])
    assert drawn.mean().item() == pytest.approx(8, abs=0.25)
    variance = 7 + 49 * (math.exp(0.25) - 1)  # of a Poisson number and of its log-normal rate
    assert drawn.var().item() == pytest.approx(variance, rel=0.15)
    assert drawn.min() >= 1
    assert {drawn_turns(1, seed) for seed in range(9)} == {1}


def test_a_step_draws_turns_once_and_counts_their_cost() -> None:
    model = made(turns=6, backprop_turns=2).train()
    batch = {"input_ids": IDS[None], "labels": IDS[None]}
    seen, costs = set(), set()
    prelude, turn, read = model._flops(batch)
    once = prelude + read
    for seed in range(8):
        model.before_step(seed)
        losses = [model.training_loss(batch) for _ in range(2)]
        assert torch.equal(losses[0].loss, losses[1].loss)
        turns = int(losses[0].metrics["turns"])
        assert model.training_flops(batch) == 3 * once + turn * (turns + 2 * min(turns, 2))
        seen, costs = seen | {turns}, costs | {model.training_flops(batch)}
        model.after_step()
    assert len(seen) > 3
    assert min(costs) < model.training_flops(batch) < max(costs), "outside of a step it is the mean"
    model.before_step(0)
    assert float(model.training_loss(batch, turns=1.0).metrics["turns"]) == 1


@pytest.mark.parametrize("settings", [{}, {"gate_only": 1}])
def test_a_step_with_a_gate_costs_what_pytorch_counts(settings: dict[str, float]) -> None:
    model = made(turns=3, exit_entropy=0.1).float().train()
    batch = {"input_ids": IDS[None], "labels": IDS[None]}
    for seed in range(2):  # it always takes all turns, and reads each
        model.before_step(seed)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model.training_loss(batch, **settings).loss.backward()
        assert model.training_flops(batch, **settings) == pytest.approx(counter.get_total_flops(), rel=0.05)
    model.config.exit_probability = 1.0
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.eval()(IDS[None], use_cache=False)
    assert model.forward_flops(batch) == counter.get_total_flops() - rotary_flops(counter)


def test_a_cache_knows_the_turns_it_was_written_at() -> None:
    model = made(turns=3)
    cache = model(IDS[None], use_cache=True).past_key_values
    model.config.turns = 4
    with pytest.raises(InputError, match=r"config\.turns is 4: the cache was written at 3"):
        model(IDS[:1, None], past_key_values=cache)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prelude_layers": 2, "coda_layers": 2}, "none is left for the block"),
        ({"turns": 0}, "looped.turns is 0"),
        ({"backprop_turns": 0}, "looped.backprop_turns is 0"),
        ({"exit_distance": 0.0}, "looped.exit_distance is 0.0"),
        ({"cache_turns": 0}, "looped.cache_turns is 0"),
        ({"exit_entropy": -0.1}, "looped.exit_entropy is -0.1"),
        ({"exit_entropy": 0.1, "exit_probability": 1.5}, "looped.exit_probability is 1.5"),
        ({"exit_probability": 0.5}, "looped.exit_probability is 0.5: the model has no gate"),
        (GATED | {"exit_distance": 0.1}, "looped.exit_probability is 0.7: tokens stop by exit_distance already"),
        ({"turns": 1, "thought_control": "removed"}, "no thoughts to control"),
        ({"backbone": {"model_type": "gpt2"}}, "looped.backbone.model_type is 'gpt2'"),
    ],
)
def test_what_cannot_be_built_says_why(fields: dict[str, Any], said: str) -> None:
    backbone = fields.pop("backbone", BACKBONE)
    with pytest.raises(InputError, match=re.escape(said)):
        LoopedConfig(backbone=backbone, vocab_size=11, **fields)


@pytest.mark.parametrize("kind", BACKBONES)
def test_every_backbone_is_read_as_it_reads_itself(kind: str) -> None:
    """Its layers in a row, with the block once and reading e alone, are the decoder."""
    model = made(backbone={"model_type": kind}, norms="own", turns=1)
    model.start_from_backbone()
    mask = torch.ones(1, 8, dtype=torch.long)
    mask[0, :2] = 0
    with torch.no_grad():
        for given in (None, mask):
            own, plain_ = model(IDS[None], attention_mask=given), model.backbone(IDS[None], attention_mask=given)
            torch.testing.assert_close(own.logits[:, 2:], plain_.logits[:, 2:], atol=1e-6, rtol=1e-6)


# -- growing -----------------------------------------------------------------------------------------------------------


def saved_llama(tokenizer: Any, folder: Path, layers: int) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=layers, **sizes))
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder / "base"


def test_a_grown_model_predicts_as_its_layers_at_any_turns(tokenizer: Any, tmp_path: Path) -> None:
    """McLeish et al. (arXiv 2511.07384): the first layers are the prelude, the last ones block and coda."""
    base = saved_llama(tokenizer, tmp_path, layers=6)
    grow(str(base), "looped", tmp_path / "grown", prelude_layers=1, block_layers=2, coda_layers=1, turns=3)
    grown, cut = (load_model(path)[0] for path in (tmp_path / "grown", base))
    cut.model.layers = torch.nn.ModuleList(cut.model.layers[i] for i in (0, 3, 4, 5))
    ids = IDS[None]
    with torch.no_grad():
        expected = cut(ids, use_cache=False).logits[..., : len(tokenizer)]
        for turns in (1, 3, 5):
            grown.config.turns = turns
            torch.testing.assert_close(grown(ids, use_cache=False).logits[..., : len(tokenizer)], expected)


def test_a_trained_decoder_gets_no_norms_that_it_does_not_have(tokenizer: Any, tmp_path: Path) -> None:
    base = saved_llama(tokenizer, tmp_path, layers=4)
    with pytest.raises(InputError, match=r"looped\.norms is 'sandwich': .* set 'own'"):
        grow(str(base), "looped", tmp_path / "grown", norms="sandwich")
    assert not (tmp_path / "grown").exists()


def test_trained_decoders_are_cut_as_published() -> None:
    assert (shape_of(22), shape_of(16), shape_of(12)) == ((4, 8, 4), (4, 6, 4), (3, 6, 3))
    llama = {"model_type": "llama", "num_hidden_layers": 22}
    model = grown(llama)["model"]
    assert model["backbone"]["num_hidden_layers"] == 16
    kinds = grown(llama | {"layer_types": [*range(22)]})["model"]["backbone"]["layer_types"]
    assert kinds == [0, 1, 2, 3, *range(10, 22)]
    with pytest.raises(InputError, match="block_layers is 8: the decoder has 12 layers"):
        grown(llama | {"num_hidden_layers": 12}, block_layers=8, prelude_layers=4, coda_layers=4)
    with pytest.raises(InputError, match=r"backbone.model_type is 'gpt2': use one of llama, mistral, qwen2, qwen3"):
        grown({"model_type": "gpt2", "n_layer": 12})


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_figure_has_perplexity_at_every_number_of_turns(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("looped/tiny"), corpus)
    run = saved(tmp_path / "run", recipe)
    exits = shrink(get_recipe("looped/tiny-exit"), corpus)
    gated = [saved(tmp_path / f"gated-{p}", exits, exit_probability=p) for p in (None, 0.1)]
    write_figure("looped/turns", [str(path) for path in (run, *gated)], tmp_path / "turns.svg")
    model, *others = json.loads((tmp_path / "turns.json").read_text())["models"]
    assert others[0]["perplexity"] == others[1]["perplexity"], "all turns are taken, whatever the model's rule"
    assert list(model["perplexity"]) == list(model["moved"]) == [str(t) for t in range(1, 17)]
    read = load(str(run)).scored_by(max_documents=DOCUMENTS)
    for turns in (1, 4, 9):
        read.model.config.turns = turns
        assert model["perplexity"][str(turns)] == pytest.approx(
            read.perplexity(read.split("test")).perplexity, rel=1e-5
        )
    once = saved(tmp_path / "once", recipe, turns=1)
    with pytest.raises(InputError, match="has no block that is run several times"):
        write_figure("looped/turns", [str(once)], tmp_path / "once.svg")


@pytest.mark.slow
def test_the_figure_of_exits_has_a_score_for_every_threshold(corpus: Path, tmp_path: Path) -> None:
    gated, plain_ = (shrink(get_recipe(name), corpus) for name in ("looped/tiny-exit", "looped/tiny"))
    runs = [
        saved(tmp_path / "gated", gated),
        saved(tmp_path / "other", gated, exit_probability=0.5),
        saved(tmp_path / "plain", plain_),
    ]
    write_figure("looped/exits", [str(run) for run in runs], tmp_path / "exits.svg")
    one, other, control = json.loads((tmp_path / "exits.json").read_text())["models"]
    assert "exit_probability" not in control
    assert one["exit_probability"] == other["exit_probability"], "the figure sets the rule, not the model"
    assert [taken for _, taken, _ in one["turns"]] == [1, 2, 3, 4]
    turns = [taken for _, taken, _ in one["exit_probability"]]
    assert turns == sorted(turns)
    assert turns[0] < turns[-1]
    read = load(str(runs[1])).scored_by(max_documents=EXIT_DOCUMENTS)
    values, _, perplexities = zip(*one["exit_probability"])
    score = read.perplexity(read.split("test")).perplexity
    assert perplexities[values.index(0.5)] == pytest.approx(score, rel=1e-5)
