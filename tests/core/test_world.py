"""Messages between ranks, and the error if one of them is lost. Each rank runs this file: see its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rendezvous import end_rank, torchrun
from torch import Tensor

from daybreak.core import world as worlds
from daybreak.core.errors import PeerLost, UserError
from daybreak.core.world import World

TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),  # not contiguous
    "low": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "step": torch.tensor(7, dtype=torch.int64),
    "none": torch.zeros(0, 4),
}


def agreed(world: World) -> None:
    """Every kind of message once, judged by every rank."""
    rank = world.rank
    assert world.broadcast(0.1 + rank) == 0.1
    world.barrier()
    assert world.broadcast({"text": f"of {rank}"}) == {"text": "of 0"}
    assert world.any(rank == 1) and world.any(rank == 0) and not world.any(False)
    assert world.sum(0.1 * (rank + 1)) == pytest.approx(0.3, abs=1e-15)
    vector = torch.tensor([1.0, rank])
    assert world.add(vector).tolist() == [2.0, 1.0] and vector.tolist() == [1.0, rank]
    for tensors in (TENSORS, {}):
        held = world.broadcast_tensors(tensors if rank == 0 else None)
        assert same(held, tensors)


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        some[name].dtype == others[name].dtype and torch.equal(some[name], others[name]) for name in others
    )


def lost(world: World, number: int) -> None:
    """Rank 1 is sent a signal; rank 0 tells what it sees of that, and leaves."""
    if world.rank == 1:
        os.kill(os.getpid(), number)
    started = time.monotonic()
    try:
        for _ in range(3):
            world.barrier()
    except PeerLost as received:
        try:
            world.any(True)
        except PeerLost:
            print(json.dumps({"said": received.sentence, "seconds": time.monotonic() - started}))


def ranks(*arguments: str) -> tuple[int, str]:
    """Run this file as two ranks; return the exit code and the output of rank 0. Rank 1 is killed after that."""
    paths = os.pathsep.join(sys.path)  # as here, where pytest adds the folder of rendezvous
    variables = {**os.environ, **torchrun(2), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    command = [sys.executable, __file__, *arguments]
    both = [
        subprocess.Popen(command, env={**variables, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        output, _ = both[0].communicate(timeout=120)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    return both[0].returncode, output


def test_one_process_agrees_with_itself() -> None:
    world = worlds.start()
    assert world == World(rank=0, size=1) and world.is_first
    vector = torch.tensor([1.0, 2.0])
    assert world.add(vector) is vector and world.sum(0.1) == 0.1
    assert world.broadcast(0.1) == 0.1 and world.broadcast("so") == "so"
    assert world.any(True) and not world.any(False)
    assert same(world.broadcast_tensors(TENSORS), TENSORS)
    worlds.stop(world)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_an_earlier_start_left_in_the_store_is_never_read(late: int) -> None:
    """torchrun keeps its store over restarts; whoever comes last, nobody takes the others' old names for new."""
    store = dist.HashStore()
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            waiting = []
            for rank in sorted(range(3), key=lambda rank: rank == late):
                waiting.append(pool.submit(worlds.wait_for_ranks, store, rank, 3, timedelta(seconds=30)))
                time.sleep(0.1)
            parts = [one.result() for one in waiting]
        for rank, part in enumerate(parts):
            assert not part.check([f"address {rank}"])
            part.set(f"address {rank}", str(rank))
        assert all(part.get(f"address {rank}") == str(rank).encode() for part in parts for rank in range(3))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("Connection closed by peer [127.0.0.1]:4242", "Another process of this run ended."),
        (
            "[Rank 0] Watchdog caught collective operation timeout",
            "Another process of this run did not answer in time.",
        ),
        (
            "NCCL error in: NCCLUtils.cpp:94, unhandled system error\nncclSystemError: System call "
            "failed.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9637888)\n",
            "Another process of this run ended, or the GPUs cannot exchange data: Error while creating shared memory "
            "segment /dev/shm/nccl-x (size 9637888).",
        ),
        (
            "CUDA error: an illegal memory access was encountered\nFor debugging set CUDA_LAUNCH_BLOCKING=1",
            "Another process of this run ended, or the GPUs cannot exchange data: CUDA error: an illegal memory access "
            "was encountered.",
        ),
    ],
)
def test_a_lost_peer_and_a_fault_of_the_devices_are_told_apart(error: str, sentence: str) -> None:
    with pytest.raises(PeerLost) as lost, worlds.peers():
        raise RuntimeError(error)
    assert str(lost.value) == sentence


def test_a_rank_that_never_comes_again_is_not_taken_for_the_one_that_came_before() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: worlds.wait_for_ranks(store, rank, 2, timedelta(seconds=30)), range(2)))
    with pytest.raises(PeerLost, match="did not answer in time"):
        worlds.wait_for_ranks(store, 0, 2, timedelta(seconds=0.3))


def test_ranks_agree_and_a_killed_one_is_noticed_at_once() -> None:
    code, output = ranks("agreed", str(int(signal.SIGKILL)))
    found = json.loads(output)
    assert code == 0 and found["said"] == "Another process of this run ended."
    assert found["seconds"] < 30


def test_a_silent_rank_is_given_up_after_the_time_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_PEER_TIMEOUT", "3")
    code, output = ranks(str(int(signal.SIGSTOP)))
    found = json.loads(output)
    assert code == 0 and found["said"] == "Another process of this run did not answer in time."
    assert 2.5 < found["seconds"] < 30


def test_the_time_for_an_answer_is_five_minutes_or_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYBREAK_PEER_TIMEOUT", raising=False)
    assert worlds.timeout() == timedelta(minutes=5)
    monkeypatch.setenv("DAYBREAK_PEER_TIMEOUT", "90")
    assert worlds.timeout() == timedelta(seconds=90)


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "nan", "inf"])
def test_a_time_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_PEER_TIMEOUT", text)
    with pytest.raises(UserError, match="DAYBREAK_PEER_TIMEOUT cannot be"):
        worlds.timeout()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), ValueError("other"), KeyboardInterrupt()])
def test_what_is_no_lost_peer_is_not_called_one(error: BaseException) -> None:
    with pytest.raises(type(error)), worlds.peers():
        raise error


if __name__ == "__main__":
    joined = worlds.start()
    if "agreed" in sys.argv:
        agreed(joined)
    lost(joined, int(sys.argv[-1]))
    worlds.stop(joined)
    end_rank()
