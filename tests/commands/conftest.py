"""A run to change, one that is killed, and records in small parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_texts import PART, write_records


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_records(tmp_path / "corpus.jsonl")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``prepare`` reads in parts of PART bytes."""
    from daybreak.commands import prepare
    from daybreak.data.pipeline.corpus import bundle_files

    monkeypatch.setattr(prepare, "bundle_files", lambda files, rule, **how: bundle_files(files, rule, PART, **how))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of 40 steps, to be changed; whether its best was worth keeping is a matter of speed."""
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(copy / "best", ignore_errors=True)
    return copy


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """Return ``killed_at(step, keep)``: a run in it saves a checkpoint after ``keep`` steps and ends before ``step``.

    As good as kill -9 for what is on disk: nothing is saved on the way out.
    """
    from daybreak.training import loop

    take_step = loop.take_step

    @contextmanager
    def killing(step: int, *, keep: int) -> Iterator[None]:
        def taking(training: Any, progress: Any, at: float, **more: Any) -> Any:
            if progress.step == step:
                raise KeyboardInterrupt
            outcome = take_step(training, progress, at, **more)
            if outcome.progress.step == keep:
                loop.save(training, outcome.progress)
            return outcome

        with monkeypatch.context() as patch:
            patch.setattr(loop, "take_step", taking)
            yield

    return killing
