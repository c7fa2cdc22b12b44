"""The page about a text says what the records say, whatever they hold."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess

import pytest
from fake_corpus import body_of, fake_corpus, rows, run_of, step, words, write_data

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.reporting import corpus_figures, corpus_parts
from daybreak.reporting.corpus import corpus_page, is_data_folder, write_corpus_page
from daybreak.reporting.corpus_tables import short_names, sources_table
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_run
from daybreak.schemas.corpus import CorpusReport, DroppedText, Histogram

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NASTY = "<script>alert(1)</script>&\u202e"


def test_the_headline_says_how_much_and_what_was_left_out(tmp_path):
    text = words(corpus_page(write_data(tmp_path / "web", fake_corpus())))
    assert "695 documents with 4.48 million characters, 734 thousand words and 1.06 million tokens." in text
    assert (
        "Of 1,000 documents read, 30.5 % were left out, and with them 25.3 % of the characters, by the steps "
        "Gopher quality (20.0 %), Exact duplicates (10.0 %) and Near duplicates (0.5 %)."
    ) in text
    assert "Could not be used while reading: 311 too short." in text
    assert "1m 31s to prepare the text read 3 times" in text and "830 held out" in text


def test_nothing_left_out_is_said():
    report = dataclasses.replace(fake_corpus(), steps=[])
    assert corpus_parts.sentence(report).endswith("Nothing was looked for that could have been left out.")
    idle = dataclasses.replace(report, steps=[step("duplicates", (695, 4_480_000), (695, 4_480_000))])
    assert corpus_parts.sentence(idle).endswith("No document was left out.")
    one = dataclasses.replace(report, steps=[step("duplicates", (700, 4_500_000), (695, 4_480_000))])
    assert corpus_parts.sentence(one).endswith("0.4 % of the characters, all by duplicates.")


def test_each_step_has_its_row():
    first, second, third = rows(corpus_parts.steps(fake_corpus()))
    assert first[1:] == ["the same text: 100", "100", "10.0 %", "16.7 %", "900"]
    assert second[1:] == ["too few words: 150 too many symbols: 50", "200", "22.2 %", "10.0 %", "700"]
    assert third == [
        "Near duplicates What NearDuplicates is for; reads the text once more",
        "-",
        "5",
        "0.7 %",
        "0.4 %",
        "695",
    ]


def test_many_reasons_are_summed_up():
    reasons = {f"reason {place}": 10 - place for place in range(10)}
    report = dataclasses.replace(fake_corpus(), steps=[step("many", (100, 100), (45, 50), reasons=reasons)])
    told = rows(corpus_parts.steps(report))[0][1]
    assert told.startswith("reason 0: 10 reason 1: 9") and told.endswith("reason 5: 5 4 further reasons: 10")


def test_colours_are_named_beside_the_bars():
    steps, mix = corpus_parts.steps(fake_corpus()), corpus_parts.sources(fake_corpus())
    names = re.findall(r'<i class="dot" style="--c:(#\w+)"></i>(.*?)</span>', steps + mix)
    assert [name for _, name in names[:4]] == ["kept", "1. Exact duplicates", "2. Gopher quality", "3. Near duplicates"]
    assert [name for _, name in names[4:]] == ["1. a.jsonl", "2. hf://owner/wiki:en"]
    assert len({tint for tint, _ in names[:4]}) == 4 and len({tint for tint, _ in names[4:]}) == 2


def test_sources_tell_what_they_lost_and_what_they_weigh():
    first, second = rows(sources_table(fake_corpus()))
    assert first == ["a.jsonl", "800", "38.1 %", "4.00 million", "38.0 %", "1.00", "38.3 %"]
    assert second == ["hf://owner/wiki:en", "200", "0.0 %", "2.00 million", "0.0 %", "2.00", "61.7 %"]
    single = dataclasses.replace(fake_corpus(), sources=fake_corpus().sources[:1])
    assert rows(sources_table(single)) == [["a.jsonl", "800", "38.1 %", "4.00 million", "38.0 %", "100.0 %"]]


def test_very_many_sources_are_cut_short():
    one = fake_corpus().sources[0]
    many = [dataclasses.replace(one, path=f"/home/someone/{place}.txt") for place in range(5_000)]
    report = dataclasses.replace(fake_corpus(), sources=many)
    page = corpus_parts.sources(report)
    assert len(rows(page)) == 213 and "and 4,788 not shown" in page and len(page) < 200_000
    assert len(corpus_figures.source_mix(report, short_names([s.path for s in many]))["data"]) == 11


def test_names_are_no_longer_than_they_must_be():
    assert short_names(["/home/me/a.txt", "b.txt", "hf://x/y"]) == ["a.txt", "b.txt", "hf://x/y"]
    assert short_names(["/home/me/a/x.txt", "/home/me/b/x.txt"]) == ["a/x.txt", "b/x.txt"]
    assert short_names(["/me/x.txt", "/me/x.txt"]) == ["x.txt", "x.txt"]
    assert short_names(["-"]) == ["standard input"] and short_names([]) == []


def test_contamination_says_what_was_done():
    removed, reported = rows(corpus_parts.contamination(fake_corpus()))
    assert removed == ["rte.txt", "documents removed", "2,000", "31", "1.6 %", "12"]
    assert reported == ["cola.txt", "only reported", "900", "9", "1.0 %", "4"]
    none = dataclasses.replace(fake_corpus(), contamination=[])
    assert "none was looked for" in corpus_parts.contamination(none)


def test_the_recommended_vocabulary_is_marked():
    report = fake_corpus()
    plot = corpus_figures.vocabulary_curve(report.advice, report.tokenizer)
    found = {trace["name"]: trace["x"] for trace in plot["data"]}
    assert found["recommended"] == [16_384] and found["the tokenizer of this data"] == [8_192]
    assert found["a vocabulary made from this text"] == [2**n for n in range(11, 17)]
    table = rows(corpus_parts.tokenizer(fake_corpus()))
    assert [row[0] for row in table if row[0] != "another size"] == ["this tokenizer", "recommended"]
    assert table[0][1:] == ["8,192", "4.02", "1.52", "71.0 %", "< 0.1 %", "100.0 %"]
    plain = dataclasses.replace(fake_corpus(), tokenizer=None, advice=None)
    assert corpus_parts.tokenizer(plain) == ""


def test_duplicates_and_shares_have_their_cards():
    text = words(corpus_parts.documents(fake_corpus()))
    assert "Exact duplicates 100 documents (10.0 %), 16.7 % of the characters" in text
    assert "Near duplicates 5 documents (0.7 %)" in text and "Gopher" not in text
    assert "Latin 97 % Greek 3.0 % Han < 0.1" in text and "en 90 % fi 10 %" in text
    mute = dataclasses.replace(fake_corpus(), languages={}, steps=[])
    text = words(corpus_parts.documents(mute))
    assert "no model for it was given" in text and "No step looked for them." in text


def test_examples_stand_behind_a_title_and_are_escaped():
    page = corpus_parts.steps(fake_corpus())
    assert "<summary>Left out by Gopher quality: 1 example</summary>" in page and "Log in\n\nSign up" in page
    steps = [step("evil", (9, 9), (1, 1), examples=[DroppedText(reason=NASTY, text=NASTY * 1_000)] * 90)]
    page = corpus_parts.steps(dataclasses.replace(fake_corpus(), steps=steps))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and len(page) < 100_000
    mute = [dataclasses.replace(one, examples=[]) for one in steps]
    assert "<details>" not in corpus_parts.steps(dataclasses.replace(fake_corpus(), steps=mute))


def test_hostile_names_are_only_text():
    report = fake_corpus()
    evil = dataclasses.replace(
        report, preset=NASTY, steps=[step(NASTY, (9, 9), (1, 1), why=NASTY, reasons={NASTY: 8})],
        sources=[dataclasses.replace(source, path=NASTY + source.path) for source in report.sources],
        contamination=[dataclasses.replace(one, path=NASTY) for one in report.contamination],
        scripts={NASTY: 0.5}, languages={NASTY: 0.5}, advice=dataclasses.replace(report.advice, why=NASTY),
    )  # fmt: skip
    page = body_of(evil)
    assert "alert(1)" in page
    page = re.sub(
        r"<script type=\"application/json\">[^<]*</script>", "", page.replace(corpus_parts.sentence(evil), "")
    )
    assert "<script" not in page


def test_a_data_folder_makes_one_file_that_loads_nothing(tmp_path):
    folder = write_data(tmp_path / "web", fake_corpus())
    assert is_data_folder(folder) and not is_data_folder(tmp_path) and not is_data_folder(tmp_path / "absent")
    page = write_corpus_page(folder, tmp_path / "deep" / "corpus.html").read_text()
    assert "<h1>web<small>prepared as web</small></h1>" in page and "default-src 'none'" in page
    assert "refresh" not in page[: page.index("<style>")] and "/home/someone" not in page
    for part in ("What was left out", "The documents", "Sources", "Evaluation text in it", "The tokenizer"):
        assert f"<h2>{part}</h2>" in page


def test_what_is_no_data_folder_is_said(tmp_path):
    for folder, sentence in ((tmp_path / "absent", "does not exist"), (tmp_path, "holds no manifest.json")):
        with pytest.raises(UserError, match=sentence):
            corpus_page(folder)
    old = write_data(tmp_path / "old", fake_corpus())
    (old / "corpus.json").unlink()
    with pytest.raises(UserError, match="an earlier version prepared it"):
        write_corpus_page(old, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()
    (old / "corpus.json").write_text('{"case": 3')
    with pytest.raises(UserError, match="cannot be read as JSON"):
        corpus_page(old)
    with pytest.raises(UserError, match="is a folder"):
        write_corpus_page(old, tmp_path)


def test_half_a_character_in_a_file_name_can_be_written(tmp_path):
    sources = [dataclasses.replace(fake_corpus().sources[0], path="caf\udce9.txt")]
    folder = write_data(tmp_path / "web", fake_corpus())
    plain = json.loads((folder / "corpus.json").read_text()) | {"sources": [dataclasses.asdict(sources[0])]}
    (folder / "corpus.json").write_text(json.dumps(plain))
    assert "caf?.txt" in write_corpus_page(folder, tmp_path / "out.html").read_text()


@pytest.mark.parametrize("place", ["corpus.json", "data/corpus.json"])
def test_the_report_of_a_run_tells_of_its_text(write_run, place):
    run = write_run()
    assert read_run(run).corpus is None and "The text</h2>" not in render_page([read_run(run)])
    (run / "data").mkdir()
    write_json(run / place, fake_corpus())
    page = render_page([read_run(run)])
    section = page[page.index("<h2>The text</h2>") :].split("</section>")[0]
    assert "Gopher quality" in section and "hf://owner/wiki:en" in section and "Lengths" in section
    assert "Latin" in section and "Sign up" not in page and "/home/someone" not in page


def test_runs_on_one_text_share_the_section_and_others_have_their_own():
    shared = corpus_parts.the_text([run_of(fake_corpus(), "a"), run_of(fake_corpus(), "b"), run_of(None, "c")])
    assert re.findall("<summary>(.*?)</summary>", shared) == ["Numbers"]
    assert shared.count("Gopher quality<small>") == 1 and "Lengths" in shared
    other = dataclasses.replace(fake_corpus(), documents=1)
    apart = corpus_parts.the_text([run_of(fake_corpus(), "a"), run_of(other, "b"), run_of(fake_corpus(), "c")])
    assert re.findall("<summary>(.*?)</summary>", apart) == ["a, c", "b"] and "plot" not in apart
    assert corpus_parts.the_text([run_of(None)]) == ""


def test_an_empty_report_makes_a_page(tmp_path):
    nothing = Histogram(edges=[], counts=[])
    empty = CorpusReport(
        case="plain", documents=0, characters=0, words=0, tokens=0, seconds=math.nan, steps=[], sources=[],
        lengths=nothing, compressibility=nothing, scripts={},
    )  # fmt: skip
    text = words(corpus_page(write_data(tmp_path / "empty", empty)))
    assert "0 documents with 0 characters" in text and "nan" not in text.lower().split()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_every_plot_is_drawn_without_complaint(tmp_path):
    page = write_corpus_page(write_data(tmp_path / "web", fake_corpus()), tmp_path / "corpus.html")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=8000"]
    command += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr[-2000:]
    plots = re.findall(r'<div class="plot.*?<script type="application/json">', done.stdout, re.DOTALL)
    assert len(plots) == 5 and all("main-svg" in plot for plot in plots)
    assert "recommended" in plots[4] and "half are shorter" in plots[1]
