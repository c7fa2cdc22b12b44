"""What a run writes as it goes, on a disk that takes no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.base.errors import UserError
from daybreak.base.records import TraceRecord
from daybreak.base.run_folder import RunFolder
from daybreak.training.journal import Journal

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.trace.symlink_to(FULL)
    journal = Journal(run)
    with pytest.raises(UserError, match=r"cannot be written in .*No space left") as error:
        journal.trace(TraceRecord(step=0, elapsed=1.5, progress=0.25))
    assert "the same command" in error.value.remedy
    journal.close()  # does not complain once more
    assert run.metrics.read_text() == ""
