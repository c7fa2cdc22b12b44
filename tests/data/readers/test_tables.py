from __future__ import annotations

import csv
import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.data.readers import inputs, tables
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.documents import DocumentRule, Skips, read_documents
from daybreak.data.readers.inputs import TABLE, ByteCounter, find_files


def texts(
    path: Path, field: str = "text", skips: Skips | None = None, byte_counter: ByteCounter | None = None
) -> list[str]:
    found = read_documents(
        find_files([path]), DocumentRule("line"), field, skips or Skips(), byte_counter or ByteCounter()
    )
    return [document.text for document in found]


def write_parquet(path: Path, columns: dict[str, object], **how: int) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **how)


CELL = st.text('ab",;\n\t \u4f60\u00e9', max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELL, CELL), max_size=12), st.sampled_from([".csv", ".tsv"]), st.booleans())
def test_what_the_csv_module_writes_is_read_back(
    tmp_path: Path, rows: list[tuple[str, str]], suffix: str, marked: bool
) -> None:
    written = io.StringIO()
    writer = csv.writer(written, delimiter="\t" if suffix == ".tsv" else ",")
    writer.writerows([("id", "text"), *rows])
    path = tmp_path / f"t{suffix}.gz"
    path.write_bytes(gzip.compress(("\ufeff" * marked + written.getvalue()).encode()))
    skips = Skips()
    found = texts(path, skips=skips)
    assert found == [text for _, cell in rows if (text := clean(cell))]
    assert skips.counts == ({"records without text": len(rows) - len(found)} if len(found) < len(rows) else {})


def test_a_bare_quote_in_a_table_with_tabs_is_a_character(tmp_path: Path) -> None:
    """As in GLUE's files, which are written without quoting; what is quoted by the letter stays one cell."""
    rows = ["1\t" + '"Oh', "2\tplain", "3\t" + 'he said "no"', "4\t" + '5" wide', "5\t" + '"quite" so', "6\t" + '"open']
    (tmp_path / "bare.tsv").write_text("\n".join(["id\ttext", *rows, "7\tlast"]) + "\n")
    skips = Skips()
    wanted = ['"Oh', "plain", 'he said "no"', '5" wide', "quite so", '"open', "last"]
    assert texts(tmp_path / "bare.tsv", skips=skips) == wanted and skips.counts == {}
    (tmp_path / "quoted.tsv").write_text('id\ttext\n1\t"two\nlines"\n2\t"a\tb\nc\td"\n')
    assert texts(tmp_path / "quoted.tsv") == ["two\nlines", "a b\nc d"]


def test_a_csv_file_may_be_parted_by_semicolons(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id;text\n1;one, two\n2;three\n")
    assert texts(tmp_path / "t.csv") == ["one, two", "three"]


def test_a_missing_column_names_those_between_semicolons(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\ufeffid;title;abstract\n1;one, two;three\n", encoding="utf-8")
    with pytest.raises(UserError, match="1 has no field 'text', but: abstract, id, title"):
        texts(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_missing_column_names_those_that_are_there(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("title,content\na,b\n")
    else:
        write_parquet(path, {"title": ["a"], "content": ["b"]})
    with pytest.raises(UserError, match=r"1 has no field 'contents', but: content, title. Did you mean 'content'"):
        texts(path, "contents")
    assert texts(path, "content") == ["b"]


def test_malformed_rows_are_skipped_and_counted_by_lines(tmp_path: Path) -> None:
    good = b'x,"two\nlines"\n' * 400
    bad = b"one,two,three\n" + b"lonely\n" + b'x,"caf\xe9\nat night"\n'
    (tmp_path / "t.csv").write_bytes(b"id,text\n" + good + bad + good)
    skips = Skips()
    assert texts(tmp_path / "t.csv", skips=skips) == ["two\nlines"] * 800
    assert skips.counts == {"malformed lines": 4}
    assert skips.first["malformed lines"].endswith("t.csv' line 802")
    (tmp_path / "t.csv").write_bytes(b"id,text\n" + b"x,fine\n" * 30 + b"one,two,three\n" * 11)
    with pytest.raises(UserError, match=r"11 malformed lines of 42, the first in line 32: 3 cells, but the header has"):
        texts(tmp_path / "t.csv")


def test_a_quote_that_is_never_closed_costs_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST_ROW", 300)
    (tmp_path / "t.csv").write_text('id,text\nx,"open\n' + "x,fine\n" * 5000)
    skips = Skips()
    assert texts(tmp_path / "t.csv", skips=skips) == ["fine"] * 4958
    assert skips.counts == {"malformed lines": 43}
    assert skips.first["malformed lines"].endswith("t.csv' line 2")


def test_a_quote_that_is_never_closed_costs_no_row_of_a_table_with_tabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LARGEST_ROW", 300)
    monkeypatch.setitem(inputs.LONGEST_LINE, TABLE, 200)
    rows = ["x\t" + '"open', *["x\tfine"] * 399]
    (tmp_path / "t.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    skips = Skips()
    assert texts(tmp_path / "t.tsv", skips=skips) == ['"open', *["fine"] * 399] and skips.counts == {}
    rows[20] = "x\t" + "long" * 60
    (tmp_path / "t.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    assert texts(tmp_path / "t.tsv", skips=skips) == ['"open', *["fine"] * 398]
    assert skips.counts == {"malformed lines": 1} and skips.first["malformed lines"].endswith("t.tsv' line 22")


def test_a_quote_that_is_open_at_the_end_of_the_file_is_counted(tmp_path: Path) -> None:
    """The csv module takes what follows it as one cell, up to the end of the file."""
    rows = ["x,fine"] * 900 + ['x,"open'] + ["x,fine"] * 5
    (tmp_path / "t.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    skips = Skips()
    assert texts(tmp_path / "t.csv", skips=skips) == ["fine"] * 900
    assert skips.counts == {"malformed lines": 6} and skips.first["malformed lines"].endswith("t.csv' line 902")
    (tmp_path / "t.csv").write_text("\n".join(["id,text", *rows[890:], *rows[:900]]) + "\n")
    with pytest.raises(
        UserError, match="906 malformed lines of 917, the first in line 12: a quote that is never closed"
    ):
        texts(tmp_path / "t.csv")


def test_two_stray_quotes_are_no_cell_of_many_rows(tmp_path: Path) -> None:
    rows = ["x,fine"] * 900 + ['"x,fine'] + ["x,fine"] * 3 + ['"x,fine'] + ["x,fine"] * 5
    (tmp_path / "t.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    skips = Skips()
    assert texts(tmp_path / "t.csv", skips=skips) == ["fine"] * 905
    assert skips.counts == {"malformed lines": 5} and skips.first["malformed lines"].endswith("t.csv' line 902")


def test_a_malformed_line_after_a_bare_quote_costs_only_itself(tmp_path: Path) -> None:
    rows = ["x\tfine"] * 200 + ['x\t"open'] + ["x\tfine"] * 200 + ["lonely"] + ["x\tfine"] * 200
    (tmp_path / "t.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    skips = Skips()
    assert texts(tmp_path / "t.tsv", skips=skips) == ["fine"] * 200 + ['"open'] + ["fine"] * 400
    assert skips.counts == {"malformed lines": 1} and skips.first["malformed lines"].endswith("t.tsv' line 403")


def test_a_header_that_is_not_utf8_is_a_header(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("text,cat\u00e9gorie\n".encode("latin-1") + b"hello there,a\n" * 300)
    skips = Skips()
    assert texts(tmp_path / "t.csv", skips=skips) == ["hello there"] * 300
    assert skips.counts == {"malformed lines": 1}
    with pytest.raises(UserError, match="line 1 has no field 'body', but: cat\ufffdgorie, text"):
        texts(tmp_path / "t.csv", "body")


@pytest.mark.parametrize("cell", ['"\n","\n",', "x" * 5000 + ",", ","])
def test_an_endless_row_is_refused(tmp_path: Path, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST_ROW", 5000)
    monkeypatch.setitem(inputs.LONGEST_LINE, TABLE, 1000)
    (tmp_path / "t.csv").write_text("id,text\n" + cell * (400_000 // len(cell)))
    skips = Skips()
    try:
        assert texts(tmp_path / "t.csv", skips=skips) == []
    except UserError as error:
        assert "malformed lines of" in str(error) and "a row of over" in str(error)
    else:
        assert skips.counts == {"malformed lines": 1}


def test_old_line_ends_and_binary_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,text\r1,a\r2,b\r")
    with pytest.raises(UserError, match="1 malformed lines of 1, the first in line 1: new-line character"):
        texts(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(b"id,text\n1,a\0\n")
    with pytest.raises(UserError, match=r"is binary, not a table \(line 2\)"):
        texts(tmp_path / "t.csv")


def test_parquet_values_come_in_order_whatever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "BATCH_BYTES", 100)
    values = ["one", None, "", " two  words ", "\u4f60\u597d", "x" * 500] * 20
    wanted = [clean(value) for value in values if value]
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        columns = {"id": range(len(values)), "text": pyarrow.array(values).cast(kind)}
        write_parquet(tmp_path / "t.parquet", columns, row_group_size=50)
        skips, byte_counter = Skips(), ByteCounter()
        assert texts(tmp_path / "t.parquet", skips=skips, byte_counter=byte_counter) == wanted
        assert skips.counts == {"records without text": 40}
        assert 0 < byte_counter.bytes <= (tmp_path / "t.parquet").stat().st_size


def test_parquet_values_that_are_no_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    raw = pyarrow.array([b"fine"] * 20 + [b"caf\xe9"] * 2)
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), raw.buffers())
    times = pyarrow.array([1] * 22, pyarrow.timestamp("ns"))  # Python has no type for these
    write_parquet(tmp_path / "t.parquet", {"text": text, "number": range(22), "time": times})
    skips = Skips()
    assert texts(tmp_path / "t.parquet", skips=skips) == ["fine"] * 20
    assert skips.counts == {"undecodable rows": 2}
    assert texts(tmp_path / "t.parquet", "number", skips) == []
    assert texts(tmp_path / "t.parquet", "time", skips) == []
    assert skips.counts["records without text"] == 44


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, {"text": [f"some text {number}" for number in range(5000)]})
    whole = path.read_bytes()
    for data in (b"", b"PAR1 no such thing PAR1", b"plain text", whole[:10] + b"\xff" * 3990 + whole[4000:]):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"t.parquet' cannot be read as a .parquet file: .*Fetch it again"):
            texts(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"needs pyarrow, which is not installed. Install what is missing: pip install 'pyarrow>=18'"
    ):
        texts(tmp_path / "t.parquet")
