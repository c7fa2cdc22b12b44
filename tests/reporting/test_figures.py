"""The figures hold the numbers of the records, and plotly accepts every property of them."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import plotly.graph_objects
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_records import MACHINE

from daybreak.reporting import charts, training
from daybreak.reporting.charts import rounded, thinned, time_unit, to_script, token_unit
from daybreak.reporting.machine import QUANTITIES
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_folder, read_run
from daybreak.reporting.tasks import task_scores
from daybreak.reporting.training import time_bars


@pytest.fixture
def three(write_run):
    paths = [write_run("a"), write_run("b", seed=2, causal=0.0), write_run("c", seed=3, ended=False)]
    return [read_run(path) for path in paths]


@pytest.mark.parametrize("number", [1, 3])
def test_plotly_knows_every_property(three, number, write_probes):
    """All charts of a page; the theme colors are replaced as the page's script does."""
    for run in three[:number]:
        write_probes(run.path)
    shape = {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256}
    recipe = {"model": shape, "length": 128}
    runs = [dataclasses.replace(read_folder(run.path), recipe=run.recipe | recipe) for run in three[:number]]
    runs[0].machine.extend(dataclasses.replace(MACHINE, elapsed=30.0 * place) for place in range(3))
    page = re.sub(r"var\(--[a-z]+\)", "#000000", render_page(runs))
    found = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(found) == 8 + 5 + len(QUANTITIES)
    for chart in found:
        plotly.graph_objects.Figure(json.loads(chart))


def test_causal_and_masked_losses_are_traces_of_their_own(three):
    run = three[0]
    causal, masked, heldout = training.losses([run], "time")["data"]
    assert causal["name"] == "next-token loss" and causal["line"]["dash"] == "dot"
    assert causal["y"] == [step.loss for step in run.steps if step.stage == "causal"]
    assert masked["x"] == [step.elapsed for step in run.steps if step.stage == "masked"]
    assert heldout["y"] == [record.loss for record in run.validations]


def test_the_held_out_curve_ends_with_the_sequences_of_the_others(three):
    """The final loss of all held-out sequences would be drawn as a rise where they are harder than those."""
    run = three[0]
    *before, final = run.validations
    final = dataclasses.replace(
        final, loss=before[-1].loss + 0.2, interim_loss=before[-1].loss - 0.1, interim_accuracy=0.5
    )
    run = dataclasses.replace(run, validations=[*before, final])
    heldout = training.losses([run], "time")["data"][-1]
    assert heldout["y"] == [*(record.loss for record in before), final.interim_loss]
    (heldout, *_) = training.accuracy([run])["data"]
    assert heldout["y"] == [*(100 * record.accuracy for record in before), 50.0]


def test_operations_have_a_number_at_each_power_of_ten_only(three):
    """Plotly numbers the ticks between two powers as 2 and 5, whatever the power is."""
    shape = {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256}
    run = dataclasses.replace(three[0], recipe=three[0].recipe | {"model": shape})
    axis = training.losses([run], "flops")["layout"]["xaxis"]
    assert (axis["type"], axis["dtick"]) == ("log", 1)


def test_the_plateau_and_the_change_of_stage_are_marked(three):
    run = three[0]
    layout = training.losses([run], "tokens")["layout"]
    level, change = layout["shapes"]
    assert level["y0"] == level["y1"] == run.validation.unigram_loss
    assert change["x0"] == change["x1"] == run.stage_changes[0].tokens / 1e6
    assert [note["text"] for note in layout["annotations"]] == ["unigram baseline 6.28", "masked stage"]


def test_baselines_that_are_close_together_share_one_label(three):
    first, *_ = three
    others = [
        dataclasses.replace(
            run, validations=[dataclasses.replace(record, unigram_loss=6.3) for record in run.validations]
        )
        for run in three[1:]
    ]
    layout = training.losses([first, *others], "tokens")["layout"]
    labels = [note for note in layout["annotations"] if "baseline" in note["text"]]
    assert [(note["text"], note["y"]) for note in labels] == [("unigram baseline 6.28, 6.30", 6.3)]


def test_one_run_is_one_color_everywhere(three):
    for maker in (lambda runs: training.losses(runs, "time"), training.accuracy):
        for trace in maker(three)["data"]:
            assert trace["line"]["color"] == charts.color(trace["meta"])
    assert len({charts.color(number) for number in range(13)}) == 13


def test_a_crowd_keeps_the_held_out_losses_in_front(three):
    few, many = training.losses(three, "time"), training.losses(three * 4, "time")
    heldout = [trace for trace in many["data"] if "held out" in trace["name"]]
    assert len({(trace["line"]["color"], trace["marker"]["symbol"]) for trace in heldout}) == 12
    behind = [trace["opacity"] for trace in many["data"] if trace not in heldout]
    assert max(behind) < 0.3 < min(trace.get("opacity", 1) for trace in few["data"])
    # A box that names forty curves at once hides the figure.
    assert many["layout"]["hovermode"] == "closest" and few["layout"]["hovermode"] == "x unified"


def test_long_runs_are_thinned(write_run, three):
    run = read_run(write_run("long", steps=400))
    run.steps.extend(run.steps[-1:] * 9000)
    assert all(len(trace["x"]) <= 2000 for trace in training.losses([run], "time")["data"])
    assert all(len(trace["x"]) <= 500 for trace in training.losses([run] * 9, "time")["data"])


def test_task_dots_are_the_seeds(three):
    run = three[0]
    dots, mean = task_scores([run])["data"][:2]
    result = run.results[0]
    assert dots["x"] == [100 * value for value in result.scores["accuracy"]] and dots["customdata"] == result.seeds
    assert mean["x"] == [100 * result.mean] and mean["error_x"]["array"] == pytest.approx([100 * result.spread])


def test_fractions_of_the_time_add_up(three):
    bars = time_bars(three)["data"]
    for run in range(2):
        assert sum(bar["x"][run] for bar in bars) == pytest.approx(100)
    assert "lost" not in {bar["name"] for bar in bars}


# ---------------------------------------------------------------- numbers of a chart


@given(st.integers(0, 20_000), st.integers(2, 3_000))
def test_thinning_keeps_order_ends_and_bound(length, most):
    kept = thinned(range(length), most)
    assert len(kept) == min(length, most)
    assert kept == sorted(set(kept))
    if length:
        assert kept[0] == 0 and kept[-1] == length - 1


@given(
    st.recursive(
        st.none() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_value_becomes_json_that_cannot_leave_its_script(value):
    text = to_script(value)
    assert "<" not in text and "\u2028" not in text
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == rounded(value)


def test_rounding_keeps_five_digits_and_drops_what_is_no_number():
    assert rounded([1.23456789, 123456.7, math.nan, math.inf, 7]) == [1.2346, 123460.0, None, None, 7]


def test_units_read_well():
    assert [time_unit(seconds)[1] for seconds in (60, 1200, 86_400)] == ["seconds", "minutes", "hours"]
    assert [token_unit(tokens)[1] for tokens in (900, 4e6, 3e9)] == ["tokens", "million tokens", "billion tokens"]
