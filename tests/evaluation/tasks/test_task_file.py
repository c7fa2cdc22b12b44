"""Tasks of one's own in TOML, every kind as it is documented: what is read, and one sentence for what does not fit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from daybreak.core.errors import UserError
from daybreak.evaluation.baselines.bag_of_words import WordScores, bag_of_words
from daybreak.evaluation.probes.layer_probes import check_probed, rates_pairs
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks import task_file
from daybreak.evaluation.tasks.kinds import KINDS, kind_of, load_task, task_type
from daybreak.evaluation.tasks.sequences import Regression
from daybreak.evaluation.tasks.task import LabeledRows, Task, _sorted_labels, _split
from daybreak.evaluation.tasks.task_file import KEYS, read_task_file

GOOD = 'train = "train.tsv"\ndev = "dev.tsv"\ntext = "a"\nlabel = "label"\n'
TOKENS = 'kind = "tokens"\ntrain = "train.txt"\ntext = 0\nlabel = 3\n'
CHOICE = 'kind = "choice"\ntrain = "ends.csv"\ntext = ["story"]\nchoices = ["x", "y", "z"]\nlabel = "right"\n'
QA = 'kind = "qa"\ntrain = "asked.json"\ndev = "asked.json"\n'
ROWS = 'text = ["question", "context"]\nlabel = "answers"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "dev"):
        rows = "".join(f"x{i}\ty{i}\t{'yes' if i % 3 else 'no'}\t{i}\n" for i in range(20))
        (tmp_path / f"{name}.tsv").write_text("a\tb\tlabel\tscore\n" + rows)
    sentence = "-DOCSTART-\tX\tO\tO\n\nNo\tDT\tO\tO\ncold{}\tNN\tO\tB-Disease\nagain\tRB\tO\tI-Disease\n\n"
    (tmp_path / "train.txt").write_text("".join(map(sentence.format, range(4))))
    rows = "".join(f"It {i},it rained,it snowed,it ended,{i % 3}\n" for i in range(12))
    (tmp_path / "ends.csv").write_text("story,x,y,z,right\n" + rows)
    context = "Ada wrote it in 1843."
    answers = {"text": ["1843"], "answer_start": [16]}
    listed = [{"text": "1843", "answer_start": 16}]
    asked = [{"id": str(i), "question": f"When did she, {i}?", "answers": listed} for i in range(3)]
    squad = {"data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": asked}]}]}
    (tmp_path / "asked.json").write_text(json.dumps(squad))
    line = json.dumps({"question": "When?", "context": context, "answers": answers}) + "\n"
    (tmp_path / "asked.jsonl").write_text(line * 3)
    return tmp_path


def described(folder: Path, toml: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(toml, encoding="utf-8")
    return path


def test_rows_without_labels_are_new_different_and_of_a_classification(folder: Path) -> None:
    more = folder / "more.tsv"
    more.write_text("b\ta\n" + "".join(f"y\t{text}\n" for text in ("x3", "new", "new", " ", "other", *"cdefghijk")))
    path = described(folder, GOOD + 'unlabeled = "more.tsv"\n')
    rows = load_task(read_task_file(path), unlabeled_train=True)
    assert rows.unlabeled_train and rows.unlabeled_train.texts == [(text,) for text in ("new", "other", *"cdefghijk")]
    assert rows.skipped == 1 and len(rows.train) == 20
    more.write_text("b\ta\ny\tx3\n")
    with pytest.raises(UserError, match=r"Every row of .*more\.tsv' is also a labeled row"):
        load_task(read_task_file(path), unlabeled_train=True)
    described(folder, GOOD.replace('"label"', '"score"') + 'kind = "regression"\nunlabeled = "more.tsv"\n')
    with pytest.raises(UserError, match="has unlabeled rows, and its kind is regression"):
        read_task_file(path)
    described(folder, GOOD + 'unlabeled = "none.tsv"\n')
    with pytest.raises(UserError, match="no such file"):
        read_task_file(path)


def test_endings_may_be_in_capitals(folder: Path) -> None:
    (folder / "train.tsv").rename(folder / "TRAIN.TSV")
    assert len(load_task(read_task_file(described(folder, GOOD.replace("train.tsv", "TRAIN.TSV")))).train) == 20


def test_tokens_come_from_conll_whatever_the_ending_is(folder: Path) -> None:
    task = read_task_file(described(folder, TOKENS))
    assert (task.kind, task.format, task.text, task.label) == ("tokens", "conll", (0,), 3)
    assert task.metric == KINDS["tokens"].headline
    data = load_task(task)
    assert len(data.train) + len(data.dev) == 4
    assert data.train.texts[0][::2] == ("No", "again")


def test_a_multiple_choice_has_its_endings_in_columns(folder: Path) -> None:
    task = read_task_file(described(folder, CHOICE))
    assert (task.kind, task.format, task.choices, task.label) == ("choice", "csv", ("x", "y", "z"), "right")
    data = load_task(task)
    assert len(data.train) + len(data.dev) == 12
    assert {len(texts) for texts in data.train.texts} == {4}
    assert {*data.train.targets, *data.dev.targets} == {0, 1, 2}


@pytest.mark.parametrize(
    ("toml", "format"),
    [(QA, "squad"), (QA + 'format = "squad"', "squad"), (QA.replace(".json", ".jsonl") + ROWS, "jsonl")],
)
def test_questions_come_from_squad_or_from_rows(folder: Path, toml: str, format: str) -> None:
    task = read_task_file(described(folder, toml))
    assert (task.kind, task.format) == ("qa", format)
    assert (task.text, task.label) == (("question", "context"), "answers")
    assert len(load_task(task).dev) == 3


def test_the_documented_example_is_read(folder: Path) -> None:
    documented = (task_file.__doc__ or "").split("\n\n")
    (first,) = (part for part in documented if part.startswith("name "))
    for name in ("train", "dev", "test", "more"):
        (folder / f"{name}.csv").write_text("subject,body,queue\nHelp,It broke.,a\nHello,It works.,b\n")
    task = read_task_file(described(folder, first))
    assert (task.name, task.text, task.label, task.format) == ("tickets", ("subject", "body"), "queue", "csv")
    assert all(f"\n{key} " in f"\n{task_file.__doc__}" for key in KEYS), "every key is documented"


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("train = ", "is not TOML"),
        ("a = " + "[" * 10_000, "is not TOML"),
        ("a = " + "9" * 5000, "is not TOML"),
        (GOOD + 'labels = "x"', "unknown key 'labels'. Did you mean 'label'?"),
        ('train = "train.tsv"\nlabel = "label"', "lacks the key 'text'"),
        ('text = "a"\nlabel = "label"', "lacks the key 'train'"),
        (GOOD + 'kind = "token"', "kind = 'token'. Did you mean 'tokens'?"),
        (GOOD + "kind = 3", "kind = 3"),
        (GOOD + 'metric = "acuracy"', "metric = 'acuracy'. Did you mean 'accuracy'?"),
        (GOOD + 'metric = "spearman"', "metric = 'spearman'"),
        (GOOD + 'format = "conll"', "format = 'conll'"),
        (GOOD.replace("train.tsv", "train.txt"), "format = 'txt'"),
        (GOOD + "header = 1", "header = 1. Write true or false."),
        (GOOD + 'name = "../up"', "the name '../up'"),
        (GOOD + r'name = "a\nb"', r"the name 'a\nb'"),
        (GOOD + r'name = "\u0301a"', "has the name"),
        (GOOD + r'name = "a-\u0301"', "has the name"),
        (GOOD + r'name = "a\u200db"', "has the name"),
        (GOOD + 'name = ".a"', "the name '.a'"),
        (GOOD + 'name = "sci-cite"', "which a built-in task has"),
        (GOOD + 'name = "glue"', "which a built-in task has"),
        (GOOD.replace("train.tsv", "gone.tsv"), "there is no such file"),
        (GOOD.replace('"train.tsv"', '["train.tsv"]'), "has train = ['train.tsv']"),
        (GOOD.replace("train.tsv", "x" * 5000 + ".tsv"), "there is no such file"),
        (GOOD.replace("train.tsv", r"\u0000.tsv"), "there is no such file"),
        (GOOD.replace('"train.tsv"', "[1]") + 'format = "tsv"', "train = [1]"),
        (GOOD.replace('"a"', '["a", "b", "c"]'), "names 3 text columns"),
        (GOOD.replace('"a"', "[]"), "names 0 text columns"),
        (GOOD.replace('"a"', "-1"), "text = -1"),
        (GOOD.replace('"a"', "true"), "text = True"),
        (GOOD.replace('"label"', "{}"), "label = {}"),
        (GOOD.replace('"a"', '["a", "label"]'), "label = 'label', which is also a column of text"),
        (CHOICE.replace('"right"', '"y"'), "label = 'y', which is also a column of text"),
        (GOOD.replace('"a"', '["a", "a"]'), "names a column of text twice"),
        (CHOICE.replace('["x", "y", "z"]', '["x", "x"]'), "names a column of text twice"),
        (TOKENS + "header = true", "has header, which files of the kind tokens do not have"),
        (GOOD + 'choices = ["a", "b"]', "has choices, and its kind is classification"),
        (TOKENS.replace("= 0", '= "word"'), "text = 'word'"),
        (TOKENS.replace("= 3", '= "tag"'), "label = 'tag'"),
        (TOKENS.replace("= 0", "= [0, 1]"), "names 2 text columns"),
        (TOKENS + 'format = "tsv"', "format = 'tsv'"),
        (TOKENS + 'metric = "accuracy"', "metric = 'accuracy'"),
        (CHOICE.replace('["x", "y", "z"]', '["x"]'), "fewer than two choices"),
        (CHOICE.replace('["x", "y", "z"]', '"x"'), "fewer than two choices"),
        (CHOICE.replace('"z"', "1.5"), "choices = 1.5"),
        (QA + 'text = "question"', "has text, which a file of SQuAD does not need"),
        (QA.replace(".json", ".jsonl"), "lacks the key 'text'"),
        (QA.replace(".json", ".jsonl") + 'text = "context"\nlabel = "answers"', "names 1 text columns"),
        (QA + 'format = "csv"', "format = 'csv'"),
    ],
)
def test_task_files_that_are_refused(folder: Path, toml: str, fault: str) -> None:
    with pytest.raises(UserError) as caught:
        read_task_file(described(folder, toml))
    assert fault in str(caught.value)
    assert "mine.toml" in caught.value.sentence
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("\u0938\u092e\u093e\u091a\u093e\u0930", "\u0938\u092e\u093e\u091a\u093e\u0930"),  # Hindi, with vowel signs
        ("cafe\u0301-2.1", "caf\u00e9-2.1"),  # as macOS writes the name of a file
        ("x\u0301_y", "x\u0301_y"),  # no single character is x with an accent
        ("a..b-.", "a..b-."),
    ],
)
def test_letters_of_a_name_may_have_marks(folder: Path, stem: str, name: str) -> None:
    (folder / f"{stem}.toml").write_text(GOOD)
    assert read_task_file(folder / f"{stem}.toml").name == name
    assert read_task_file(described(folder, f'{GOOD}name = "{stem}"')).name == name


def read_or_refused(path: Path) -> None:
    try:
        task = read_task_file(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(task, Task) and hash(task)


WORDS = ["a", "b", "label", "score", "train.tsv", "dev.tsv", "train.txt", "ends.csv", "asked.json", "asked.jsonl", "."]
VALUES = st.recursive(
    st.sampled_from([*WORDS, *KINDS, "conll", "tsv", "f1"]) | st.text(max_size=6) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=80)
@given(
    base=st.sampled_from([GOOD, TOKENS, CHOICE, QA]), changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)
)
def test_any_value_under_any_key_gives_a_task_or_one_sentence(
    folder: Path, base: str, changes: dict[str, object]
) -> None:
    lines = [line for line in base.splitlines() if line.split(" ")[0] not in changes]
    # JSON spells strings, numbers, truth values and lists as TOML does, but for one character.
    lines += [f"{key} = {json.dumps(value)}".replace("\x7f", "\\u007f") for key, value in changes.items()]
    read_or_refused(described(folder, "\n".join(lines)))


def test_every_kind_is_on_the_pages_and_in_the_head_of_the_reader() -> None:
    root = Path(__file__).resolve().parents[3]
    for kind in KINDS.values():
        assert f'"{kind.name}"' in (task_file.__doc__ or "")
        assert f'| `"{kind.name}"`' in (root / "docs" / "own_task.md").read_text()
        assert kind.name in (root / "docs" / "formats.md").read_text()


# ---------------------------------------------------------------- labels turned into targets


def tsv(folder: Path, name: str, *rows: str) -> None:
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_defaults_of_a_task_file(folder: Path) -> None:
    data = load_task(read_task_file(described(folder, GOOD)))
    task = data.task
    assert (task.name, task.kind, task.metric, data.labels) == ("mine", "classification", "accuracy", ("no", "yes"))
    assert (data.train.texts[1], data.dev.targets[:2], data.test) == (("x1",), [0, 1], None)


def test_pairs_numbers_and_no_header(folder: Path) -> None:
    tsv(folder, "bare.tsv", "0\tp\tq", "1\tr\ts", "10\tt\tu", "2\tv\tw")
    path = described(
        folder, 'name = "n"\ntrain = "bare.tsv"\ndev = "bare.tsv"\ntext = [2, 1]\nlabel = 0\nheader = false'
    )
    data = load_task(read_task_file(path))
    assert data.train.texts[0] == ("q", "p")
    assert data.labels == ("0", "1", "2", "10"), "numbers are ordered by value"


def test_nan_among_numbers_does_not_change_the_order_of_labels_between_processes(folder: Path) -> None:
    labels = ["10.0", "2.0", "3.0", "nan"]
    assert {tuple(_sorted_labels(order)) for order in itertools.permutations(labels)} == {tuple(labels)}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_rows_with_a_missing_number_as_label_are_left_out(folder: Path, kind: str) -> None:
    tsv(folder, "train.tsv", "a\tlabel", *(f"x{i}\t{label}" for i, label in enumerate(["1", "1.0", "0"] * 10 + ["NA"])))
    tsv(folder, "dev.tsv", "a\tlabel", "x\tnan", "y\t1")
    data = load_task(read_task_file(described(folder, f'{GOOD}kind = "{kind}"')))
    assert (data.skipped, len(data.train), len(data.dev)) == (2, 30, 1)
    assert data.labels == (("0", "1") if kind == "classification" else ())
    assert data.train.targets == [1, 1, 0] * 10, "1 and 1.0 are one label"


def test_na_is_a_label_beside_names(folder: Path) -> None:
    tsv(folder, "train.tsv", "a\tlabel", "x\tNA", "y\tEU")
    tsv(folder, "dev.tsv", "a\tlabel", "x\tNA")
    assert load_task(read_task_file(described(folder, GOOD))).labels == ("EU", "NA")


def test_regression_and_a_test_file(folder: Path) -> None:
    toml = GOOD.replace('"label"', '"score"') + 'kind = "regression"\ntest = "dev.tsv"'
    data = load_task(read_task_file(described(folder, toml)))
    assert (data.task.metric, data.labels, data.train.targets[3]) == ("spearman", (), 3.0)
    assert data.test is not None and data.test.targets == [float(i) for i in range(20)]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_each_file_is_read_by_its_own_ending_unless_a_format_is_given(folder: Path, ending: str) -> None:
    dev = folder / f"dev.{ending}"
    if ending == "csv":
        dev.write_text("a,label\nx,yes\n")
    elif ending == "jsonl":
        dev.write_text('{"a": "x", "label": "yes"}\n')
    else:
        parquet.write_table(pyarrow.table({"a": ["x"], "label": ["yes"]}), dev)
    toml = GOOD.replace("dev.tsv", dev.name)
    assert load_task(read_task_file(described(folder, toml))).dev.texts == [("x",)]
    with pytest.raises(UserError):
        load_task(read_task_file(described(folder, toml + 'format = "tsv"')))


def test_one_text_of_a_pair_may_be_empty(folder: Path) -> None:
    tsv(folder, "dev.tsv", "a\tb\tlabel", "x\t\tyes", "\ty\tno", "x\ty\tno")
    data = load_task(read_task_file(described(folder, GOOD.replace('"a"', '["a", "b"]'))))
    assert data.dev.texts == [("x", ""), ("", "y"), ("x", "y")]


def test_labels_that_are_equal_numbers_are_one_label(folder: Path) -> None:
    """pandas writes 1.0 for 1 in a column that lacks a value."""
    tsv(folder, "train.tsv", "a\tlabel", "x\t0.0", "y\t1.0")
    tsv(folder, "dev.tsv", "a\tlabel", "x\t1", "y\t0")
    assert load_task(read_task_file(described(folder, GOOD))).dev.targets == [1, 0]
    tsv(folder, "dev.tsv", "a\tlabel", "x\t2")
    with pytest.raises(UserError, match=r"none of '0\.0', '1\.0'.* add training rows that have it"):
        load_task(read_task_file(described(folder, GOOD)))


def test_without_dev_a_seeded_tenth_is_held_out(folder: Path) -> None:
    path = described(folder, GOOD.replace('dev = "dev.tsv"\n', ""))
    first, second = load_task(read_task_file(path)), load_task(read_task_file(path))
    assert first == second
    assert (len(first.train), len(first.dev)) == (18, 2)
    assert sorted(first.train.texts + first.dev.texts) == sorted((f"x{i}",) for i in range(20))


def test_rows_of_one_context_are_not_divided_between_training_and_dev() -> None:
    pairs = [(f"question {i}", f"context {i // 5}") for i in range(100)]
    choices = [(f"context {i // 5}", f"a{i}", f"b{i}") for i in range(100)]
    for kind, texts, at in (("qa", pairs, 1), ("choice", choices, 0)):
        task = Task(name="t", train=Path("t"), dev=None, text=("a",), label="b", kind=kind, metric="accuracy")
        train, dev = _split(LabeledRows(texts, [0] * 100), task)
        assert (len(train), len(dev)) == (90, 10)
        assert not {each[at] for each in train.texts} & {each[at] for each in dev.texts}


def test_rows_of_equal_texts_are_not_divided_between_training_and_dev(folder: Path) -> None:
    path = described(folder, GOOD.replace('dev = "dev.tsv"\n', ""))
    before = load_task(read_task_file(path))
    tsv(folder, "train.tsv", "a\tlabel", *(f"x{i}\t{'yes' if i % 3 else 'no'}" for i in [*range(20), *range(20)]))
    twice = load_task(read_task_file(path))
    assert twice.dev.texts == before.dev.texts * 2 and twice.train.texts == before.train.texts * 2
    tsv(folder, "train.tsv", "a\tlabel", "x\tyes", "x\tno")
    with pytest.raises(UserError, match="holds one text, too few to hold some out"):
        load_task(read_task_file(path))


@pytest.mark.parametrize(
    ("rows", "more", "fault"),
    [
        (["x\ty\tmaybe\t1"], "", "Line 2 of"),
        (["x\ty\tmaybe\t1"], "", "label 'maybe', which is none of 'no', 'yes'"),
        (["x\ty\tyes\tfew"], 'kind = "regression"', "label 'few', which is not a number"),
        (["x\ty\tyes\tnan"], 'kind = "regression"', "line 2, for example, has the label 'nan'"),
        (["x\ty\tyes\t0,5"], 'kind = "regression"', "label '0,5', which is not a number"),
        ([], "", "holds no rows"),
    ],
)
def test_rows_that_are_refused(folder: Path, rows: list[str], more: str, fault: str) -> None:
    tsv(folder, "dev.tsv", "a\tb\tlabel\tscore", *rows)
    toml = GOOD.replace('"label"', '"score"') if more else GOOD
    with pytest.raises(UserError) as caught:
        load_task(read_task_file(described(folder, toml + more)))
    assert fault in caught.value.sentence


def test_fractions_as_labels_are_probably_a_regression(folder: Path) -> None:
    tsv(folder, "train.tsv", "a\tb\tlabel\tscore", "x\ty\tyes\t0.5", "x\ty\tno\t2.25")
    tsv(folder, "dev.tsv", "a\tb\tlabel\tscore", "x\ty\tyes\t1.75")
    with pytest.raises(UserError, match=r"'1\.75', which is none of '0\.5', '2\.25'\. Set kind = \"regression\""):
        load_task(read_task_file(described(folder, GOOD.replace('"label"', '"score"'))))


@pytest.mark.parametrize("metric", ["f1", "auc"])
def test_some_metrics_need_two_labels(folder: Path, metric: str) -> None:
    tsv(folder, "train.tsv", "a\tlabel", "x\tyes", "y\tno", "z\tperhaps")
    with pytest.raises(UserError, match=f"metric {metric} is for two labels"):
        load_task(read_task_file(described(folder, GOOD + f'metric = "{metric}"')))


# ---------------------------------------------------------------- a kind that only its class and the table know


class Stars(Regression):
    name: ClassVar[str] = "stars"


def written(folder: Path, kind: str) -> Path:
    rows = "\n".join(f"{'good ' * (n % 4)}film,a{n} film,{n % 4}" for n in range(60))
    (folder / "rows.csv").write_text(f"text,other,stars\n{rows}\n")
    path = folder / f"{kind}.toml"
    path.write_text(f'train = "rows.csv"\ntext = ["text", "other"]\nlabel = "stars"\nkind = "{kind}"\n')
    return path


def test_a_numeric_kind_is_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "stars", Stars())
    found: dict[str, WordScores] = {}
    for kind in ("stars", "regression"):
        task = read_task_file(written(tmp_path, kind))
        data = load_task(task)
        check_probed(task)
        assert data.labels == () and set(data.train.targets) == {0.0, 1.0, 2.0, 3.0}
        assert task_type(task) == "number" and PROTOCOLS["small"].head_of(task) == "segments" and rates_pairs(task)
        found[kind] = bag_of_words(kind_of(task), data, data.train)
    np.testing.assert_array_equal(found["stars"].scored_rows["dev"], found["regression"].scored_rows["dev"])
