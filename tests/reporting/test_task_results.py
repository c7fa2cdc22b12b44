"""Every result says how it was made, and averages stand only where a convention is complete."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from daybreak.commands.report import report
from daybreak.core.files import write_json
from daybreak.core.formatting import score
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.protocols.anchors import ANCHORS
from daybreak.evaluation.protocols.conventions import SIZES, averages
from daybreak.schemas.tasks import TaskResult

GLUE = {
    "cola": ["mcc"], "sst2": ["accuracy"], "mrpc": ["accuracy", "f1"], "qqp": ["accuracy", "f1"],
    "stsb": ["spearman", "pearson"], "mnli": ["accuracy", "mismatched_accuracy"], "qnli": ["accuracy"],
    "rte": ["accuracy"],
}  # fmt: skip
"""What a run over all tasks of a GLUE average measures."""


def glue_results(protocol: str = "cramming", seeds: int = 5, leave_out: str = "") -> list[TaskResult]:
    """Results of every task of a GLUE average, each number its own."""
    found = []
    for place, (task, metrics) in enumerate(GLUE.items()):
        scores = {m: [0.5 + place / 50 + at / 100 + s / 1000 for s in range(seeds)] for at, m in enumerate(metrics)}
        found.append(
            TaskResult(
                protocol=protocol, task=task, model="pretrained", model_name="mini", kind="classification",
                metric=metrics[0], scores=scores, seeds=list(range(seeds)), mean=sum(scores[metrics[0]]) / seeds,
                spread=0.0016, selection="after the last epoch", train_rows=SIZES[task][0],
                dev_rows=SIZES[task][1], baseline=0.4,
                mismatched_rows=120 if task == "mnli" else 0, settings={"learning_rate": 4e-5, "epochs": 5},
                hardware="CPU, 2 threads", seconds=1.0,
            )
        )  # fmt: skip
    return [result for result in found if result.task != leave_out]


def page_of(folder: Path, results: list[TaskResult], out: Path) -> str:
    folder.mkdir()
    write_json(RunFolder(folder).results, results)
    page = re.sub(r"<(script|style).*?</\1>", " ", report([folder], out).read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def test_a_result_says_how_it_was_made(write_results, tmp_path):
    run = write_results(tmp_path / "mini", {"rte": 0.8})
    result = json.loads(RunFolder(run).results.read_text())[0]
    text = re.sub(r"<[^>]+>", "|", html.unescape(report([run], tmp_path / "report.html").read_text()))
    for said in (
        "quick; 2,000 rows to learn from, 400 to evaluate",
        "after the last epoch",
        f"{score(result['mean'])} ± {score(result['spread'])}",
        f"median {score(sorted(result['scores']['accuracy'])[1])}",
        "learning rate 0.0003, epochs 5, batch 16",
        "CPU, 1 thread",
        "|50.0|",
    ):
        assert said in text, said
    head, _, folded = text.partition("Every metric")
    assert "calibration error" in folded and "0.610 nats" in folded
    assert "calibration error" not in head[head.rindex("Scores after fine-tuning") :]


def test_mismatched_stands_beside_matched(tmp_path):
    text = page_of(tmp_path / "mini", glue_results(), tmp_path / "report.html")
    (mnli,) = (result for result in glue_results() if result.task == "mnli")
    other = mnli.scores["mismatched_accuracy"]
    row = text[text.index(" mnli ") :]
    assert row.index(f"mismatched {score(sum(other) / 5)}") < row.index(" qnli ")


def test_averages_stand_side_by_side_with_what_was_published(tmp_path):
    text = page_of(tmp_path / "mini", glue_results(), tmp_path / "report.html")
    shown = text[text.index(" Averages ") :]
    for average in averages(glue_results()):
        assert f"{average.convention} {average.what}; protocol cramming, 5 seeds or more a task" in shown
        assert score(average.value) in shown
    published = {anchor.source: anchor.convention == "cramming" for anchor in ANCHORS}
    assert {source for source in published if source in text} == {s for s, same in published.items() if same}


@pytest.mark.parametrize("changes", [{"protocol": "quick"}, {"protocol": "cramming", "seeds": 2}])
def test_published_numbers_need_the_same_protocol_and_seeds(tmp_path, changes):
    text = page_of(tmp_path / "mini", glue_results(**changes), tmp_path / "report.html")
    assert " Averages " in text and "published:" not in text


def test_an_incomplete_average_is_none(tmp_path):
    text = page_of(tmp_path / "mini", glue_results(leave_out="rte"), tmp_path / "report.html")
    assert "No average over tasks is shown" in text and " Averages " not in text
