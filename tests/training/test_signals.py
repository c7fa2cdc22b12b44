"""A signal stops a run, and a resume continues it without a difference."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toy_run import ROWS, equal, newest, take, training

from daybreak.core.batch import Batch
from daybreak.core.errors import Interrupted
from daybreak.core.run_folder import RunFolder
from daybreak.training import checkpoint
from daybreak.training.loop import fit
from daybreak.training.signals import HANDLED, Signals


@pytest.fixture(autouse=True)
def _attended() -> Iterator[None]:
    """As in a terminal, wherever these tests run: under nohup SIGHUP is ignored."""
    old = {number: signal.signal(number, signal.SIG_DFL) for number in HANDLED}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_saves_and_leaves_and_the_rest_gives_the_same_weights(tmp_path: Path, number: int) -> None:
    whole = training(tmp_path / "whole")
    fit(whole, checkpoint.START)

    def interrupting(position: int, rows: int, progress: float = 0.0) -> Batch:
        if position == 11 * ROWS:
            os.kill(os.getpid(), number)
        return take(position, rows)

    made = training(tmp_path / "part")
    made = replace(made, phases=(replace(made.phases[0], take=interrupting),))
    before = [signal.getsignal(each) for each in HANDLED]
    with pytest.raises(Interrupted) as stop:
        fit(made, checkpoint.START)
    assert stop.value.exit_code == 128 + number
    assert [signal.getsignal(each) for each in HANDLED] == before
    again = training(tmp_path / "part")
    progress = newest(RunFolder(tmp_path / "part").checkpoints, again)
    assert progress.step == 12
    fit(again, progress)
    assert equal(whole, again)


def test_under_nohup_only_a_closed_terminal_is_ignored() -> None:
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
