"""Extractive question answering: SQuAD's files and measure, windows that lose nothing, stock answers row by row."""

from __future__ import annotations

import copy
import json
import random
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from small_tasks import FILLER, RAINY, SUNNY, VOCABULARY, learned

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetuning.finetune import Batches, predict
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import Padding
from daybreak.evaluation.tasks.questions import LONGEST_ANSWER, NO_ANSWER, Answer, Questions, best_span, score_answer
from daybreak.evaluation.tasks.task import LabeledRows, Task

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


def test_positions_are_those_in_the_normalized_context(tmp_path: Path) -> None:
    """Each accent of the file is a character of its own; an answer counts also if it is written in the other way."""
    context = "A\u0308ra und O\u0308l in Ko\u0308ln"
    answers = {"text": ["O\u0308l", "\u00d6l", "Ko\u0308ln"], "answer_start": [9, 9, 16]}
    row = {"question": "Wo ist O\u0308l?", "context": context, "answers": answers}
    path = written(tmp_path / "rows.jsonl", json.dumps(row))
    (texts,), (found,) = (data := KIND.load(asked(path, path, "jsonl")).train).texts, data.targets
    assert texts == ("Wo ist \u00d6l?", "\u00c4ra und \u00d6l in K\u00f6ln")
    assert found == (Answer("\u00d6l", 8), Answer("\u00d6l", 8), Answer("K\u00f6ln", 14))


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
    "list": ("[]", "squad", "data is not a list"),
    "no article": (mended("data", value=[]), "squad", "holds no questions"),
    "no object": (mended("data", value=["x"]), "squad", r"data\[0\] is not an object"),
    "no paragraphs": (mended("data", 0, "paragraphs", value=None), "squad", r"data\[0\].paragraphs is not a list"),
    "context": (mended(*AT, "context", value=["a"]), "squad", r"paragraphs\[0\] has a 'context' that is not text"),
    "half a letter": (mended(*AT, "context", value="It \ud800"), "squad", "'context' that is not text"),
    "answers": (mended(*AT, "qas", 0, "answers", value={}), "squad", r"qas\[0\].answers is not a list"),
    "answer": (mended(*ANSWER, "text", value=3), "squad", r"answers\[0\] has a 'text' that is not text"),
    "start": (mended(*ANSWER, "answer_start", value="17"), "squad", "start is not a character offset"),
    "negative": (mended(*ANSWER, "answer_start", value=-1), "squad", "start is not a character offset"),
    "impossible": (mended(*AT, "qas", 0, "is_impossible", value="no"), "squad", "neither true nor false"),
    "all impossible": (mended(*AT, "qas", 0, "is_impossible", value=True), "squad", "No question in .* has an answer"),
    "line": (json.dumps(ROWS[0]) + "\n{", "jsonl", "Line 2 of .* is not JSON"),
    "array": ("[1]", "jsonl", "line 1 is not an object"),
    "no column": ('{"question": "a", "text": "b"}', "jsonl", "line 1 has no 'context', it holds 'question', 'text'"),
    "text": (json.dumps({**ROWS[0], "answers": "storm"}), "jsonl", "not two lists of the same length"),
    "uneven": (json.dumps({**ROWS[0], "answers": {"text": ["a"], "answer_start": []}}), "jsonl", "not two lists"),
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


def test_a_missing_file_and_a_missing_column_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read"):
        KIND.load(asked(tmp_path / "none.json"))
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


LENGTH = 48
OVERLAP, QUESTION = LENGTH // 3, (LENGTH - 3) // 3


WORDS = st.sampled_from([*FILLER, *RAINY, "zqx", "a,b", "\u00e9\u00e9", "\u2603"])


@st.composite
def rows_with_answers(draw: st.DrawFn) -> list[tuple[str, str, tuple[Answer, ...]]]:
    """Contexts of up to 150 words with answers that begin and end anywhere, within words too."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        context = draw(st.lists(WORDS, min_size=1, max_size=150).map(lambda words: " ".join(words)))
        question = draw(st.lists(WORDS, min_size=1, max_size=40).map(" ".join))
        start = draw(st.integers(0, len(context) - 1))
        text = context[start : start + draw(st.integers(1, 40))]
        rows.append((question, context, (Answer(text, start),) if text.strip() and draw(st.booleans()) else ()))
    return rows


@given(rows_with_answers())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_windows_cover_the_context_and_hold_every_answer(
    tokenizer: Any, rows: list[tuple[str, str, tuple[Answer, ...]]]
) -> None:
    told = LabeledRows([row[:2] for row in rows], [row[2] for row in rows])
    encoded = KIND.encode(tokenizer, told, LENGTH, VOCABULARY)
    ids = encoded.features["input_ids"]
    assert encoded.lengths == [len(sequence) for sequence in ids] and max(encoded.lengths) <= LENGTH
    assert [window.row for window in encoded.notes] == sorted(window.row for window in encoded.notes)
    for row, (question, context, answers) in enumerate(rows):
        alone = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
        asked_ids = tokenizer(question, add_special_tokens=False)["input_ids"][:QUESTION]
        samples = [index for index, window in enumerate(encoded.notes) if window.row == row]
        # Windows side by side, without what they share, are the context.
        joined: list[int] = []
        for number, index in enumerate(samples):
            window, sequence = encoded.notes[index], ids[index]
            assert sequence[: window.first] == [2, *asked_ids, 3] and sequence[-1] == 3
            part = sequence[window.first : -1]
            at = len(joined) - OVERLAP if number else 0
            assert [tuple(span) for span in window.spans] == alone["offset_mapping"][at : at + len(part)]
            joined = joined[:at] + part
        assert joined == alone["input_ids"]
        touched = [
            place
            for place, (begin, end) in enumerate(alone["offset_mapping"])
            if answers and end > answers[0].start and begin < answers[0].start + len(answers[0].text)
        ]
        targets = [encoded.targets[index] for index in samples]
        found = [(encoded.notes[i], target) for i, target in zip(samples, targets) if target != (0, 0)]
        assert found or not 1 <= len(touched) <= OVERLAP
        assert touched or not found
        for window, (first, last) in found:
            begin, end = window.spans[first - window.first][0], window.spans[last - window.first][1]
            assert (begin, end) == (
                alone["offset_mapping"][touched[0]][0],
                alone["offset_mapping"][touched[-1]][1],
            )


def test_a_target_decodes_to_the_very_answer(encoder: Path) -> None:
    context = f"{'day ' * 60}It was \u00e9t\u00e9; a STORM  came, zqx{' late' * 60}"
    answer = "a STORM  came, zqx"
    rows = LabeledRows([("who", context)], [(Answer(answer, context.index(answer)),)])
    encoded = KIND.encode(load_tokenizer(encoder), rows, LENGTH, VOCABULARY)
    logits = []
    for target, length in zip(encoded.targets, encoded.lengths):
        logits.append(np.zeros((2, length + 3), dtype=np.float32))
        logits[-1][(0, 1), target] = 9.0 if target != (0, 0) else 1.0
    assert len(encoded) > 3 and sum(target != (0, 0) for target in encoded.targets) >= 1
    assert KIND.given(encoded, logits, ()) == [answer]
    assert KIND.evaluate(encoded, logits, ()).tolist() == [[1.0, 1.0]]


@given(st.integers(1, 80), st.integers(0, 10**6), st.booleans())
def test_the_best_span_is_the_best_of_all(count: int, seed: int, ties: bool) -> None:
    logits = np.random.default_rng(seed).normal(size=(2, count)).astype(np.float32)
    logits = np.round(logits) if ties else logits
    spans = [(i, j) for i in range(count) for j in range(i, min(count, i + LONGEST_ANSWER))]
    best = max(spans, key=lambda span: (float(logits[0, span[0]] + logits[1, span[1]]), -span[0], -span[1]))
    assert best_span(logits) == (pytest.approx(float(logits[0, best[0]] + logits[1, best[1]])), *best)


def test_no_answer_is_given_only_where_the_task_has_such_rows_and_the_least_sure_window_says_so(encoder: Path) -> None:
    rows = LabeledRows([("who", "day " * 90)], [()])
    encoded = KIND.encode(load_tokenizer(encoder), rows, LENGTH, VOCABULARY)
    logits = [np.zeros((2, length), dtype=np.float32) for length in encoded.lengths]
    for window in logits:
        window[:, 0] = 5.0
    logits[1][:, encoded.notes[1].first] = 4.0
    assert KIND.given(encoded, logits, (NO_ANSWER,)) == [""]
    assert KIND.given(encoded, logits, ()) == ["day"]
    logits[2][:, 0] = 3.0
    assert KIND.given(encoded, logits, (NO_ANSWER,)) == ["day"]


def test_a_length_that_leaves_no_room_and_foreign_ids_are_refused(encoder: Path) -> None:
    tokenizer, rows = load_tokenizer(encoder), LabeledRows([("who", "day late")], [()])
    with pytest.raises(UserError, match="needs 32 tokens a sequence, and here 31"):
        KIND.encode(tokenizer, rows, 31, VOCABULARY)
    with pytest.raises(UserError, match="the model knows only 9 tokens"):
        KIND.encode(tokenizer, rows, LENGTH, 9)


def weather(count: int, seed: int, impossible: bool) -> LabeledRows:
    """Where does the text speak of bad weather, in two words? Some speak of none, many are longer than a sequence."""
    chance, texts, targets = random.Random(seed), [], []
    for number in range(count):
        words = chance.choices([*FILLER, *SUNNY], k=chance.randint(4, 70))
        at, span = chance.randrange(len(words)), [chance.choice(RAINY[:2]), chance.choice(RAINY[2:])]
        if impossible and number % 3 == 0:
            targets.append(())
        else:
            start = sum(len(word) + 1 for word in words[:at])
            targets.append((Answer(" ".join(span), start),))
            words[at:at] = span
        texts.append((" ".join(chance.choices(FILLER, k=chance.randint(1, 30))), " ".join(words)))
    return LabeledRows(texts, targets)


@pytest.mark.parametrize("impossible", [False, True])
def test_a_toy_task_is_learned(family: Path, impossible: bool) -> None:
    labels = (NO_ANSWER,) if impossible else ()
    train, asked = (weather(count, seed, impossible) for count, seed in ((250, 1), (60, 2)))
    _, dev, found = learned(family, KIND, labels, train, asked, Setting(4, 5e-3, 16), LENGTH, untrained=True)
    assert len(dev) > len(dev.rows)
    judged = KIND.evaluate(dev, found, labels)
    assert judged.shape == (60, 2)
    scores = KIND.score(judged, labels)
    assert scores["exact"] > 0.9 and scores["f1"] >= scores["exact"]
    texts = KIND.given(dev, found, labels)
    assert any(text == "" for text in texts) is impossible
    expected = [score_answer(text, [a.text for a in answers]) for text, answers in zip(texts, dev.rows.targets)]
    np.testing.assert_allclose(judged, expected)


def test_answers_are_those_of_the_stock_model_row_by_row(family: Path) -> None:
    """Windows, the best of all spans and their characters, done again slowly from ids."""
    tokenizer = load_tokenizer(family)
    rows = weather(12, 3, impossible=True)
    encoded = KIND.encode(tokenizer, rows, LENGTH, VOCABULARY)
    model, padding = build_classifier(family, KIND, (), 0, untrained=False).eval(), Padding.of(tokenizer)
    with torch.no_grad():  # answers of a fresh head are nearly all alike
        next(p for name, p in model.named_parameters() if name in ("qa_outputs.weight", "classifier.weight")).mul_(50)
    for name in ("", NO_ANSWER):
        expected = []
        for question, context in rows.texts:
            text = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
            head = [2, *tokenizer(question, add_special_tokens=False)["input_ids"][:QUESTION], 3]
            room, best, none = LENGTH - len(head) - 1, (-np.inf, 0, 0), np.inf
            for at in range(0, max(1, len(text["input_ids"]) - OVERLAP), room - OVERLAP):
                part = text["input_ids"][at : at + room]
                inputs = {"input_ids": torch.tensor([[*head, *part, 3]])}
                if "bert" in str(family):
                    inputs["token_type_ids"] = torch.tensor([[0] * len(head) + [1] * (len(part) + 1)])
                with torch.inference_mode():
                    output = model(**inputs)
                starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
                none = min(none, starts[0] + ends[0])
                for i in range(len(part)):
                    for j in range(i, min(len(part), i + LONGEST_ANSWER)):
                        best = max(best, (starts[len(head) + i] + ends[len(head) + j], at + i, at + j))
            spans = text["offset_mapping"]
            empty = name == NO_ANSWER and none > best[0]
            expected.append("" if empty else context[spans[best[1]][0] : spans[best[2]][1]])
        assert KIND.given(encoded, predict(model, KIND, padding, encoded), (name,)) == expected
        assert len(set(expected)) > 5


def test_the_loss_is_that_of_the_stock_model(family: Path) -> None:
    tokenizer = load_tokenizer(family)
    encoded = KIND.encode(tokenizer, weather(6, 1, impossible=True), LENGTH, VOCABULARY)
    model, everyone = build_classifier(family, KIND, (), 0, untrained=False).eval(), range(len(encoded))
    batches = Batches(model, KIND, Padding.of(tokenizer), encoded)
    targets = batches.targets(everyone, LENGTH)
    output = model(**batches.inputs(everyone), start_positions=targets[:, 0], end_positions=targets[:, 1])
    torch.testing.assert_close(KIND.loss(output, targets), output.loss)
