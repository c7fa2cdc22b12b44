"""The figures about a text are the records, whatever they hold."""

from __future__ import annotations

import json
import math
import re

import plotly.graph_objects
import pytest
from fake_corpus import body_of, fake_corpus, run_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daybreak.reporting import corpus_figures, corpus_parts
from daybreak.reporting.corpus_tables import short_names
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


def figures(report: CorpusReport) -> dict[str, dict]:
    names = short_names([source.path for source in report.sources])
    found = {
        "went": corpus_figures.where_it_went(report),
        "lengths": corpus_figures.lengths(report.lengths),
        "compressibility": corpus_figures.compressibility(report.compressibility),
        "sources": corpus_figures.source_mix(report, names),
    }
    if report.advice is not None:
        found["vocabulary"] = corpus_figures.vocabulary_curve(report.advice, report.tokenizer)
    return found


@pytest.mark.parametrize(
    ("share", "told"), [(100.0, "100"), (99.99, "99.9"), (99.5, "99.5"), (99.4, "99"), (69.5, "70")]
)
def test_all_is_said_only_of_all(share: float, told: str):
    assert corpus_figures._whole(share) == told


def test_the_bars_are_the_records():
    found = figures(fake_corpus())
    went = {trace["name"]: trace["x"] for trace in found["went"]["data"]}
    assert went["kept"] == pytest.approx([69.5, 100 * 448 / 600])
    assert went["2. Gopher quality"] == pytest.approx([20.0, 100 * 50 / 600])
    assert sum(shares[0] for shares in went.values()) == pytest.approx(100)
    mix = {trace["name"]: trace["x"] for trace in found["sources"]["data"]}
    assert mix["1. a.jsonl"] == pytest.approx([100 * 4 / 6, 100 * 248 / 448, 100 * 248 / 648])
    assert mix["2. hf://owner/wiki:en"] == pytest.approx([100 * 2 / 6, 100 * 200 / 448, 100 * 400 / 648])


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
    assert "Of the documents kept here, 10.1 % are there." in body_of(fake_corpus())


def test_labels_below_a_long_histogram_stand_at_equal_distances():
    histogram = Histogram(edges=[2.0**n for n in range(31)], counts=[1] * 30)
    axis = corpus_figures.lengths(histogram)["layout"]["xaxis"]
    assert axis["tickvals"] == list(range(0, 31, 5)) and axis["ticktext"][2] == "1,024"


def test_an_edge_beside_the_line_gives_no_share():
    crossing = Histogram(edges=[0.0, 0.2, 0.3], counts=[5, 5])
    assert corpus_figures.incompressible(crossing) is None
    assert corpus_figures.incompressible(Histogram(edges=[0.25, 0.3], counts=[5])) == 1


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_half_of_the_documents_lie_below_the_median(counts):
    edges = [2.0**place for place in range(len(counts) + 1)]
    found = corpus_figures.median(corpus_figures.bins(Histogram(edges=edges, counts=counts)))
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
    assert {name: corpus_figures.spoken(name) for name in names} == names


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
    for page in (body_of(report), corpus_parts.the_text([run_of(report)])):
        for text in re.findall(r'<script type="application/json">(.*?)</script>', page):
            json.loads(text, parse_constant=lambda name: pytest.fail(name))
        for cell in re.findall(r'<td class="n">(.*?)</td>', page):
            assert not re.search(r"\b(nan|inf|None)\b", cell)


def on_the_page(plot: dict) -> dict:
    """The figure as the page holds it."""
    text = re.search(r'<script type="application/json">(.*?)</script>', corpus_parts.figure("t", "c", plot))
    return json.loads(text[1])


@settings(max_examples=15, deadline=None)
@example(fake_corpus())
@given(REPORTS)
def test_plotly_knows_every_property(report):
    for plot in figures(report).values():
        plain = re.sub(r"var\(--\w+\)", "#000000", json.dumps(on_the_page(plot)))
        plotly.graph_objects.Figure(json.loads(plain))
