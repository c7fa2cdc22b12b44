"""What the layers know: the figures hold the numbers of probes.json, and the page says what was measured."""

from __future__ import annotations

import json
import re

import plotly.graph_objects
import pytest

from daybreak.commands.report import report
from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting import layer_figures
from daybreak.reporting.layers import layers
from daybreak.reporting.runs import read_folder
from daybreak.schemas.probes import Probes, SimilarityProbe, SimilarityScore

MAKERS = (
    layer_figures.layer_scores,
    layer_figures.similarity,
    layer_figures.by_frequency,
    layer_figures.by_position,
    layer_figures.loss_by_position,
    layer_figures.calibration,
)


@pytest.fixture
def runs(write_run, write_probes):
    paths = [write_run("a"), write_run("b", seed=2)]
    for path, lift in zip(paths, (0.0, 0.1)):
        write_probes(path, lift)
    return [read_folder(path) for path in paths]


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<script.*?</script>", " ", page, flags=re.DOTALL)))


@pytest.mark.parametrize("maker", MAKERS)
def test_plotly_knows_every_property(runs, maker):
    for shown in (runs[:1], runs):
        plain = re.sub(r"var\(--[a-z]+\)", "#000000", json.dumps(maker(shown)))
        figure = plotly.graph_objects.Figure(json.loads(plain))
        assert {trace.meta for trace in figure.data} == set(range(len(shown)))


def test_the_figures_hold_the_records(runs):
    (run, _), probes = runs, runs[0].probes
    sst2, rte = layer_figures.layer_scores([run])["data"]
    assert sst2["x"] == [0, 1, 2, 3, 4] and sst2["y"] == [100 * found.score for found in probes.layer_probes[0].layers]
    assert sst2["line"]["dash"] != rte["line"]["dash"] and sst2["line"]["color"] == rte["line"]["color"]
    plain, centred = layer_figures.similarity([run])["data"]
    assert plain["y"][0] == pytest.approx(40) and centred["y"] == pytest.approx([50] * 5)
    (rank,) = layer_figures.by_frequency([run])["data"]
    assert rank["x"] == [10, 100, 1000, 10_000, 20_002] and rank["customdata"][-1] == "from 10,001"
    first = probes.masked_words.frequency[0]
    assert rank["y"][0] + rank["error_y"]["array"][0] == pytest.approx(100 * first.high)
    assert rank["y"][0] - rank["error_y"]["arrayminus"][0] == pytest.approx(100 * first.low)
    short, long = layer_figures.by_position([run])["data"]
    assert len(short["x"]) == 4 and len(long["x"]) == 5 and long["name"] == "rows of 256"
    assert layer_figures.by_position([run])["layout"]["shapes"][0]["x0"] == 128
    short, long = layer_figures.loss_by_position([run])["data"]
    assert long["y"] == [bucket.loss for bucket in probes.masked_words.lengths[1].positions] and "error_y" not in long
    (sure,) = layer_figures.calibration([run])["data"]
    assert sure["x"][3] == pytest.approx(100 * 3.5 / 15) and sure["y"][3] == pytest.approx(100 * 3 / 16)


def test_the_section_says_what_was_measured(runs):
    text = words(layers(runs[:1]))
    assert "What the layers know" in text and "nothing was fine-tuned" in text
    assert "sst2 linear probe; 2,000 rows to learn from, 872 to evaluate accuracy 50.0 55.0 70.0 70.0 layer 3" in text
    assert "stsb cosine, no training; 1,500 pairs spearman - 40.0 32.0 40.0 layer 0" in text
    assert "19.5 % in rows of 128, 17.5 % in rows of 256 (2 times the trained length)" in text
    assert "always guessing the most frequent token gives 5.0 %" in text
    assert "b: Hidden words" in words(layers(runs))


def test_a_part_that_was_not_asked_is_not_there(write_run):
    run = write_run("a")
    assert layers([read_folder(run)]) == ""
    write_json(RunFolder(run).probes, Probes(model_name="a", layer_count=2, seconds=1.0, similarity=[
        SimilarityProbe(task="stsb", pairs=9, layers=[SimilarityScore(layer=0, spearman=0.1, centred=0.2)])
    ]))  # fmt: skip
    text = words(layers([read_folder(run)]))
    assert "Similar sentences" in text and "Read off each layer" not in text and "Hidden words" not in text


def test_probes_alone_make_a_page(write_probes, tmp_path):
    folder = tmp_path / "stock"
    folder.mkdir()
    write_probes(folder)
    text = words(report([folder], tmp_path / "report.html").read_text())
    assert "What the layers know" in text and "No step has been recorded" not in text
