"""A run folder whose name must not reach a tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "secret-folder")
    folder.path.mkdir()
    write_json(folder.environment, {"started": 1_790_000_000.25})
    return folder
