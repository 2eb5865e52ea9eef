"""Two processes compute what one does, with DDP and with FSDP2, and their checkpoints survive a kill.

The processes are real ones, started by `torchrun`, which runs this very file. One launch goes through all scenarios
(most of its time is importing), and the tests look at what it wrote.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystem
from transformers import GPT2Config, GPT2LMHeadModel

from mentalese import get_recipe
from mentalese.data.batch import Batch
from mentalese.data.tokenizers import add_markers, load_pretrained_tokenizer
from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig
from mentalese.families.thoughtbubbles.model import ThoughtbubblesForCausalLM
from mentalese.models.base import LanguageModel, LossOutput, as_model
from mentalese.registry import recipes
from mentalese.training.checkpoint import Checkpointer
from mentalese.training.parallel import (
    Parallel,
    _filler,
    _tensors,
    clip_and_scale,
    full_state_dict,
    gradient_shares,
    no_sync,
    setup,
    teardown,
    wrap,
)
from mentalese.training.start import start, start_model
from mentalese.training.step import TrainStep

pytestmark = pytest.mark.slow

KINDS = ("ddp", "fsdp")
ALONE = Parallel(rank=0, world_size=1, device=torch.device("cpu"))
STEPS, MICROS = 3, 2


# -- models ---------------------------------------------------------------------------------------------------------


def gpt2() -> nn.Module:
    """Tied embeddings, and a vocabulary and width that two ranks cannot share evenly."""
    config = GPT2Config(
        vocab_size=31,
        n_embd=18,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return as_model(GPT2LMHeadModel(config))


def bubbles() -> nn.Module:
    """Streams that are chosen by thresholds, which follow those of all rows of a step."""
    config = ThoughtbubblesConfig(
        vocab_size=31,
        hidden_size=20,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=12,
        fork_layers=(1, 2),
        selection="causal",
        initializer_range=0.3,
    )
    return ThoughtbubblesForCausalLM(config)


class Gated(nn.Module):
    """The gate acts on streams that ask for it; the spare is for a stage that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gate, self.spare = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 4)

    def training_loss(self, batch: Batch) -> LossOutput:
        x = batch["x"] * self.gate(batch["x"]).sigmoid() if batch["gated"] else batch["x"]
        return LossOutput(loss=self.linear(x).square().mean(), weight=torch.tensor(float(len(x))))


class Inner(nn.Module):
    """An inner optimisation in the forward pass: three gradient steps on a latent, then the loss at its end."""

    shard_blocks = True
    inner_gradients = True

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(4))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.out = nn.Linear(4, 4)

    def energy(self, x: Tensor, latent: Tensor) -> Tensor:
        for block in self.blocks:
            latent = latent + block(latent)
        return (self.out(latent) - x).square().mean(1).sum()

    def training_loss(self, batch: Batch) -> LossOutput:
        x = batch["x"]
        latent = self.start.expand_as(x)
        for _ in range(3):
            at = latent.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energy(x, at), at)
            latent = latent - 0.1 * gradient
        return LossOutput(loss=self.energy(x, latent) / len(x), weight=torch.tensor(float(len(x))))

    nll_parts = torch.enable_grad()(training_loss)


# -- data: four rows a micro-batch, dealt out to ranks --------------------------------------------------------------


def text(step: int, micro: int, rank: int, world_size: int) -> Batch:
    """Rank 1 of two gets a quarter of the targets, and in every second micro-batch none at all."""
    ids = torch.randint(31, (4, 12), generator=torch.Generator().manual_seed(10 * step + micro))
    labels = ids.clone()
    labels[1::2, 3 if micro == 0 else 0 :] = -100
    return {"input_ids": ids[rank::world_size], "labels": labels[rank::world_size]}


def vectors(step: int, micro: int, rank: int, world_size: int) -> Batch:
    """Two of three rows go to rank 0."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + micro))
    return {"x": x[rank::world_size]}


def gated(step: int, micro: int, rank: int, world_size: int) -> Batch:
    """Rows of rank 0 use the gate and rows of rank 1 do not; alone they are two micro-batches."""
    if world_size == 1:
        rank, micro = micro, 0
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    return {"x": x, "gated": rank == 0}


# -- what the training loop does ------------------------------------------------------------------------------------


def one_step(
    step: nn.Module,
    optimizer: torch.optim.Optimizer,
    parallel: Parallel,
    batches: list[Batch],
    max_norm: float | None = None,
) -> tuple[float, float]:
    """The gradients' norm, and the matrices' share of it."""
    outputs = []
    for index, batch in enumerate(batches):
        with no_sync(step, last=index == len(batches) - 1):
            output = step(batch, {})
            (output.loss * output.weight).backward()
        outputs.append(output)
    total = parallel.sum(sum(output.weight for output in outputs))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    components = {"matrices": [[p] for p in parameters if p.ndim > 1], "rest": [[p for p in parameters if p.ndim < 2]]}
    share = float(gradient_shares(components)["matrices"])
    norm = clip_and_scale(parameters, scale=parallel.world_size / total, max_norm=max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm), share


def trained(
    model: nn.Module,
    kind: str,
    parallel: Parallel,
    data: Callable[..., Batch],
    micros: int = MICROS,
    score: bool = False,
    whole: nn.Module | None = None,
) -> dict[str, Any]:
    """Weights, gradient norms and shares of a short run with momentum: it shows every difference and amplifies none."""
    step = wrap(TrainStep(model), parallel, kind, whole)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    figures = []
    for index in range(STEPS):
        batches = [data(index, micro, parallel.rank, parallel.world_size) for micro in range(micros)]
        figures.append(one_step(step, optimizer, parallel, batches, max_norm=0.7))
        if isinstance(model, LanguageModel):
            model.after_step()
        if score:
            with torch.no_grad():
                model.nll_parts(batches[0])
    norms, shares = zip(*figures)
    return {"weights": full_state_dict(model), "norms": norms, "shares": shares}


def from_rank_0(kind: str, parallel: Parallel) -> dict[str, Any]:
    """As `gpt2`, but only rank 0 has the weights."""
    if parallel.world_size == 1:
        return trained(gpt2(), kind, parallel, text)
    whole = gpt2() if parallel.is_main else None
    with torch.device("meta"):
        empty = gpt2()
    return trained(empty, kind, parallel, text, whole=whole)


def started(folder: Path, parallel: Parallel) -> dict[str, Any]:
    """Who makes weights if processes share them, and what all are told if that cannot be done."""
    tokenizer = add_markers(load_pretrained_tokenizer(str(folder / "tokenizer")))
    recipe = get_recipe("gpt2/tiny")
    shared = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, parallel="fsdp"))
    model, _, whole = start(shared, tokenizer, parallel)
    lost = dataclasses.replace(shared, train=dataclasses.replace(shared.train, init=str(folder / "nowhere")))
    with pytest.raises(InputError) as refused:
        start(lost, tokenizer, parallel)
    devices = {parameter.device.type for parameter in model.parameters()}  # type: ignore[attr-defined]
    return {"devices": devices, "whole": whole is not None, "refused": str(refused.value)}


SCENARIOS: dict[str, Callable[[str, Parallel], dict[str, Any]]] = {
    "gpt2": lambda kind, parallel: trained(gpt2(), kind, parallel, text, score=True),
    "bubbles": lambda kind, parallel: trained(bubbles(), kind, parallel, text, score=True),
    "inner": lambda kind, parallel: trained(Inner(), kind, parallel, vectors, score=True),
    "from-rank-0": from_rank_0,
    "gated": lambda kind, parallel: trained(Gated(), kind, parallel, gated, 2 // parallel.world_size),
}


LEFT_OUT = (("gated", "fsdp"), ("from-rank-0", "ddp"))
"""FSDP2 asks all ranks to run the same modules; with DDP each process makes its own weights."""


def run(name: str, kind: str, parallel: Parallel) -> dict[str, Any]:
    torch.manual_seed(0)
    return SCENARIOS[name](kind, parallel)


def adam(kind: str, parallel: Parallel, seed: int) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = gpt2()
    step = wrap(TrainStep(model), parallel, kind)  # type: ignore[arg-type]
    return model, step, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def advance(step: nn.Module, optimizer: torch.optim.Optimizer, parallel: Parallel, steps: range) -> None:
    for index in steps:
        one_step(step, optimizer, parallel, [text(index, 0, parallel.rank, parallel.world_size)], max_norm=1.0)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and optimiser state, whole, as they are now."""
    found = full_state_dict(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[f"{names[parameter]}/{key}"] = whole
    return {name: value.clone() for name, value in found.items()}


# -- what the processes run -----------------------------------------------------------------------------------------


def all_scenarios(folder: Path) -> None:
    parallel = setup("cpu")
    result: dict[str, Any] = {}
    for kind in KINDS:
        for name in SCENARIOS:
            if (name, kind) not in LEFT_OUT:
                result[f"{name}-{kind}"] = run(name, kind, parallel)
        model, step, optimizer = adam(kind, parallel, seed=0)
        advance(step, optimizer, parallel, range(2))
        checkpoints = Checkpointer(folder / kind, parallel, keep=1)
        checkpoints.save(2, model, optimizer, {"kind": kind})
        result[f"saved-{kind}"] = everything(model, optimizer)
        advance(step, optimizer, parallel, range(2, 4))
        result[f"uninterrupted-{kind}"] = everything(model, optimizer)
        model, step, optimizer = adam(kind, parallel, seed=1)
        assert checkpoints.load(model, optimizer) == {"kind": kind}
        advance(step, optimizer, parallel, range(2, 4))
        result[f"resumed-{kind}"] = everything(model, optimizer)
        Checkpointer(folder / "one", parallel, keep=1).load(model, optimizer)
        result[f"from-one-{kind}"] = everything(model, optimizer)
    result["started"] = started(folder, parallel)
    result["sum"] = parallel.sum(torch.tensor([parallel.rank + 0.5, parallel.rank + 1.0])).tolist()
    result["max"] = parallel.max(parallel.rank + 3)
    result["object"] = parallel.broadcast_object({"rank": parallel.rank})
    torch.save(result, folder / f"rank-{parallel.rank}.pt")
    teardown()


def save_and_hang(folder: Path) -> None:
    """Saves one checkpoint, then begins another one that is never done."""
    parallel = setup("cpu")
    model, step, optimizer = adam("fsdp", parallel, seed=0)
    checkpoints = Checkpointer(folder / "checkpoints", parallel, keep=1)
    advance(step, optimizer, parallel, range(1))
    checkpoints.save(1, model, optimizer, {"step": 1})
    checkpoints.wait()
    create_stream = FileSystem.create_stream

    def write_half(self: FileSystem, path: Path, mode: str) -> Any:
        stream = create_stream(self, path, mode)
        with stream as file:
            file.write(b"half")
            file.flush()
            (folder / f"writing-{os.getpid()}").touch()
            time.sleep(600)

    FileSystem.create_stream = write_half  # type: ignore[method-assign, assignment]
    advance(step, optimizer, parallel, range(1, 2))
    checkpoints.save(2, model, optimizer, {"step": 2})
    checkpoints.wait()


# -- tests ----------------------------------------------------------------------------------------------------------


def launch(work: Callable[[Path], None], folder: Path, processes: int = 2) -> subprocess.Popen[str]:
    """Starts this file; `--standalone` makes torchrun take a free port itself."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [sys.executable, *(torchrun if processes > 1 else []), __file__, work.__name__, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Tensor]:
    """A checkpoint that one process wrote, and its content."""
    model, step, optimizer = adam("ddp", ALONE, seed=2)
    advance(step, optimizer, ALONE, range(2))
    checkpoints = Checkpointer(folder / "one", ALONE, keep=1)
    checkpoints.save(2, model, optimizer, {})
    checkpoints.wait()
    return everything(model, optimizer)


@pytest.fixture(scope="module")
def ranks(folder: Path, one: dict[str, Tensor], tokenizer: Any) -> list[dict[str, Any]]:
    """What two processes found, in all scenarios."""
    tokenizer.save_pretrained(folder / "tokenizer")
    process = launch(all_scenarios, folder)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 0) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in SCENARIOS for kind in KINDS if (name, kind) not in LEFT_OUT]
)
def test_two_processes_equal_one(ranks: list[dict[str, Any]], name: str, kind: str) -> None:
    """Unequal targets, micro-batches, scoring between steps, inner gradients, parameters that a rank does not reach."""
    alone = run(name, kind, ALONE)
    together = ranks[0][f"{name}-{kind}"]
    assert_same(together["weights"], alone["weights"], tolerance=1e-6)
    assert together["norms"] == pytest.approx(alone["norms"], abs=1e-6)
    assert together["shares"] == pytest.approx(alone["shares"], abs=1e-6)
    assert ranks[1][f"{name}-{kind}"] == together | {"weights": {}}


def test_thresholds_are_equal_for_one_and_two_processes(ranks: list[dict[str, Any]]) -> None:
    """Rank 1 has other rows, and in every second micro-batch no target."""
    torch.manual_seed(0)
    fresh = bubbles()
    found = {name: value for name, value in ranks[0]["bubbles-ddp"]["weights"].items() if "threshold" in name}
    assert len(found) == 2
    assert all(float(fresh.state_dict()[name.removeprefix("model.")]) != float(value) for name, value in found.items())


def test_rank_0_alone_makes_weights_that_processes_share(ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        assert found["started"]["devices"] == {"meta"}
        assert found["started"]["whole"] == (rank == 0)
        assert "nowhere contains no model" in found["started"]["refused"]


@pytest.mark.parametrize("name", [name for name in recipes() if name.endswith("/tiny")])
def test_a_filled_model_is_the_one_that_it_was_filled_with(name: str, tokenizer: Any) -> None:
    """Buffers that are not saved too, and tied weights stay tied."""
    whole, _ = start_model(get_recipe(name), tokenizer)
    with torch.device("meta"):
        model, _ = start_model(get_recipe(name), tokenizer, weights=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fill = _filler(model, whole, ALONE.device)  # type: ignore[arg-type]
        fill(model)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
    assert_same(dict(_tensors(model)), dict(_tensors(whole)))  # type: ignore[arg-type]
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in whole.parameters()]
    for module in model.modules():  # type: ignore[attr-defined]
        assert not any(isinstance(value, Tensor) and value.is_meta for value in vars(module).values())


def test_gradients_are_clipped_and_unused_parameters_unchanged(
    ranks: list[dict[str, Any]],
) -> None:
    assert max(ranks[0]["gpt2-ddp"]["norms"]) > 0.7
    torch.manual_seed(0)
    assert torch.equal(ranks[0]["gated-ddp"]["weights"]["spare.weight"], Gated().spare.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert_same(rank[f"resumed-{kind}"], rank[f"uninterrupted-{kind}"])
    assert "transformer.wte.weight/exp_avg" in ranks[1][f"resumed-{kind}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_two_processes_goes_on_in_one(ranks: list[dict[str, Any]], folder: Path, kind: str) -> None:
    model, step, optimizer = adam(kind, ALONE, seed=3)
    assert Checkpointer(folder / kind, ALONE, keep=1).load(model, optimizer) == {"kind": kind}
    assert_same(everything(model, optimizer), ranks[0][f"saved-{kind}"])
    advance(step, optimizer, ALONE, range(2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_one_process_goes_on_in_two(
    ranks: list[dict[str, Any]], one: dict[str, Tensor], kind: str
) -> None:
    assert_same(ranks[0][f"from-one-{kind}"], one)


def test_ranks_agree_on_sums_largest_values_and_objects(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (rank["sum"], rank["max"], rank["object"]) == ([2.0, 3.0], 4, {"rank": 0})


@pytest.fixture(params=[1, 2])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The checkpoints of a run whose processes were all killed in the middle of writing the second one."""
    process = launch(save_and_hang, tmp_path, request.param)
    while len(writing := list(tmp_path.glob("writing-*"))) < request.param:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    for path in writing:  # torchrun starts each process in a session of its own
        os.kill(int(path.name.removeprefix("writing-")), signal.SIGKILL)
    process.communicate()
    return tmp_path / "checkpoints"


def test_kill_during_a_save_keeps_the_previous_checkpoint(killed: Path) -> None:
    assert sorted(path.name for path in killed.iterdir()) == [".step-00000002.tmp", "step-00000001"]
    checkpoints = Checkpointer(killed, ALONE, keep=1)
    assert [path.name for path in killed.iterdir()] == ["step-00000001"]
    assert checkpoints.latest() == 1
    model, step, optimizer = adam("ddp", ALONE, seed=1)
    assert checkpoints.load(model, optimizer) == {"step": 1}
    advance(step, optimizer, ALONE, range(1, 2))


if __name__ == "__main__":
    warnings.simplefilter("error")
    globals()[sys.argv[1]](Path(sys.argv[2]))
