"""What the end of a run says: which model is better, and whether several devices are slower than one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.pretraining.run_end import _keep_best, warn_of_communication
from daybreak.schemas.run import Summary, ValidationRecord
from daybreak.training.checkpoint import START

FINAL = ValidationRecord(
    step=9, elapsed=9, progress=1, tokens=9, loss=5.286, accuracy=0.2, positions=9, distinct=3, unigram_loss=7.0,
    most_frequent_fraction=0.05, final=True, seconds=1,
)  # fmt: skip


@pytest.mark.parametrize(("interim", "advised"), [(5.09, False), (5.2, True), (None, True)])
def test_the_best_is_compared_with_the_end_on_the_same_rows(
    interim: float | None, advised: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best interim loss of 5.085 is of easier rows than the final 5.286, which is no rise."""
    run = RunFolder(tmp_path)
    (run.best / "step-000000004").mkdir(parents=True)
    _keep_best(run, tmp_path / "data", replace(START, best=5.085), replace(FINAL, interim_loss=interim))
    assert ("--best" in capsys.readouterr().out) == advised == run.best.exists()


def test_a_best_checkpoint_that_is_gone_is_not_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(tmp_path)
    run.best.mkdir()
    _keep_best(run, tmp_path / "data", replace(START, best=4.0), FINAL)
    assert capsys.readouterr().out == "" and not run.best.exists()


@pytest.mark.parametrize(("data", "option"), [("my run/data", ""), ("my data", " --data 'my data'")])
def test_the_command_that_exports_the_best_names_data_outside_the_run(
    data: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("my run"))
    (run.best / "step-000000004").mkdir(parents=True)
    _keep_best(run, Path(data), replace(START, best=4.0), FINAL)
    assert f"daybreak export 'my run' --best{option} --out DIR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("devices", "seconds", "slower"),
    [(1, 0.0, False), (2, 40.0, False), (2, 60.0, True), (4, 60.0, False), (4, 80.0, True)],
)
def test_devices_that_are_slower_than_one_are_said_so(
    devices: int, seconds: float, slower: bool, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 100 s of steps: n devices that spend more than (n - 1) / n of it waiting were beaten by one alone."""
    summary: Summary = read_json(finished / "summary.json", Summary)
    used = {**summary.time_by_category, "train": 100.0 - seconds, "communicate": seconds}
    warn_of_communication(replace(summary, time_by_category=used), World(rank=0, size=devices))
    received = capsys.readouterr().out
    assert (f"on {devices} devices; {seconds:.0f}% of the time is communication" in received) == (devices > 1)
    assert (f"{devices} devices are slower than one" in received) == slower
