"""SQuAD's files, whatever a stranger wrote into them, and SQuAD's measure against its definition."""

from __future__ import annotations

import copy
import json
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.questions import NO_ANSWER, Questions
from daybreak.evaluation.tasks.squad import Answer, score_answer
from daybreak.evaluation.tasks.task import Task

KIND = Questions()
PAPER = {
    "version": "v2.0",
    "data": [
        {
            "title": "Weather",
            "paragraphs": [
                {
                    "context": "It was cold. The storm came late.",
                    "qas": [
                        {"id": "a", "question": "What came?", "answers": [
                            {"text": "storm", "answer_start": 17}, {"text": "The storm", "answer_start": 13}]},
                        {"id": "b", "question": "Who came?", "is_impossible": True, "answers": [],
                         "plausible_answers": [{"text": "storm", "answer_start": 17}]},
                    ],
                }
            ],
        }
    ],
}  # fmt: skip


def asked(train: Path, dev: Path | None = None, format: str = "squad", **more: Any) -> Task:
    return Task(name="pieces", train=train, dev=dev, text=("question", "context"), label="answers", kind="qa",
                metric="f1", format=format, **more)  # fmt: skip


def written(path: Path, told: Any) -> Path:
    path.write_text(told if isinstance(told, str) else json.dumps(told), encoding="utf-8")
    return path


ROWS = [
    {"question": "What came?", "context": "It was cold. The storm came late.",
     "answers": {"text": ["storm", "The storm"], "answer_start": [17, 13]}},
    {"question": "Who came?", "context": "It was cold. The storm came late.",
     "answers": {"text": [], "answer_start": []}},
]  # fmt: skip


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, ROWS)) + "\n\n"
    parquet.write_table(pyarrow.Table.from_pylist([{**row, "id": "x"} for row in ROWS]), tmp_path / "rows.parquet")
    found = [
        KIND.load(asked(path, path, format))
        for path, format in (
            (written(tmp_path / "paper.json", PAPER), "squad"),
            (written(tmp_path / "rows.jsonl", lines), "jsonl"),
            (tmp_path / "rows.parquet", "parquet"),
        )
    ]
    for data in found:
        assert data.train.texts == [(str(row["question"]), str(row["context"])) for row in ROWS]
        assert data.train.targets == [(Answer("storm", 17), Answer("The storm", 13)), ()]
        assert (data.labels, data.skipped) == ((NO_ANSWER,), 0)


def test_rows_whose_answer_stands_elsewhere_are_counted_and_many_are_refused(tmp_path: Path) -> None:
    wrong = {**ROWS[0], "answers": {"text": ["storm"], "answer_start": [18]}}
    path = written(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, [*ROWS * 10, wrong])))
    data = KIND.load(asked(path, path, "jsonl"))
    assert (len(data.train), data.skipped) == (20, 1)
    written(path, "\n".join(map(json.dumps, [*ROWS * 5, wrong, wrong])))
    with pytest.raises(UserError, match=r"2 of the 12 questions .*is not at the stated position"):
        KIND.load(asked(path, path, "jsonl"))


def mended(*place: Any, value: Any) -> str:
    """PAPER with another value there, as JSON."""
    paper: Any = copy.deepcopy(PAPER)
    inner = paper
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(paper)


AT = ("data", 0, "paragraphs", 0)
ANSWER = (*AT, "qas", 0, "answers", 0)
HOSTILE = {
    "nothing": ("", "squad", "is not JSON"),
    "half": (json.dumps(PAPER)[:-9], "squad", "is not JSON"),
    "deep": ("[" * 100_000, "squad", "is not JSON"),
    "digits": ('{"data": ' + "9" * 5_000 + "}", "squad", "is not JSON"),
    "list": ("[]", "squad", "data is no list"),
    "no article": (mended("data", value=[]), "squad", "holds no questions"),
    "no object": (mended("data", value=["x"]), "squad", r"data\[0\] is no object"),
    "no paragraphs": (mended("data", 0, "paragraphs", value=None), "squad", r"data\[0\].paragraphs is no list"),
    "context": (mended(*AT, "context", value=["a"]), "squad", r"paragraphs\[0\] has a 'context' that is no text"),
    "half a letter": (mended(*AT, "context", value="It \ud800"), "squad", "'context' that is no text"),
    "answers": (mended(*AT, "qas", 0, "answers", value={}), "squad", r"qas\[0\].answers is no list"),
    "answer": (mended(*ANSWER, "text", value=3), "squad", r"answers\[0\] has a 'text' that is no text"),
    "start": (mended(*ANSWER, "answer_start", value="17"), "squad", "start is not a character offset"),
    "negative": (mended(*ANSWER, "answer_start", value=-1), "squad", "start is not a character offset"),
    "impossible": (mended(*AT, "qas", 0, "is_impossible", value="no"), "squad", "neither true nor false"),
    "all impossible": (mended(*AT, "qas", 0, "is_impossible", value=True), "squad", "No question in .* has an answer"),
    "line": (json.dumps(ROWS[0]) + "\n{", "jsonl", "Line 2 of .* is not JSON"),
    "array": ("[1]", "jsonl", "line 1 is no object"),
    "no column": ('{"question": "a", "text": "b"}', "jsonl", "line 1 has no 'context', it holds 'question', 'text'"),
    "text": (json.dumps({**ROWS[0], "answers": "storm"}), "jsonl", "no two lists of the same length"),
    "uneven": (json.dumps({**ROWS[0], "answers": {"text": ["a"], "answer_start": []}}), "jsonl", "no two lists"),
    "true": (json.dumps({**ROWS[0], "answers": {"text": ["I"], "answer_start": [False]}}), "jsonl", "not a character"),
    "far": (json.dumps({**ROWS[0], "answers": {"text": ["I"], "answer_start": [2**70]}}), "jsonl", "1 of the 1"),
    "blank": (json.dumps({**ROWS[0], "question": " "}), "jsonl", "1 of the 1 questions"),
    "parquet": ("PAR1", "parquet", "cannot be read as parquet"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_sentence(name: str, tmp_path: Path) -> None:
    text, format, expected = HOSTILE[name]
    path = written(tmp_path / "rows", text)
    with pytest.raises(UserError, match=expected) as caught:
        KIND.load(asked(path, path, format))
    assert str(path) in caught.value.sentence and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_missing_or_foreign_file_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read"):
        KIND.load(asked(tmp_path / "none.json"))
    (tmp_path / "latin.json").write_bytes("\u00e9".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        KIND.load(asked(tmp_path / "latin.json"))
    parquet.write_table(pyarrow.table({"question": ["a"]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match="row 1 has no 'context', it holds 'question'"):
        KIND.load(asked(tmp_path / "rows.parquet", format="parquet"))


def reference(given: str, golds: list[str]) -> tuple[float, float]:
    """Exact match and F1 as SQuAD's papers define them, word by word."""

    def words(text: str) -> list[str]:
        bare = text.lower().translate({ord(mark): None for mark in string.punctuation})
        return [word for word in bare.split() if word not in ("a", "an", "the")]

    best = [0.0, 0.0]
    for gold in [gold for gold in golds if words(gold)] or [""]:
        told, right = Counter(words(given)), Counter(words(gold))
        best[0] = max(best[0], float(words(given) == words(gold)))
        if not told or not right:
            best[1] = max(best[1], float(told == right))
            continue
        shared = sum(min(count, right[word]) for word, count in told.items())
        precision, recall = shared / sum(told.values()), shared / sum(right.values())
        best[1] = max(best[1], 2 * precision * recall / (precision + recall) if shared else 0.0)
    return best[0], best[1]


PIECES = [*"the The an a, storm storm. Storm's late (late) \u00e9t\u00e9 17 a-b , the-end".split(), " ", "\t"]
PHRASES = st.lists(st.sampled_from(PIECES), max_size=7).map(" ".join)


@given(PHRASES, st.lists(PHRASES, max_size=4))
def test_exact_and_f1_are_those_of_the_definition(text: str, golds: list[str]) -> None:
    assert score_answer(text, golds) == pytest.approx(reference(text, golds))


@pytest.mark.parametrize(
    ("text", "golds", "exact", "f1"),
    [
        ("The Storm!", ["storm"], 1.0, 1.0),
        ("a cold storm", ["storm"], 0.0, 2 / 3),
        ("storm storm", ["storm"], 0.0, 2 / 3),
        ("late storm", ["storm late"], 0.0, 1.0),
        ("cold", ["storm", "cold"], 1.0, 1.0),
        ("", [], 1.0, 1.0),
        ("storm", [], 0.0, 0.0),
        ("", ["storm"], 0.0, 0.0),
        ("", ["the"], 1.0, 1.0),
    ],
)
def test_hand_counted_answers(text: str, golds: list[str], exact: float, f1: float) -> None:
    assert score_answer(text, golds) == pytest.approx((exact, f1))
