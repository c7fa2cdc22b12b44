"""Values come out of files as they are there, whatever the quoting, marks and torn rows around them."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.tables import FORMATS, nfc, read_table


def written(folder: Path, text: str, name: str = "t.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def test_tabs_are_split_without_quoting_and_the_mark_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, '\ufefflabel\ta\tb\r\n1\tthe "odd one\tx\u2028y\r\n\r\n0\t"\t z \n')
    assert read_table(path, ("b", "a", "label"), format="tsv", header=True).rows == [
        ("x\u2028y", 'the "odd one', "1"),
        (" z ", '"', "0"),
    ]


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
def test_a_csv_file_may_have_the_delimiter_of_a_spreadsheet(tmp_path: Path, mark: str) -> None:
    lines = [("text, or not", "label"), ("a;b\tc|d", "1,5"), ("e", "f")]
    quoted = "\r\n".join(mark.join(f'"{cell}"' for cell in line) for line in lines)
    path = written(tmp_path, f"\ufeff\r\n{quoted}\r\n", "t.csv")
    found = read_table(path, ("label", "text, or not"), format="csv", header=True)
    assert found.rows == [("1,5", "a;b\tc|d"), ("f", "e")]
    assert read_table(written(tmp_path, "a;b,c\n"), (0,), format="csv", header=False).rows == [("a;b",)]


def test_short_and_long_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\n" + "x\ty\n" * 30 + "torn\n" + "x\t\n" + "x\ty\textra\n" + "x\ty\t \t\n")
    found = read_table(path, ("a", "b"), format="tsv", header=True)
    assert (len(found.rows), found.skipped) == (31, 3)
    assert found.lines[-1] == 35
    assert len(read_table(path, (0, 1), format="tsv", header=False).rows) == 33


def test_a_delimiter_in_a_text_without_quotes_is_no_shift(tmp_path: Path) -> None:
    """The row would have the text "good" and the label "but late"."""
    path = written(tmp_path, "text,label\n" + "bad,neg\n" * 9 + "good, but late,pos\n" * 2, "t.csv")
    with pytest.raises(UserError, match=r"^2 of the 11 rows .* line 11, for example, has more cells.* in quotes"):
        read_table(path, ("text", "label"), format="csv", header=True)
    with pytest.raises(UserError, match=r"^Line 11 of .* has more cells than the header.* in quotes"):
        read_table(path, ("text",), format="csv", header=True, whole=True)


def test_a_comma_in_a_text_without_quotes_is_no_shift_without_a_header_either(tmp_path: Path) -> None:
    path = written(tmp_path, "bad,neg\n" * 30 + "I like it, really,pos\n", "t.csv")
    found = read_table(path, (0, 1), format="csv", header=False)
    assert (set(found.rows), found.skipped) == ({("bad", "neg")}, 1)
    path = written(tmp_path, "text;label\nbad;neg\n", "s.csv")
    with pytest.raises(UserError, match=r"holds the one column 'text;label'"):
        read_table(path, (0, 1), format="csv", header=True)


@pytest.mark.parametrize("format", FORMATS)
def test_one_text_of_a_pair_may_be_empty(tmp_path: Path, format: str) -> None:
    rows = [("x", None, "1"), (None, "y", "2"), *[("x", "y", "3")] * 30, ("x", "y", None), (None, None, "5")]
    objects = [dict(zip("abc", row)) for row in rows]
    mark = {"csv": ",", "tsv": "\t"}.get(format, "")
    if format == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(objects), tmp_path / "t")
    elif format == "jsonl":
        written(tmp_path, "\n".join(map(json.dumps, objects)), "t")
    else:
        written(tmp_path, "\n".join(mark.join(cell or "" for cell in row) for row in [("a", "b", "c"), *rows]), "t")
    found = read_table(tmp_path / "t", ("a", "b", "c"), format=format, header=True, texts=2)
    assert (found.rows[:3], found.skipped) == ([("x", "", "1"), ("", "y", "2"), ("x", "y", "3")], 2)
    with pytest.raises(UserError, match=r"^4 of the 34 rows .* lacks a value for one of 'a', 'b', 'c'"):
        read_table(tmp_path / "t", ("a", "b", "c"), format=format, header=True)


def test_a_key_may_be_missing_from_some_objects(tmp_path: Path) -> None:
    path = written(tmp_path, '{"a": "x"}\n' + '{"a": "x", "b": "y"}\n' * 9, "t.jsonl")
    assert read_table(path, ("a", "b"), format="jsonl", header=True).skipped == 1


@pytest.mark.parametrize("value", [["x"], {"x": 1}, b"x"])
def test_a_list_is_neither_text_nor_a_label(tmp_path: Path, value: object) -> None:
    path = parquet_of(tmp_path, a=["x"] * 8, labels=[value] * 8)
    with pytest.raises(
        UserError, match=r"^8 of the 8 .* neither text nor a number in 'labels'.* make one task per label"
    ):
        read_table(path, ("a", "labels"), format="parquet", header=True)
    if not isinstance(value, bytes):
        path = written(tmp_path, json.dumps({"a": "x", "labels": value}) + "\n", "t.jsonl")
        with pytest.raises(UserError, match=r"^1 of the 1 rows .* neither text nor a number in 'labels'"):
            read_table(path, ("labels", "a"), format="jsonl", header=True)


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
words = st.text(letters, min_size=1).map(nfc).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(words, words), min_size=1, max_size=8))
def test_csv_and_jsonl_return_what_was_written(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    assert read_table(written(tmp_path, text.getvalue()), ("a", "b"), format="csv", header=True).rows == rows
    lines = "".join(json.dumps({"a": a, "b": b, "more": [1]}) + "\n" for a, b in rows)
    assert read_table(written(tmp_path, lines), ("a", "b"), format="jsonl", header=True).rows == rows


@pytest.mark.parametrize("format", FORMATS)
def test_accents_are_written_as_in_the_training_text(tmp_path: Path, format: str) -> None:
    """Files from macOS and some OCR have the accent as a character of its own, which is another token."""
    row = {"a": "Cafe\u0301 nin\u0303o", "b": "o\u0308sterreich"}
    assert not any(value == nfc(value) for value in row.values())
    if format == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t")
    elif format == "jsonl":
        written(tmp_path, json.dumps(row), "t")
    else:
        written(tmp_path, {"tsv": "a\tb\n{a}\t{b}", "csv": "a,b\n{a},{b}"}[format].format(**row), "t")
    found = read_table(tmp_path / "t", ("a", "b"), format=format, header=True)
    assert found.rows == [("Caf\u00e9 ni\u00f1o", "\u00f6sterreich")]


def test_a_text_may_be_longer_than_the_csv_module_allows_by_itself(tmp_path: Path) -> None:
    limit = csv.field_size_limit(131_072)
    try:
        path = written(tmp_path, f"a,b\n{'x' * 200_000},y")
        assert read_table(path, ("a", "b"), format="csv", header=True).rows == [("x" * 200_000, "y")]
    finally:
        csv.field_size_limit(limit)


@pytest.mark.parametrize(
    ("text", "columns", "options", "fault"),
    [
        ("", ("a",), {}, "holds no rows"),
        ("a\tb\n", ("a",), {}, "holds no rows"),
        ("a\tb\nx\ty\n", ("c",), {}, "no column 'c': it holds 'a', 'b'"),
        ("text\tlabel\nx\ty\n", ("texts",), {}, "Did you mean 'text'?"),
        ("a;b\nx;y\n", ("c",), {"format": "csv"}, "holds the one column 'a;b', and no column 'c'"),
        ("a\tb\ta\nx\ty\tz\n", ("b", "a"), {}, "more than one column 'a'"),
        ("a\tb\nx\ty\n", (2,), {}, "no column 2: it holds columns 0 to 1"),
        ("x\ty\n", ("a",), {"header": False}, "read without a header"),
        ("a\tb\n" + "x\n" * 9, ("a", "b"), {}, "9 of the 9 rows"),
        ('{"a": 1}\n', ("b",), {"format": "jsonl"}, "no column 'b': it holds 'a'"),
        ('a,b\n"x,y\nx,y\nx,y', ("a", "b"), {"format": "csv"}, "a quote is never closed"),
        ('a,b\nx,y\nx,"y\n', ("a", "b"), {"format": "csv"}, "a quote is never closed"),
        (
            'a,b\n"x,y\nx,y\n"x,y\n',
            ("a", "b"),
            {"format": "csv"},
            "a quote that opens in line 2 closes within a cell in line 4",
        ),
        ('"a\nb",c\nx,y\n', ("d",), {"format": "csv"}, r"no column 'd': it holds 'a\nb', 'c'"),
        (f"{'x' * 99}\tb\ny\tz\n", ("c",), {}, f"it holds '{'x' * 55}...', 'b'"),
        ("\t".join(f"c{i}" for i in range(21)) + "\ny\n", ("d",), {}, "'c19', ..."),
        ('{"0": 1}\n', (1,), {"format": "jsonl"}, "no column '1': it holds '0'"),
        ("no json\n", ("b",), {"format": "jsonl"}, "1 of the 1 rows"),
        ('[{"a": 1}]\n', ("a",), {"format": "jsonl"}, "line 1, for example, is not a JSON object"),
        ("no parquet", ("b",), {"format": "parquet"}, "cannot be read as parquet"),
        ("", ("b",), {"format": "parquet"}, "cannot be read as parquet"),
    ],
)
def test_refusals(tmp_path: Path, text: str, columns: tuple[str, ...], options: dict[str, object], fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_table(path, columns, **{"format": "tsv", "header": True, **options})  # type: ignore[arg-type]
    assert fault in caught.value.sentence
    assert str(path) in caught.value.sentence


def test_rows_without_a_label_have_a_place(tmp_path: Path) -> None:
    rows = "".join(f"text {number},{'x' if number % 2 else ''}\n" for number in range(20))
    with pytest.raises(UserError, match=r"move rows without a label out of this file"):
        read_table(written(tmp_path, f"a,b\n{rows}"), ("a", "b"), format="csv", header=True)


def test_broken_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"a\tb\n\xff\xfe\ty\n")
    with pytest.raises(UserError, match=r"not UTF-8.*iconv -f WINDOWS-1252"):
        read_table(path, ("a",), format="tsv", header=True)
    path.write_text("a\tb\nx\ty\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"not UTF-8.*iconv -f UTF-16"):
        read_table(path, ("a",), format="tsv", header=True)


def test_json_that_is_hostile_is_skipped_and_counted(tmp_path: Path) -> None:
    hostile = [
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": "half \\ud800"}',
        '{"a": {"b": 1}}',
        '{"a": null}',
        '{"a": NaN}',
        "7",
    ]
    path = written(tmp_path, '{"a": "x \\ud83d\\ude00"}\n' * 70 + "\n".join(hostile) + "\n")
    found = read_table(path, ("a",), format="jsonl", header=True)
    assert (len(found.rows), found.skipped) == (70, len(hostile))
    assert found.rows[0] == ("x \U0001f600",)


def test_rows_that_are_answered_by_number_are_all_there(tmp_path: Path) -> None:
    path = written(tmp_path, "index\ta\tb\r\n0\t\ty\r\n1\tx\t\r\n2\t \t\r\n\r\n")
    found = read_table(path, ("a", "b"), format="tsv", header=True, whole=True)
    assert found.rows == [("", "y"), ("x", ""), (" ", "")]
    lines = written(tmp_path, '{"a": ""}\n{"a": "x"}\n\n', "t.jsonl")
    assert read_table(lines, ("a",), format="jsonl", header=True, whole=True).rows == [("",), ("x",)]


def parquet_of(folder: Path, **columns: object) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def test_parquet_gives_the_text_that_jsonl_would(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    scores = pyarrow.array([3.8, 0.0, 4.933], pyarrow.float32())
    path = parquet_of(tmp_path, a=['"x', "\u2028 y", ""], label=[1, 0, -1], score=scores, sure=[True, False, None])
    found = read_table(path, ("score", "a", "label"), format="parquet", header=True)
    assert found.rows == [("3.8", '"x', "1"), ("0.0", "\u2028 y", "0")]
    assert (found.skipped, found.lines) == (1, [1, 2])
    assert read_table(path, ("sure",), format="parquet", header=True).rows == [("true",), ("false",)]
    whole = read_table(path, ("a", "score"), format="parquet", header=True, whole=True)
    assert whole.rows == [('"x', "3.8"), ("\u2028 y", "0.0"), ("", "4.933")]
    with pytest.raises(UserError, match=r"^Row 3 of "):
        read_table(path, ("sure",), format="parquet", header=True, whole=True)
    with pytest.raises(UserError, match=r"no column 'lable'.* Did you mean 'label'\?"):
        read_table(path, ("lable",), format="parquet", header=True)


def test_nan_in_parquet_is_a_missing_value(tmp_path: Path) -> None:
    path = parquet_of(tmp_path, a=["x"] * 30, label=[1.0, float("nan"), *[0.0] * 28])
    found = read_table(path, ("a", "label"), format="parquet", header=True)
    assert (len(found.rows), found.skipped, {label for _, label in found.rows}) == (29, 1, {"0.0", "1.0"})


def test_parquet_gives_decimals_and_dates_as_text(tmp_path: Path) -> None:
    """Databases export scores as decimals; without them every row would lack its label."""
    path = parquet_of(tmp_path, a=["x", "y"], score=[Decimal("4.50"), Decimal("-0.25")], day=[date(2026, 11, 26)] * 2)
    found = read_table(path, ("a", "score", "day"), format="parquet", header=True)
    assert found.rows == [("x", "4.50", "2026-11-26"), ("y", "-0.25", "2026-11-26")]


def test_without_pyarrow_parquet_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        read_table(written(tmp_path, "", "t.parquet"), ("a",), format="parquet", header=True)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("whole", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(content=st.binary(max_size=200), columns=st.lists(st.sampled_from(["a", "0", 0, 2]), min_size=1, max_size=3))
def test_any_bytes_give_rows_or_one_sentence(
    tmp_path: Path, format: str, whole: bool, content: bytes, columns: list[str | int]
) -> None:
    path = tmp_path / "t"
    head = {"tsv": b"a\t0\tb\n", "csv": b"a,0,b\n", "jsonl": b'{"a": "x", "0": 1}\n', "parquet": b"PAR1"}[format]
    for data in (content, head + content):
        path.write_bytes(data)
        try:
            found = read_table(path, columns, format=format, header=True, whole=whole)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert found.rows and all(len(row) == len(columns) for row in found.rows)
            assert len(found.rows) == len(found.lines) and not (whole and found.skipped)
