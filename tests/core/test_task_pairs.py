"""Results with and without pretraining meet within a model's name, and nowhere else."""

from __future__ import annotations

import dataclasses

from daybreak.core.task_pairs import pair_results, several_models
from daybreak.schemas.tasks import TaskResult

RESULT = TaskResult(
    protocol="quick", task="cola", model="pretrained", model_name="mini", kind="classification", metric="mcc",
    scores={"mcc": [0.2, 0.3]}, seeds=[0, 1], mean=0.25, spread=0.05, selection="after the last epoch",
    train_rows=20, dev_rows=10, baseline=0.0, settings={}, seconds=1.0,
)  # fmt: skip


def test_pairs_are_within_a_name() -> None:
    results = [
        RESULT,
        dataclasses.replace(RESULT, model_name="tiny", mean=0.1),
        dataclasses.replace(RESULT, model="untrained", mean=0.05),
        dataclasses.replace(RESULT, model_name="tiny", model="untrained", mean=0.0),
        dataclasses.replace(RESULT, protocol="quick, 4 epochs", model_name="tiny"),
    ]
    pairs = pair_results(results)
    assert [(pair.model_name, pair.protocol) for pair in pairs] == [
        ("mini", "quick"),
        ("tiny", "quick"),
        ("tiny", "quick, 4 epochs"),
    ]
    assert [pair.gain for pair in pairs] == [0.2, 0.1, None]
    assert several_models(pairs)
    assert not several_models(pairs[1:])


def test_nameless_results_still_pair() -> None:
    old = dataclasses.replace(RESULT, model_name="")
    (pair,) = pair_results([old, dataclasses.replace(old, model="untrained")])
    assert pair.gain == 0.0
