"""A run to change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of 40 steps, to be changed; whether its best was worth keeping is a matter of speed."""
    copy = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(copy / "best", ignore_errors=True)
    return copy
