"""A study as text: its tables."""

from __future__ import annotations

from daybreak.reporting.studies import table


def test_a_table_is_one_in_markdown_whatever_stands_in_it() -> None:
    first, line, *rows = table(("a|b", "c"), [("1", "long words"), ("x|y", "")]).splitlines()
    assert {text.count("|") for text in (first, line, *rows)} == {3} and len(
        {len(text) for text in (first, line, *rows)}
    ) == 1
