"""Gradients summed over processes: equal to those of one, the same after a resume, and whole after a failure.

Each process runs this file (see the end) and leaves what it found in a file of its own.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rendezvous import end_rank, run_ranks
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from daybreak.core import world as worlds
from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import PeerLost
from daybreak.core.world import World
from daybreak.models.modern import ModernEncoder
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.objectives.objective import CausalThenMasked, Objective

Checkpoint = dict[str, Any]

ROWS, LENGTH, VOCABULARY = 11, 16, 1_000
CAUSAL, MASKED = 0.1, 0.9
"""Progress at which each stage of the objective is tested."""


def model(seed: int = 1) -> Encoder:
    """Small, but of more than one message: torch ends the first one at 1 MiB."""
    torch.manual_seed(seed)
    return ModernEncoder(layers=2, hidden_size=128, heads=2, intermediate_size=256).build(VOCABULARY)


def gradients(model: Encoder) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@dataclass(frozen=True, kw_only=True)
class Failing(CausalThenMasked):
    """Runs out of memory at given positions."""

    where: str = ""

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        loss = super().loss(model, batch, position=position, **more)
        if self.where == f"forward {position}":
            raise torch.OutOfMemoryError("no room")
        if self.where == f"backward {position}":
            # The first message is under way by then.
            hook = model.get_parameter("embedding_norm.weight").register_hook(lambda _: out_of_memory_error(hook))
        return loss


def out_of_memory_error(hook: RemovableHandle) -> None:
    hook.remove()
    raise torch.OutOfMemoryError("no room")


def sum_step(
    data_parallel: DataParallel,
    world: World,
    *,
    at: float,
    objective: Objective | None = None,
    microbatch: int = 2,
    pause: float = 0.0,
) -> bool:
    """Gradients of all ROWS rows, of which each rank takes its part in microbatches; False if one ran out of memory."""
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(7))
    begin, end = ROWS * world.rank // world.size, ROWS * (world.rank + 1) // world.size
    starts = range(begin, end, microbatch)
    full = False
    for start in starts:
        with data_parallel.microbatch(start == starts[-1]):
            part = Batch(input_ids=ids[start : min(start + microbatch, end)])
            time.sleep(pause)
            try:
                if not full:
                    data_parallel.loss(
                        objective or CausalThenMasked(), part, seed=3, position=start, progress=at
                    ).sum.backward()
            except torch.OutOfMemoryError:
                full = True
    return not world.any(full)


# ---------------------------------------------------------------- what the processes do


def sums(world: World) -> Checkpoint:
    """Two stages after each other, and how many messages each microbatch sent."""
    sent, reduce = [0], dist.all_reduce

    def counting(*arguments: Any, **more: Any) -> Any:
        sent[-1] += 1
        return reduce(*arguments, **more)

    own = model(seed=world.rank)
    data_parallel = DataParallel(own, world)
    clean = all(parameter.grad is None for parameter in own.parameters())
    found: Checkpoint = {"clean": clean}
    enter = data_parallel.microbatch

    def counted(last: bool) -> Any:
        sent.append(0)
        return enter(last)

    dist.all_reduce, data_parallel.microbatch = counting, counted  # type: ignore[method-assign]
    for name, at in (("causal", CAUSAL), ("masked", MASKED)):
        sum_step(data_parallel, world, at=at)
        found[name] = gradients(own)
        own.zero_grad()
    dist.all_reduce, data_parallel.microbatch = reduce, enter  # type: ignore[method-assign]
    found["weights"] = {name: value.detach() for name, value in own.named_parameters()}
    return found | {"sent": sent[1:]}


class Event:
    """A place in the queue of a GPU, in milliseconds."""

    now = 0.0

    def __init__(self, *, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_the_queue_of_a_gpu_times_its_own_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what was computed when the last message was sent and what comes after it; compute is no waiting."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    data_parallel = DataParallel(model(), World())
    data_parallel._shared = object()  # type: ignore[assignment]
    buffer = types.SimpleNamespace(device=torch.device("cuda"))
    data_parallel._sums._buckets = {0: buffer}  # type: ignore[dict-item]
    for _ in range(2):
        with data_parallel.microbatch(last=True):
            Event.now += 500.0
            data_parallel._sums._send(buffer)  # type: ignore[arg-type]
            Event.now += 30.0
    assert data_parallel.take_wait() == 0.06 and data_parallel.take_wait() == 0.0


def waits(world: World) -> Checkpoint:
    data_parallel = DataParallel(model(), world)
    data_parallel.take_wait()
    sum_step(data_parallel, world, at=MASKED, pause=0.3 * world.rank)  # three microbatches
    return {"wait": data_parallel.take_wait(), "again": data_parallel.take_wait()}


def failures(world: World) -> Checkpoint:
    """One rank finds no room, at each place where it may; then the step is taken again in smaller microbatches."""
    found: Checkpoint = {}
    first = ROWS * world.rank // world.size
    own = model()
    data_parallel = DataParallel(own, world)
    for who, where, place in ((0, "forward", 0), (1, "forward", 4), (1, "backward", 0), (0, "backward", 4)):
        objective = Failing(where=f"{where} {first + place}" if world.rank == who else "")
        noticed = not sum_step(data_parallel, world, at=MASKED, objective=objective)
        data_parallel.rebuild()
        again = sum_step(data_parallel, world, at=MASKED, microbatch=1)
        found[f"{where} {place} on {who}"] = (noticed, again, gradients(own))
        own.zero_grad()
    return found


def renewals(world: World) -> Checkpoint:
    """The gradients of a step by replicas that have taken many, and by some that have just been made."""
    own = model()
    data_parallel = DataParallel(own, world)
    found: Checkpoint = {}
    for name, at in (("first", MASKED), ("", CAUSAL), ("third", MASKED)):
        sum_step(data_parallel, world, at=at)
        found[name] = gradients(own)
        own.zero_grad()
    data_parallel = DataParallel(own, world)
    sum_step(data_parallel, world, at=MASKED)
    return found | {"resumed": gradients(own)}


def losses_of_a_peer(world: World) -> Checkpoint:
    """Rank 1 dies in mid-step."""
    data_parallel = DataParallel(model(), world)
    if world.rank == 1:
        os._exit(7)
    started = time.monotonic()
    try:
        sum_step(data_parallel, world, at=MASKED)
    except PeerLost as lost:
        return {"said": lost.sentence, "seconds": time.monotonic() - started}
    return {"said": "nothing"}


# ---------------------------------------------------------------- what they found

Launch = Callable[[int, str], list[Checkpoint]]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Return ``launch(size, name)``: that function above on so many processes, and what each of them found."""

    def run(size: int, *names: str) -> list[Checkpoint]:
        folder = tmp_path_factory.mktemp("ranks")
        run_ranks(size, __file__, folder, *names, DAYBREAK_PEER_TIMEOUT="60")
        return [torch.load(folder / f"{rank}.pt") for rank in range(size)]

    return run


@pytest.fixture(scope="module")
def two(launch: Launch) -> list[Checkpoint]:
    return launch(2, "sums", "waits", "failures", "losses_of_a_peer")


@pytest.fixture(scope="module")
def four(launch: Launch) -> list[Checkpoint]:
    return launch(4, "sums", "renewals")


def alone(at: float, seed: int) -> dict[str, Tensor]:
    """The gradients of the same rows by one process, in one microbatch."""
    own = model(seed)
    assert sum_step(DataParallel(own, World()), World(), at=at, microbatch=ROWS)
    return gradients(own)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    largest = max(value.abs().max().item() for value in wanted.values())
    for name in wanted:
        assert (found[name] - wanted[name]).abs().max().item() <= 1e-6 * largest, name


@pytest.mark.parametrize("size", ["two", "four"])
def test_gradients_are_those_of_one_process_however_uneven_the_shards(
    size: str, request: pytest.FixtureRequest
) -> None:
    ranks = request.getfixturevalue(size)
    for stage, at in (("causal", CAUSAL), ("masked", MASKED)):
        assert_close(ranks[0]["sums"][stage], alone(at, seed=0))
        for rank in ranks[1:]:
            for name, gradient in ranks[0]["sums"][stage].items():
                assert torch.equal(rank["sums"][stage][name], gradient), name


def test_all_begin_with_the_weights_of_the_first_and_without_gradients(two: list[Checkpoint]) -> None:
    first = dict(model(seed=0).named_parameters())
    for rank in two:
        assert rank["sums"]["clean"]
        assert all(torch.equal(value, first[name]) for name, value in rank["sums"]["weights"].items())


def test_only_the_last_microbatch_of_a_step_sends_messages(two: list[Checkpoint]) -> None:
    for rank in two:
        *before, last = rank["sums"]["sent"][:3]
        # The last one: as many messages as the model has buckets, and the caller's agreement.
        assert before == [0, 0] and last >= 3
        assert rank["sums"]["sent"][3:] == [0, 0, last]


def test_waiting_for_a_slow_rank_is_counted_apart(two: list[Checkpoint]) -> None:
    fast, slow = two[0]["waits"], two[1]["waits"]
    assert fast["wait"] > 0.5 > slow["wait"] > 0
    assert fast["again"] == slow["again"] == 0


def test_after_one_rank_had_no_room_all_know_and_the_next_step_is_whole(two: list[Checkpoint]) -> None:
    wanted = alone(MASKED, seed=1)
    for rank in two:
        assert len(rank["failures"]) == 4
        for case, (noticed, again, found) in rank["failures"].items():
            assert noticed and again, case
            assert_close(found, wanted)


def test_a_dead_peer_is_reported_at_once(two: list[Checkpoint]) -> None:
    assert two[0]["losses_of_a_peer"]["said"] == "Another process of this run ended."
    assert two[0]["losses_of_a_peer"]["seconds"] < 30


def test_a_resumed_process_rounds_as_the_one_before_it(four: list[Checkpoint]) -> None:
    for rank in four:
        found = rank["renewals"]
        for name, gradient in found["first"].items():
            assert torch.equal(gradient, found["third"][name]), name
            assert torch.equal(gradient, found["resumed"][name]), name


if __name__ == "__main__":
    joined = worlds.start()
    here: Checkpoint = {}
    for asked in sys.argv[2:]:
        here[asked] = globals()[asked](joined)
        torch.save(here, Path(sys.argv[1]) / f"{joined.rank}.pt")
    worlds.stop(joined)
    end_rank()
