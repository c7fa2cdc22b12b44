"""Trackers get the run's numbers and nothing else, and nothing that they do reaches the run.

The fakes are packages of the trackers' names in a folder of their own: processes find them as they find the real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_records import DEVICES, MACHINE, VALIDATION, step_record

from daybreak.commands.pretrain import Watching
from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import MachineRecord
from daybreak.training.monitoring import trackers
from daybreak.training.monitoring.trackers import TRACKERS, Remote, check_trackers

FAKE = """
import json, os, time
from pathlib import Path

HERE = Path(__file__).parent
def put(file, value):
    with (HERE / file).open("a") as out:
        out.write(json.dumps(value) + "\\n")
def hang():
    while True:
        time.sleep(1)
put("pid", os.getpid())
class Run:
    def log(self, values, step):
        put("told", [step, values])
        {log}
    def finish(self):
        put("finished", True)
        {finish}
def init(**given):
    print("noise")
    put("given", given)
    {init}
    return Run()
{top}
"""
RECIPE = {
    "name": "tiny",
    "length": 128,
    "gradient_checkpointing": False,
    "optimizer": {"lr": 1e-3, "decay": ["matrices"]},
}
STEP = step_record(dropped=1)
STEP_NUMBERS = {
    "run/elapsed": 3.0, "run/progress": 0.25, "run/tokens": 900, "run/targets": 90, "train/loss": 4.5,
    "train/learning_rate": 2e-3, "train/gradient_norm": 0.8, "train/tokens_per_second": 300.0, "train/dropped": 1,
    "train/causal": 0,
}  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return ``fake(name, ...)``: it puts a package ``name`` in front of the real one; its folder is returned."""

    def write(name: str = "trackio", *, log: str = "", finish: str = "", init: str = "", top: str = "") -> Path:
        folder = tmp_path / f"fake-{name}" / name
        folder.mkdir(parents=True, exist_ok=True)
        code = FAKE.format(log=log or "pass", finish=finish or "pass", init=init or "pass", top=top)
        (folder / "__init__.py").write_text(code)
        monkeypatch.syspath_prepend(folder.parent)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")]))
        return folder

    return write


def remote(run: RunFolder, *names: str, recipe: dict[str, Any] | None = None) -> Remote:
    return Remote(names or ["trackio"], run=run, recipe=RECIPE if recipe is None else recipe, name="my run")


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to start a process than a run waits for its end."""
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 60.0)


def test_one_tracker_alone_is_not_its_letters() -> None:
    assert Watching(track="tensorboard").track == ("tensorboard",)  # type: ignore[arg-type]


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"--track cannot be 'wanbd'\. Did you mean 'wandb'"):
        check_trackers(["wanbd"])


def test_a_package_that_is_not_there_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # as wandb leaves it in the folder where it ran: no package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in TRACKERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(UserError, match=f"'{name}' is not installed") as error:
            check_trackers([name])
        assert "pip install" in error.value.remedy and "daybreak" not in error.value.remedy


def test_a_package_that_is_there_is_not_imported_by_the_check(fake: Callable[..., Path]) -> None:
    fake("trackio", top="raise RuntimeError('imported')")
    check_trackers(["trackio"])


def test_every_record_arrives_under_flat_names(run: RunFolder, fake: Callable[..., Path]) -> None:
    there = fake()
    received = remote(run)
    received.on_step(STEP)
    received.on_validation(VALIDATION)
    received.on_machine(MACHINE)
    received.close()
    step, validation, machine = lines(there / "told")
    assert step == [7, STEP_NUMBERS]
    assert validation[0] == 8 and validation[1] == {
        "run/elapsed": 4.0, "run/progress": 0.5, "run/tokens": 1000, "heldout/loss": 4.0, "heldout/accuracy": 0.2,
        "heldout/positions": 50, "heldout/distinct": 9, "heldout/unigram_loss": 6.0,
        "heldout/most_frequent_fraction": 0.05,
        "heldout/seconds": 0.5,
    }  # fmt: skip
    assert machine[1]["machine/processor"] == 0.5 and machine[1]["machine/gpu0/watts"] == 300.0
    assert machine[1]["machine/gpu1/utilisation"] == 0.1 and "machine/gpu1/watts" not in machine[1]
    assert lines(there / "finished") == [True]


def test_a_record_longer_than_a_pipe_takes_whole_arrives_in_parts(run: RunFolder, fake: Callable[..., Path]) -> None:
    there = fake()
    received = remote(run)
    received.on_machine(MachineRecord(**{**vars(MACHINE), "devices": DEVICES * 32}))
    received.close()
    parts = [values for _, values in lines(there / "told")]
    assert len(parts) > 1
    together = {key: value for part in parts for key, value in part.items()}
    assert len(together) == sum(map(len, parts)) == 6 + 32 * (5 + 3)


def test_no_text_but_known_words_leaves(run: RunFolder, fake: Callable[..., Path]) -> None:
    there = fake()
    secret = {"init": "/secret/model", "parent": "secret-corp", "branch": "secret", "general": "secret", "begin": 0.5}
    folder = {"kind": "Existing", "folder": "secret/tokenizer"}
    received = remote(run, recipe={**RECIPE, "origin": secret, "tokenizer": folder, "new_field": ["secret"]})
    received.on_machine(MACHINE)
    received.close()
    given = lines(there / "given")[0]
    assert given["config"] == {**RECIPE, "origin": {"begin": 0.5}, "tokenizer": {"kind": "Existing"}, "new_field": []}
    assert "secret" not in json.dumps(given) + (there / "told").read_text()


def test_a_resumed_run_goes_on_under_its_name_and_another_run_does_not(
    run: RunFolder, fake: Callable[..., Path]
) -> None:
    there = fake()
    for started in (1.5, 1.5, 2.5):
        write_json(run.environment, {"started": started})
        remote(run).close()
    first, again, other = [given["name"] for given in lines(there / "given")]
    assert first == again != other
    assert first.startswith("my run")


@pytest.mark.parametrize("where", ["top", "init", "finish"])
def test_a_tracker_that_raises_is_one_sentence(
    where: str, run: RunFolder, fake: Callable[..., Path], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fake(**{where: "raise RuntimeError('the service is down.\\nmore')"})
    received = remote(run)
    received.on_step(STEP)
    received.close()
    output = capsys.readouterr().out
    assert output.startswith("trackio is disabled: the service is down. The run continues")
    assert output.count("\n") == 1


def test_one_that_raises_in_the_middle_ends_alone(
    run: RunFolder, fake: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake(log="raise SystemExit(3)")
    settings = "Settings = dict\nRun.define_metric = lambda self, *names, **more: None"
    good = fake("wandb", top=f"{settings}\nRun.log = lambda self, values: put('told', values)")
    output, sent = "", 0
    received = remote(run, "trackio", "wandb", "trackio")
    until = time.monotonic() + 60
    while not output and time.monotonic() < until:
        received.on_step(STEP)
        sent += 1
        output += capsys.readouterr().out
        time.sleep(0.02)
    received.on_step(STEP)
    received.close()
    output += capsys.readouterr().out
    assert output.count("trackio is disabled") == 1 and output.count("\n") == 1
    assert lines(good / "told") == [{"step": 7, **STEP_NUMBERS}] * (sent + 1)


def test_a_process_that_dies_is_one_sentence(
    run: RunFolder, fake: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake(init="os.kill(os.getpid(), 9)")
    remote(run).close()
    assert capsys.readouterr().out.count("its process ended by itself. The run continues") == 1


def test_a_machine_that_starts_no_process_harms_nobody(
    run: RunFolder, fake: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    received = remote(run)
    received.on_step(STEP)
    received.close()
    assert capsys.readouterr().out.count("No such file or directory") == 1


HANGING = """
import sys, time
from pathlib import Path
from daybreak.schemas.run import StepRecord
from daybreak.core.run_folder import RunFolder
from daybreak.training.monitoring import trackers
trackers.CLOSE_SECONDS, trackers.LINGER_SECONDS = 0.5, 1.0
told = trackers.Remote(["trackio"], run=RunFolder(Path(sys.argv[1])), recipe={}, name="x")
record = StepRecord(step=1, elapsed=1.0, progress=0.1, tokens=1, stage="masked", loss=1.0, targets=1,
                    learning_rate=1.0, gradient_norm=1.0, tokens_per_second=1.0)
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
for _ in range(5000):  # more than any pipe holds: a call that waited would wait for ever
    told.on_step(record)
told.close()
print("closed")
"""


@pytest.mark.parametrize("where", ["top", "init", "log", "finish"])
def test_one_that_hangs_neither_holds_the_run_nor_outlives_it(
    where: str, run: RunFolder, fake: Callable[..., Path], tmp_path: Path
) -> None:
    there = fake(**{where: "hang()"})
    script = tmp_path / "script.py"
    script.write_text(HANGING)
    command = [sys.executable, script, run.path, there / "pid"]
    # Not the pipes that an orphan would keep open: what is waited for is the end of the run's process alone.
    with (tmp_path / "said").open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=output, timeout=120, check=False)
    text = (tmp_path / "said").read_text()
    assert done.returncode == 0 and text.endswith("closed\n"), text
    assert "trackio has not finished; its process continues" in text
    if where != "finish":
        assert "records did not reach it" in text
    process, until = Path(f"/proc/{lines(there / 'pid')[0]}/stat"), time.monotonic() + 60
    with contextlib.suppress(OSError):  # it is gone
        while process.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until, "the tracker's process goes on"
            time.sleep(0.02)


def test_a_slow_tracker_gets_what_it_can_and_is_said_to_miss_the_rest(
    run: RunFolder, fake: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    gate = tmp_path / "gate"
    there = fake(init=f"while not Path({str(gate)!r}).exists(): time.sleep(0.01)")
    sent = 3000
    received = remote(run)
    for _ in range(sent):
        received.on_step(STEP)
    gate.touch()
    received.close()
    arrived = len(lines(there / "told"))
    assert 0 < arrived < sent
    assert f"{sent - arrived} records did not reach it" in capsys.readouterr().out
