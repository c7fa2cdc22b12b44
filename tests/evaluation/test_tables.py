"""Cells come out of files as they stand there, whatever the quoting, marks and torn rows around them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daybreak.base.errors import UserError
from daybreak.evaluation.tables import read_cells


def written(folder: Path, text: str, name: str = "t.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def test_tabs_are_split_without_quoting_and_the_mark_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, '\ufefflabel\ta\tb\r\n1\tthe "odd one\tx\u2028y\r\n\r\n0\t"\t z \n')
    assert read_cells(path, ("b", "a", "label"), format="tsv", header=True).rows == [
        ("x\u2028y", 'the "odd one', "1"),
        (" z ", '"', "0"),
    ]


def test_short_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\n" + "x\ty\n" * 30 + "torn\n" + "x\t\n" + "x\ty\textra\n")
    found = read_cells(path, ("a", "b"), format="tsv", header=True)
    assert (len(found.rows), found.skipped) == (31, 2)
    assert found.lines[-1] == 34


def test_no_header_takes_numbers(tmp_path: Path) -> None:
    assert read_cells(written(tmp_path, "a\tb\n"), (1,), format="tsv", header=False).rows == [("b",)]


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(words, words), min_size=1, max_size=8))
def test_csv_and_jsonl_return_what_was_written(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    assert read_cells(written(tmp_path, text.getvalue()), ("a", "b"), format="csv", header=True).rows == rows
    lines = "".join(json.dumps({"a": a, "b": b, "more": [1]}) + "\n" for a, b in rows)
    assert read_cells(written(tmp_path, lines), ("a", "b"), format="jsonl", header=True).rows == rows


def test_jsonl_numbers_become_text(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "x", "b": 3}\n{"a": "y", "b": true}\n{"a": "z", "b": 0.5}\n')
    assert read_cells(path, ("b",), format="jsonl", header=True).rows == [("3",), ("true",), ("0.5",)]


def test_torn_json_lines_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "x"}\n' * 20 + '{"a": \n')
    assert read_cells(path, ("a",), format="jsonl", header=True).skipped == 1


@pytest.mark.parametrize(
    ("text", "columns", "options", "fault"),
    [
        ("", ("a",), {}, "holds no rows"),
        ("a\tb\n", ("a",), {}, "holds no rows"),
        ("a\tb\nx\ty\n", ("c",), {}, "no column 'c': it holds 'a', 'b'"),
        ("text\tlabel\nx\ty\n", ("texts",), {}, "Did you mean 'text'?"),
        ("a\tb\nx\ty\n", (2,), {}, "no column 2: it holds columns 0 to 1"),
        ("x\ty\n", ("a",), {"header": False}, "read without a header"),
        ("a\tb\n" + "x\n" * 9, ("a", "b"), {}, "9 of the 9 rows"),
        ('{"a": 1}\n', ("b",), {"format": "jsonl"}, "no column 'b': it holds 'a'"),
        ("no json\n", ("b",), {"format": "jsonl"}, "1 of the 1 rows"),
    ],
)
def test_refusals(tmp_path: Path, text: str, columns: tuple[str, ...], options: dict[str, object], fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_cells(path, columns, **{"format": "tsv", "header": True, **options})  # type: ignore[arg-type]
    assert fault in caught.value.sentence
    assert str(path) in caught.value.sentence


def test_broken_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"a\tb\n\xff\xfe\ty\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_cells(path, ("a",), format="tsv", header=True)
