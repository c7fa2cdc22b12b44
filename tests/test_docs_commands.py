"""Every command and every piece of Python on the pages runs, in a small world and with less to do (``shorten``).

What cannot run here stands in PARSED, with the reason, and is parsed to the arguments of its function. A command that
is new on a page is run, unless it is listed there. The cells of the notebook run in tests/test_notebook.py.
"""

from __future__ import annotations

import filecmp
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from page_commands import COMMANDS, ROOT, SAID, TEXTS, Said, called, words_of
from played_commands import SMALLER, check_left, make_room, shape_of, shorten, shortened
from small_world import SHAPE, furnish, write_world
from torch.distributed.run import parse_args

from daybreak.cli import main
from daybreak.pretraining.flops import meta_model
from daybreak.recipe import Recipe

BASE = "-m daybreak pretrain base --data data/mine --budget 24h --out runs/mine"
PARSED = {
    "several GPUs or hosts; tests/test_systems.py and tests/test_hosts.py train with two processes": (
        f"torchrun --nproc-per-node 8 --max-restarts 3 {BASE}",
        "torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
        f"{BASE}",
        'srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d '
        f'--rdzv-endpoint "$host:29500" {BASE}',
        "torchrun --nproc-per-node 4 -m daybreak pretrain bert-gpu --data DATA --budget 24h",
        "torchrun --nproc-per-node 8 -m daybreak pretrain crammed-8gpu --data DATA --budget 47.5h",
    ),
    "a cluster; tests/data/pipeline/test_cluster_ray.py and test_cluster_slurm.py have one": (
        "daybreak prepare corpus/ --out data/mine --on slurm --workers 64 --slurm.partition cpu --slurm.time 04:00:00",
        "daybreak prepare corpus/ --out data/mine --on ray --workers 64",
        "daybreak evaluate runs/mine --tasks glue --task-dir GLUE --backend ray --workers 16",
        'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export RAY_ADDRESS=HOST:6379",
        "export SBATCH_ACCOUNT=mine",
    ),
    "a run that was stopped; tests/commands/test_pretrain.py resumes one": (
        "daybreak pretrain runs/mine --data runs/mine/data --out runs/mine",
    ),
    "results on whole GLUE tasks; tests/reporting/test_task_results.py runs it with some": (
        "daybreak report runs/mine --table glue",
    ),
    "the hub": (
        "daybreak evaluate MODEL --tasks glue --task-dir hf://nyu-mll/glue",
        "daybreak run mini --corpus wikipedia --budget 24h",
        "daybreak prepare hf://allenai/c4:en/train[:25000000] --out DATA --recipe crammed-legacy",
    ),
    "a GPU, or minutes; tests/test_gpu_call.py runs a short form": (
        'make gpu ARGS="--task-dir GLUE --minutes 60"',
        "make gpu-dry",
        "docker build -t daybreak .",
        'docker run --gpus all -v "$PWD/runs:/runs" -v "$HOME/.cache:/cache" -e XDG_CACHE_HOME=/cache daybreak '
        "run base --corpus /runs/texts --budget 8h --out /runs/mine",
    ),
    "the extra serve; tests/test_served.py runs it where that is there": (
        "daybreak export RUN --out MODEL --onnx",
    ),
    "the extra demo and a browser; tests/test_playground.py opens the page": (
        "pip install -c constraints.txt -e '.[demo]'",
        "pip install -c constraints.txt -e '.[hub,corpus]'",
        "python examples/playground.py runs/mini",
    ),
    "the package index, an environment of its own, or hours": (
        "make run",
        "make test",
        "make test-all",
        "make check",
        "make docs",
        "make tables",
        "make run SYSTEM_TORCH=1",
        'make test ARGS="tests/data -x"',
        'make test ARGS="-n 0 tests/core --pdb"',
        'make test ARGS="tests/data --hypothesis-profile search"',
        'make test-all ARGS="-m extra"',
        "source .venv/bin/activate",
        "python3.11 -m venv .venv",
        ".venv/bin/pip install -c constraints.txt .",
        "pip install -c constraints.txt -e '.[corpus]'",
        "pip install -c constraints.txt -e '.[corpus]' ray",
        "pip install ray",
        "pip install notebook",
        "jupyter notebook examples/pretrain_your_own.ipynb",
    ),
}  # fmt: skip
"""What a command needs -> the commands that are not run for it."""
ONLY_PARSED = [command for commands in PARSED.values() for command in commands]
LEDGER = "docs/mission.md"
"""A table and no story: each command has a world of its own."""
STANDS_FOR = {"NAME": "crammed"}
EXAMPLES = {path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
"""Of which a page shows a copy; commands on that page run the file."""


@dataclass(frozen=True)
class Play:
    """What is done in one world, one after the other."""

    name: str
    page: str
    parts: list[Said]


def key(command: str) -> str:
    """Without what is shortened anyway or only names a place: commands of one key do the same."""
    return re.sub(r" --(budget|extend|seeds|out) \S+", "", command)


def plays() -> list[Play]:
    """A page is a play from top to bottom; of the ledger, what no page has."""
    run = [one for one in SAID if one.text not in ONLY_PARSED and one.text not in EXAMPLES]
    pages = dict.fromkeys(one.page for one in run if one.page != LEDGER)
    found = [Play(page, page, [one for one in run if one.page == page]) for page in pages]
    known = {key(one.text) for play in found for one in play.parts}
    rows = {key(one.text): one for one in run if one.page == LEDGER and key(one.text) not in known}
    found += [Play(f"{LEDGER}: {one.text}", LEDGER, [one]) for one in rows.values()]
    return found


# ---------------------------------------------------------------- what runs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: ``furnish`` copies from it."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        write_world(folder)
    return folder


@pytest.mark.parametrize("play", [pytest.param(play, id=play.name) for play in plays()])
def test_what_a_page_tells_to_type_does_what_the_page_says(
    play: Play, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)
    furnish(world, tmp_path, play.page, [one.text for one in play.parts])
    for one in play.parts:
        try:
            if one.language == "python":
                exec(compile(one.text, play.page, "exec"), {"__name__": "__main__"})
            else:
                do(one.text, monkeypatch, capsys)
        except (Exception, SystemExit) as error:
            said = "".join(capsys.readouterr())
            raise AssertionError(f"{one.page}: {one.text}\n{said}") from error
    shutil.rmtree(tmp_path)


def do(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command and look at what it left."""
    capsys.readouterr()
    words = [STANDS_FOR.get(word, word) for word in words_of(command)]
    if command.startswith("daybreak "):
        make_room(words)
        with pytest.raises(SystemExit) as left:
            main(words)
        said = capsys.readouterr()
        assert left.value.code == 0, said.out + said.err
        check_left(words, said.out)
    elif command.startswith("python "):
        run_script(command, monkeypatch)
    else:
        in_a_shell(command)
        if words:
            check_left(words, "")
        else:
            assert Path(command.rpartition("> ")[2]).stat().st_size


def in_a_shell(command: str) -> None:
    """With ``daybreak`` on the path, as an environment puts it there."""
    script = Path("bin/daybreak")
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m daybreak "$@"\n')
    script.chmod(0o755)
    paths = {**os.environ, "PATH": f"{script.parent.resolve()}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=paths, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_script(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python FILE ...`` of the repository, in a copy of what it may write: that must come out as it was."""
    words, copy = shlex.split(command)[1:], Path("copy")
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("docs", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.md"):
        shutil.copy(file, copy)
    (copy / "examples").symlink_to(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "page_commands", raising=False)
    monkeypatch.syspath_prepend(str((copy / words[0]).parent.resolve()))
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setenv("COLUMNS", "200")
    try:
        runpy.run_path(str(copy / words[0]), run_name="__main__")
    except SystemExit as left:
        assert not left.code and "--help" in words
    for page in sorted(TEXTS):
        assert filecmp.cmp(copy / page, ROOT / page, shallow=False), page
    for golden in (ROOT / "tests" / "golden").iterdir():
        assert filecmp.cmp(copy / "tests" / "golden" / golden.name, golden, shallow=False), golden.name


def test_the_rules_that_shorten_change_nothing_else() -> None:
    """A recipe keeps its parts: what it predicts, its optimizer, its schedule, its rows, its text."""
    from daybreak.core.serialization import to_dict
    from daybreak.recipe import load_recipe, recipe_names

    changed = {*SMALLER, "microbatch", "model", "phase2", "ramp", "devices", "finish"}
    for name in recipe_names():
        before, after = load_recipe(name), shortened(load_recipe(name))
        after.check()
        assert shape_of(after) == SHAPE and type(after.model) is type(before.model)
        plain = to_dict(after)
        assert {part for part, value in to_dict(before).items() if value != plain[part]} <= changed


# ---------------------------------------------------------------- what is only parsed


def test_each_command_that_is_not_run_stands_on_a_page_and_once_in_the_list() -> None:
    assert set(ONLY_PARSED) - {one.text for one in COMMANDS} == set()
    assert len(ONLY_PARSED) == len(set(ONLY_PARSED))


@pytest.mark.parametrize("command", [command for command in ONLY_PARSED if words_of(command)])
def test_what_is_only_parsed_comes_to_a_model_that_can_be_built(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, _ = called(command, tmp_path, monkeypatch)
    for recipe in given:
        if isinstance(recipe, Recipe):
            recipe.check()
            assert meta_model(recipe, 400).parameter_count() > 400 * SHAPE["hidden_size"]
    if "torchrun " in command:
        asked = parse_args(shlex.split(command.partition("torchrun ")[2]))
        assert asked.module and asked.training_script == "daybreak"
        assert asked.training_script_args == words_of(command)


@pytest.mark.parametrize("command", [command for command in ONLY_PARSED if not words_of(command)])
def test_other_programs_understand_what_they_get(command: str) -> None:
    subprocess.run(["bash", "-n", "-c", command], check=True)
    words = shlex.split(command)
    if "make" in words:
        dry = [*words[words.index("make") + 1 :], "--dry-run", "--always-make", f"PYTHON={sys.executable}"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(["make", *dry], cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
        # A rented machine is used as it is; everything else installs what it needs.
        wanted = "benchmarks/gpu.py" if words[words.index("make") + 1].startswith("gpu") else "pip install"
        assert done.returncode == 0 and wanted in done.stdout, done.stderr
    if "pip install" in command:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(re.findall(r"daybreak\[(\w+)\]", command)) <= set(project["optional-dependencies"])
        assert all((ROOT / name).is_file() for name in re.findall(r"-c (\S+)", command))
    if ".venv" in command:
        assert re.search(r"^VENV := \.venv$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
