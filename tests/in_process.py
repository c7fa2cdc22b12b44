"""Run Daybreak's commands in the process of a test, and stop them at a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest


def exit_code(*words: object) -> int:
    """Run ``daybreak words`` and return its exit code."""
    from daybreak.cli import main

    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return int(left.value.code or 0)


def command(*words: object) -> None:
    """Run ``daybreak words``, which must succeed."""
    assert exit_code(*words) == 0


def bits(run: Path) -> bytes:
    """The weights of the exported model of a run."""
    return (run / "model" / "model.safetensors").read_bytes()


@contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Send SIGTERM to this process when training takes step ``step``."""
    from daybreak.training import loop

    take_step = loop.take_step

    def stopping(training: Any, progress: Any, at: float, **more: Any) -> Any:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take_step(training, progress, at, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "take_step", stopping)
        yield


def train_on_the_cpu(monkeypatch: pytest.MonkeyPatch, record_every_step: bool = False) -> None:
    """Train on the CPU on every machine, because results are compared bit by bit."""
    import torch

    from daybreak.commands import pretrain
    from daybreak.training import loop
    from daybreak.training.hardware import probe

    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
    if record_every_step:
        monkeypatch.setattr(
            pretrain, "fit", lambda training, progress: loop.fit(replace(training, record_seconds=0.0), progress)
        )
