"""Every result says how it was made, and averages stand only where a convention is complete."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path

import plotly.graph_objects
import pytest
import small_tasks
from fake_corpus import html_of, words

from daybreak.commands.report import main, report
from daybreak.core.files import read_json, write_json
from daybreak.core.formatting import score
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.protocols.anchors import ANCHORS, comparable_published
from daybreak.evaluation.protocols.conventions import SIZES, averages
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_folder
from daybreak.reporting.tasks import GLUE_COLUMNS, glue_table, line, task_scores, verdicts
from daybreak.schemas.tasks import Comparison, TaskResult

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
        train_rows, dev_rows = SIZES[task]
        found.append(small_tasks.result(task, scores, protocol=protocol, train_rows=train_rows, dev_rows=dev_rows))
    return [result for result in found if result.task != leave_out]


def page_of(folder: Path, results: list[TaskResult], out: Path) -> str:
    folder.mkdir()
    write_json(RunFolder(folder).results, results)
    return words(report([folder], out).read_text())


def test_a_result_says_how_it_was_made(write_results, tmp_path):
    run = write_results(tmp_path / "mini", {"rte": 0.8})
    result = json.loads(RunFolder(run).results.read_text())[0]
    text = re.sub(r"<[^>]+>", "|", html.unescape(report([run], tmp_path / "report.html").read_text()))
    for said in (
        "quick; 2,000 training rows, 400 evaluation rows",
        "after the last epoch",
        f"{score(result['mean'])} ± {score(result['spread'])}",
        f"median {score(sorted(result['scores']['accuracy'])[1])}",
        "learning rate 0.0003, epochs 5, batch 16",
        "CPU, 1 thread",
        "|50.0|",
    ):
        assert said in text, said
    head, _, folded = text.partition("All metrics")
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
        assert f"{average.convention} {average.what}; protocol cramming, 5 seeds or more per task" in shown
        assert score(average.value) in shown
    published = {anchor.source: anchor.convention == "cramming" for anchor in ANCHORS}
    assert {source for source in published if source in text} == {s for s, same in published.items() if same}


def test_published_averages_stand_beside_the_runs_that_compare_with_them(tmp_path):
    for name, seeds in (("few", 2), ("enough", 5)):
        (tmp_path / name).mkdir()
        write_json(RunFolder(tmp_path / name).results, glue_results(seeds=seeds))
    page = report([tmp_path / "enough", tmp_path / "few"], tmp_path / "report.md", form="md").read_text()
    table = page[page.index("| Convention |") :].split("\n\n")[0].splitlines()
    order = [next((word for word in ("published:", "enough", "few") if word in row), "") for row in table]
    cramming = [word for row, word in zip(table, order) if row.startswith("| **cramming**") or word == "published:"]
    assert cramming[:2] == ["enough", "published:"] and cramming[-2:] == ["published:", "few"]


def test_an_incomplete_average_is_none(tmp_path):
    text = page_of(tmp_path / "mini", glue_results(leave_out="rte"), tmp_path / "report.html")
    assert "No average over tasks: the results do not cover" in text and " Averages " not in text


def test_the_glue_table_has_published_rows_beside_the_runs(tmp_path):
    (tmp_path / "mini").mkdir()
    write_json(RunFolder(tmp_path / "mini").results, glue_results(leave_out="rte"))
    anchors = [anchor for anchor in ANCHORS if anchor.convention == "cramming"]
    _, _, ours, *others = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in glue_table([read_folder(tmp_path / "mini")], anchors).splitlines()
    ]
    scores = {result.task: result.scores for result in glue_results()}
    assert ours[:2] == ["mini", "this report, protocol cramming"] and ours[-1] == "-"
    assert ours[2:4] == [score(scores["mnli"][metric][2]) for metric in ("accuracy", "mismatched_accuracy")]
    assert ours[list(GLUE_COLUMNS).index("RTE (acc.)") + 2] == "-"
    assert len(others) == sum(bool(anchor.numbers) for anchor in anchors)
    bert = next(row for row in others if row[0] == "BERT-base, fully trained")
    assert bert[2:] == ["83.2", "83.4", "91.9", "86.7", "59.2", "90.6", "87.7", "89.3", "56.5", "80.9"]


def test_results_of_other_weights_have_a_row_of_their_own_in_the_glue_table(tmp_path):
    """A folder of the same name, whose model was another when the other tasks were evaluated."""
    (tmp_path / "mini").mkdir()
    results = [dataclasses.replace(each, weights="new" if each.task == "rte" else "old") for each in glue_results()]
    write_json(RunFolder(tmp_path / "mini").results, results)
    table = glue_table([read_folder(tmp_path / "mini")], []).splitlines()
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]
    place = list(GLUE_COLUMNS).index("RTE (acc.)") + 2
    assert [(row[0], row[place], row[-1]) for row in rows] == [("mini", "-", "-"), ("mini", "64.2", "-")]


def test_report_prints_and_writes_the_glue_table(tmp_path, capsys, refused):
    (tmp_path / "mini").mkdir()
    write_json(RunFolder(tmp_path / "mini").results, glue_results())
    main([str(tmp_path / "mini"), "--table", "glue"])
    printed = capsys.readouterr().out
    main([str(tmp_path / "mini"), "--table", "glue", "--out", str(tmp_path / "tables" / "glue.md")])
    assert (tmp_path / "tables" / "glue.md").read_text() == printed
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in printed.splitlines()]
    rows = {row[0]: row for row in cells}
    (average,) = [average for average in averages(glue_results()) if average.convention == "cramming"]
    assert rows["mini"][-1] == score(average.value)
    (small,) = [row for name, row in rows.items() if name.startswith("8 GB BERT")]
    assert small[2:] == ["79.3", "80.1", "89.1", "61.9", "55.9", "86.3", "86.4", "74.8", "41.0", "72.7"]
    means = [float(row[-1]) for row in cells[3:]]
    assert means == sorted(means, reverse=True) and "BERT-base, fully trained" in rows
    assert not [
        anchor
        for average in averages(glue_results())
        for anchor in comparable_published(average)
        if "8 GB" in anchor.model
    ]
    (tmp_path / "empty").mkdir()
    write_json(RunFolder(tmp_path / "empty").results, [])
    assert "has a result of a whole GLUE task" in refused("report", tmp_path / "empty", "--table", "glue")
    assert "Invalid choice" in refused("report", tmp_path / "mini", "--table", "squad")


# ---------------------------------------------------------------- paired comparisons


def verdict(**changes) -> Comparison:
    given = {
        "task": "rte", "protocol": "quick", "metric": "accuracy", "model_a": "one", "model_b": "two",
        "seeds": [0, 1, 2], "rows": 277, "a": 0.55, "b": 0.6, "spread": 0.02, "low": 0.01,
        "high": 0.09, "better": 0.993,
    }  # fmt: skip
    return Comparison(**given | changes)


def test_two_runs_are_compared_task_by_task(write_run, write_results, tmp_path, capsys):
    a, b = write_run("a"), write_run("b", seed=2)
    RunFolder(a).results.unlink(), RunFolder(b).results.unlink()
    write_results(a, {"rte": 0.2, "sst2": 0.5, "mrpc": 0.5})
    write_results(b, {"sst2": 0.5, "rte": 1.0, "cola": 0.1}, rows=400)
    text = words(report([a, b], tmp_path / "report.html").read_text())
    told = capsys.readouterr().out
    assert "rte (quick), b (B) against a (A): B is better. accuracy " in told
    assert "sst2 (quick), b (B) against a (A): no difference shown. accuracy " in told
    assert "B ahead in 100.0 % of resamples, 3 seeds, 400 rows" in told and told.count("resamples") == 2
    assert "Paired comparison" in text and "B is better 3 seeds, 400 rows" in text
    assert "mrpc" not in text[text.index("Paired comparison") : text.index("Fill-mask examples")]


def test_a_control_on_other_rows_stands_in_a_row_of_its_own(write_results, tmp_path, capsys):
    """The task got another dev file, and only the pretrained model was evaluated again."""
    run = write_results(tmp_path / "mini", {"rte": 0.0}, model="untrained")
    write_results(run, {"rte": 0.8}, rows=300)
    (untrained, pretrained) = read_json(RunFolder(run).results)
    write_json(RunFolder(run).results, [untrained, pretrained | {"baseline": 0.4}])
    text = words(report([run], tmp_path / "report.html").read_text())
    assert "2,000 training rows, 400 evaluation" in text and "2,000 training rows, 300 evaluation" in text
    assert "more than the standard deviation over seeds" not in text and not capsys.readouterr().out
    lines = task_scores([read_folder(run)])["layout"]["shapes"]
    assert [line["x0"] for line in lines] == [50.0, 40.0], "both constant answers"


def test_one_run_is_compared_with_its_control(write_results, tmp_path, capsys):
    run = write_results(tmp_path / "mini", {"rte": 0.8}, seeds=1)
    write_results(run, {"rte": 0.0}, model="untrained", seeds=1)
    text = words(report([run], tmp_path / "report.html").read_text())
    assert (
        "rte (quick), pretrained (B) against untrained (A): B is ahead, no claim from fewer than 3 seeds."
        in capsys.readouterr().out
    )
    assert "With one seed the interval does not contain the variance between seeds." in text
    assert "Effect of pretraining" in text and "Paired comparison" not in text
    assert "not pretrained in this folder" in text and "Comparison of runs" not in text and "No step" not in text


def test_a_folder_of_results_stands_beside_a_run(write_run, write_results, tmp_path):
    run = write_run("run")
    write_results(run, {"rte": 0.2})
    other = write_results(tmp_path / "stock", {"rte": 1.0}, name="bert-base")
    text = words(report([run, other], tmp_path / "report.html").read_text())
    assert "2 models compared" in text and "stock against run" in text
    assert "stock has not ended" not in text and "Not in the folder of stock" not in text


def test_only_the_cells_behind_a_result_are_used(write_results, tmp_path, capsys):
    """Neither those of a setting that was not chosen, nor those of an older measurement, nor torn ones."""
    a, b = (write_results(tmp_path / name, {"rte": ability}) for name, ability in (("a", 0.2), ("b", 1.0)))
    report([a, b], tmp_path / "report.html")
    told = capsys.readouterr().out
    place = RunFolder(b).cells / "quick" / "rte" / "b-pretrained"
    other, stale = read_json(place / "seed-0.json"), read_json(place / "seed-1.json")
    write_json(place / "other-0.json", other | {"learning_rate": 9e-4, "judged": {"dev": []}})
    write_json(place / "stale-1.json", stale | {"scores": {"accuracy": 0.1}, "judged": {"dev": []}})
    (place / "torn.json").write_text("{")
    report([a, b], tmp_path / "report.html")
    assert capsys.readouterr().out == told


def test_models_that_learned_from_different_numbers_of_rows_are_not_compared(write_results, tmp_path, capsys):
    a, b = (write_results(tmp_path / name, {"rte": ability}) for name, ability in (("a", 0.2), ("b", 1.0)))
    (result,) = read_json(RunFolder(b).results)
    write_json(RunFolder(b).results, [result | {"train_rows": 2490}])
    report([a, b], tmp_path / "report.html")
    told = capsys.readouterr().out
    assert "b against a, not compared on rte (quick): The two models were fine-tuned on different numbers of" in told
    assert "rows, 2,000 and 2,490." in told and "resamples" not in told


def test_what_cannot_be_compared_says_why(write_results, tmp_path, capsys):
    a = write_results(tmp_path / "a", {"rte": 0.2, "sst2": 0.2})
    b = write_results(tmp_path / "b", {"rte": 0.2, "sst2": 0.2}, rows=300)
    text = words(report([a, b], tmp_path / "report.html").read_text())
    said = "b against a, not compared on rte (quick), sst2 (quick): The two models were evaluated on different numbers"
    assert said in capsys.readouterr().out and said in text
    for file in RunFolder(a).cells.rglob("*.json"):
        file.unlink()
    assert "single fine-tunings are not in" in words(report([a, b], tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.01, 0.09, "B is better"), (-0.09, -0.01, "A is better"), (-0.01, 0.09, "no difference shown")],
)
def test_only_an_interval_without_zero_decides_and_from_three_seeds_on(low, high, said):
    few = verdict(low=low, high=high, seeds=[0, 1])
    assert few.verdict == (said if low < 0 < high else f"{said[0]} is ahead, no claim from fewer than 3 seeds")
    found = verdict(low=low, high=high)
    assert f"two (B) against one (A): {said}. accuracy 60.0 against 55.0, +5.0 [{100 * low:+.1f}, " in line(found)
    page = html_of(verdicts([found], []))
    assert said in words(page) and "99.3 %" in page
    plain = re.search(r'<script type="application/json">(.*?)</script>', page)[1]
    plain = re.sub(r"var\(--[a-z]+\)", "#000000", plain)
    drawn = plotly.graph_objects.Figure(json.loads(plain)).data[0]
    assert drawn.x == pytest.approx((5.0,))
    assert (drawn.x[0] - drawn.error_x.arrayminus[0], drawn.x[0] + drawn.error_x.array[0]) == pytest.approx(
        (100 * low, 100 * high)
    )


def test_a_difference_within_the_spread_makes_no_claim():
    ahead = "is ahead by no more than the standard deviation, no claim"
    assert verdict(spread=0.06).verdict == f"B {ahead}"
    assert verdict(low=-0.09, high=-0.01, a=0.6, b=0.55, spread=0.06).verdict == f"A {ahead}"
    few = verdict(spread=0.06, seeds=[0, 1])
    assert few.verdict == "B is ahead, no claim from fewer than 3 seeds"
    assert verdict(spread=0.06, low=-0.01).verdict == "no difference shown"


def test_names_are_only_text(write_results, tmp_path):
    attack = "<img src=x onerror=alert(1)>"
    run = read_folder(write_results(tmp_path / "mini", {"rte": 0.8}))
    page = render_page([run], [verdict(task=attack, model_a=attack, model_b=attack, metric=attack)], [attack])
    assert "<img" not in page


def test_nothing_is_said_where_nothing_can_be_compared(write_results, tmp_path):
    run = write_results(tmp_path / "mini", {"rte": 0.8})
    assert "Paired comparison" not in report([run], tmp_path / "report.html").read_text()
