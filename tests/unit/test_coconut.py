"""Coconut and AGCLR against their plain form, on every kind of backbone; layouts, gates, and what is refused."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.cache_utils import DynamicLayer

from mentalese import recipes
from mentalese.errors import InputError
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.model import CoconutForCausalLM, lay_out
from mentalese.families.coconut.plain import Coconut
from mentalese.models.config import WINDOWED
from mentalese.nn.loss import IGNORED
from support import padded, sharing, training_losses

START, LATENT, END = 1, 2, 3
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neox": SIZES,
    "llama": SIZES | {"num_key_value_heads": 2},
    "qwen2": SIZES | {"num_key_value_heads": 2},
}
ROWS = [
    [10, 11, 12, START, LATENT, LATENT, LATENT, END, 20, 21, 22],
    [13, 14, 15, 16, 17, 18, START, END, 23, 24],  # no latents: cut where the longest question ends
    [10, START, LATENT, END, 30, 31, 32, 33],
    [9, 8, 7, 6, 5, 4, START, LATENT, LATENT, END, 40],
]


def made(backbone: str = "gpt2", **fields: Any) -> CoconutForCausalLM:
    """A random model whose gates say something: W is zero at the start."""
    torch.manual_seed(0)
    inner = {"model_type": backbone, "max_position_embeddings": 64} | BACKBONES[backbone]
    config = CoconutConfig(backbone=inner, vocab_size=60, latent_token_id=LATENT, pad_token_id=0, **fields)
    model = CoconutForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
        for gate in model.concept_stream.gates.values() if model.concept_stream is not None else ():
            gate.weight.normal_(std=0.3)
    return model


def plain_of(model: CoconutForCausalLM) -> Coconut:
    return sharing(Coconut(model.config), model)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((backbone, {"mode": mode}) for backbone in BACKBONES for mode in ("coconut", "agclr", "pause")),
    *(
        ("gpt2", {"mode": "agclr", "gates": tuple({"read", "forget", "write"} - {name})})
        for name in ("read", "forget", "write")
    ),
    ("gpt2", {"mode": "agclr", "write_passes": 2}),
    ("gpt2", {"parallel_passes": 1}),
    ("llama", {"parallel_passes": 2}),
]


@pytest.mark.parametrize(("backbone", "fields"), VARIANTS)
def test_a_ragged_batch_and_its_gradients_match_the_plain_model(backbone: str, fields: dict[str, Any]) -> None:
    model = made(backbone, **fields)
    ids, mask = padded(ROWS)
    hidden = model.encode(ids, mask).hidden
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    (hidden * weights).sum().backward()
    fast = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    plain = [plain_of(model).hidden_states(torch.tensor(row)) for row in ROWS]
    sum((h * weights[i, : len(h)]).sum() for i, h in enumerate(plain)).backward()  # type: ignore[union-attr]
    for i, states in enumerate(plain):
        torch.testing.assert_close(hidden[i, : len(states)], states, atol=1e-5, rtol=1e-5)
        assert not hidden[i, len(states) :].any()
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            fast.get(name, torch.zeros_like(parameter)), expected, atol=2e-4, rtol=2e-4, msg=name
        )


@pytest.mark.parametrize("mode", ["coconut", "agclr", "pause"])
def test_the_loss_is_the_plain_one(mode: str) -> None:
    """Of rows by themselves: a batch weighs rows by their targets, which follow the end marker."""
    model = made(mode=mode, latent_start_token_id=START, latent_end_token_id=END)
    for row, question in zip(map(torch.tensor, ROWS), (3, 6, 1, 6)):
        labels = torch.where(torch.arange(len(row)) <= int((row == END).nonzero()), IGNORED, row)
        output = model.training_loss({"input_ids": row[None], "labels": labels[None]})
        torch.testing.assert_close(output.loss, plain_of(model).loss(row, question), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["coconut", "agclr"])
def test_the_plain_model_trains_by_itself(mode: str) -> None:
    torch.manual_seed(0)
    model = Coconut(made(mode=mode).config)
    losses = training_losses(model, lambda _: model.loss(torch.tensor(ROWS[0]), question=3), steps=15)
    assert losses[-1] < 0.3 * losses[0]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[StorageWeakRef]:
    """The memory of every layer's keys after each pass."""
    refs: list[StorageWeakRef] = []
    update = DynamicLayer.update

    def recorded(layer: DynamicLayer, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = update(layer, *args, **kwargs)
        refs.append(StorageWeakRef(keys.untyped_storage()))
        return keys, values

    monkeypatch.setattr(DynamicLayer, "update", recorded)
    return refs


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["coconut", "agclr"])
@pytest.mark.parametrize("trained", [True, False])
def test_nothing_of_a_step_outlives_it(mode: str, trained: bool, kept: list[StorageWeakRef]) -> None:
    model = made(mode=mode)
    hidden = model.encode(*padded(ROWS)).hidden
    if trained:
        hidden.sum().backward()
    del hidden
    gc.collect()
    assert kept
    assert all(keys.expired() for keys in kept)


@pytest.mark.parametrize(
    ("backbone", "says"),
    [
        ({"model_type": "gemma3n_text"} | SIZES, "coconut.backbone.sliding_window is 512"),
        ({"model_type": "gpt_neo"}, "'gpt_neo': it does not attend in full"),
        ({"model_type": "mpt"}, "'mpt': it does not attend in full|'mpt'"),
        ({"model_type": "mamba"}, "'mamba': it has no attention"),
        (
            {"model_type": "llama"} | SIZES | {"num_key_value_heads": 3},
            "num_key_value_heads is 3: set a divisor",
        ),
        ({"model_type": "llama"} | SIZES | {"num_key_value_heads": 0}, "backbone.num_key_value_heads is 0: set 1 or"),
    ],
)
def test_a_backbone_that_counts_columns_is_refused(backbone: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CoconutConfig(backbone=backbone)


def test_a_window_that_holds_every_position_is_full_attention() -> None:
    inner = {"model_type": "cohere2", "sliding_window": 64, "max_position_embeddings": 64, "num_key_value_heads": 2}
    CoconutConfig(backbone=SIZES | inner)


HALF_WINDOWED = {"layer_types": ["sliding_attention", "full_attention"]}
WINDOWS: dict[str, dict[str, Any]] = {name: {} for name in WINDOWED} | {
    "cohere2": {"logit_scale": 3.0},
    "gemma2": {"final_logit_softcapping": 0.1},
    "gemma3_text": HALF_WINDOWED,
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "mixtral": {"num_local_experts": 2},
    "olmo3": HALF_WINDOWED,
    "phi3": {"pad_token_id": 0},
    **{name: {"use_sliding_window": True, "max_window_layers": 1} for name in ("qwen2", "qwen3")},
    "smollm3": {"use_sliding_window": True} | HALF_WINDOWED,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sizes that transformers does not expect
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_counts_the_tokens_of_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5} | WINDOWS[name]
    fields = {field for field in inner if field in CONFIG_MAPPING[name].__dataclass_fields__}
    monkeypatch.setitem(BACKBONES, name, {field: inner[field] for field in fields})
    model = made(name, mode="agclr")
    ids, mask = padded(ROWS)
    hidden = model.encode(ids, mask).hidden
    for i, row in enumerate(ROWS):
        states = plain_of(model).hidden_states(torch.tensor(row))
        torch.testing.assert_close(hidden[i, : len(states)], states, atol=1e-5, rtol=1e-5)
    rows, mask = padded([row[:7] for row in ROWS], left=True)
    cache = model.new_cache()
    model(rows, attention_mask=mask, past_key_values=cache)
    more = torch.tensor([row[7:8] for row in ROWS])
    output = model(more, attention_mask=torch.cat((mask, torch.ones_like(more)), 1), past_key_values=cache)
    for i, row in enumerate(ROWS):
        expected = plain_of(model)(torch.tensor(row[:8]))[-1]
        torch.testing.assert_close(output.logits[i, 0], expected, atol=1e-4, rtol=1e-4)


def test_windows_say_which_attention_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "mistral", SIZES | {"num_key_value_heads": 2, "sliding_window": 5})
    model = made("mistral")
    model.backbone.config._attn_implementation = "flex_attention"
    with pytest.raises(InputError, match="attn_implementation is 'flex_attention': the windows of a mistral"):
        model(torch.tensor([ROWS[0]]))


@pytest.mark.parametrize("name", ["bloom", "opt", "xglm"])
def test_a_backbone_attends_as_it_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all have the implementation that transformers would take for this class, nor call their sizes alike."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64}
    positions = {} if name == "bloom" else {"max_position_embeddings": 64}
    names = CONFIG_MAPPING[name].attribute_map
    inner = {names.get(field, field): value for field, value in (sizes | positions).items()}
    if name == "opt":
        inner["word_embed_proj_dim"] = 32
    inner = {field: value for field, value in inner.items() if field in CONFIG_MAPPING[name].__dataclass_fields__}
    config = CoconutConfig(backbone={"model_type": name} | inner, vocab_size=60, latent_token_id=LATENT, pad_token_id=0)
    model = CoconutForCausalLM(config).eval()
    ids, mask = padded(ROWS)
    hidden = model.encode(ids, mask).hidden
    for i, row in enumerate(ROWS):
        states = plain_of(model).hidden_states(torch.tensor(row))
        torch.testing.assert_close(hidden[i, : len(states)], states, atol=1e-5, rtol=1e-5)
    CoconutForCausalLM(model.config)  # again, from the config that it has filled in
    if name != "opt":
        with pytest.raises(InputError, match=f"attn_implementation is 'sdpa': the backbone, a {name}, does not"):
            AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def test_a_model_that_has_no_token_for_latents_says_so() -> None:
    model = made()
    model.config.latent_token_id = None
    with pytest.raises(InputError, match=r"coconut.latent_token_id is None"):
        model(torch.tensor([[10, 11]]))


def test_a_model_never_says_a_latent() -> None:
    model = made()
    with torch.no_grad():
        model.get_output_embeddings().weight[LATENT] = 100 * model.encode(torch.tensor([[10, 11]])).hidden[0, -1]
    assert int(model(torch.tensor([[10, 11]])).logits[0, -1].argmax()) == LATENT
    assert LATENT not in model.generate(torch.tensor([[10, 11]]), max_new_tokens=4, do_sample=False, pad_token_id=0)


def test_the_backbone_attends_as_the_model_is_asked_to(tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    model = CoconutForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert model.backbone.config._attn_implementation == "eager"


def test_a_trace_of_a_later_piece_of_text_knows_its_padding() -> None:
    model = made(mode="agclr")
    ids, mask = padded(ROWS, left=True)
    cache = model.new_cache()
    model(ids[:, :6], attention_mask=mask[:, :6], past_key_values=cache)
    traces = model(ids[:, 6:], attention_mask=mask, past_key_values=cache, output_thoughts=True).thoughts
    assert [len(trace.input_ids) for trace in traces] == [ids.shape[1] - 6] * len(ROWS)


@pytest.mark.parametrize("name", [name for name in recipes() if name.startswith("coconut/")])
def test_every_curriculum_ends_before_its_run_does(name: str) -> None:
    recipe = recipes()[name]
    assert all(phase.start <= (recipe.train.epochs or 0) - 2 for phase in recipe.phases)


@pytest.mark.parametrize("fields", [{}, {"mode": "agclr"}, {"mode": "pause"}, {"parallel_passes": 2}])
def test_batched_generation_matches_the_plain_model(fields: dict[str, Any]) -> None:
    model = made(**fields)
    ids, mask = padded(ROWS, left=True)
    new = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    for row, tokens in zip(ROWS, new[:, ids.shape[1] :]):
        assert torch.equal(tokens, plain_of(model).generate(torch.tensor(row), 8))
    assert len(new[:, ids.shape[1] :].unique()) > 3, "a model that repeats itself proves nothing"


@pytest.mark.parametrize("fields", [{}, {"write_passes": 2}])
@pytest.mark.parametrize("cut", [2, 4, 5, 6, 9])
def test_a_text_cut_anywhere_matches_the_whole_text(cut: int, fields: dict[str, Any]) -> None:
    model = made(mode="agclr", **fields)
    ids = torch.tensor([ROWS[0], [7, 9, 12, START, LATENT, LATENT, LATENT, END, 30, 31, 32]])
    cache = model.new_cache()
    pieces = [model.encode(part, cache=cache).hidden for part in (ids[:, :cut], ids[:, cut:])]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model.encode(ids).hidden, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("passes", [3, 5])
def test_as_many_passes_as_latents_give_them_one_by_one(passes: int) -> None:
    ids, mask = padded(ROWS, left=True)
    parallel, sequential = made(parallel_passes=passes), made()
    torch.testing.assert_close(parallel.encode(ids, mask).hidden, sequential.encode(ids, mask).hidden)
    fewer = made(parallel_passes=2).encode(ids, mask).hidden
    assert torch.allclose(fewer[2], sequential.encode(ids, mask).hidden[2], atol=1e-5), "one latent needs one pass"
    assert not torch.allclose(fewer[0], sequential.encode(ids, mask).hidden[0], atol=1e-2)


@pytest.mark.parametrize("passes", [1, 2])
def test_flops_of_parallel_latents_are_counted(passes: int) -> None:
    model, (ids, _) = made(parallel_passes=passes), padded([ROWS[0]])
    model.set_attn_implementation("eager")  # the counter does not know fused attention
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    assert model.forward_flops({"input_ids": ids, "labels": ids}) == counter.get_total_flops()


@pytest.mark.parametrize("cut", [4, 7])
def test_parallel_latents_are_read_in_one_call(cut: int) -> None:
    model, ids = made(parallel_passes=2), torch.tensor([ROWS[0]])
    cache = model.new_cache()
    pieces = [model.encode(part, cache=cache).hidden for part in (ids[:, :cut], ids[:, cut:])]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model.encode(ids).hidden, atol=1e-5, rtol=1e-5)
    cache = model.new_cache()
    model.encode(ids[:, :5], cache=cache)
    with pytest.raises(InputError, match="parallel latents are read in one call"):
        model.encode(ids[:, 5:], cache=cache)
    with pytest.raises(InputError, match="parallel latents are read several times"):
        model.generate(ids, max_new_tokens=2, cache_implementation="static")


def test_a_latent_reads_the_state_before_it_and_a_pause_does_not() -> None:
    ids = torch.tensor([[10, START, LATENT, END, 20]])
    for mode, same in (("coconut", True), ("pause", False)):
        model = made(mode=mode)
        before = model(ids).logits
        with torch.no_grad():
            model.get_input_embeddings().weight[LATENT] = torch.randn(32)  # the head is tied: compare another token
        assert torch.allclose(before[..., 9], model(ids).logits[..., 9], atol=1e-5) == same


def test_gates_have_the_papers_start_and_parameters() -> None:
    with torch.device("meta"):
        paper = CoconutForCausalLM(CoconutConfig(backbone={"model_type": "gpt2"}, mode="agclr", vocab_size=50260))
    stream = paper.concept_stream
    assert stream is not None
    added = sum(p.numel() for p in stream.parameters())
    assert added == 1_774_848
    assert added / sum(p.numel() for p in paper.parameters()) == pytest.approx(0.0141, abs=5e-5)

    torch.manual_seed(0)
    model = CoconutForCausalLM(
        CoconutConfig(backbone={"model_type": "gpt2"} | BACKBONES["gpt2"], mode="agclr", vocab_size=60)
    )
    assert model.concept_stream is not None
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        _, _, gates = model.concept_stream(hidden, torch.zeros(5, 32), torch.zeros(5))
    found = {name: round(float(values.mean()), 2) for name, values in gates.items()}
    assert found == {"read": 0.43, "forget": 0.27, "write": 0.18}  # Table 3
    assert all(float(values.std()) < 1e-6 for values in gates.values())


def test_a_row_leaves_its_memory_alone_after_its_last_latent() -> None:
    model = made(mode="agclr")
    ids, mask = padded(ROWS)
    cache = model.new_cache()
    model.encode(ids, mask, cache=cache)
    for i, row in enumerate(ROWS):
        alone = model.new_cache()
        model.encode(torch.tensor([row]), cache=alone)
        expected = alone.state.get("memory", torch.zeros(1, 32))[0]
        torch.testing.assert_close(cache.state["memory"][i], expected, atol=1e-5, rtol=1e-5)


def test_the_memory_is_frozen_after_the_pass_that_is_asked_for() -> None:
    model = made(mode="agclr", write_passes=2)
    [trace] = model(torch.tensor([ROWS[0]]), output_thoughts=True).thoughts
    concepts = [thought.vector for thought in trace.thoughts if thought.label == "concept"]
    assert len(concepts) == 3
    assert not torch.equal(concepts[0], concepts[1])
    assert torch.equal(concepts[1], concepts[2])


def test_a_trace_holds_every_latent_and_what_the_gates_were() -> None:
    model = made(mode="agclr")
    ids, mask = padded(ROWS)
    traces = model(ids, attention_mask=mask, output_thoughts=True).thoughts
    assert [len(trace.thoughts) for trace in traces] == [6, 0, 2, 4]
    assert [(t.start, t.end, t.label) for t in traces[2].thoughts] == [(2, 3, "latent"), (2, 3, "concept")]
    names = ("read", "forget", "write", "retention", "retention_gated")
    assert {name: len(curve) for name, curve in traces[3].curves.items()} == dict.fromkeys(names, 2)
    hidden = model.encode(ids, mask).hidden
    torch.testing.assert_close(  # the second latent of coconut's kind would be the state at the first
        traces[0].thoughts[0].vector,
        plain_of(model).concept_stream(hidden[0, 3], torch.zeros(32), 0)[0],
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_latent_stands_beside_the_tokens_that_it_would_say() -> None:
    model = made()
    ids = torch.tensor([ROWS[0]])
    with torch.no_grad():
        [trace], logits = model(ids, output_thoughts=True).thoughts, model(ids).logits[0]
    hidden = model.encode(ids).hidden[0]
    before = [3, 4, 5]  # a latent of coconut's is the state before it, which says the next token
    for at, thought in zip(before, trace.thoughts):
        best = logits[at].softmax(-1).topk(5)
        assert [token for token, _ in thought.nearest] == best.indices.tolist()
        assert [share for _, share in thought.nearest] == pytest.approx(best.values.tolist(), rel=1e-4)
    expected = torch.cosine_similarity(hidden[3:4], hidden[before], dim=-1)
    torch.testing.assert_close(trace.curves["retention"], expected, atol=1e-5, rtol=1e-5)
    assert trace.scores["surprisal"].isnan().nonzero()[:, 0].tolist() == [0, 4, 5, 6], "a latent is no token to predict"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4),
    st.booleans(),
)
def test_every_token_has_one_place_and_latents_share_columns(shapes: list[tuple[int, int, int]], left: bool) -> None:
    rows = [[10] * prompt + [LATENT] * latents + [20] * rest for prompt, latents, rest in shapes]
    ids, mask = padded(rows, left)
    layout = lay_out(ids == LATENT, mask.bool())
    for i, (row, (_, latents, _)) in enumerate(zip(rows, shapes)):
        columns = mask[i].nonzero()[:, 0]
        places = layout.place[i, columns]
        assert layout.source[i, places].tolist() == columns.tolist()
        assert places.tolist() == sorted(set(places.tolist()))
        assert layout.real[i].sum() == len(row)
        assert places[ids[i, columns] == LATENT].tolist() == [layout.prompt + n for n in range(latents)]


def test_gates_have_gradients_in_a_batch_without_latents() -> None:
    model = made(mode="agclr").train()
    ids = torch.tensor([[10, START, END, 20]])
    model.training_loss({"input_ids": ids, "labels": ids}).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_scores_are_the_same_whatever_else_is_in_the_batch() -> None:
    model = made(mode="agclr")
    ids, mask = padded(ROWS)
    labels = ids.masked_fill(mask == 0, IGNORED)
    together = model.token_nll({"input_ids": ids, "attention_mask": mask, "labels": labels})
    for i, row in enumerate(ROWS):
        alone = model.token_nll({"input_ids": torch.tensor([row]), "labels": torch.tensor([row])})
        torch.testing.assert_close(together[i, : len(row)], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"backbone": {"model_type": "bert"}},
            r"coconut.backbone.model_type is 'bert': it is not only a decoder",
        ),
        (
            {"backbone": {"model_type": "thoughtbubbles"}},
            "use the type of a transformers|use a decoder of transformers",
        ),
        ({"backbone": {"n_embd": 8}}, r"coconut.backbone.model_type is None"),
        (
            {"backbone": {"model_type": "gpt2", "n_embed": 8}},
            r"coconut.backbone.n_embed: gpt2 has no such field.*n_embd",
        ),
        ({"gates": ("read", "reset")}, "coconut.gates is "),
        ({"mode": "agclr", "gates": ("read", "read")}, r"coconut.gates is .*: name each gate once"),
        ({"gates": ("read",)}, "coconut.gates is .*: mode 'coconut' has no gates"),
        ({"mode": "pause", "gate_biases": (0.0, 0.0, 0.0)}, "coconut.gate_biases is .*: mode 'pause' has no gates"),
        ({"write_passes": 2}, "coconut.write_passes is 2: mode 'coconut' has no gates"),
        ({"gate_biases": (0.0,)}, "coconut.gate_biases is"),
        ({"write_passes": 0}, "coconut.write_passes is 0"),
        ({"parallel_passes": 0}, "coconut.parallel_passes is 0"),
        (
            {"parallel_passes": 2, "mode": "agclr"},
            "coconut.parallel_passes is 2: latents of mode 'agclr' are",
        ),
    ],
)
def test_a_config_that_cannot_be_built_says_which_field(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CoconutConfig(**fields)


@pytest.mark.parametrize("mode", ["coconut", "agclr", "pause"])
@pytest.mark.parametrize("training", [False, True])
def test_labels_that_are_the_tokens_do_not_train_latents(mode: str, training: bool) -> None:
    """What a collator for language models passes: nothing predicts a latent, so none is a target."""
    model = made(mode=mode).train(training)
    ids, mask = padded(ROWS)
    labels = ids.masked_fill(mask == 0, IGNORED)
    said = labels.masked_fill(ids == LATENT, IGNORED)
    loss = model(ids, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, model(ids, attention_mask=mask, labels=said).loss, rtol=0, atol=0)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    assert (model.token_nll(batch)[ids == LATENT] == 0).all()
    assert (model.scored_labels(batch, "exact") == model.scored_labels(batch | {"labels": said}, "exact")).all()


def test_a_row_beyond_the_table_of_positions_is_refused() -> None:
    model = made(mode="agclr")
    ids = torch.full((1, 65), 10)
    model(ids[:, :64])
    model(ids, attention_mask=(torch.arange(65) > 0).long()[None])  # padding needs no position
    with pytest.raises(InputError, match="is 65: the backbone has 64 positions"):
        model(ids)
    with pytest.raises(InputError, match="is 65"):
        model(ids[:, 64:], past_key_values=model(ids[:, :64]).past_key_values)
    assert made("llama", mode="agclr")(ids).logits.isfinite().all()


def test_groups_of_latents_are_read_one_a_call() -> None:
    model = made(mode="agclr")
    ids = torch.tensor([[10, START, LATENT, LATENT, END, 11, START, LATENT, END, 12]])
    with pytest.raises(InputError, match="read one group a call"):
        model(ids)
    first = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=first.past_key_values)
    single = model(ids[:, :6], use_cache=True).past_key_values
    one_by_one = [model(ids[:, i : i + 1], past_key_values=single).logits for i in range(6, 10)]
    torch.testing.assert_close(rest.logits, torch.cat(one_by_one, dim=1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([LATENT, 10], "begins with a latent token"),
        ([10, LATENT, 11, LATENT], "latent tokens apart from each other"),
    ],
)
def test_latents_that_cannot_be_read_are_refused(ids: list[int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        made()(torch.tensor([ids]))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("fields", [{}, {"mode": "agclr"}, {"mode": "pause"}, {"parallel_passes": 2}])
def test_checkpointed_passes_read_the_keys_of_earlier_ones(backbone: str, fields: dict[str, Any]) -> None:
    model = made(backbone, **fields).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ids, mask = padded(ROWS)
    text = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(model.training_loss(text).loss, list(model.parameters()), allow_unused=True))

    expected = step()
    model.gradient_checkpointing_enable()
    for gradient, other in zip(step(), expected, strict=True):
        torch.testing.assert_close(gradient, other)
