"""What the layers know: the figures hold the numbers of probes.json, and the page says what was measured."""

from __future__ import annotations

import pytest
from fake_corpus import words

from daybreak.commands.report import report
from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting import probes as probe_page
from daybreak.reporting.probes import layers
from daybreak.reporting.runs import read_folder
from daybreak.schemas.probes import Probes, SimilarityProbe, SimilarityScore


@pytest.fixture
def runs(write_run, write_probes):
    paths = [write_run("a"), write_run("b", seed=2)]
    for path, lift in zip(paths, (0.0, 0.1)):
        write_probes(path, lift)
    return [read_folder(path) for path in paths]


def test_the_figures_hold_the_records(runs):
    (run, _), probes = runs, runs[0].probes
    sst2, rte = probe_page.layer_scores([run])["data"]
    assert sst2["x"] == [0, 1, 2, 3, 4] and sst2["y"] == [100 * found.score for found in probes.layer_probes[0].layers]
    assert sst2["line"]["dash"] != rte["line"]["dash"] and sst2["line"]["color"] == rte["line"]["color"]
    plain, centred = probe_page.similarity([run])["data"]
    assert plain["y"][0] == pytest.approx(40) and centred["y"] == pytest.approx([50] * 5)
    (rank,) = probe_page.by_frequency([run])["data"]
    assert rank["x"] == [10, 100, 1000, 10_000, 20_002] and rank["customdata"][-1] == "from 10,001"
    first = probes.masked_words.frequency[0]
    assert rank["y"][0] + rank["error_y"]["array"][0] == pytest.approx(100 * first.high)
    assert rank["y"][0] - rank["error_y"]["arrayminus"][0] == pytest.approx(100 * first.low)
    short, long = probe_page.by_position([run])["data"]
    assert len(short["x"]) == 4 and len(long["x"]) == 5 and long["name"] == "256 tokens"
    assert probe_page.by_position([run])["layout"]["shapes"][0]["x0"] == 128
    (sure,) = probe_page.calibration([run])["data"]
    assert sure["x"][3] == pytest.approx(100 * 3.5 / 15) and sure["y"][3] == pytest.approx(100 * 3 / 16)


def test_the_section_says_what_was_measured(runs):
    text = words(layers(runs[:1]))
    assert "Probes" in text and "without fine-tuning" in text
    assert "sst2 linear probe; 2,000 training rows, 872 evaluation rows accuracy 50.0 55.0 70.0 70.0 layer 3" in text
    assert "stsb cosine without training; 1,500 pairs spearman - 40.0 32.0 40.0 layer 0" in text
    assert "19.5 % in sequences of 128 tokens, 17.5 % in sequences of 256 tokens (2 times the trained length)" in text
    assert "always predicting the most frequent token gives 5.0 %" in text
    assert "b: Accuracy on masked tokens" in words(layers(runs))


def test_a_part_that_was_not_asked_is_not_there(write_run):
    run = write_run("a")
    assert layers([read_folder(run)]) is None
    write_json(RunFolder(run).probes, Probes(model_name="a", layer_count=2, seconds=1.0, similarity=[
        SimilarityProbe(task="stsb", pairs=9, layers=[SimilarityScore(layer=0, spearman=0.1, centred=0.2)])
    ]))  # fmt: skip
    text = words(layers([read_folder(run)]))
    assert "Sentence similarity" in text and "Linear probes by layer" not in text and "Masked tokens by" not in text


def test_probes_alone_make_a_page(write_probes, tmp_path):
    folder = tmp_path / "stock"
    folder.mkdir()
    write_probes(folder)
    text = words(report([folder], tmp_path / "report.html").read_text())
    assert "Probes" in text and "No step has been recorded" not in text
