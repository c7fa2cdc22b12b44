"""What can be read only once is no input by its path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers.inputs import find_files


def test_a_pipe_gets_the_remedy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="can be read only once") as refused:
        find_files([str(tmp_path / "pipe")])
    assert "prepare - <" in refused.value.remedy


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no /dev/fd")
def test_process_substitution_gets_the_remedy() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(UserError, match="can be read only once"):
            find_files([f"/dev/fd/{reader}"])
    finally:
        os.close(reader)
        os.close(writer)
