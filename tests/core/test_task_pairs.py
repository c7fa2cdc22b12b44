"""Results with and without pretraining meet within a model's name, and nowhere else."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import pytest

from daybreak.core.task_pairs import WITHIN_SPREAD, baseline_sentence, pair_results, several_models
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


@pytest.mark.parametrize("change", [{"train_rows": 30}, {"dev_rows": 12}, {"metric": "accuracy"}, {"files": "b"}])
def test_results_from_before_and_after_a_change_of_the_task_are_no_pair(change: dict[str, Any]) -> None:
    now = dataclasses.replace(RESULT, files="a")
    before = dataclasses.replace(now, model="untrained", scores={"mcc": [0.1], "accuracy": [0.7]})
    assert pair_results([before, now])[0].gain is not None
    pairs = pair_results([before, dataclasses.replace(now, scores=before.scores, **change)])
    assert [(pair.gain, pair.verdict) for pair in pairs] == [(None, ""), (None, "")]


def test_the_sentence_says_what_the_encoder_adds_to_the_bag_of_words() -> None:
    lost = dataclasses.replace(RESULT, bag_of_words={"mcc": 0.4}, combined=[0.5, 0.52])
    alone = "This encoder does not beat its baselines on cola (25.0 +- 5.0 against 40.0 for the bag of words)."
    few = "cola has fewer than 3 seeds, too few for a claim."
    together = "Averaged with the bag of words, its predictions beat the baselines on"
    assert baseline_sentence([lost]) == f"{alone} {together} cola. {few}"
    # The spread over seeds counts: 0.45 - 0.07 is not above 0.4.
    unsure = dataclasses.replace(lost, combined=[0.4, 0.5])
    assert baseline_sentence([unsure]) == f"{alone} {together} no task. {few}"
    assert f"{together} 1 of 2 tasks." in baseline_sentence([lost, dataclasses.replace(unsure, task="rte")])
    assert together not in baseline_sentence([dataclasses.replace(lost, combined=[])])
    assert together not in baseline_sentence([dataclasses.replace(lost, bag_of_words={"mcc": 0.1})])


def test_each_of_several_models_has_a_sentence_of_its_own() -> None:
    """Such as a published model that was evaluated into the folder of a run."""
    lost = dataclasses.replace(RESULT, model_name="bert-base", mean=0.0, seeds=[0, 1, 2])
    won = dataclasses.replace(RESULT, seeds=[0, 1, 2])
    none = "There is no bag-of-words baseline for cola."
    mini = f"mini beats the constant answer on cola. {none}"
    assert baseline_sentence([won, lost]).startswith(f"{mini} bert-base does not beat the constant answer on cola (")
    assert baseline_sentence([won, lost], "runs").startswith(f"runs, {mini} runs, bert-base does not beat")
    assert baseline_sentence([won]) == f"This encoder{mini.removeprefix('mini')}"
    many = [dataclasses.replace(won, model_name=name) for name in "abc"]
    ranks = "a on 1 of 1, b on 1 of 1, c on 1 of 1, bert-base on 0 of 1."
    none = "Some results have no bag-of-words baseline."
    assert baseline_sentence([*many, lost]) == f"Tasks on which an encoder beats its baselines: {ranks} {none}"
    few = dataclasses.replace(many[0], seeds=[0, 1], bag_of_words={"mcc": 0.1}, bag_of_words_rows=5)
    for caveat in ("fitted on a part of the training rows", "Some results have fewer than 3 seeds"):
        assert caveat in baseline_sentence([few, *many[1:], lost])
    twice = dataclasses.replace(many[0], protocol="small")
    assert "Results in which an encoder beats its baselines: a in 2 of 2," in baseline_sentence([twice, *many, lost])


def test_a_score_that_equals_its_baseline_up_to_rounding_does_not_beat_it() -> None:
    """The mean of three times 0.72 is 0.7200000000000001."""
    mean = statistics.fmean([0.72] * 3)
    assert mean > 0.72
    tie = dataclasses.replace(RESULT, mean=mean, spread=0.0, seeds=[0, 1, 2], baseline=0.72, combined=[0.72] * 3)
    tie = dataclasses.replace(tie, bag_of_words={"mcc": 0.72})
    assert not tie.beats_baseline and not tie.combined_beats_baseline
    assert baseline_sentence([tie]).startswith("This encoder does not beat its baselines on cola")
    untrained = dataclasses.replace(tie, model="untrained", mean=0.72)
    assert pair_results([tie, untrained])[0].verdict == WITHIN_SPREAD


def test_a_lead_that_few_rows_do_not_show_beats_nothing() -> None:
    above = dataclasses.replace(RESULT, seeds=[0, 1, 2], bag_of_words={"mcc": 0.1}, combined=[0.3] * 3)
    assert above.beats_baseline and above.combined_beats_baseline, "the interval of earlier versions is not known"
    assert dataclasses.replace(above, lead=[0.01, 0.3]).beats_baseline
    unsure = dataclasses.replace(above, lead=[-0.02, 0.3], combined_lead=[0.0, 0.4])
    assert not unsure.beats_baseline and not unsure.combined_beats_baseline
    assert baseline_sentence([unsure]) == (
        "This encoder does not beat its baselines on cola (25.0 +- 5.0 against 10.0 for the bag of words, a lead that "
        "10 rows and 3 seeds do not show). "
        "Averaged with the bag of words, its predictions beat the baselines on no task."
    )


def test_rows_that_were_trained_on_are_a_caveat() -> None:
    won = dataclasses.replace(RESULT, seeds=[0, 1, 2], bag_of_words={"mcc": 0.1}, dev_rows=200)
    assert "also" not in baseline_sentence([dataclasses.replace(won, leaked_rows=1)])
    leaked = dataclasses.replace(won, leaked_rows=2)
    assert "2 of the 200 dev rows of cola are also training rows." in baseline_sentence([leaked])
    many = [dataclasses.replace(leaked, model_name=name) for name in "abcd"]
    assert "Some dev or test rows are also training rows." in baseline_sentence(many)


def test_a_bag_of_words_with_fewer_rows_is_said_to_have_them() -> None:
    won = dataclasses.replace(RESULT, seeds=[0, 1, 2], bag_of_words={"mcc": 0.1}, bag_of_words_rows=5)
    assert baseline_sentence([won]) == (
        "This encoder beats its baselines on cola. The bag of words was fitted on a part of the training rows of cola."
    )
