"""The command: run folders in, one HTML file out."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import plotly.graph_objects
import plotly.offline
import pytest
import small_tasks
from fake_corpus import words

from daybreak import cli
from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.locks import alone_in
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.protocols.anchors import (
    ANCHORS,
    CAPACITIES,
    COMPUTED,
    average_for_compute,
    published_by_compute,
)
from daybreak.evaluation.protocols.conventions import CONVENTIONS, SIZES
from daybreak.recipe import load_recipe, recipe_names, resolved
from daybreak.reporting import training
from daybreak.reporting.background import background
from daybreak.reporting.compute import capacity, cost, flops_words, trained
from daybreak.reporting.headline import loss_sentence
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import RunRecords, read_run
from daybreak.schemas.probes import Probes
from daybreak.schemas.records import RECORD_FILE
from daybreak.schemas.run import (
    Change,
    ContextUse,
    FillMask,
    RankerScore,
    Retrieval,
    RetrievalExample,
    Summary,
    VisibleContext,
)
from daybreak.schemas.tasks import Comparison, TaskResult

MEGABYTE = 10**6


def test_the_headline_says_what_and_how_good(write_run, tmp_path):
    text = words(report([write_run()], tmp_path / "report.html").read_text())
    assert "A text encoder with 1.48 million parameters, trained for 2m 59s on Some CPU @ 2.5 GHz" in text
    assert "its held-out loss is 4.57 nats, 1.72 below the 6.28" in text
    assert "against 5.2 % for always predicting the most frequent token" in text
    assert "Of 2 tasks with at least 3 seeds, pretraining raises the score on 2 and lowers it on 0" in text
    for part in ("Training", "Tasks", "Fill-mask examples", "Time by category", "Use the model", "Background"):
        assert part in text
    assert "Not in the folder" not in text and "has not ended" not in text
    assert "of wall-clock time" in text and "of training time" not in text


@pytest.mark.parametrize(
    ("few", "protocols", "said"),
    [
        ((), ("quick", "small"), "Of 2 results with at least 3 seeds, pretraining raises the score on 2 and lowers it"),
        (
            ("cola",),
            ("quick", "quick"),
            "Of 1 task with at least 3 seeds, pretraining raises the score on 1 and lowers",
        ),
        (("cola", "rte"), ("quick", "quick"), "With fewer than 3 seeds per task, the effect of pretraining is not"),
    ],
)
def test_tasks_with_few_seeds_say_nothing_of_pretraining(few, protocols, said, tmp_path):
    """The networks without pretraining have two seeds on the tasks ``few``."""
    results = []
    for task, protocol in zip(("cola", "rte" if few else "cola"), protocols):
        scores = {"pretrained": [0.61, 0.62, 0.63], "untrained": [0.4, 0.41, 0.42][: 2 if task in few else 3]}
        results += [small_tasks.result(task, {"mcc": each}, model=model, protocol=protocol) for model, each in
                    scores.items()]  # fmt: skip
    write_json(RunFolder(tmp_path).results, results)
    text = words(report([tmp_path], tmp_path / "report.html").read_text())
    assert said in text
    assert ("higher with pretraining" in text) == (len(few) < 2)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"low": -0.09, "high": 0.034}, "pretraining helps on 1 and harms on 0"),
        ({"b": 0.3, "low": -0.09, "high": -0.01}, "pretraining helps on 1 and harms on 1"),
    ],
)
def test_paired_comparisons_decide_what_the_head_says_of_pretraining(write_run, found, said):
    """The spread over seeds alone would count both tasks as helped."""
    usual = Comparison(
        task="cola", protocol="quick", metric="mcc", model_a="untrained", model_b="pretrained", seeds=[0, 1, 2],
        rows=277, a=0.4, b=0.6, spread=0.01, low=0.1, high=0.3, better=1.0,
    )  # fmt: skip
    page = words(render_page([read_run(write_run())], [usual, dataclasses.replace(usual, task="rte", **found)]))
    assert f"Paired comparisons on 2 tasks: {said}." in page
    assert "by paired comparison" in page


def first_sentence(page: str) -> str:
    """What the lead begins with."""
    found = re.search(r'class="lead">(.*?)</p>', page, flags=re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("bags", "sentence"),
    [
        ((0.9, 0.05), "This encoder beats its baselines on 1 of 2 tasks, but not on which-package ("),
        (None, "This encoder beats the unigram baseline: its held-out loss is 4.57 nats, 1.72 below the 6.28"),
    ],
)
def test_the_first_sentence_says_whether_the_encoder_beats_its_baselines(write_run, tmp_path, bags, sentence):
    run = write_run()
    results = read_json(RunFolder(run).results, list[TaskResult])
    with_bags = [
        dataclasses.replace(result, bag_of_words={result.metric: bags[result.task == "cola"]})
        for result in results
        if bags
    ]
    write_json(RunFolder(run).results, with_bags)
    page = report([run], tmp_path / "report.html").read_text()
    assert first_sentence(page).startswith(html.escape(sentence))
    assert first_sentence(page).count("its held-out loss is") == 1
    markdown = report([run], tmp_path / "report.md").read_text()
    assert markdown.index(sentence) < markdown.index("A text encoder with")
    if bags:
        table = page[page.index(">Constant answer</th>") :]
        cells = [words(cell).strip() for cell in re.findall(r"<td.*?</td>", table, flags=re.DOTALL)[:6]]
        assert cells[1:3] == ["21.0", f"{100 * bags[0]:.1f}"]
        assert cells[3].startswith("4") and cells[4].startswith("6"), "without and with pretraining in the same row"


def test_each_of_a_few_runs_says_whether_it_beats_its_baselines(write_run, tmp_path):
    runs = [write_run(name, seed=number) for number, name in enumerate(("one", "two", "three", "four"))]
    few = first_sentence(report(runs[:2], tmp_path / "few.html").read_text())
    assert few.startswith("one beats the constant answer on all 2 tasks.") and "two beats the constant answer" in few
    many = first_sentence(report(runs, tmp_path / "many.html").read_text())
    assert many.startswith("Tasks on which an encoder beats its baselines: one on 2 of 2, two on 2 of 2, three on")


def context(noisy: float) -> ContextUse:
    return ContextUse(
        alone=4.0,
        copy=0.7,
        noisy_copy=noisy,
        alone_accuracy=0.3,
        copy_accuracy=0.9,
        noisy_copy_accuracy=0.6,
        visible=[VisibleContext(tokens=2, loss=6.5), VisibleContext(tokens=29, loss=4.25)],
        positions=2000,
        seconds=1.0,
    )


@pytest.mark.parametrize(("noisy", "warned"), [(2.4, False), (2.41, True)])
def test_a_model_that_does_not_compare_segments_gets_a_warning(write_run, tmp_path, noisy, warned):
    run = RunFolder(write_run())
    summary = dataclasses.replace(read_json(run.summary, Summary), context_use=context(noisy))
    write_json(run.summary, summary)
    text = words(report([run.path], tmp_path / "report.html").read_text())
    assert "Use of context" in text and "0.70 accuracy 90 %" in text
    assert "Run 2 visible all 29 visible tiny 6.50 4.25" in text
    assert ("not compare segments yet" in text) == warned


def test_search_stands_beside_bm25(write_run, tmp_path):
    run = RunFolder(write_run())
    assert "Recall at 10" not in words(report([run.path], tmp_path / "without.html").read_text())

    def ranker(name, score, low):
        above = {} if name == "bm25" else {"recall_10": [low, 0.2]}
        interval = {"recall_10": [score - 0.03, score + 0.03]}
        return RankerScore(ranker=name, scores={"recall_10": score}, intervals=interval, above_bm25=above)

    rankers = [ranker("bm25", 0.758, 0.0), ranker("dense", 0.711, -0.09), ranker("hybrid", 0.872, 0.07)]
    example = RetrievalExample(query="a query", passage="its passage", rank=2, first="another passage")
    write_json(run.retrieval, Retrieval(passages=600, rankers=rankers, seconds=1.0, examples=[example]))
    text = words(report([run.path], tmp_path / "report.html").read_text())
    assert "87.2 84.2 to 90.2 yes" in text and "71.1 68.1 to 74.1 no" in text and "another passage" in text
    other = Retrieval(text="papers.jsonl", passages=312, rankers=[ranker("bm25", 0.5, 0.0)], seconds=1.0)
    write_json(run.probes, Probes(model_name="a", layer_count=2, seconds=1.0, search=[other]))
    text = words(report([run.path], tmp_path / "probed.html").read_text())
    assert "BM25 600 75.8 72.8 to 78.8" in text and "BM25 papers.jsonl 312 50.0 47.0 to 53.0" in text
    hidden = report([run.path], tmp_path / "hidden.html", text=False).read_text()
    assert "87.2" in hidden and "its passage" not in hidden


def test_reporting_never_loads_torch(write_run, tmp_path):
    code = "import sys, pathlib, daybreak.commands.report as r;"
    code += "r.report([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]));"
    code += "sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    command = [sys.executable, "-c", code, write_run(), tmp_path / "report.html"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_page_is_one_file_that_loads_nothing(write_run, tmp_path):
    page = report([write_run(str(n), seed=n) for n in range(3)], tmp_path / "deep" / "report.html").read_text()
    assert page.count(plotly.offline.get_plotlyjs()) == 1
    own = page.replace(plotly.offline.get_plotlyjs(), "")
    assert not re.search(r"""(src|href|url|@import|action)\s*[=(]?\s*["']?\s*(https?:)?//""", own)
    assert not re.search(r"<(link|img|iframe|object|embed|form)\b|\bimport\(|\bfetch\(", own)
    assert "default-src 'none'" in own
    assert "/home/someone" not in own


def test_many_long_runs_stay_under_six_megabytes(write_run, tmp_path):
    runs = [write_run(f"run-{n}", seed=n, steps=400) for n in range(12)]
    assert report(runs, tmp_path / "report.html").stat().st_size < 6 * MEGABYTE


def test_an_unfinished_run_says_what_is_missing(write_run, tmp_path):
    run = write_run("killed", ended=False)
    with alone_in(run):
        text = words(report([run], tmp_path / "live.html").read_text())
    assert "killed has not ended: still running, last heartbeat" in text
    text = words(report([run], tmp_path / "report.html").read_text())
    assert "killed has not ended: stopped, last heartbeat" in text and "the same command resumes it" in text
    assert "task results (run daybreak evaluate), fill-mask examples" in text
    assert "Time by category" not in text


def test_the_page_of_a_run_loads_itself_again_until_the_run_has_ended(write_run, tmp_path):
    again = '<button type="button" data-reload="60" aria-pressed="true">'
    young, old = write_run("young", ended=False), write_run("old")
    assert again in report([young], tmp_path / "young.html").read_text()
    assert again in report([old, young], tmp_path / "both.html").read_text()
    assert 'data-reload="' not in report([old], tmp_path / "old.html").read_text()
    long_ago = time.time() - 400
    os.utime(RunFolder(young).trace, (long_ago, long_ago))
    with alone_in(young):
        text = words(report([young], tmp_path / "silent.html").read_text())
    assert re.search(r"silent for 6m 4\ds when this page was written", text) and "still running" not in text


def test_small_fractions_of_the_time_can_be_read(write_run, tmp_path):
    run = write_run()
    summary = read_json(RunFolder(run).summary)
    spent = {"start": 4.0, "data": 0.5, "train": 190.0, "communicate": 3.0, "clock": 0.1, "monitor": 0.4, "lost": 2.0}
    write_json(RunFolder(run).summary, summary | {"time_by_category": spent})
    text = words(report([run], tmp_path / "report.html").read_text())
    assert "start data wait train communication clock agreement monitors lost Parity check (not charged)" in text
    assert "4.0 s 2.00 % 0.5 s 0.25 % 190.0 s 95.00 % 3.0 s 1.50 % 0.1 s 0.05 % 0.4 s 0.20 % 2.0 s 1.00 %" in text
    for name in ("Data wait: ", "Clock agreement: ", "Monitors: "):
        assert name in text, "names that need an explanation have one"


RECORDS = sorted(
    path
    for path in (Path(__file__).parents[2] / "records").glob("*/summary.json")
    if not read_json(path).get("machine")  # not known to earlier versions
)


@pytest.mark.parametrize("summary", RECORDS, ids=lambda path: path.parent.name)
def test_runs_of_earlier_versions_still_have_a_page(summary, tmp_path):
    page = report([summary.parent], tmp_path / "report.html").read_text()
    text = words(page)
    told = read_json(summary)
    assert f"{told['elapsed']:.1f} s budget: {told['budget']}" in text
    for new in ("Events during training", "Hardware use", "has not ended", "data wait", "Steps without an update"):
        assert new not in text
    assert "refresh" not in page[: page.index("<style>")]


def test_a_run_before_its_first_step_has_a_page(tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": "tiny", "budget": "3m"}')
    assert "No step has been recorded yet." in report([tmp_path], tmp_path / "report.html").read_text()


def test_several_runs_are_compared(write_run, tmp_path):
    runs = [
        write_run("causal"),
        write_run("plain", seed=2, causal=0.0, floor=5.6),
        write_run("cut", seed=3, ended=False),
    ]
    page = report(runs, tmp_path / "report.html").read_text()
    text = words(page)
    alone = report(str(runs[0]), str(tmp_path / "alone.html"))  # paths may be text, and one run alone
    assert alone == tmp_path / "alone.html" and "runs compared" not in words(alone.read_text())
    assert "3 runs compared" in text and "Comparison of runs" in text
    assert "causal has the lowest held-out loss: 4.565 nats" in text
    assert "Differences between the recipes" in text
    assert "not comparable" not in text
    table = page[page.index("Comparison of runs") : page.index("Loss against time")]
    done = [line["step"] for line in read_json_lines(RunFolder(runs[2]).metrics) if line["type"] == "step"]
    assert f" {done[-1]:,} " in words(table.split("<tr>")[-1])


def test_seeds_of_one_recipe_are_not_called_single_runs(write_run, tmp_path):
    seeds = [write_run(f"seed-{seed}", seed=seed) for seed in (1, 2)]
    other = write_run("other", recipe={"batch": 16})
    for runs, single in ((seeds, False), ([*seeds, other], True)):
        text = words(report(runs, tmp_path / "report.html").read_text())
        assert "have the same held-out loss" in text
        assert ("With one run per setting the standard deviation" in text) == single


def test_a_refused_model_is_not_ranked(write_run, tmp_path):
    runs = [write_run("refused"), write_run("plain", seed=2, causal=0.0, floor=5.6)]
    summary = read_json(RunFolder(runs[0]).summary)
    for failed in (None, {"passed": False}):
        if failed:
            write_json(RunFolder(runs[0]).summary, summary | {"parity": summary["parity"] | failed})
        page = report(runs, tmp_path / "report.html").read_text()
        assert ("refused has the lowest held-out loss" in words(page)) == (failed is None)
        table = page[page.index("Comparison of runs") : page.index("Loss against time")]
        first, second = table.split("<tr>")[-2:]
        assert ('class="best"' in first, 'class="best"' in second) == (failed is None, failed is not None)


def test_a_ladder_stays_readable(write_run, tmp_path):
    runs = [write_run(f"ladder-{n:02d}", seed=n, steps=200, causal=0.0, floor=6.3 - 0.15 * n) for n in range(13)]
    for run in runs[2:]:
        RunFolder(run).results.unlink()
    summary = read_json(RunFolder(runs[0]).summary)
    summary["validation"]["next_accuracy"] = 0.615
    write_json(RunFolder(runs[0]).summary, summary)
    page = report(runs, tmp_path / "report.html").read_text()
    text = words(page)
    assert "ladder-12 has the lowest held-out loss" in text
    assert "No better than the unigram baseline: ladder-00 (6.41 nats after 199 steps), ladder-01 (6.26 nats" in text
    assert "Not in the folder of ladder-02, ladder-03, ladder-04, ladder-05, ladder-06 and 6 others: task" in text
    table = page[page.index("Comparison of runs") : page.index("Loss against time")]
    rows = [re.sub(r"<[^>]+>", "|", row).split("|") for row in table.split("<tr>")[2:]]
    rows = [[cell for cell in row if cell.strip()] for row in rows]
    assert len(rows) == 13
    loss = summary["validation"]["loss"]
    wanted = ["ladder-00", "tiny", "1.48 million", "200", f"{loss:.3f}", f"{loss - 6.283:+.3f}", "yes", "61.5 %"]
    assert set(wanted) <= set(rows[0])
    assert "no" in rows[-1] and "-" in rows[-1] and "yes" not in rows[-1]


def test_a_continued_run_says_whether_it_was_worth_it(write_run, tmp_path):
    runs = [write_run("law"), write_run("scratch", seed=2)]
    summary = read_json(RunFolder(runs[0]).summary)
    told = {"own_before": 3.1, "own_after": 1.9, "general_before": 2.5, "general_after": 2.75}
    write_json(RunFolder(runs[0]).summary, summary | {"parent": "owner/encoder", "forgetting": told})
    (runs[0] / "model" / "modelling.py").touch()
    page = report(runs[:1], tmp_path / "one.html").read_text()
    text = words(page)
    assert "parameters, continued from owner/encoder, trained for" in text
    assert "law owner/encoder 3.100 -> 1.900 -1.200 2.500 -> 2.750 +0.250" in text
    assert "trust_remote_code=True" in text
    assert "Effect of continued pretraining" in words(report(runs, tmp_path / "two.html").read_text())
    alone = words(report(runs[1:], tmp_path / "three.html").read_text())
    assert "Effect of continued pretraining" not in alone and "trust_remote_code" not in alone


def test_what_a_recipe_evaluates_itself_is_reported(write_run, tmp_path):
    run = write_run()
    summary = read_json(RunFolder(run).summary)
    summary["validation"] |= {"own_loss": 4.1, "own_accuracy": 0.25, "next_loss": 0.5, "next_accuracy": 0.775}
    write_json(RunFolder(run).summary, summary)
    text = words(report([run], tmp_path / "report.html").read_text())
    assert "77.5 % next-sentence accuracy" in text and "4.100 nats, 25.0 %" in text


def test_runs_with_other_held_out_text_are_not_ranked_silently(write_run, tmp_path):
    runs = [write_run("a"), write_run("b")]
    manifest = read_json(RunFolder(runs[1]).manifest)
    write_json(RunFolder(runs[1]).manifest, manifest | {"tokenizer": "another"})
    page = report(runs, tmp_path / "report.html").read_text()
    assert "not comparable" in page and "Their held-out losses cannot be ranked." in page
    assert "has the lowest held-out loss" not in page and 'class="best"' not in page


@pytest.mark.parametrize(
    ("why", "validation", "first"),
    [
        ("were measured on held-out sequences of different lengths", {"positions": 10_240}, True),
        ("older runs on the first, newer runs on evenly spread ones", {"unigram_loss": 6.301}, False),
        ("is measured on a part of the held-out sequences", {"positions": 1_216, "unigram_loss": 6.3}, None),
    ],
    ids=["length", "place", "interim"],
)
def test_losses_on_other_held_out_sequences_are_not_ranked(why, validation, first, write_run, tmp_path):
    """``first`` is None for a run that has not ended."""
    runs = [write_run("a"), write_run("b", ended=first is not None)]
    folder = RunFolder(runs[1])
    if first is None:
        lines = read_json_lines(folder.metrics)
        changed = [line | (validation if line["type"] == "validation" else {}) for line in lines]
        folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in changed))
    else:
        summary = read_json(folder.summary)
        write_json(folder.summary, summary | {"validation": summary["validation"] | validation})
        write_json(folder.decisions, read_json(folder.decisions) | {"first_heldout": first})
    page = report(runs, tmp_path / "report.html").read_text()
    assert f"{why}, so their losses and accuracies are not comparable." in words(page)
    assert "Their held-out losses cannot be ranked." in page and "they are not comparable here" in page
    assert "has the lowest held-out loss" not in page and 'class="best"' not in page


@pytest.mark.parametrize("first", [False, True])
def test_runs_on_different_training_text_are_ranked_on_the_same_held_out_sequences(first, write_run, tmp_path):
    """Such as one text with two preprocessings: the unigram baseline of each is counted on its own training text."""
    runs = [write_run("raw"), write_run("filtered", floor=5.0)]
    folder = RunFolder(runs[1])
    manifest, summary = read_json(folder.manifest), read_json(folder.summary)
    write_json(folder.manifest, manifest | {"train": manifest["train"] | {"tokens": 2_000_000}})
    write_json(folder.summary, summary | {"validation": summary["validation"] | {"unigram_loss": 6.41}})
    write_json(folder.decisions, read_json(folder.decisions) | {"first_heldout": first})
    text = words(report(runs, tmp_path / "report.html").read_text())
    assert ("raw has the lowest held-out loss" in text) == first
    assert ("older runs on the first, newer runs on evenly spread ones" in text) == (not first)


def test_damage_and_an_edited_recipe_are_said_on_the_page(write_run, tmp_path):
    folder = RunFolder(write_run())
    folder.results.write_text("[{")
    write_json(folder.recipe, read_json(folder.recipe) | {"seed": 5})
    text = words(report([folder.path], tmp_path / "report.html").read_text())
    assert "recipe.json was edited after the run started" in text and "is damaged and left out" in text
    (folder.path / RECORD_FILE).write_text("{}")  # in a record, names replace the paths of the recipe
    assert "was edited" not in words(report([folder.path], tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    ("folders", "labels"),
    [(("one/tiny", "two/tiny"), ("one/tiny", "two/tiny")), (("a/runs/tiny", "b/runs/tiny"), ("tiny (1)", "tiny (2)"))],
)
def test_runs_of_one_name_get_labels_of_their_own(write_run, tmp_path, folders, labels):
    for folder in folders:
        (tmp_path / folder).parent.mkdir(parents=True)
    text = words(report([write_run(folder) for folder in folders], tmp_path / "report.html").read_text())
    assert all(label in text for label in labels) and "(1) (1)" not in text


def test_a_plateau_and_a_refused_export_are_said_first(write_run, tmp_path):
    text = words(report([write_run(floor=6.1, passed=False)], tmp_path / "report.html").read_text())
    assert "This encoder does not clearly beat the unigram baseline" in text
    assert "Export refused: logits differ by 0.4" in text


def test_a_loss_just_below_the_unigram_baseline_is_not_said_to_be_above_it(write_run):
    record = read_json(RunFolder(write_run()).summary, Summary).validation
    said = loss_sentence(dataclasses.replace(record, loss=3.53, unigram_loss=3.62))
    assert said.startswith("This encoder does not clearly beat the unigram baseline: its held-out loss is 3.53 nats")


def test_hostile_text_is_only_text(write_run, tmp_path):
    attack = '</script><script>alert(1)</script><img src="https://evil.example/x">'
    run = write_run(recipe={"name": attack, "note": attack})
    write_json(
        RunFolder(run).examples,
        [FillMask(text=f"{attack} [MASK]", answer=attack, guesses=[attack], probabilities=[2.0])],
    )
    page = report([run], tmp_path / "report.html").read_text()
    assert "<script>alert" not in page and "<img" not in page


def test_what_cannot_be_reported_is_refused(write_run, tmp_path):
    with pytest.raises(UserError, match="No run folder is given"):
        report([], tmp_path / "report.html")
    run = write_run()
    with pytest.raises(UserError, match="is a folder"):
        report([run], tmp_path)
    os.mkfifo(tmp_path / "pipe")  # a device, such as /dev/null, is no ordinary file either
    with pytest.raises(UserError, match="is not an ordinary file"):
        report([run], tmp_path / "pipe")
    assert not (tmp_path / "report.html").exists() and (tmp_path / "pipe").is_fifo()


def test_the_command_on_the_page_trains_the_same_again(write_run, tmp_path, monkeypatch):
    wanted = dataclasses.replace(load_recipe("mini"), seed=7, budget="9m")
    run = write_run("a run", recipe=resolved(wanted))
    page = html.unescape(words(report([run], tmp_path / "report.html").read_text()))
    command = re.search(r"daybreak (pretrain .*?) +#", page)
    seen = []
    monkeypatch.setattr(
        "daybreak.commands.pretrain.pretrain", lambda recipe, **more: seen.append((recipe, more["out"]))
    )
    cli.dispatch(shlex.split(command[1]))
    assert seen == [(wanted, Path(f"{run}-again"))]


def test_a_continued_model_has_its_own_name_as_title_and_the_constant_answer_is_said(write_run, tmp_path):
    run = write_run(recipe={"origin": {"init": "models/bert", "parent": "bert-base"}})
    results = RunFolder(run).results
    items = [item for item in read_json(results) if item["task"] == "which-package"]
    write_json(results, [{**item, "bag_of_words": {item["metric"]: 0.5}} for item in items])
    text = words(report([run], tmp_path / "report.html").read_text())
    assert text.count("bert-base, continued") == 2, "in the tab of the browser, too"
    assert ", the bag of words 50.0, and the constant answer 21.0." in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("retrieval.json", lambda value: value["rankers"][0]["intervals"].update(recall_10=[0.1])),
        ("retrieval.json", lambda value: value["rankers"][0].update(ranker="bm26")),
        ("retrieval.json", lambda value: value["rankers"][0]["scores"].clear()),
        ("results.json", lambda value: value[0]["scores"].update({value[0]["metric"]: []})),
    ],
)
def test_a_file_with_values_that_cannot_be_is_left_out(write_run, tmp_path, name, change):
    """Found by benchmarks/fuzz.py: JSON of the right types, in which numbers are missing."""
    run = RunFolder(write_run())
    ranker = RankerScore(ranker="bm25", scores={"recall_10": 0.5}, intervals={"recall_10": [0.4, 0.6]}, above_bm25={})
    write_json(run.retrieval, Retrieval(passages=600, rankers=[ranker], seconds=1.0))
    value = read_json(run.path / name)
    change(value)
    write_json(run.path / name, value)
    assert f"'{name}' is damaged and left out." in words(report([run.path], tmp_path / "report.html").read_text())


# ---------------------------------------------------------------- what was computed, among published models


SHAPE = {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256}


def glue(protocol: str = "cramming", seeds: int = 5, leave_out: tuple[str, ...] = ()) -> list[TaskResult]:
    """Results of all tasks of the convention, each number 0.8."""
    tasks: dict[str, dict[str, list[float]]] = {}
    for task, metrics in CONVENTIONS[COMPUTED].numbers:
        tasks.setdefault(task, {}).update((metric, [0.8] * seeds) for metric in metrics)
    return [
        small_tasks.result(task, scores, protocol=protocol, train_rows=SIZES[task][0], dev_rows=SIZES[task][1])
        for task, scores in tasks.items()
        if task not in leave_out
    ]


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
    rest = [step for step in long.steps if step.progress >= 0.5]
    before = next(step for step in reversed(long.steps) if step.progress < 0.5)
    one, two = cost(SHAPE, 8192, 128), cost(SHAPE, 8192, 512)
    tokens, targets = rest[-1].tokens - before.tokens, rest[-1].targets - before.targets
    assert more == pytest.approx((two.token - one.token) * tokens + (two.target - one.target) * targets)
    # A run that extends one which was in its second phase reads long sequences from its first step on.
    extended = {"model": SHAPE, "length": 128, "phase2": later, "origin": {"branch": "two", "begin": 0.6}}
    rest = read_run(write_run("three", recipe=extended))
    last = rest.steps[-1]
    assert trained(rest).total == pytest.approx(two.token * last.tokens + two.target * last.targets)


def test_an_embedding_finish_is_counted_with_its_shorter_rows(write_run):
    run = read_run(write_run(recipe={"model": SHAPE, "length": 128, "finish": {"start": 0.9, "length": 64}}))
    steps = [dataclasses.replace(step, contrastive=1.0 if step.progress >= 0.9 else None) for step in run.steps]
    before = next(step for step in reversed(steps) if step.contrastive is None)
    tokens, targets = steps[-1].tokens - before.tokens, steps[-1].targets - before.targets
    long, short = cost(SHAPE, 8192, 128), cost(SHAPE, 8192, 64)
    less = trained(run).total - trained(dataclasses.replace(run, steps=steps)).total
    assert less == pytest.approx((long.token - short.token) * tokens + (long.target - short.target) * targets)


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


def test_later_machines_stand_beside_the_first(write_run):
    run = read_run(write_run())
    moved = Change(step=5, why="resumed", microbatch=8, world_size=1, threads=2, machine="Sun Ultra 5")
    later = dataclasses.replace(run, summary=dataclasses.replace(run.summary, changes=[moved]))
    assert "'Later devices': 'Sun Ultra 5'" in str(background([later]))
    assert "Later devices" not in str(background([run]))


def test_operations_have_a_unit_that_reads_well():
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


def test_one_folder_in_two_spellings_counts_once_and_a_tie_is_no_win(write_run, tmp_path):
    a, b = write_run("a"), write_run("b", seed=2)
    text = words(report([a, a.parent / "b" / ".." / "a"], tmp_path / "one.html").read_text())
    assert "lowest held-out loss" not in text
    text = words(report([a, b], tmp_path / "two.html").read_text())
    assert "a and b have the same held-out loss" in text and "lowest held-out loss:" not in text


def test_the_commands_of_a_page_name_the_run_and_not_a_recipe(write_run, monkeypatch):
    """A run folder may be called mini, which alone is a recipe."""
    run = write_run("mini")
    monkeypatch.chdir(run.parent)
    text = html.unescape(report(["mini"], "page.html").read_text())
    assert "daybreak pretrain ./mini --data DATA --out mini-again" in text
    monkeypatch.chdir(run)
    text = html.unescape(report(["."], "page.html").read_text())
    assert f"--out {run}-again" in text


def test_every_capacity_is_of_an_anchor_that_tells_how():
    assert set(CAPACITIES) == {anchor.model for anchor in ANCHORS if anchor.exaflop}
    assert all(anchor.convention == COMPUTED for anchor in published_by_compute())
    amounts = [anchor.exaflop for anchor in published_by_compute()]
    assert amounts == sorted(amounts) and len(amounts) == len(CAPACITIES)


@pytest.mark.parametrize(
    ("teraflops", "hours", "devices", "exaflop"),
    [(53.8, 24, 1, 4.65), (88.45, 24, 1, 7.64), (154.8, 24, 1, 13.37), (123, 96, 16, 680), (125, 30, 1024, 13_824)],
)
def test_a_capacity_is_its_rate_times_its_time(teraflops, hours, devices, exaflop):
    assert teraflops * 1e12 * 3600 * hours * devices / 1e18 == pytest.approx(exaflop, rel=2e-3)
    assert exaflop in {exaflop for exaflop, _ in CAPACITIES.values()}


def test_a_model_stands_among_them_with_all_of_the_convention_alone():
    assert average_for_compute([]) == (None, "")
    assert average_for_compute([dataclasses.replace(each, task="topics") for each in glue()]) == (None, "")
    value, why = average_for_compute(glue())
    assert value == pytest.approx(0.8) and why == ""
    assert average_for_compute([dataclasses.replace(each, model="untrained") for each in glue()]) == (None, "")
    assert average_for_compute(glue(leave_out=("mnli", "qqp"))) == (
        None,
        "6 of the 9 numbers under cramming; not qqp f1, mnli accuracy, mnli mismatched_accuracy",
    )
    other = [dataclasses.replace(each, weights="other") for each in glue() if each.task in ("mnli", "qqp")]
    assert average_for_compute([*glue(leave_out=("mnli", "qqp")), *other])[1].startswith(
        "3 of the 9 numbers under cramming; not "
    )
    assert average_for_compute(glue(protocol="quick")) == (
        None,
        "8 of the 8 tasks, under quick and none under cramming",
    )
    assert average_for_compute(glue(seeds=1)) == (
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
    assert published["x"] == [anchor.exaflop for anchor in published_by_compute()]
    assert published["y"] == pytest.approx([100 * anchor.value for anchor in published_by_compute()])
    assert here["name"] == "whole" and here["y"] == [80]
    assert here["x"] == pytest.approx([capacity(read_run(whole)) / 1e18], rel=1e-3)
    low, high = figure["layout"]["xaxis"]["range"]
    assert all(low < math.log10(x) < high for trace in figure["data"] for x in trace["x"])
    text = body(page)
    assert "part 7 of the 9 numbers under cramming; not mnli accuracy, mnli mismatched_accuracy" in text
    for anchor in published_by_compute():
        assert anchor.source in text and anchor.how in text
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


def test_the_ending_of_the_page_chooses_its_format(write_run, tmp_path, refused):
    run = write_run("a")
    cli.dispatch(["report", str(run), "--out", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text().startswith("Daybreak report\n\n# ")
    cli.dispatch(["report", str(run), "--out", str(tmp_path / "page.txt"), "--format", "md"])
    assert (tmp_path / "page.txt").read_text().startswith("Daybreak report\n\n# ")
    assert "does not end in .md. Rename it, or leave out --format." in refused(
        "report", run, "--out", tmp_path / "page.html", "--format", "md"
    )
    assert not (tmp_path / "page.html").exists()
