"""The bag-of-words baseline: scikit-learn by hand, overlap by hand, and where its scores are shown."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_tasks
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import StandardScaler
from small_tasks import FILLER

from daybreak import cli
from daybreak.commands.evaluate import evaluate
from daybreak.core.task_pairs import baseline_sentence, pair_results
from daybreak.evaluation.baselines import bag_of_words as module
from daybreak.evaluation.baselines.bag_of_words import WordScores, bag_of_words, held_out_predictions, overlap
from daybreak.evaluation.finetuning import task_evaluation
from daybreak.evaluation.finetuning.results import read_results
from daybreak.evaluation.tasks.kinds import KINDS, kind_of, load_task
from daybreak.evaluation.tasks.task import LabeledRows, TaskRows
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.exporting.card import task_row
from daybreak.schemas.tasks import TaskResult

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
    return kind.score(answers(data, data.train), data.labels)


def answers(data: TaskRows, train: LabeledRows) -> np.ndarray:
    found = bag_of_words(kind_of(data.task), data, train)
    assert found.rows == len(train)
    return found.scored_rows["dev"]


def vectorizers() -> tuple[TfidfVectorizer, TfidfVectorizer]:
    """TF-IDF of words and characters."""
    return (
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b"),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )


def by_hand(texts: Sequence[str], targets: Sequence[int], held: Sequence[str]) -> np.ndarray:
    """The probabilities of logistic regression with C = 3 on TF-IDF of words and characters."""
    parts = vectorizers()
    seen = sparse.hstack([part.fit_transform(texts) for part in parts], "csr")
    model = LogisticRegression(C=3.0, max_iter=1000).fit(seen, targets)
    return model.predict_proba(sparse.hstack([part.transform(held) for part in parts], "csr"))


def test_one_sentence_equals_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, singles(80, 0), singles(60, 1))
    monkeypatch.setattr(module, "STRENGTHS", (3.0,))
    texts, held = ([text for (text,) in part.texts] for part in (data.train, data.dev))
    chances = by_hand(texts, data.train.targets, held)
    table = answers(data, data.train)
    assert table[:, 1].tolist() == chances.argmax(axis=1).tolist()
    assert table[:, 3] == pytest.approx(chances.max(axis=1), abs=1e-9)
    assert scores(data)["accuracy"] > 0.9


def test_many_labels_have_fewer_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COEFFICIENTS", 80)
    data = write(tmp_path, singles(40, 0), singles(10, 1))
    assert module._Features(kind_of(data.task), data).of(data.train.texts, fit=True).shape == (40, 2 * 20)


def test_each_training_row_is_predicted_by_a_model_that_has_not_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path, singles(60, 0), singles(20, 1))
    monkeypatch.setattr(module, "STRENGTHS", (3.0,))
    found = held_out_predictions(kind_of(data.task), data, data.train)
    texts, targets = np.array([text for (text,) in data.train.texts]), np.array(data.train.targets)
    folds = np.random.default_rng(module.SEED).permutation(60) % module.FOLDS
    for fold in range(module.FOLDS):
        chances = by_hand(texts[folds != fold], targets[folds != fold], texts[folds == fold])
        assert found[folds == fold] == pytest.approx(chances, abs=1e-9)
    assert (found.argmax(axis=1) == targets).mean() > 0.8
    changed = replace(data.train, targets=[1 - data.train.targets[0], *data.train.targets[1:]])
    assert held_out_predictions(kind_of(data.task), data, changed)[0] == pytest.approx(found[0]), "its own label"


def test_rows_beyond_the_bound_are_predicted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, pairs(40, 0), pairs(10, 1), kind="regression")
    monkeypatch.setattr(module, "MOST_CHARACTERS", sum(len(a) + len(b) for a, b in data.train.texts[:30]))
    found = held_out_predictions(kind_of(data.task), data, data.train)
    assert found.shape == (40, 1)
    assert np.corrcoef(found[:, 0], data.train.targets)[0, 1] > 0.8


def test_held_out_predictions_of_few_rows_are_probabilities(tmp_path: Path) -> None:
    for count in (2, 3, 7):
        data = write(tmp_path, singles(count, 0), singles(4, 1))
        found = held_out_predictions(kind_of(data.task), data, data.train)
        assert found.shape == (count, 2) and found.sum(axis=1) == pytest.approx(np.ones(count))


def test_held_out_predictions_of_one_row_know_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, singles(4, 0), singles(4, 1))
    assert held_out_predictions(kind_of(data.task), data, data.train.take([0])) == pytest.approx(np.array([[0.5, 0.5]]))
    numbers = write(tmp_path, pairs(4, 0), pairs(4, 1), kind="regression")
    monkeypatch.setattr(module, "MOST_CHARACTERS", 1)  # one row to fit on
    found = held_out_predictions(kind_of(numbers.task), numbers, numbers.train)
    assert np.mean(numbers.train.targets) in found[:, 0] and np.isfinite(found).all()


def test_a_pair_equals_scikit_learn_on_the_same_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ridge on the cosines, the overlap and the words that both or one of the texts have, each made by hand here."""
    data = write(tmp_path, pairs(60, 0), pairs(30, 1), kind="regression")
    monkeypatch.setattr(module, "STRENGTHS", (2.0,))
    monkeypatch.setattr(module, "PAIR_VARIANTS", (slice(None),))
    parts = vectorizers()
    for part in parts:
        part.fit([text for pair in data.train.texts for text in pair])

    def numbers(texts: list[tuple[str, ...]]) -> np.ndarray:
        def cosines(part: TfidfVectorizer) -> np.ndarray:
            sides = [part.transform([pair[side] for pair in texts]) for side in (0, 1)]
            return np.diag(cosine_similarity(*sides))

        return np.column_stack([*map(cosines, parts), [overlap(*pair) for pair in texts]])

    scaler = StandardScaler().fit(numbers(data.train.texts))

    def features(texts: list[tuple[str, ...]]) -> np.ndarray:
        first, second = (parts[0].transform([pair[side] for pair in texts]).toarray() for side in (0, 1))
        return np.hstack([scaler.transform(numbers(texts)), first * second, abs(first - second)])

    model = Ridge(alpha=0.5, solver="cholesky").fit(features(data.train.texts), data.train.targets)
    expected = model.predict(features(data.dev.texts))
    assert answers(data, data.train)[:, 1] == pytest.approx(expected, abs=0.01)


def test_words_keep_their_vowel_signs() -> None:
    """Hindi: without the signs, both words would be the consonant k."""
    assert overlap("\u0915\u0940", "\u0915\u093e")[0] == 0.0


def test_multiple_choice_takes_the_ending_with_the_words_of_right_endings(tmp_path: Path) -> None:
    def rows(count: int, seed: int) -> list[tuple[object, ...]]:
        chance = random.Random(seed)
        found: list[tuple[object, ...]] = []
        for _ in range(count):
            endings = [" ".join(chance.sample(THINGS[:15], 2)) for _ in range(3)]
            right = chance.randrange(3)
            endings[right] = " ".join(chance.sample(THINGS[15:], 2))
            found.append((" ".join(chance.sample(FILLER, 5)), *endings, right))
        return found

    held = rows(50, 1)
    data = write(tmp_path, rows(100, 0), held, kind="choice", text="c0", choices=["c1", "c2", "c3"], label="c4")
    table = answers(data, data.train)
    assert scores(data)["accuracy"] == pytest.approx((table[:, 1] == [row[-1] for row in held]).mean())
    assert scores(data)["accuracy"] > 0.9


def test_question_answering_has_none() -> None:
    assert bag_of_words(KINDS["qa"], None, LabeledRows([], [])) == WordScores({}, 0)  # type: ignore[arg-type]


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
    table = answers(data, alone)
    assert table[:, 1].tolist() == [0, 0]


def test_the_answer_is_the_same_each_time_and_dev_chooses_nothing(tmp_path: Path) -> None:
    data = write(tmp_path, singles(80, 0), singles(60, 1))
    swapped = replace(data.dev, targets=[1 - target for target in data.dev.targets])
    first, second = answers(data, data.train), answers(replace(data, dev=swapped), data.train)
    assert np.array_equal(first[:, [1, 3]], second[:, [1, 3]])


def test_results_hold_the_baseline_which_is_kept_for_the_same_rows_and_version(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluated(rows: int, untrained: bool = False) -> TaskResult:
        (found,) = evaluate(
            encoder, [str(weather)], seeds=1, epochs=1, rows=rows, out=tmp_path, untrained=untrained
        )  # fmt: skip
        return found

    first = evaluated(64)
    assert first.bag_of_words["accuracy"] > first.baseline
    assert f"bag of words {first.bag_of_words['accuracy']:.3f}" in capsys.readouterr().out
    wrong = WordScores({"dev": np.array([[0, 1, 0, 1, 0.0]])}, 64)
    monkeypatch.setattr(task_evaluation, "bag_of_words", lambda *_: wrong)
    assert evaluated(64, untrained=True).bag_of_words == first.bag_of_words, "fitted once for all models"
    assert evaluated(32).bag_of_words["accuracy"] == 0.0, "other training rows are another baseline"
    assert evaluated(64) == first
    (file,) = tmp_path.glob("cells/*64-rows*/*/bag-of-words.json")
    kept = json.loads(file.read_text())
    for changed in ("{}", "[]", "{", json.dumps(kept | {"software": [0, "0"]})):
        file.write_text(changed)
        assert evaluated(64).bag_of_words["accuracy"] == 0.0


def test_no_baselines_leaves_the_bag_of_words_out(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_evaluation, "bag_of_words", lambda *_: pytest.fail("fitted"))
    words = ["--tasks", str(weather), "--seeds", "1", "--epochs", "1", "--rows", "32", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        cli.main(["evaluate", str(encoder), *words, "--no-baselines"])
    assert not left.value.code and "no bag-of-words baseline" in capsys.readouterr().out
    (result,) = read_results(tmp_path / "results.json")
    assert result.bag_of_words == {} and result.bag_of_words_rows == 0 and 0 < result.baseline < 1


def result(task: str, mean: float, words: float | None) -> TaskResult:
    bag = {} if words is None else {"accuracy": words}
    return small_tasks.result(task, {"accuracy": [mean] * 3}, mean=mean, spread=0.01, bag_of_words=bag)


# fmt: off
SENTENCES: list[tuple[list[TaskResult], str]] = [
    ([], ""),
    ([result("sst2", 0.8, 0.75)], " beats its baselines on sst2."),
    ([result("a", 0.8, 0.75), result("b", 0.8, 0.6)], " beats its baselines on all 2 tasks."),
    ([result("a", 0.8, 0.75), result("b", 0.8, None)],
     " beats its baselines on all 2 tasks. There is no bag-of-words baseline for b."),
    ([result("a", 0.8, None)], " beats the constant answer on a. There is no bag-of-words baseline for a."),
    ([result("sst2", 0.721, 0.75)],
     " does not beat its baselines on sst2 (72.1 +- 1.0 against 75.0 for the bag of words)."),
    ([result("a", 0.8, 0.7), result("b", 0.705, 0.7), result("c", 0.4, 0.3)],
     " beats its baselines on 1 of 3 tasks, but not on b (70.5 +- 1.0 against 70.0 for the bag of words) and c "
     "(40.0 +- 1.0 against 50.0 for the constant answer)."),
    ([result("a", 0.8, 0.7), *(result(task, 0.6, 0.7) for task in "bcd")],
     " beats its baselines on 1 of 4 tasks, but not on b, c and d."),
    ([result(task, 0.6, 0.7) for task in "abc"], " does not beat its baselines on any of 3 tasks."),
    ([replace(result("a", 0.8, 0.7), seeds=[0], scores={"accuracy": [0.8]}, spread=0.0)],
     " beats its baselines on a. a has fewer than 3 seeds, too few for a claim."),
    ([result("a", 0.8, 0.7), replace(result("a", 0.6, 0.7), protocol="bert")],
     " beats its baselines on 1 of 2 results, but not on a under bert (60.0 +- 1.0 against 70.0 for the bag of "
     "words)."),
    ([replace(result("a", 0.2, 0.7), model="untrained")], ""),
]
# fmt: on


@pytest.mark.parametrize(("results", "sentence"), SENTENCES)
def test_the_sentence_says_it_also_where_the_encoder_loses(results: list[TaskResult], sentence: str) -> None:
    assert baseline_sentence(results) == (f"This encoder{sentence}" if sentence else "")


def test_the_card_and_the_page_say_which_rows_the_bag_of_words_had() -> None:
    part = replace(result("mnli", 0.8, 0.7), train_rows=392_702, bag_of_words_rows=45_000)
    (pair,) = pair_results([part, replace(part, model="untrained", bag_of_words={}, mean=0.4)])
    constant, bag, untrained = task_row(pair, named=False)[2:5]
    assert (constant, bag, untrained[:4]) == ("50.0", "70.0 (fitted on 45,000 of 392,702 rows)", "40.0")
    (whole,) = pair_results([replace(part, bag_of_words_rows=392_702)])
    assert task_row(whole, named=False)[3] == "70.0"
