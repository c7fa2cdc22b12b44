"""The command: one line for a good submission, every fault and exit code 2 for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.commands.check_submission import check_submission
from daybreak.core.errors import UserError
from daybreak.evaluation.glue_server.submission import write_submission


def test_ours_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_submission(tmp_path, {}, {})
    check_submission(tmp_path / "submission.zip")
    assert capsys.readouterr().out.endswith("submission.zip' is a valid submission: 11 files, all rows present.\n")


def test_every_fault_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_submission(tmp_path, {}, {})
    (tmp_path / "AX.tsv").unlink()
    (tmp_path / "RTE.tsv").write_text("index\tprediction\n0\tentailment\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not a valid submission: 2 problems"):
        check_submission(tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("RTE.tsv, line 2, is its last: 1 row. Write 3,000")
    assert said[1].startswith("AX.tsv is missing")
