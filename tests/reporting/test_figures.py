"""The figures hold the numbers of the records, and plotly accepts every property of them."""

from __future__ import annotations

import json

import plotly.graph_objects
import pytest

from daybreak.reporting import figures
from daybreak.reporting.runs import read_run
from daybreak.reporting.task_figure import task_scores
from daybreak.reporting.time_figure import spent

MAKERS = {
    "time": lambda runs: figures.losses(runs, "time"),
    "tokens": lambda runs: figures.losses(runs, "tokens"),
    "accuracy": figures.accuracy,
    "learning rate": figures.learning_rate,
    "throughput": figures.throughput,
    "time_by_category": spent,
    "tasks": task_scores,
}


@pytest.fixture
def three(write_run):
    paths = [write_run("a"), write_run("b", seed=2, causal=0.0), write_run("c", seed=3, ended=False)]
    return [read_run(path) for path in paths]


@pytest.mark.parametrize("name", MAKERS)
def test_plotly_knows_every_property(three, name):
    for runs in (three[:1], three):
        figure = MAKERS[name](runs)
        plain = json.dumps(figure).replace("var(--ink)", "#000000").replace("var(--grid)", "#000000")
        plain = plain.replace("var(--quiet)", "#000000").replace("var(--card)", "#000000")
        assert "var(" not in plain
        plotly.graph_objects.Figure(json.loads(plain))


def test_causal_and_masked_losses_are_traces_of_their_own(three):
    run = three[0]
    causal, masked, heldout = figures.losses([run], "time")["data"]
    assert causal["name"] == "next-token loss" and causal["line"]["dash"] == "dot"
    assert causal["y"] == [step.loss for step in run.steps if step.stage == "causal"]
    assert masked["x"] == [step.elapsed for step in run.steps if step.stage == "masked"]
    assert heldout["y"] == [record.loss for record in run.validations]


def test_the_plateau_and_the_change_of_stage_are_marked(three):
    run = three[0]
    layout = figures.losses([run], "tokens")["layout"]
    level, change = layout["shapes"]
    assert level["y0"] == level["y1"] == run.validation.unigram_loss
    assert change["x0"] == change["x1"] == run.stage_changes[0].tokens / 1e6
    assert [note["text"] for note in layout["annotations"]] == ["unigram plateau 6.28", "masked stage"]


def test_one_run_is_one_colour_everywhere(three):
    for maker in (MAKERS["time"], MAKERS["accuracy"], MAKERS["throughput"]):
        for trace in maker(three)["data"]:
            assert trace["line"]["color"] == figures.colour(trace["meta"])
    assert len({figures.colour(number) for number in range(13)}) == 13


def test_a_crowd_keeps_the_held_out_losses_in_front(three):
    few, many = figures.losses(three, "time"), figures.losses(three * 4, "time")
    heldout = [trace for trace in many["data"] if "held out" in trace["name"]]
    assert len({(trace["line"]["color"], trace["marker"]["symbol"]) for trace in heldout}) == 12
    behind = [trace["opacity"] for trace in many["data"] if trace not in heldout]
    assert max(behind) < 0.3 < min(trace.get("opacity", 1) for trace in few["data"])
    # A box that names forty curves at once hides the figure.
    assert many["layout"]["hovermode"] == "closest" and few["layout"]["hovermode"] == "x unified"


def test_long_runs_are_thinned(write_run, three):
    run = read_run(write_run("long", steps=400))
    run.steps.extend(run.steps[-1:] * 9000)
    assert all(len(trace["x"]) <= 2000 for trace in figures.losses([run], "time")["data"])
    assert all(len(trace["x"]) <= 500 for trace in figures.losses([run] * 9, "time")["data"])


def test_task_dots_are_the_seeds(three):
    run = three[0]
    dots, mean = task_scores([run])["data"][:2]
    result = run.results[0]
    assert dots["x"] == [100 * value for value in result.scores["accuracy"]] and dots["customdata"] == result.seeds
    assert mean["x"] == [100 * result.mean] and mean["error_x"]["array"] == [100 * result.spread]


def test_shares_of_the_time_add_up(three):
    bars = spent(three)["data"]
    for run in range(2):
        assert sum(bar["x"][run] for bar in bars) == pytest.approx(100)
    assert "lost" not in {bar["name"] for bar in bars}
