"""Several hosts for real, as network namespaces of this machine, and torchrun, which restarts what was killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from needs import takes_long
from rendezvous import wait_for_step
from safetensors.torch import load_file

from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import Decisions, Summary
from daybreak.training.clock import read_trace

Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]
Process = subprocess.Popen[str]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PORT = 29_400
SILENCE = 10
"""Seconds after which a host that says nothing is given up."""


@dataclass(frozen=True)
class Host:
    """A network namespace with one link, to the other host."""

    name: str
    address: str
    link: str

    def torchrun(self, first: Host, log: Path, *arguments: object) -> Process:
        """One process on this host of a run over two; ``first`` is where they meet."""
        meeting = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint {first.address}:{PORT}"
        meeting += f" --rdzv-conf is_host={int(self == first)} --local-addr {self.address}"
        words = ["ip", "netns", "exec", self.name, *TORCHRUN, *meeting.split()]
        return begin(words, log, *arguments, GLOO_SOCKET_IFNAME=self.link)

    def cut_off(self) -> None:
        """No packet arrives any more, and nobody is told."""
        ip("-n", self.name, "link", "set", self.link, "down")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def begin(words: list[str], log: Path, *arguments: object, **more: str) -> Process:
    """Start torchrun with ``python -m daybreak arguments`` in a process group of its own; what all say goes to log."""
    surroundings = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", "DAYBREAK_PEER_TIMEOUT": str(SILENCE)}
    command = [*words, "-m", "daybreak", *map(str, arguments)]
    with log.open("w") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, text=True, env={**surroundings, **more}, start_new_session=True
        )


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """A list; whatever is put into it has ended after the test, workers included."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        for worker in workers(process):
            os.kill(worker, signal.SIGKILL)
        process.kill()
        process.wait()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and network namespaces")
    tag = f"db{os.getpid()}"
    pair = Host(f"{tag}a", "10.213.7.1", f"{tag}va"), Host(f"{tag}b", "10.213.7.2", f"{tag}vb")
    try:
        for host in pair:
            if subprocess.run(["ip", "netns", "add", host.name], capture_output=True, check=False).returncode:
                pytest.skip("needs root and network namespaces")
        one, two = pair
        ip("-n", one.name, "link", "add", one.link, "type", "veth", "peer", two.link, "netns", two.name)
        for host in pair:
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.link)
            for link in ("lo", host.link):
                ip("-n", host.name, "link", "set", link, "up")
        yield pair
    finally:
        for host in pair:
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)


def workers(torchrun: Process) -> dict[int, int]:
    """The workers of a torchrun on this machine: process id -> rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if f"PPid:\t{torchrun.pid}\n" not in (folder / "status").read_text():
                continue
            surroundings = (folder / "environ").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if rank := re.search(r"(?:^|\0)RANK=(\d+)", surroundings):
            found[int(folder.name)] = int(rank[1])
    return found


def flowing(log: Path) -> str:
    return re.sub(r"\s+", " ", log.read_text())


# ---------------------------------------------------------------- two hosts


@takes_long
def test_two_hosts_without_a_common_disk_train_as_one_process(
    hosts: tuple[Host, Host],
    started: list[Process],
    daybreak: Daybreak,
    data: Path,
    shape: list[str],
    tmp_path: Path,
) -> None:
    words = ["pretrain", "tiny", "--data", data, "--budget", "40steps", *shape]
    logs, runs = [tmp_path / "a.log", tmp_path / "b.log"], [tmp_path / "a", tmp_path / "b"]
    for host, log, run in zip(hosts, logs, runs):
        started.append(host.torchrun(hosts[0], log, *words, "--out", run))
    codes = [process.wait(timeout=150) for process in started]
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    assert read_json(RunFolder(runs[0]).decisions, Decisions).world_size == 2
    assert not list(runs[1].rglob("*.safetensors"))  # only the first rank's host keeps anything
    alone = daybreak(*words, "--microbatch", 4, "--out", tmp_path / "one")
    assert alone.returncode == 0, alone.stderr
    one, two = (load_file(run / "model" / "model.safetensors") for run in (tmp_path / "one", runs[0]))
    assert max((one[name] - two[name]).abs().max().item() for name in one) <= 1e-5


@takes_long
def test_a_host_that_is_cut_off_is_named_and_the_other_goes_on_from_there(
    hosts: tuple[Host, Host],
    started: list[Process],
    daybreak: Daybreak,
    data: Path,
    shape: list[str],
    tmp_path: Path,
) -> None:
    run, log = tmp_path / "a", tmp_path / "a.log"
    words = ["pretrain", "tiny", "--data", data, "--budget", "300steps", *shape]
    started.append(hosts[0].torchrun(hosts[0], log, *words, "--out", run))
    started.append(hosts[1].torchrun(hosts[0], tmp_path / "b.log", *words, "--out", tmp_path / "b"))
    wait_for_step(run, 20, started[0], log=log)
    hosts[1].cut_off()
    assert started[0].wait(timeout=60) != 0
    said = flowing(log)
    assert "Another process of this run did not answer in time." in said
    assert "this is a bug" not in said
    # Not a step was lost: the checkpoint is of the last one that both had done, and another may have been begun.
    told = re.search(r"step ([\d,]+) is saved", said)
    assert told, said
    saved = int(told[1].replace(",", ""))
    assert len(read_trace(run / "trace.jsonl")) - saved in (0, 1)
    assert (run / "checkpoints" / f"step-{saved:09d}" / "progress.json").is_file()

    last = daybreak(*words, "--out", run)
    assert last.returncode == 0, last.stderr
    assert f"Resuming at step {saved}" in last.stdout
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(300))
    assert read_json(run / "summary.json", Summary).resumes == 1


# ---------------------------------------------------------------- one host, workers killed


@takes_long
def test_killed_workers_are_started_again_and_the_run_goes_on(
    started: list[Process], data: Path, shape: list[str], tmp_path: Path
) -> None:
    """First one that keeps no checkpoint, whose peer saves; then the one that does, which leaves its last one."""
    run, log = tmp_path / "run", tmp_path / "run.log"
    words = ["pretrain", "tiny", "--data", data, "--budget", "500steps", *shape, "--out", run]
    torchrun = begin([*TORCHRUN, *"--standalone --nproc-per-node 2 --max-restarts 3".split()], log, *words)
    started.append(torchrun)
    reached = 20
    for victim in (1, 0):
        wait_for_step(run, reached, torchrun, log=log)
        (worker,) = [process for process, rank in workers(torchrun).items() if rank == victim]
        os.kill(worker, signal.SIGKILL)
        reached = read_trace(run / "trace.jsonl")[-1].step + 20
    assert torchrun.wait(timeout=150) == 0, log.read_text()
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(500))
    said = flowing(log)
    assert "Another process of this run ended." in said and "this is a bug" not in said
    summary = read_json(run / "summary.json", Summary)
    assert summary.resumes == 2 and summary.steps == 500
