"""The worst case of a run, for tests of what survives it."""

from __future__ import annotations

import os

import pytest

from daybreak.training import loop


@pytest.fixture
def checkpoint_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoints are all of weights that are ill already."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing here cuts the power
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_FRACTION", 1e9)
