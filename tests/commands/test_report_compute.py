"""What a run computed and could have: against the program's own counter; where it stands among published models."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re

import plotly.graph_objects
import pytest

from daybreak.commands.report import report
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.protocols.anchors import ANCHORS, CAPACITIES, COMPUTED, computed, standing
from daybreak.evaluation.protocols.conventions import CONVENTIONS, SIZES
from daybreak.recipe import load_recipe, recipe_names, resolved
from daybreak.reporting import training
from daybreak.reporting.compute import capacity, cost, flops_words, trained
from daybreak.reporting.runs import RunRecords, read_run
from daybreak.schemas.changes import Change
from daybreak.schemas.tasks import TaskResult

SHAPE = {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256}


def glue(protocol: str = "cramming", seeds: int = 5, leave_out: tuple[str, ...] = ()) -> list[TaskResult]:
    """Results of all tasks of the convention, each number 0.8."""
    tasks: dict[str, list[str]] = {}
    for task, metrics in CONVENTIONS[COMPUTED].numbers:
        tasks.setdefault(task, []).extend(metrics)
    return [
        TaskResult(
            protocol=protocol, task=task, model="pretrained", model_name="a", kind="classification",
            metric=metrics[0], scores={metric: [0.8] * seeds for metric in metrics}, seeds=list(range(seeds)),
            mean=0.8, spread=0.0, selection="after the last epoch", train_rows=SIZES[task][0],
            dev_rows=SIZES[task][1], baseline=0.5, settings={}, seconds=1.0,
        )
        for task, metrics in tasks.items()
        if task not in leave_out
    ]  # fmt: skip


def body(page: str) -> str:
    """The words of the section about compute."""
    section = page[page.index("<h2>Compute against GLUE</h2>") :].split("</section>")[0]
    section = re.sub(r"<figure>.*?</figure>", " ", section, flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section)))


# ---------------------------------------------------------------- operations


@pytest.mark.parametrize("name", recipe_names())
def test_operations_are_those_that_the_counter_sees(name):
    """The same as building the model and watching every product, for every recipe that ships."""
    from daybreak.pretraining.flops import MASKED_FRACTION, flops_per_token, vocabulary_of

    recipe = load_recipe(name)
    found = cost(resolved(recipe)["model"], vocabulary_of(recipe), recipe.length)
    targets = max(1, round(MASKED_FRACTION * recipe.length))
    per_token = found.token + found.target * targets / recipe.length
    assert math.floor(per_token) == flops_per_token(recipe, vocabulary_of(recipe))


def test_an_unknown_shape_is_not_counted():
    for shape in (
        {},
        {"kind": "Other", "layers": 1, "hidden_size": 8, "intermediate_size": 8},
        {"kind": "BertEncoder", "layers": 2},
    ):
        assert cost(shape, 100, 128) is None


def test_operations_grow_with_what_was_read_and_predicted(write_run):
    run = read_run(write_run(recipe={"model": SHAPE, "length": 128}))
    each, found = cost(SHAPE, 8192, 128), trained(run)
    last = run.steps[-1]
    assert found.total == pytest.approx(each.token * last.tokens + each.target * last.targets)
    middle = run.steps[40]
    assert found.at(middle.tokens) == pytest.approx(each.token * middle.tokens + each.target * middle.targets)
    half = (run.steps[40].tokens + run.steps[41].tokens) // 2
    assert found.at(middle.tokens) < found.at(half) < found.at(run.steps[41].tokens)
    assert found.at(2 * last.tokens) == pytest.approx(2 * found.total)
    assert trained(read_run(write_run("unknown"))) is None


def test_a_second_phase_is_counted_with_its_longer_rows(write_run):
    later = {"start": 0.5, "length": 512, "batch": 0, "lr": 0.0, "when_flat": False}
    short = read_run(write_run("one", recipe={"model": SHAPE, "length": 128}))
    long = read_run(write_run("two", recipe={"model": SHAPE, "length": 128, "phase2": later}))
    more = trained(long).total - trained(short).total
    rest = [step for step in long.steps if step.progress > 0.5]
    before = next(step for step in reversed(long.steps) if step.progress <= 0.5)
    one, two = cost(SHAPE, 8192, 128), cost(SHAPE, 8192, 512)
    tokens, targets = rest[-1].tokens - before.tokens, rest[-1].targets - before.targets
    assert more == pytest.approx((two.token - one.token) * tokens + (two.target - one.target) * targets)


def test_capacity_is_rate_times_time_times_devices(write_run):
    run = read_run(write_run())
    assert capacity(run) == pytest.approx(118e9 * run.summary.elapsed)
    two = dataclasses.replace(run, decisions=dataclasses.replace(run.decisions, world_size=2))
    assert capacity(two) == pytest.approx(2 * capacity(run))
    at = run.steps[200]
    fewer = Change(step=at.step - 1, why="lost", microbatch=8, world_size=1, threads=2)
    cut = dataclasses.replace(two, summary=dataclasses.replace(run.summary, changes=[fewer]))
    assert capacity(cut) == pytest.approx(118e9 * (2 * at.elapsed + run.summary.elapsed - at.elapsed))
    blind = dataclasses.replace(run.decisions, matmul_gflops={})
    assert capacity(dataclasses.replace(run, decisions=blind)) is None
    assert capacity(RunRecords(path=run.path, label="results alone", recipe={})) is None


def test_operations_are_told_in_a_unit_that_reads_well():
    assert flops_words(1.234e16) == "12.3 petaFLOP" and flops_words(6.8e20) == "680 exaFLOP"
    assert flops_words(4.0e12) == "4.00 teraFLOP" and flops_words(4.0e5).endswith("gigaFLOP")


def test_losses_against_operations(write_run):
    run, unknown = read_run(write_run(recipe={"model": SHAPE, "length": 128})), read_run(write_run("unknown"))
    figure = training.losses([run, unknown], "flops")
    heldout = next(trace for trace in figure["data"] if trace["name"] == "tiny: masked loss, held out")
    found = trained(run)
    assert heldout["y"] == [record.loss for record in run.validations]
    assert heldout["x"] == pytest.approx([found.at(record.tokens) / 1e12 for record in run.validations])
    assert figure["layout"]["xaxis"]["type"] == "log" and figure["layout"]["xaxis"]["title"]["text"] == "teraFLOP"
    assert all(not trace["x"] for trace in figure["data"] if trace["meta"] == 1)
    (masked,) = training.losses([run], "flops")["layout"]["annotations"][1:]
    change = training.losses([run], "flops")["layout"]["shapes"][1]
    assert masked["x"] == pytest.approx(math.log10(change["x0"]))
    plain = re.sub(r"var\(--[a-z]+\)", "#000000", json.dumps(figure))
    plotly.graph_objects.Figure(json.loads(plain))


def test_the_page_has_them_where_they_can_be_counted(write_run, tmp_path):
    known = report([write_run(recipe={"model": SHAPE, "length": 128})], tmp_path / "a.html").read_text()
    assert "Loss against FLOPs" in known and "Training FLOPs" in known and "cannot be counted" not in known
    unknown = report([write_run("unknown")], tmp_path / "b.html").read_text()
    assert "Loss against FLOPs" not in unknown and "Training FLOPs" not in unknown


# ---------------------------------------------------------------- among published models


def test_every_capacity_is_of_an_anchor_that_tells_how():
    assert set(CAPACITIES) == {anchor.model for anchor in ANCHORS if anchor.capacity}
    assert all(anchor.convention == COMPUTED for anchor in computed())
    amounts = [anchor.capacity.exaflop for anchor in computed()]
    assert amounts == sorted(amounts) and len(amounts) == len(CAPACITIES)


@pytest.mark.parametrize(
    ("teraflops", "hours", "devices", "exaflop"),
    [(53.8, 24, 1, 4.65), (88.45, 24, 1, 7.64), (154.8, 24, 1, 13.37), (123, 96, 16, 680), (125, 30, 1024, 13_824)],
)
def test_a_capacity_is_its_rate_times_its_time(teraflops, hours, devices, exaflop):
    assert teraflops * 1e12 * 3600 * hours * devices / 1e18 == pytest.approx(exaflop, rel=2e-3)
    assert exaflop in {found.exaflop for found in CAPACITIES.values()}


def test_a_model_stands_among_them_with_all_of_the_convention_alone():
    assert standing([]) == (None, "")
    assert standing([dataclasses.replace(each, task="topics") for each in glue()]) == (None, "")
    value, why = standing(glue())
    assert value == pytest.approx(0.8) and why == ""
    assert standing([dataclasses.replace(each, model="untrained") for each in glue()]) == (None, "")
    assert standing(glue(leave_out=("mnli", "qqp"))) == (
        None,
        "6 of the 9 numbers under cramming; not qqp f1, mnli accuracy, mnli mismatched_accuracy",
    )
    assert standing(glue(protocol="quick")) == (None, "8 of the 8 tasks, under quick and none under cramming")
    assert standing(glue(seeds=1)) == (
        None, "all 9 numbers, but from fewer seeds or rows than the published ones"
    )  # fmt: skip


def test_a_run_is_drawn_where_glue_and_compute_are_known(write_run, tmp_path):
    whole, part = write_run("whole"), write_run("part", seed=2)
    write_json(RunFolder(whole).results, glue())
    write_json(RunFolder(part).results, glue(leave_out=("mnli",)))
    page = report([whole, part], tmp_path / "report.html").read_text()
    section = page[page.index("<h2>Compute against GLUE</h2>") :].split("</section>")[0]
    figure = json.loads(re.search(r'<script type="application/json">(.*?)</script>', section)[1])
    published, here = figure["data"]
    assert published["x"] == [anchor.capacity.exaflop for anchor in computed()]
    assert published["y"] == pytest.approx([100 * anchor.average for anchor in computed()])
    assert here["name"] == "whole" and here["y"] == [80]
    assert here["x"] == pytest.approx([capacity(read_run(whole)) / 1e18], rel=1e-3)
    low, high = figure["layout"]["xaxis"]["range"]
    assert all(low < math.log10(x) < high for trace in figure["data"] for x in trace["x"])
    text = body(page)
    assert "part 7 of the 9 numbers under cramming; not mnli accuracy, mnli mismatched_accuracy" in text
    for anchor in computed():
        assert anchor.source in text and anchor.capacity.how in text
    plotly.graph_objects.Figure(json.loads(re.sub(r"var\(--[a-z]+\)", "#000000", json.dumps(figure))))


def test_a_run_that_goes_on_from_another_model_is_not_drawn(write_run, tmp_path):
    run = write_run()
    write_json(RunFolder(run).results, glue())
    write_json(RunFolder(run).summary, read_json(RunFolder(run).summary) | {"parent": "owner/encoder"})
    page = report([run], tmp_path / "report.html").read_text()
    assert "not plotted: it continues another model" in body(page) and "No run is in the figure" in page
    alone = tmp_path / "alone"
    alone.mkdir()
    write_json(RunFolder(alone).results, glue())
    assert "the compute of its pretraining is not recorded" in body(report([alone], tmp_path / "c.html").read_text())


def test_without_glue_there_is_no_figure_of_it(write_run, tmp_path):
    run = write_run()
    RunFolder(run).results.unlink()
    assert "Compute against GLUE" not in report([run], tmp_path / "report.html").read_text()
