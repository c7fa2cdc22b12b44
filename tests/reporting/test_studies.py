"""A study in words: its tables, and its entry in a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.reporting.studies import check_log, table, with_entry


def test_a_log_gets_the_entry_on_top_and_once() -> None:
    log = "# Log\n\nHow it is kept.\n\n## 2026-01-01: older\n\nWords.\n"
    once = with_entry(log, "## 2026-01-02: which\n\nFirst try.")
    assert once == "# Log\n\nHow it is kept.\n\n## 2026-01-02: which\n\nFirst try.\n\n## 2026-01-01: older\n\nWords.\n"
    again = with_entry(once, "## 2026-01-02: which\n\nSecond try.\n")
    assert again == once.replace("First", "Second")
    assert with_entry("", "## 2026-01-02: which\n\nFirst try.") == "## 2026-01-02: which\n\nFirst try.\n"


def test_a_heading_in_a_block_of_code_is_none() -> None:
    log = "# Log\n\n```\n## no entry\n```\n\n## 2026-01-01: older\n\nWords.\n"
    found = with_entry(log, "## 2026-01-02: which\n\nNew.")
    assert found == log.replace("## 2026-01-01", "## 2026-01-02: which\n\nNew.\n\n## 2026-01-01")


def test_a_log_that_is_no_text_is_refused_before_anything_trains(tmp_path: Path) -> None:
    (tmp_path / "log.md").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="cannot be read as text in UTF-8"):
        check_log(tmp_path / "log.md")


def test_a_table_is_one_in_markdown_whatever_stands_in_it() -> None:
    first, line, *rows = table(("a|b", "c"), [("1", "long words"), ("x|y", "")]).splitlines()
    assert {text.count("|") for text in (first, line, *rows)} == {3} and len(
        {len(text) for text in (first, line, *rows)}
    ) == 1
