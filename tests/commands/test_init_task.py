"""Task files from tables: what is decided about odd ones, and that evaluate accepts each that is written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from daybreak.commands.init_task import init_task
from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task_file import read_task_file

GOOD = ["a lovely film about the sea", "the best story of the year", "warm and funny from start to end"]
BAD = ["a dull film about nothing", "the worst story of the year", "cold and slow from start to end"]


def rows(line: str, count: int = 40, labels: tuple[str, str] = ("pos", "neg")) -> str:
    """``line`` filled with text, label and number of each row; no text comes twice."""
    return "".join(
        line.format(text=f"{(GOOD, BAD)[i % 2][i % 3]} {i}", label=labels[i % 2], i=i, score=f"{i / 7:.2f}") + "\n"
        for i in range(count)
    )


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("plain.csv", "text,label\n" + rows("{text},{label}"), {"text": "text", "label": "label", "format": "csv"}),
        ("bom.csv", "\ufefftext,label\n" + rows("{text},{label}"), {"text": "text", "label": "label"}),
        ("bare.csv", rows("{text},{label}"), {"text": 0, "label": 1, "header": False}),
        ("bare_numbers.csv", rows("{label},{text}", labels=("1", "0")), {"text": 1, "label": 0, "header": False}),
        (
            "pandas.csv",
            ",text,label\n" + rows("{i},{text},{label}"),
            {"text": "text", "label": "label", "header": True},
        ),
        ("pandas_names.csv", ",words,mood\n" + rows("{i},{text},{label}"), {"text": "words", "label": "mood"}),
        ("trailing.csv", "text,label,,\n" + rows("{text},{label},,"), {"text": "text", "label": "label"}),
        ("bare_gap.csv", f"{GOOD[0]},,pos\n" + rows("{text},{i},{label}"), {"header": False}),
        ("no_yes.csv", rows("{label},{text}", labels=("no", "yes")), {"text": 1, "label": 0, "header": False}),
        ("gold.csv", rows("{text},{label}", labels=("gold", "silver")), {"header": False}),
        ("unknown_names.csv", "words,mood\n" + rows("{text},{label}"), {"text": "words", "label": "mood"}),
        (
            "stars.csv",
            "review,stars\n" + rows("{text},{label}", labels=("1", "5")),
            {"text": "review", "label": "stars", "kind": "classification", "metric": "accuracy"},
        ),
        (
            "numbers.csv",
            "id,text,price\n" + rows("{i},{text},{score}"),
            {"text": "text", "label": "price", "kind": "regression", "metric": "spearman"},
        ),
        (
            "decimals.csv",
            "id;text;price\n" + rows("{i};{text};{score}").replace(".", ","),
            {"text": "text", "label": "price", "kind": "regression", "train": "decimals-commas.csv"},
        ),
        ("id.tsv", "id\ttext\tlabel\n" + rows("{i}\t{text}\t{label}"), {"text": "text", "format": "tsv"}),
        ("quoted.csv", "text,label\n" + rows('"{text}, and ""so"" on",{label}'), {"text": "text", "label": "label"}),
        ("windows.csv", "text,label\r\n" + rows("{text},{label}\r"), {"text": "text", "label": "label"}),
        (
            "pairs.csv",
            "premise,hypothesis,label\n" + rows("{text},and so on {i},{label}"),
            {"text": ["premise", "hypothesis"], "label": "label"},
        ),
        (
            "answers.csv",
            "question,answer,match\n" + rows("{text}?,and so on {i},{label}"),
            {"text": ["question", "answer"], "label": "match"},
        ),
        (
            "two_texts.csv",
            "subject line,message body,queue\n" + rows("{text},{text} and more,{label}"),
            {"text": ["subject line", "message body"], "label": "queue"},
        ),
        ("tabs.csv", "text\tlabel\n" + rows("{text}\t{label}"), {"format": "tsv", "train": "tabs.csv"}),
        ("gaps.csv", "text,label\n\n" + rows("{text},{label}") + "\n\n", {"text": "text"}),
        (
            "skewed.csv",
            "text,label\n" + rows("{text} once,{label}", 40, ("no", "no")) + rows("{text} again,yes", 6),
            {"metric": "macro_f1"},
        ),
        (
            "choice.csv",
            "context,ending0,ending1,label\n" + rows("{text},he left {i},she stayed {i},{label}", 40, ("0", "1")),
            {"kind": "choice", "text": "context", "choices": ["ending0", "ending1"], "metric": "accuracy"},
        ),
        ("chinese.csv", "text,label\n" + rows("\u8fd9\u662f\u4e00\u90e8{i},{label}"), {"text": "text"}),
        (
            "banking.csv",
            "text,label\n" + "".join(f"{GOOD[i % 3]} {i},{i % 77}\n" for i in range(231)),
            {"label": "label", "kind": "classification", "metric": "accuracy"},
        ),
        (
            "scale.csv",
            "text,label\n" + "".join(f"{GOOD[i % 3]} {i},{3 * (i % 77)}\n" for i in range(231)),
            {"label": "label", "kind": "regression"},
        ),
        (
            "intents.csv",
            "text,intent\n" + "".join(f"{GOOD[i % 3]} {i},intent {i % 150}\n" for i in range(1500)),
            {"label": "intent", "kind": "classification"},
        ),
        (
            "sentences.csv",
            "text,label\n" + rows("{text},{label}", labels=(f"label: {GOOD[1]}", f"label: {BAD[2]}")),
            {"text": "text", "label": "label"},
        ),
        (
            "answers_twice.csv",
            "question,answer,match\n" + "".join(f"{GOOD[i % 3]} {i}?,so on {i % 39},{i % 2}\n" for i in range(40)),
            {"text": ["question", "answer"], "label": "match"},
        ),
        (
            "codes.csv",
            "text;codes\n" + rows("{text};{label}", labels=("1,2", "3")),
            {"label": "codes", "kind": "classification"},
        ),
        (
            "r.tsv",
            '"text"\t"label"\n' + rows('"{text}"\t"{label}"'),
            {"text": "text", "label": "label", "train": "r-commas.csv"},
        ),
        ("surplus.csv", "text,label\n" + rows("{text},{label},"), {"text": "text", "label": "label", "header": True}),
        ("comma.csv", "text,label\n" + rows("{text},{label}") + "so, so,pos\n", {"text": "text", "label": "label"}),
        ("cola.csv", "text,label\n" + rows("{text},{label}"), {"name": "my-cola"}),
        (
            "my data (1).csv",
            "text,label\n" + rows("{text},{label}"),
            {"name": "my-data-1-", "train": "my data (1).csv"},
        ),
    ],
)
def test_what_is_decided(name: str, content: str, wanted: dict[str, object], tmp_path: Path) -> None:
    import tomllib

    table = tmp_path / name
    table.write_text(content, encoding="utf-8", newline="")
    out = init_task(table)
    values = tomllib.loads(out.read_text(encoding="utf-8"))
    assert {key: values[key] for key in wanted} == wanted
    data = load_task(read_task_file(out))
    assert len(data.train.targets) > 30


def test_a_table_in_a_windows_encoding_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "windows.csv").write_bytes("text,label\nMenü,food\nTür,house\n".encode("cp1252"))
    with pytest.raises(UserError) as refused:
        init_task(str(tmp_path / "windows.csv"))
    assert "iconv -f WINDOWS-1252 -t UTF-8" in refused.value.remedy


def test_a_column_of_splits_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "splits.csv"
    part = ("train", "test")
    table.write_text("text,label,split\n" + "".join(f"text {i},{'ab'[i % 2]},{part[i > 30]}\n" for i in range(40)))
    init_task(table)
    told = capsys.readouterr().out
    assert "split   'split' is not read, so rows of all its values (train (31), test (9)) are used for training" in told
    table.write_text(table.read_text().replace("label", "verdict", 1))
    init_task(table, overwrite=True)
    assert "label   'verdict'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("\u0938\u092e\u093e\u091a\u093e\u0930", "\u0938\u092e\u093e\u091a\u093e\u0930"),
        ("my cafe\u0301", "my-caf\u00e9"),
        (".a (2)", "a-2-"),
        ("--", "task"),
    ],
)
def test_the_name_of_a_task_keeps_the_marks_of_its_letters(stem: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + rows("{text},{label}"))
    init_task(tmp_path / "t.csv", out=tmp_path / f"{stem}.toml")
    assert read_task_file(tmp_path / f"{stem}.toml").name == name


@pytest.mark.parametrize("delimiter", [";", "|"])
def test_other_delimiters_get_a_copy_with_commas(
    delimiter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "german.csv"
    lines = rows("{text}, wie es ist#{label}").replace("#", delimiter)
    table.write_text(f"text{delimiter}label\n{lines}")
    out = init_task(table)
    task = read_task_file(out)
    assert task.train.name == "german-commas.csv" and len(load_task(task).train.targets) == 36
    assert "a copy of german.csv with commas in place of" in capsys.readouterr().out


def test_numbers_with_a_decimal_comma_get_a_point_and_other_cells_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "grades.csv"
    grades = [f"{number % 4 + 1},{number % 5}" for number in range(20)]
    table.write_text("words;grade\n" + "".join(f"in all {grade};{grade}\n" for grade in grades) + "2,5;1,0\n")
    task = read_task_file(init_task(table))
    copied = [f'"in all {grade}",{grade.replace(",", ".")}\n' for grade in grades]
    assert task.train.read_text() == "words,grade\n" + "".join(copied) + '"2,5",1.0\n'
    assert "with commas in place of semicolons and points in place of decimal commas" in capsys.readouterr().out


def test_objects_and_their_missing_fields(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text(
        "".join(
            json.dumps({"uid": f"a{i}", "body": f"{GOOD[i % 3]} {i}", "tag": ["x", "y"][i % 2], "more": {"a": 1}})
            + "\n"
            for i in range(40)
        )
    )
    task = read_task_file(init_task(table))
    assert task.text == ("body",) and task.label == "tag" and task.format == "jsonl"


def test_the_first_object_may_lack_a_key(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    labeled = [{"text": f"{GOOD[i % 3]} {i}", "mood": "ab"[i % 2]} for i in range(40)]
    table.write_text("".join(json.dumps(row) + "\n" for row in [{"text": "no label"}, *labeled]))
    assert read_task_file(init_task(table)).label == "mood"


def test_a_few_rows_are_enough_for_a_column_with_the_name_of_a_label(tmp_path: Path) -> None:
    table = tmp_path / "few.csv"
    table.write_text("text,label\n" + "".join(f"{GOOD[i % 3]} {i},{'aabbc'[i]}\n" for i in range(5)))
    assert read_task_file(init_task(table)).label == "label"


def test_numbers_that_may_be_classes_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "codes.csv"
    table.write_text("text,label\n" + "".join(f"{GOOD[i % 3]} {i},{100 + i % 30}\n" for i in range(60)))
    init_task(table)
    assert 'numbers (for classes, write kind = "classification"' in capsys.readouterr().out


def test_nan_is_a_missing_label(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    labels = [float("nan"), *[0.5 * (i % 5) for i in range(40)]]
    table.write_text(
        "".join(json.dumps({"text": f"{GOOD[0]} {i}", "score": label}) + "\n" for i, label in enumerate(labels))
    )
    task = read_task_file(init_task(table))
    assert task.kind == "regression" and load_task(task).skipped == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_that_is_sorted_by_its_label_is_looked_at_as_a_whole(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.commands.init_task.ROWS", 20)
    table = tmp_path / f"sorted.{ending}"
    rows = [(i, f"{(GOOD, BAD)[i // 40][i % 3]} {i}", ("pos", "neg")[i // 40]) for i in range(80)]
    if ending == "csv":
        table.write_text("".join(f"{i},{text},{mood}\n" for i, text, mood in [("at", "words", "mood"), *rows]))
    elif ending == "jsonl":
        table.write_text("".join(json.dumps({"at": i, "words": text, "mood": mood}) + "\n" for i, text, mood in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(dict(zip(("at", "words", "mood"), zip(*rows)))), table)
    task = read_task_file(init_task(table))
    assert (task.text, task.label, task.kind) == (("words",), "mood", "classification")


def test_each_decision_is_printed_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "plain.csv"
    table.write_text("text,label\n" + rows("{text},{label}"))
    init_task(table)
    said = capsys.readouterr().out
    assert "label   'label', by its name: pos (20), neg (20)" in said
    assert "text    'text', by its name" in said
    assert "kind    classification: the label has 2 different values" in said
    assert "metric  accuracy: always predicting the most frequent label scores 50%" in said
    assert f"daybreak evaluate MODEL --tasks {tmp_path / 'plain.toml'}" in said


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("empty.csv", b"", "is empty"),
        ("blank.csv", b"\xef\xbb\xbf \n\n", "is empty"),
        ("cells.csv", b",,\n,,\n", "no rows with text"),
        ("header.csv", b"text,label\n", "header but no rows"),
        ("one.csv", b"text\nhello there\nand so on\n", "has one column"),
        ("utf16.csv", "text,label\n".encode("utf-16"), "is not UTF-8"),
        ("latin.csv", "text,label\ncaf\u00e9,a\n".encode("latin-1"), "is not UTF-8"),
        ("zero.csv", b"text,label\nab\0c,a\n", "null bytes"),
        ("unlike.csv", b"".join(b"some words number %d,other words %d\n" % (i, i) for i in range(30)), "like a label"),
        ("numbers.csv", b"".join(b"%d,%d\n" % (i % 2, i % 3) for i in range(30)), "besides the label contains text"),
        ("twice.csv", b"text,text,label\na b,c d,1\n", "same name"),
        ("r.tsv", b'"text"\t"label"\n' + b'"1"\t"a b"\t"c"\n' * 9, "9 of the 9 rows"),
        ("commas.csv", b"text,label\n" + b"so, so,b\nso so,a\n" * 9, "9 of the 18 rows"),
        ("words.txt", b"hello", "is not a .csv"),
        ("odd.jsonl", b"[1]\n", "is not a JSON object"),
        ("fake.parquet", b"PAR1", "cannot be read as parquet"),
        ("missing.csv", None, "No such file"),
        (
            "stray.csv",
            b"text,label\n" + (b'"so,a\n' + b"some words,a\nother words,b\n" * 9) * 2,
            "closes within a cell",
        ),
        ("nameless.csv", ("text,label\n" + rows("{text},{label}")).replace("text", "", 1).encode(), "has no name"),
        (
            "half.jsonl",
            b"".join(b'{"te\\ud800xt": "some words %d", "label": "%d"}\n' % (i, i % 2) for i in range(30)),
            "UTF-8",
        ),
        ("open.csv", b"text;label\n" + b"some words;a\nother words;b\n" * 9 + b'"so;a\nb;b\n', "never closed"),
    ],
)
def test_what_makes_no_task_is_refused_and_leaves_nothing(
    name: str, content: bytes | None, fault: str, tmp_path: Path
) -> None:
    table = tmp_path / name
    if content is not None:
        table.write_bytes(content)
    with pytest.raises(UserError) as refused:
        init_task(table)
    assert fault in str(refused.value) and refused.value.remedy
    assert [path for path in tmp_path.iterdir() if path != table] == []


def test_a_name_with_a_control_character_is_written_as_toml_reads_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("te\x7fxt,label\n" + rows("{text},{label}"))
    assert read_task_file(init_task(tmp_path / "t.csv")).text == ("te\x7fxt",)


def test_a_table_of_many_columns_is_described_in_a_few_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = range(300)
    header, cells = ",".join(f"c{i}" for i in more), ",".join("w" for _ in more)
    (tmp_path / "t.csv").write_text(f"text,label,{header}\n" + rows(f"{{text}},{{label}},{cells}"))
    init_task(tmp_path / "t.csv")
    said = capsys.readouterr().out
    assert "281 others" in said and len(said) < 1500


def test_the_next_command_can_be_typed_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "support tickets.csv"
    table.write_text("text,label\n" + rows("{text},{label}"))
    init_task(table)
    command = capsys.readouterr().out.strip().rpartition("then: ")[2]
    assert shlex.split(command) == ["daybreak", "evaluate", "MODEL", "--tasks", str(table.with_suffix(".toml"))]


def test_a_task_file_that_is_there_is_kept(tmp_path: Path) -> None:
    table, out = tmp_path / "plain.csv", tmp_path / "plain.toml"
    table.write_text("text,label\n" + rows("{text},{label}"))
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        init_task(table)
    assert out.read_text() == "mine"
    assert read_task_file(init_task(table, overwrite=True)).text == ("text",)


def test_a_refused_table_leaves_what_was_there(tmp_path: Path) -> None:
    table, old = tmp_path / "rows.csv", tmp_path / "rows.toml"
    rows = [f"this is sentence {number} about things;{'ab'[number % 2]}" for number in range(10)]
    table.write_text("\n".join(["text;label", *rows, *(f"text {number};" for number in range(10))]) + "\n")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"cannot be used as a task: 10 of the 20 rows"):
            init_task(table, overwrite=overwrite)
        assert old.read_text() == "mine" if overwrite else not old.exists()
        copy = tmp_path / "rows-commas.csv"
        assert copy.read_text() == "mine, too" if overwrite else not copy.exists()
        old.write_text("mine")
        copy.write_text("mine, too")
