"""The bag-of-words baseline: scikit-learn by hand, overlap by hand, and where its scores are shown."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from daybreak.base.task_pairs import baseline_sentence
from daybreak.base.task_records import TaskResult
from daybreak.evaluate import evaluate
from daybreak.evaluation import bag_of_words as module
from daybreak.evaluation import measure
from daybreak.evaluation.bag_of_words import bag_of_words, overlap
from daybreak.evaluation.kinds import kind_of, load_task
from daybreak.evaluation.results import read_results
from daybreak.evaluation.task_file import read_task_file
from daybreak.evaluation.tasks import TaskRows

FILLER = "the day was very and it will be some more of this there again today town people walk home late".split()
THINGS = [f"{a}{b}" for a in ("sal", "mer", "tor", "vin", "kel") for b in ("ta", "mo", "ris", "den", "fu", "ga")]


def write(folder: Path, rows: list[tuple[object, ...]], held: list[tuple[object, ...]], **fields: object) -> TaskRows:
    columns = [f"c{number}" for number in range(len(rows[0]))]
    for name, part in (("train", rows), ("dev", held)):
        lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in part)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    told = {"name": "own", "train": "train.tsv", "dev": "dev.tsv", "label": columns[-1], **fields}
    told.setdefault("text", columns[:-1] if len(columns) > 2 else columns[0])
    (folder / "task.toml").write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in told.items()))
    return load_task(read_task_file(folder / "task.toml"))


def singles(count: int, seed: int) -> list[tuple[object, ...]]:
    chance = random.Random(seed)
    rows: list[tuple[object, ...]] = []
    for number in range(count):
        words = chance.choices(FILLER, k=6) + [chance.choice(THINGS[:6] if number % 2 else THINGS[6:12])]
        chance.shuffle(words)
        rows.append((" ".join(words), "odd" if number % 2 else "even"))
    return rows


def pairs(count: int, seed: int) -> list[tuple[object, ...]]:
    """The score is the share of the words that both have."""
    chance = random.Random(seed)
    rows: list[tuple[object, ...]] = []
    for _ in range(count):
        same = chance.randint(0, 8)
        words = chance.sample(FILLER, 8)
        other = words[:same] + chance.sample(THINGS, 8 - same)
        chance.shuffle(other)
        rows.append((" ".join(words), " ".join(other), same))
    return rows


def scores(data: TaskRows) -> dict[str, float]:
    kind = kind_of(data.task)
    tables = bag_of_words(kind, data, data.train)
    assert tables is not None
    return kind.score(tables["dev"], data.labels)


def test_one_sentence_equals_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, singles(80, 0), singles(60, 1))
    monkeypatch.setattr(module, "STRENGTHS", (3.0,))
    texts, held = ([text for (text,) in part.texts] for part in (data.train, data.dev))
    parts = (
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=module.WORD),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )
    seen = sparse.hstack([part.fit_transform(texts) for part in parts], "csr")
    model = LogisticRegression(C=3.0, max_iter=1000).fit(seen, data.train.targets)
    chances = model.predict_proba(sparse.hstack([part.transform(held) for part in parts], "csr"))
    table = bag_of_words(kind_of(data.task), data, data.train)["dev"]  # type: ignore[index]
    assert table[:, 1].tolist() == chances.argmax(axis=1).tolist()
    assert table[:, 3] == pytest.approx(chances.max(axis=1), abs=1e-9)
    assert scores(data)["accuracy"] > 0.9


def test_a_number_for_a_pair_follows_the_overlap(tmp_path: Path) -> None:
    assert scores(write(tmp_path, pairs(200, 0), pairs(100, 1), kind="regression"))["spearman"] > 0.9


def test_a_label_for_a_pair_follows_the_overlap(tmp_path: Path) -> None:
    rows, held = ([(*row[:2], "same" if int(str(row[2])) > 4 else "other") for row in pairs(200, n)] for n in (0, 1))
    assert scores(write(tmp_path, rows, held))["accuracy"] > 0.9


def test_overlap_by_hand() -> None:
    assert overlap("The cat sat", "the cat ran off") == pytest.approx((2 / 5, 2 / 3, 2 / 4, 3 / 4, 1.0))
    assert overlap("born in 1887", "born in 1888")[4] == 0.0
    assert overlap("9 of 10", "10 of 9")[4] == 1.0
    assert overlap("", "") == (0.0, 0.0, 0.0, 0.0, 1.0)


def test_tags_are_the_most_frequent_ones(tmp_path: Path) -> None:
    text = "Bonn B-place\nis O\nold O\n\nBonn B-place\ncalls O\n\nBonn O\nsees O\nRita B-name\n"
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "dev.txt").write_text("Rita B-name\nin O\nBonn B-place\nnear O\nKiel B-place\n")
    lines = ('name = "ner"', 'kind = "tokens"', 'train = "train.txt"', 'dev = "dev.txt"', "text = 0", "label = 1")
    (tmp_path / "task.toml").write_text("\n".join([*lines, 'format = "conll"']))
    found = scores(load_task(read_task_file(tmp_path / "task.toml")))
    assert found["span_precision"] == 1.0 and found["span_recall"] == pytest.approx(2 / 3)


def test_rows_without_a_word_and_labels_that_training_lacks_do_no_harm(tmp_path: Path) -> None:
    data = write(tmp_path, [("!", "a"), ("?", "b"), ("!!", "a"), ("??", "c")] * 3, [("...", "a"), ("!", "c")])
    assert 0 <= scores(data)["accuracy"] <= 1
    alone = data.train.take([0, 2])
    table = bag_of_words(kind_of(data.task), data, alone)["dev"]  # type: ignore[index]
    assert table[:, 1].tolist() == [0, 0]


def test_the_answer_is_the_same_each_time_and_dev_chooses_nothing(tmp_path: Path) -> None:
    data = write(tmp_path, singles(80, 0), singles(60, 1))
    kind = kind_of(data.task)
    first = bag_of_words(kind, data, data.train)
    swapped = replace(data.dev, targets=[1 - target for target in data.dev.targets])
    second = bag_of_words(kind, replace(data, dev=swapped), data.train)
    assert first is not None and second is not None
    assert np.array_equal(first["dev"][:, [1, 3]], second["dev"][:, [1, 3]])


def test_results_hold_the_baseline_and_count_it_once(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = evaluate(encoder, [str(weather)], seeds=1, epochs=1, rows=64, out=tmp_path / "out")
    assert result.bag_of_words["accuracy"] > result.baseline
    assert f"bag of words {result.bag_of_words['accuracy']:.3f}" in capsys.readouterr().out
    monkeypatch.setattr(measure, "bag_of_words", lambda *_: pytest.fail("counted twice"))
    (again,) = evaluate(encoder, [str(weather)], seeds=1, epochs=1, rows=64, out=tmp_path / "out", untrained=True)
    assert again.bag_of_words == result.bag_of_words
    monkeypatch.setattr(measure, "bag_of_words", lambda *_: {"dev": np.array([[0, 1, 0, 1, 0.0]])})
    (other,) = evaluate(encoder, [str(weather)], seeds=1, epochs=1, rows=32, out=tmp_path / "out")
    assert other.bag_of_words["accuracy"] == 0.0, "other training rows are another baseline"


def test_results_of_earlier_versions_still_load(tmp_path: Path) -> None:
    old = {
        "protocol": "quick", "task": "t", "model": "pretrained", "kind": "classification", "metric": "accuracy",
        "scores": {"accuracy": [0.5]}, "seeds": [0], "mean": 0.5, "spread": 0.0, "selection": "", "train_rows": 9,
        "dev_rows": 9, "baseline": 0.4, "settings": {}, "seconds": 1.0,
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps([old]))
    (result,) = read_results(tmp_path / "results.json")
    assert result.bag_of_words == {} and result.best_baseline == ("constant answer", 0.4)


def result(task: str, mean: float, words: float | None, constant: float = 0.5, spread: float = 0.01) -> TaskResult:
    return TaskResult(
        protocol="quick", task=task, model="pretrained", kind="classification", metric="accuracy",
        scores={"accuracy": [mean]}, seeds=[0], mean=mean, spread=spread, selection="", train_rows=9, dev_rows=9,
        baseline=constant, bag_of_words={} if words is None else {"accuracy": words}, settings={}, seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        ([], ""),
        ([result("sst2", 0.8, 0.75)], "This encoder beats its baselines on sst2."),
        ([result("a", 0.8, 0.75), result("b", 0.8, None)], "This encoder beats its baselines on all 2 tasks."),
        (
            [result("sst2", 0.721, 0.75)],
            "This encoder does not beat its baselines: sst2 (72.1 against 75.0 of the bag of words).",
        ),
        (
            [result("a", 0.8, 0.7), result("b", 0.705, 0.7), result("c", 0.4, 0.3)],
            "This encoder beats its baselines on 1 of 3 tasks, and not on b (70.5 against 70.0 of the bag of words) "
            "and c (40.0 against 50.0 of the constant answer).",
        ),
        ([replace(result("a", 0.2, 0.7), model="untrained")], ""),
    ],
)
def test_the_sentence_says_it_also_where_the_encoder_loses(results: list[TaskResult], sentence: str) -> None:
    assert baseline_sentence(results) == sentence
