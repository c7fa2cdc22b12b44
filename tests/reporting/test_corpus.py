"""The page about a text says what the records say, whatever they hold."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import plotly.graph_objects
import pytest
from fake_corpus import body_of, fake_corpus, html_of, rows, run_of, step, words, write_data
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.reporting import corpus
from daybreak.reporting.blocks import figure
from daybreak.reporting.corpus import corpus_page, is_data_folder, short_names, sources_table
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_run
from daybreak.schemas.corpus import (
    Contamination,
    CorpusReport,
    DroppedText,
    Histogram,
    SourceReport,
    StepReport,
    TokenizerQuality,
    VocabularyAdvice,
)

NASTY = "<script>alert(1)</script>&\u202e"


def test_the_headline_says_how_much_and_what_was_left_out(tmp_path):
    text = words(corpus_page(write_data(tmp_path / "web", fake_corpus())))
    assert "695 documents with 4.48 million characters, 734 thousand words and 1.06 million tokens." in text
    assert (
        "Of 1,000 documents read, 30.5 % were removed, with 25.3 % of the characters, by the filters "
        "Gopher quality (20.0 %), Exact duplicates (10.0 %) and Near duplicates (0.5 %)."
    ) in text
    assert "Skipped while reading: 311 too short." in text
    assert "1m 31s to prepare in 3 passes over the text" in text and "830 held out" in text


def test_nothing_left_out_is_said():
    report = dataclasses.replace(fake_corpus(), steps=[])
    assert corpus.sentence(report).endswith("No filter was applied.")
    idle = dataclasses.replace(report, steps=[step("duplicates", (695, 4_480_000), (695, 4_480_000))])
    assert corpus.sentence(idle).endswith("No document was removed.")
    one = dataclasses.replace(report, steps=[step("duplicates", (700, 4_500_000), (695, 4_480_000))])
    assert corpus.sentence(one).endswith("0.4 % of the characters, by duplicates.")


def test_each_step_has_its_row():
    first, second, third = rows(corpus.steps(fake_corpus()))
    assert first[1:] == ["the same text: 100", "100", "10.0 %", "16.7 %", "900"]
    assert second[1:] == ["too few words: 150 too many symbols: 50", "200", "22.2 %", "10.0 %", "700"]
    assert third == [
        "Near duplicates What NearDuplicates is for; further passes over the text: 1",
        "-",
        "5",
        "0.7 %",
        "0.4 %",
        "695",
    ]


def test_many_reasons_are_summed_up():
    reasons = {f"reason {place}": 10 - place for place in range(10)}
    report = dataclasses.replace(fake_corpus(), steps=[step("many", (100, 100), (45, 50), reasons=reasons)])
    told = rows(corpus.steps(report))[0][1]
    assert told.startswith("reason 0: 10 reason 1: 9") and told.endswith("reason 5: 5 4 further reasons: 10")


def test_sources_tell_what_they_lost_and_what_they_weigh():
    first, second = rows(*sources_table(fake_corpus()))
    assert first == ["a.jsonl", "800", "38.1 %", "4.00 million", "38.0 %", "1.00", "38.3 %"]
    assert second == ["hf://owner/wiki:en", "200", "0.0 %", "2.00 million", "0.0 %", "2.00", "61.7 %"]
    single = dataclasses.replace(fake_corpus(), sources=fake_corpus().sources[:1])
    assert rows(*sources_table(single)) == [["a.jsonl", "800", "38.1 %", "4.00 million", "38.0 %", "100.0 %"]]


def test_very_many_sources_are_cut_short():
    one = fake_corpus().sources[0]
    many = [dataclasses.replace(one, path=f"/home/someone/{place}.txt") for place in range(5_000)]
    report = dataclasses.replace(fake_corpus(), sources=many)
    section = corpus.sources(report)
    assert len(rows(section)) == corpus.SOURCES_SHOWN and "and 4,800 not shown" in words(section)


def test_names_are_no_longer_than_they_must_be():
    assert short_names(["/home/me/a.txt", "b.txt", "hf://x/y"]) == ["a.txt", "b.txt", "hf://x/y"]
    assert short_names(["/home/me/a/x.txt", "/home/me/b/x.txt"]) == ["a/x.txt", "b/x.txt"]
    assert short_names(["/me/x.txt", "/me/x.txt"]) == ["x.txt", "x.txt"]
    assert short_names(["-"]) == ["standard input"] and short_names([]) == []


def test_contamination_says_what_was_done():
    removed, reported = rows(corpus.contamination(fake_corpus()))
    assert removed == ["rte.txt", "documents removed", "2,000", "31", "1.6 %", "12"]
    assert reported == ["cola.txt", "only reported", "900", "9", "1.0 %", "4"]
    none = dataclasses.replace(fake_corpus(), contamination=[])
    assert "none was searched for" in words(corpus.contamination(none))


def test_the_recommended_vocabulary_is_marked():
    table = rows(corpus.tokenizer(fake_corpus()))
    assert [row[0] for row in table if row[0] != "another size"] == ["this tokenizer", "recommended"]
    assert table[0][1:] == ["8,192", "4.02", "1.52", "71.0 %", "< 0.1 %", "100.0 %"]
    plain = dataclasses.replace(fake_corpus(), tokenizer=None, advice=None)
    assert corpus.tokenizer(plain) is None


def test_fractions_have_their_cards():
    text = words(corpus.documents(fake_corpus()))
    assert "Latin 97 % Greek 3.0 % Han < 0.1" in text and "en 90 % fi 10 %" in text
    mute = dataclasses.replace(fake_corpus(), languages={})
    assert "no language model was given" in words(corpus.documents(mute))


def test_examples_stand_behind_a_title_and_are_escaped():
    page = html_of(corpus.steps(fake_corpus()))
    assert "<summary>Removed by Gopher quality: 1 example</summary>" in page and "Log in\n\nSign up" in page
    steps = [step("evil", (9, 9), (1, 1), examples=[DroppedText(reason=NASTY, text=NASTY * 1_000)] * 90)]
    page = html_of(corpus.steps(dataclasses.replace(fake_corpus(), steps=steps)))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and len(page) < 100_000
    mute = [dataclasses.replace(one, examples=[]) for one in steps]
    assert "<details>" not in html_of(corpus.steps(dataclasses.replace(fake_corpus(), steps=mute)))


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
    page = re.sub(r"<script type=\"application/json\">[^<]*</script>", "", page.replace(corpus.sentence(evil), ""))
    assert "<script" not in page


def test_a_data_folder_makes_one_file_that_loads_nothing(tmp_path):
    folder = write_data(tmp_path / "web", fake_corpus())
    assert is_data_folder(folder) and not is_data_folder(tmp_path) and not is_data_folder(tmp_path / "absent")
    page = corpus_page(folder)
    assert "<h1>web<small>prepared with the preset web</small></h1>" in page and "default-src 'none'" in page
    assert "refresh" not in page[: page.index("<style>")] and "/home/someone" not in page
    for part in ("What was removed", "Documents", "Sources", "Contamination with evaluation text", "Tokenizer"):
        assert f"<h2>{part}</h2>" in page


def test_a_folder_without_its_report_is_refused(tmp_path):
    old = write_data(tmp_path / "old", fake_corpus())
    (old / "corpus.json").unlink()
    with pytest.raises(UserError, match="an earlier version prepared it"):
        corpus_page(old)
    (old / "corpus.json").write_text('{"case": 3')
    with pytest.raises(UserError, match="cannot be read as JSON"):
        corpus_page(old)


def test_half_a_character_in_a_file_name_can_be_written(tmp_path):
    sources = [dataclasses.replace(fake_corpus().sources[0], path="caf\udce9.txt")]
    folder = write_data(tmp_path / "web", fake_corpus())
    plain = json.loads((folder / "corpus.json").read_text()) | {"sources": [dataclasses.asdict(sources[0])]}
    (folder / "corpus.json").write_text(json.dumps(plain))
    assert b"caf?.txt" in corpus_page(folder).encode()


@pytest.mark.parametrize("place", ["corpus.json", "data/corpus.json"])
def test_the_report_of_a_run_tells_of_its_text(write_run, place):
    run = write_run()
    assert read_run(run).corpus is None and "Training text</h2>" not in render_page([read_run(run)])
    (run / "data").mkdir()
    write_json(run / place, fake_corpus())
    page = render_page([read_run(run)])
    section = page[page.index("<h2>Training text</h2>") :].split("</section>")[0]
    assert "Gopher quality" in section and "hf://owner/wiki:en" in section and "Lengths" in section
    assert "Latin" in section and "Sign up" not in page and "/home/someone" not in page


def test_runs_on_one_text_share_the_section_and_others_have_their_own():
    shared = html_of(corpus.training_text([run_of(fake_corpus(), "a"), run_of(fake_corpus(), "b"), run_of(None, "c")]))
    assert re.findall("<summary>(.*?)</summary>", shared) == ["Numbers"]
    assert shared.count("Gopher quality<small>") == 1 and "Lengths" in shared
    other = dataclasses.replace(fake_corpus(), documents=1)
    apart = html_of(corpus.training_text([run_of(fake_corpus(), "a"), run_of(other, "b"), run_of(fake_corpus(), "c")]))
    assert re.findall("<summary>(.*?)</summary>", apart) == ["a, c", "b"] and "plot" not in apart
    assert corpus.training_text([run_of(None)]) is None


def test_an_empty_report_makes_a_page(tmp_path):
    nothing = Histogram(edges=[], counts=[])
    empty = CorpusReport(
        preset="plain", documents=0, characters=0, words=0, tokens=0, seconds=math.nan, steps=[], sources=[],
        lengths=nothing, compressibility=nothing, scripts={},
    )  # fmt: skip
    text = words(corpus_page(write_data(tmp_path / "empty", empty)))
    assert "0 documents with 0 characters" in text and "nan" not in text.lower().split()


# ---------------------------------------------------------------- figures


def figures(report: CorpusReport) -> dict[str, dict]:
    return {
        "lengths": corpus.lengths(report.lengths),
        "compressibility": corpus.compressibility(report.compressibility),
    }


def test_the_histograms_are_the_records():
    found = figures(fake_corpus())
    (bars,) = found["lengths"]["data"]
    assert bars["y"] == pytest.approx([100 * part / 695 for part in (95, 100, 300, 200)])
    assert bars["hovertext"][0] == "64 to 128 characters: 95 documents, 14 %"
    assert found["lengths"]["layout"]["xaxis"]["ticktext"] == ["64", "128", "256", "512", "1,024"]
    (bars,) = found["compressibility"]["data"]
    assert bars["x"] == pytest.approx([0.175, 0.225, 0.275]) and bars["width"] == pytest.approx([0.05] * 3)
    assert bars["hovertext"][2] == "0.25 or more tokens per character: 70 documents, 10 %"
    assert found["compressibility"]["layout"]["shapes"][0]["x0"] == 0.25
    assert "Here 10.1 % of the kept documents are at or above it." in body_of(fake_corpus())


def test_labels_below_a_long_histogram_stand_at_equal_distances():
    histogram = Histogram(edges=[2.0**n for n in range(31)], counts=[1] * 30)
    axis = corpus.lengths(histogram)["layout"]["xaxis"]
    assert axis["tickvals"] == list(range(0, 31, 5)) and axis["ticktext"][2] == "1,024"


def test_an_edge_beside_the_line_gives_no_fraction():
    crossing = Histogram(edges=[0.0, 0.2, 0.3], counts=[5, 5])
    assert corpus.incompressible(crossing) is None
    assert corpus.incompressible(Histogram(edges=[0.25, 0.3], counts=[5])) == 1


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_half_of_the_documents_lie_below_the_median(counts):
    edges = [2.0**place for place in range(len(counts) + 1)]
    found = corpus.median(corpus.bins(Histogram(edges=edges, counts=counts)))
    if not any(counts):
        assert found is None
        return
    _, value = found
    whole = sum(counts)
    inside = [count for low, count in zip(edges, counts) if value > low]
    below = sum(inside[:-1]) if inside else 0
    assert 2 * below <= whole <= 2 * (below + (inside[-1] if inside else counts[0])) or value in edges


def test_steps_are_named_in_words():
    names = {"NearDuplicates": "Near duplicates", "FineWebQuality": "FineWeb quality", "C4Quality": "C4 quality"}
    names |= {"Language": "Language", "in words": "in words", "": ""}
    assert {name: corpus.step_name(name) for name in names} == names


NUMBER = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf, 0.25, 5e-324])
SIZE = st.integers(0, 1 << 60)
NAME = st.text(max_size=8) | st.sampled_from([NASTY, "%{y}", "a/b", "MinHash"])
NAMED_SHARES = st.dictionaries(NAME, NUMBER, max_size=4)
RISING = st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=5, unique=True).map(sorted)
HISTOGRAMS = st.builds(
    Histogram, edges=RISING | st.lists(NUMBER, max_size=5), counts=st.lists(SIZE, min_size=1, max_size=4)
)
DROPPED = st.lists(st.builds(DroppedText, reason=NAME, text=NAME), max_size=2)
STEPS = st.builds(
    StepReport, name=NAME, why=NAME, passes=st.integers(0, 3), documents_in=SIZE, documents_out=SIZE,
    characters_in=SIZE, characters_out=SIZE, reasons=st.dictionaries(NAME, SIZE, max_size=8), examples=DROPPED,
)  # fmt: skip
SOURCES = st.builds(
    SourceReport, path=NAME, documents=SIZE, characters=SIZE, kept_documents=SIZE, kept_characters=SIZE, epochs=NUMBER
)
FOUND = st.builds(Contamination, path=NAME, items=SIZE, items_found=SIZE, documents=SIZE, removed=st.booleans())
QUALITY = st.builds(
    TokenizerQuality, vocabulary=SIZE, characters=SIZE, tokens_per_word=NUMBER, characters_per_token=NUMBER,
    whole_words=NUMBER, unknown_tokens=NUMBER, covered_words=NUMBER,
)  # fmt: skip
ADVICE = st.builds(VocabularyAdvice, sizes=st.lists(QUALITY, max_size=4), recommended=SIZE, why=NAME)
REPORTS = st.builds(
    CorpusReport, preset=NAME, documents=SIZE, characters=SIZE, words=SIZE, tokens=SIZE, seconds=NUMBER,
    steps=st.lists(STEPS, max_size=3), sources=st.lists(SOURCES, max_size=3), lengths=HISTOGRAMS,
    compressibility=HISTOGRAMS, scripts=NAMED_SHARES, languages=NAMED_SHARES,
    contamination=st.lists(FOUND, max_size=2), tokenizer=st.none() | QUALITY, advice=st.none() | ADVICE,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(REPORTS)
def test_wild_records_make_a_sound_page(report):
    for page in (body_of(report), html_of(corpus.training_text([run_of(report)]))):
        for text in re.findall(r'<script type="application/json">(.*?)</script>', page):
            json.loads(text, parse_constant=lambda name: pytest.fail(name))
        for cell in re.findall(r'<td class="n">(.*?)</td>', page):
            assert not re.search(r"\b(nan|inf|None)\b", cell)


def on_the_page(plot: dict) -> dict:
    """The figure as the page holds it."""
    return json.loads(figure("t", "c", plot).content["data"])


@settings(max_examples=15, deadline=None)
@example(fake_corpus())
@given(REPORTS)
def test_plotly_knows_every_property(report):
    for plot in figures(report).values():
        plain = re.sub(r"var\(--\w+\)", "#000000", json.dumps(on_the_page(plot)))
        plotly.graph_objects.Figure(json.loads(plain))
