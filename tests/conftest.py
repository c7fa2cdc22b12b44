"""Fixtures for all tests. Those of the session are made once a worker: copy what you change.

    corpus, data        400 small documents, and the same prepared
    finished            a run of 40 steps on ``data``
    write_run           a run folder with drawn records, without training
    start, daybreak     the command line in a process of its own, forked so that it imports nothing
    ungated             exports pass without the parity check
    on_the_cpu          commands in this process train on the CPU; every_step_on_the_cpu also records every step
    refused             a command in this process, which must end with one sentence
    small_disk          a file system of its own, for a full or read-only disk

``in_process.command`` runs a command in this process; a run of 40 steps takes less than a second of it. The parity
check of every test is a fork, too, and takes half a second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
from fake_runs import write_run
from hypothesis import settings
from in_process import train_on_the_cpu
from small_records import PASSED
from small_texts import small_text
from warm_python import Server, run_parity_checks_at, start_python

__all__ = ["write_run"]

# Before torch is imported: one thread here and in every process that a test starts, so that runs repeat bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"
CACHE = tempfile.TemporaryDirectory(prefix="daybreak-cache-")  # of the session: nothing is written in a home
os.environ["XDG_CACHE_HOME"] = CACHE.name
os.fsync = lambda _: None  # no test cuts the power, and a run waits for the disk nearly a hundred times

# No example is timed, for machines are busy at times. Everybody tries the same ones, so that a change is never refused
# for what it did not touch; pytest --hypothesis-profile search looks for new ones, and tries twice as many.
settings.register_profile("search", deadline=None, print_blob=True)
settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("same")

MOST_WORKERS = 6
"""Each worker makes the session's fixtures again and holds its own torch: more workers gain little."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """The number of workers for ``-n auto``: one for each core that this process may use, hyperthreads included.

    pytest-xdist itself counts physical cores and ignores the limits of a container. Its variable
    ``PYTEST_XDIST_AUTO_NUM_WORKERS`` still has the last word.
    """
    return None if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") else min(MOST_WORKERS, joblib.cpu_count())


Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]

SHAPE = (
    "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 32 "
    "--length 32 --batch 8 --precision float32 "
    "--tokenizer.vocabulary 400"
).split()
"""Flags that make the recipe tiny so small that a step takes milliseconds."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .jsonl file of 400 different small documents."""
    chance = random.Random(1)
    path = tmp_path_factory.mktemp("corpus") / "tales.jsonl"
    path.write_text("".join(json.dumps({"text": small_text(chance, 12)}) + "\n" for _ in range(400)))
    return path


@pytest.fixture(scope="session")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corpus``, prepared with a vocabulary of about 400. Shared: copy it before changing it."""
    from daybreak.commands.prepare import prepare
    from daybreak.data.tokenizers.tokenizer import WordPiece

    out = tmp_path_factory.mktemp("prepared") / "data"
    prepare([corpus], out, tokenizer=WordPiece(vocabulary=400))
    return out


@pytest.fixture(scope="session")
def shape() -> list[str]:
    return list(SHAPE)


@pytest.fixture(scope="session", autouse=True)
def parity_server() -> Iterator[Server]:
    """The parity check of every test forks from it, here and in the processes of ``start`` (``warm_python.py``)."""
    server = Server("parity", Path(CACHE.name) / "parity", {**os.environ, "HF_HUB_OFFLINE": "1"})
    run_parity_checks_at(server.place)
    yield server
    server.stop()


@pytest.fixture(scope="session", autouse=True)
def servers(parity_server: Server) -> Iterator[dict[str, str]]:
    """Processes that have imported what a test's own process needs (``warm_python.SERVERS``); their environment."""
    cpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    made = [Server(name, Path(CACHE.name) / name, cpu, parity_server.place) for name in ("bare", "daybreak")]
    yield cpu
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def start(servers: dict[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """Return ``start(*arguments)``: ``python -m daybreak arguments``, going on, on the CPU whatever the machine has.

    It is a fork of a process that has imported Daybreak, or a new one where that would not be the same.
    """

    def begin(*arguments: object, **more: str) -> Any:
        return start_python(["-m", "daybreak", *map(str, arguments)], {**servers, **more})

    return begin


@pytest.fixture(scope="session")
def daybreak(start: Callable[..., subprocess.Popen[str]]) -> Daybreak:
    """Return ``daybreak(*arguments)``: run that command to its end."""

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, **more)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every export passes at once: the gate's clean process takes seconds where it is not what is tested."""
    monkeypatch.setattr("daybreak.pretraining.run_end.check_parity", lambda *_, **__: PASSED)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process train on the CPU, whatever the machine has."""
    train_on_the_cpu(monkeypatch)


@pytest.fixture
def every_step_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and every step leaves a line in the metrics."""
    train_on_the_cpu(monkeypatch, record_every_step=True)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return ``refused(*arguments)``: the command must end with 2 and no traceback; what it said is returned."""

    def run(*arguments: object) -> str:
        from daybreak.cli import main

        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        said = "".join(capsys.readouterr())
        assert left.value.code == 2 and "Traceback" not in said, said
        return said

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "daybreak", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture(scope="session")
def finished(daybreak: Daybreak, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 40 steps on ``data``, made once. Shared: copy it before changing it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    done = daybreak("pretrain", "tiny", "--data", data, "--out", run, "--budget", "40steps", *SHAPE)
    assert done.returncode == 0, done.stderr
    return run
