"""The command: run folders in, one HTML file out."""

from __future__ import annotations

import dataclasses
import html
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import plotly.offline
import pytest
from fake_corpus import words

from daybreak import cli
from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.locks import alone_in
from daybreak.core.run_folder import RunFolder
from daybreak.recipe import load_recipe, resolved
from daybreak.schemas.run import (
    ContextUse,
    FillMask,
    RankerScore,
    Retrieval,
    RetrievalExample,
    Summary,
    VisibleContext,
)
from daybreak.schemas.tasks import TaskResult

MEGABYTE = 10**6


def test_the_headline_says_what_and_how_good(write_run, tmp_path):
    text = words(report([write_run()], tmp_path / "report.html").read_text())
    assert "A text encoder with 1.48 million parameters, trained for 2m 59s on Some CPU @ 2.5 GHz" in text
    assert "its held-out loss is 4.57 nats, 1.72 below the 6.28" in text
    assert "against 5.2 % for always predicting the most frequent token" in text
    assert "Of 2 tasks pretraining helps on 2 and harms on 0 by more than the seed spread" in text
    for part in ("Training", "Tasks", "Fill-mask examples", "Time by category", "Use the model", "Background"):
        assert part in text
    assert "Not in the folder" not in text and "has not ended" not in text


def first_sentence(page: str) -> str:
    """What the lead begins with."""
    found = re.search(r'class="lead">(.*?)</p>', page, flags=re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("bags", "sentence"),
    [
        ((0.5, 0.05), "This encoder beats its baselines on all 2 tasks."),
        ((0.9, 0.9), "This encoder does not beat its baselines on which-package ("),
        ((0.9, 0.05), "This encoder beats its baselines on 1 of 2 tasks, and not on which-package ("),
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
    assert "Use of context" in text and "4.25" in text
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
    hidden = report([run.path], tmp_path / "hidden.html", text=False).read_text()
    assert "87.2" in hidden and "its passage" not in hidden


def test_reporting_never_loads_torch(write_run, tmp_path):
    code = "import sys, pathlib, daybreak.commands.report as r;"
    code += "r.report([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]));"
    code += "sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    command = [sys.executable, "-c", code, write_run(), tmp_path / "report.html"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_page_is_one_file_that_loads_nothing(write_run, tmp_path):
    path = report([write_run(str(n), seed=n) for n in range(3)], tmp_path / "deep" / "report.html")
    assert path.stat().st_size < 6 * MEGABYTE
    page = path.read_text()
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
    assert "task results (run `daybreak evaluate`), fill-mask examples" in text
    assert "Time by category" not in text


def test_the_page_of_a_run_loads_itself_again_until_the_run_has_ended(write_run, tmp_path):
    again = '<button type="button" data-reload="60" aria-pressed="true">'
    young, old = write_run("young", ended=False), write_run("old")
    assert again in report([young], tmp_path / "young.html").read_text()
    assert again in report([old, young], tmp_path / "both.html").read_text()
    assert again not in report([old], tmp_path / "old.html").read_text()
    long_ago = time.time() - 400
    os.utime(RunFolder(young).trace, (long_ago, long_ago))
    with alone_in(young):
        text = words(report([young], tmp_path / "silent.html").read_text())
    assert "silent for 6m 40s when this page was written" in text and "still running" not in text


def test_small_shares_of_the_time_can_be_read(write_run, tmp_path):
    run = write_run()
    summary = read_json(RunFolder(run).summary)
    spent = {"start": 4.0, "data": 0.5, "train": 190.0, "communicate": 3.0, "clock": 0.1, "monitor": 0.4, "lost": 2.0}
    write_json(RunFolder(run).summary, summary | {"time_by_category": spent})
    text = words(report([run], tmp_path / "report.html").read_text())
    assert "start data wait train communication clock agreement monitors lost Parity check (not charged)" in text
    assert "4.0 s 2.00 % 0.5 s 0.25 % 190.0 s 95.00 % 3.0 s 1.50 % 0.1 s 0.05 % 0.4 s 0.20 % 2.0 s 1.00 %" in text


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
    assert "3 runs compared" in text and "Comparison of runs" in text
    assert "causal has the lowest held-out loss: 4.565 nats" in text
    assert "Differences between the recipes" in text
    assert "not comparable" not in text
    table = page[page.index("Comparison of runs") : page.index("Loss against time")]
    done = [line["step"] for line in read_json_lines(RunFolder(runs[2]).metrics) if line["type"] == "step"]
    assert f" {done[-1]:,} " in words(table.split("<tr>")[-1])


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


def test_what_a_recipe_judges_itself_is_told(write_run, tmp_path):
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


def test_damage_and_an_edited_recipe_are_said_on_the_page(write_run, tmp_path):
    folder = RunFolder(write_run())
    folder.results.write_text("[{")
    write_json(folder.recipe, read_json(folder.recipe) | {"seed": 5})
    text = words(report([folder.path], tmp_path / "report.html").read_text())
    assert "recipe.json was edited after the run started" in text and "is damaged and left out" in text


def test_runs_of_one_name_get_labels_of_their_own(write_run, tmp_path):
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
    page = report([write_run("one/tiny"), write_run("two/tiny")], tmp_path / "report.html").read_text()
    assert "one/tiny" in page and "two/tiny" in page


def test_runs_of_one_name_in_folders_of_one_name_are_numbered_once(write_run, tmp_path):
    for parent in ("here", "there"):
        (tmp_path / parent / "runs").mkdir(parents=True)
    runs = [write_run("here/runs/tiny"), write_run("there/runs/tiny")]
    text = words(report(runs, tmp_path / "report.html").read_text())
    assert "tiny (1)" in text and "tiny (2)" in text and "(1) (1)" not in text


def test_a_plateau_and_a_refused_export_are_said_first(write_run, tmp_path):
    text = words(report([write_run(floor=6.1, passed=False)], tmp_path / "report.html").read_text())
    assert "This encoder does not beat the unigram baseline" in text
    assert "Export refused: logits differ by 0.4" in text


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
    with pytest.raises(UserError, match="holds no recipe"):
        report([tmp_path], tmp_path / "report.html")
    with pytest.raises(UserError, match="is a folder"):
        report([write_run()], tmp_path)
    assert not (tmp_path / "report.html").exists()


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
    assert "bert-base, continued" in text
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
