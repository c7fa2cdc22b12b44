"""Linear probes: what they see, that they find what is there and nothing else, and what they refuse."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score
from small_tasks import quiet

from daybreak.core.errors import UserError
from daybreak.evaluation.probes.frozen import FrozenModel, load_encoder, pooled_states
from daybreak.evaluation.probes.layer_probes import (
    CLASSIFICATION_C,
    REGRESSION_ALPHA,
    check_probed,
    probe_layers,
    probed_rows,
    text_features,
)
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task import TaskRows
from daybreak.evaluation.tasks.task_file import read_task_file

WriteTask = Callable[..., Path]
WORDS = "sun warm bright summer beach rain cold dark winter storm".split()


def standardize(known: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known, asked = known.astype(np.float64), asked.astype(np.float64)
    middle, spread = known.mean(axis=0), known.std(axis=0)
    return (known - middle) / spread, (asked - middle) / spread


@pytest.fixture(scope="module")
def frozen(encoder: Path) -> FrozenModel:
    return load_encoder(encoder)


def read(path: Path) -> TaskRows:
    return load_task(read_task_file(path))


def test_a_task_of_words_is_read_off_random_embeddings(frozen: FrozenModel, weather: Path) -> None:
    data = read(weather)
    shares: list[float] = []
    found = probe_layers(frozen, data, probed_rows(data, 500), 64, shares.append)
    assert [layer.layer for layer in found.layers] == [0, 1]
    assert found.layers[0].score > 0.9 and found.best.score > 0.9
    assert (found.train_rows, found.dev_rows, found.metric) == (500, 101, "accuracy")
    assert found.constant == pytest.approx(51 / 101, abs=0.011)
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    assert probe_layers(frozen, data, probed_rows(data, 500), 64, quiet) == found


def test_labels_that_have_nothing_to_do_with_the_text_are_not_found(frozen: FrozenModel, write_task: WriteTask) -> None:
    chance = random.Random(3)

    def rows(count: int) -> list[tuple[str, ...]]:
        return [(" ".join(chance.choices(WORDS, k=6)), chance.choice("ab")) for _ in range(count)]

    data = read(write_task(rows(300), rows(400), name="noise"))
    found = probe_layers(frozen, data, probed_rows(data, 300), 64, quiet)
    assert all(abs(layer.score - 0.5) < 0.12 for layer in found.layers)


def test_scores_equal_scikit_learn_by_hand(frozen: FrozenModel, write_task: WriteTask) -> None:
    chance = random.Random(4)

    def rows(count: int) -> list[tuple[str, ...]]:
        texts = [chance.choices(WORDS, k=5) for _ in range(count)]
        return [(" ".join(text), "abc"[min(2, sum(word in WORDS[:5] for word in text) // 2)]) for text in texts]

    data = read(write_task(rows(90), rows(80), 'metric = "macro_f1"', name="three"))
    train = probed_rows(data, 60)
    found = probe_layers(frozen, data, train, 64, quiet)
    known = pooled_states(frozen, [text for (text,) in train.texts], 64)
    asked = pooled_states(frozen, [text for (text,) in data.dev.texts], 64)
    for layer in found.layers:
        seen, judged = standardize(known[layer.layer], asked[layer.layer])
        head = LogisticRegression(C=CLASSIFICATION_C, max_iter=1000).fit(seen, train.targets)
        wanted = f1_score(data.dev.targets, head.predict(judged), average="macro", labels=[0, 1, 2], zero_division=0)
        assert layer.score == pytest.approx(wanted, abs=1e-9)


def test_numbers_for_pairs_are_read_off_how_the_texts_differ(frozen: FrozenModel, write_task: WriteTask) -> None:
    chance = random.Random(5)

    def rows(count: int) -> list[tuple[str, ...]]:
        found = []
        for _ in range(count):
            one, same = chance.choices(WORDS, k=6), chance.randint(0, 6)
            other = one[:same] + chance.choices(WORDS, k=6 - same)
            found.append((" ".join(one), " ".join(other), str(same)))
        return found

    data = read(write_task(rows(400), rows(120), 'kind = "regression"', name="same"))
    train = probed_rows(data, 2000)
    found = probe_layers(frozen, data, train, 64, quiet)
    assert (found.kind, found.metric, found.constant, found.train_rows) == ("regression", "spearman", 0.0, 400)
    assert found.best.score > 0.6
    one, other = ([texts[side] for texts in data.dev.texts] for side in (0, 1))
    features = text_features(frozen, data.dev.texts, 64, quiet)
    u, v = pooled_states(frozen, one, 64), pooled_states(frozen, other, 64)
    np.testing.assert_array_equal(features, np.concatenate([abs(u - v), u * v], axis=2))
    known = text_features(frozen, train.texts, 64, quiet)
    for layer in found.layers:
        seen, judged = standardize(known[layer.layer], features[layer.layer])
        ridge = Ridge(alpha=REGRESSION_ALPHA).fit(seen, train.targets)
        assert layer.score == pytest.approx(spearmanr(ridge.predict(judged), data.dev.targets).statistic, abs=1e-6)


def test_a_label_that_no_probed_row_has_is_never_the_answer(frozen: FrozenModel, write_task: WriteTask) -> None:
    rows = [("sun beach", "a"), ("rain storm", "b")] * 30 + [("town people", "c")]
    data = read(write_task(rows, rows, name="rare"))
    train = probed_rows(data, 40)
    assert set(train.targets) == {0, 1}, "the seeded shuffle leaves out the rare one"
    found = probe_layers(frozen, data, train, 64, quiet)
    assert found.layers[0].score == pytest.approx(60 / 61)


def test_a_task_without_one_answer_a_text_is_refused(weather: Path) -> None:
    task = dataclasses.replace(read_task_file(weather), kind="tokens")
    with pytest.raises(UserError, match="Task 'weather' is of the kind tokens, which linear probes do not support"):
        check_probed(task)
