"""Is B better than A: what is compared with what, and how the page and the terminal say it."""

from __future__ import annotations

import json
import re

import plotly.graph_objects
import pytest

from daybreak.commands.report import report
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_folder
from daybreak.reporting.verdicts import line, verdicts
from daybreak.schemas.tasks import Comparison


def words(page: str) -> str:
    """The page without its scripts and tags."""
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def verdict(**changes) -> Comparison:
    given = {
        "task": "rte", "protocol": "quick", "metric": "accuracy", "model_a": "one", "model_b": "two",
        "seeds": [0, 1, 2], "rows": 277, "a": 0.55, "b": 0.6, "low": 0.01, "high": 0.09, "better": 0.993,
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
    assert "Is B better than A" in text and "B is better 3 seeds, 400 rows" in text
    assert "mrpc" not in text[text.index("Is B better than A") : text.index("Fill-mask examples")]


def test_one_run_is_compared_with_its_control(write_results, tmp_path, capsys):
    run = write_results(tmp_path / "mini", {"rte": 0.8}, seeds=1)
    write_results(run, {"rte": 0.0}, model="untrained", seeds=1)
    text = words(report([run], tmp_path / "report.html").read_text())
    assert (
        "rte (quick), pretrained (B) against untrained (A): B is ahead, no claim from fewer than 3 seeds."
        in capsys.readouterr().out
    )
    assert "With one seed the interval knows nothing of how much seeds differ." in text
    assert "not pretrained in this folder" in text and "Side by side" not in text and "No step" not in text


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


def test_what_cannot_be_compared_says_why(write_results, tmp_path, capsys):
    a = write_results(tmp_path / "a", {"rte": 0.2, "sst2": 0.2})
    b = write_results(tmp_path / "b", {"rte": 0.2, "sst2": 0.2}, rows=300)
    text = words(report([a, b], tmp_path / "report.html").read_text())
    said = "b against a, not compared on rte (quick), sst2 (quick): The two models were judged on different numbers of"
    assert said in capsys.readouterr().out and said in text
    for file in RunFolder(a).cells.rglob("*.json"):
        file.unlink()
    assert "Its cells are not in" in words(report([a, b], tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.01, 0.09, "B is better"), (-0.09, -0.01, "A is better"), (-0.01, 0.09, "no difference shown")],
)
def test_only_an_interval_without_zero_decides_and_from_three_seeds_on(low, high, said):
    few = verdict(low=low, high=high, seeds=[0, 1])
    assert few.verdict == (said if low < 0 < high else f"{said[0]} is ahead, no claim from fewer than 3 seeds")
    found = verdict(low=low, high=high)
    assert f"two (B) against one (A): {said}. accuracy 60.0 against 55.0, +5.0 [{100 * low:+.1f}, " in line(found)
    page = verdicts([found], [])
    assert said in words(page) and "99.3 %" in page
    plain = re.search(r'<script type="application/json">(.*?)</script>', page)[1]
    plain = re.sub(r"var\(--[a-z]+\)", "#000000", plain)
    drawn = plotly.graph_objects.Figure(json.loads(plain)).data[0]
    assert drawn.x == pytest.approx((5.0,))
    assert (drawn.x[0] - drawn.error_x.arrayminus[0], drawn.x[0] + drawn.error_x.array[0]) == pytest.approx(
        (100 * low, 100 * high)
    )


def test_names_are_only_text(write_results, tmp_path):
    attack = "<img src=x onerror=alert(1)>"
    run = read_folder(write_results(tmp_path / "mini", {"rte": 0.8}))
    page = render_page([run], [verdict(task=attack, model_a=attack, model_b=attack, metric=attack)], [attack])
    assert "<img" not in page


def test_nothing_is_said_where_nothing_can_be_compared(write_results, tmp_path):
    run = write_results(tmp_path / "mini", {"rte": 0.8})
    assert "Is B better than A" not in report([run], tmp_path / "report.html").read_text()
