"""``make test``: which command it runs, how many workers that starts, and what its end lists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

ROOT = Path(__file__).resolve().parents[1]

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
needs_xdist = pytest.mark.skipif("not config.pluginmanager.hasplugin('xdist')", reason="needs pytest-xdist")


def pytest_command(*settings: str) -> list[str]:
    """The words of the command that ``make test`` would run."""
    # Make itself may have started these tests: without its variables the one below prints no folders.
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "-n", "test", *settings]
    made = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    return shlex.split(made.stdout.splitlines()[-1])


@needs_make
def test_make_test_passes_arguments_on() -> None:
    command = pytest_command("ARGS=tests/data -x")
    assert command[:4] == ["OMP_NUM_THREADS=1", ".venv/bin/python", "-m", "pytest"] and command[-2:] == [
        "tests/data", "-x",
    ]  # fmt: skip


@needs_xdist
@pytest.mark.parametrize(("cores", "workers"), [(2, 2), (64, 6)])
def test_there_is_a_worker_for_each_usable_core_up_to_six(
    cores: int, workers: int, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig) == workers


@needs_make
@needs_xdist
def test_two_workers_share_the_tests_and_the_end_lists_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('number', range(8))\n"
        "def test_it(number):\n"
        "    (pathlib.Path(__file__).parent / os.environ['PYTEST_XDIST_WORKER']).touch()\n"
        "def test_without_a_gpu():\n"
        "    pytest.skip('needs a GPU of its own')\n"
    )
    flags = pytest_command()[4:]
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", *flags, tmp_path]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    settings = {"PYTEST_XDIST_AUTO_NUM_WORKERS": "2", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    done = subprocess.run(command, capture_output=True, text=True, env=clean | settings, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.glob("gw*")} == {"gw0", "gw1"}
    assert re.search(r"^SKIPPED \[1\].*: needs a GPU of its own$", done.stdout, re.MULTILINE), done.stdout
