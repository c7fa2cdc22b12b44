"""The scripts in benchmarks/, as a test imports them, and a toy shape for them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from daybreak.models.modern import ModernEncoder

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SHAPE = ModernEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=48)
VOCABULARY, LENGTH = 100, 24


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other as neighbours, as they do when they are run."""
    monkeypatch.syspath_prepend(str(FOLDER))


def script(name: str) -> Any:
    module = __import__(name)
    assert isinstance(module, ModuleType) and Path(str(module.__file__)).parent == FOLDER
    return module
