from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_texts import small_text

from daybreak.core.errors import UserError
from daybreak.data.filters import quality_filters
from daybreak.data.filters.filter import Context
from daybreak.data.filters.quality_filters import (
    C4Quality,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    QualityFilter,
)

FILTERS = (GopherRepetition(), GopherQuality(), C4Quality(), C4Quality(end_marks=True), FineWebQuality())
WILD = st.text(st.characters() | st.sampled_from(" \n#.\u2026-{a\u4f60\x85\u2028"), min_size=1)


def reference(step: QualityFilter) -> Callable[[str], str | None]:
    """datatrove's own class, its settings written out here, asked as its pipelines ask it."""
    from datatrove.data import Document
    from datatrove.pipeline import filters
    from datatrove.pipeline.filters.base_filter import get_filter_result

    from daybreak.data.filters.quality_filters import datatrove_words

    words = datatrove_words()
    made = {
        GopherRepetition(): lambda: filters.GopherRepetitionFilter(language=words),
        GopherQuality(): lambda: filters.GopherQualityFilter(language=words),
        C4Quality(): lambda: filters.C4QualityFilter(filter_no_terminal_punct=False, language=words),
        C4Quality(end_marks=True): lambda: filters.C4QualityFilter(language=words),
        FineWebQuality(): lambda: filters.FineWebQualityFilter(language=words),
    }[step]()

    def evaluate(text: str) -> str | None:
        kept, why = get_filter_result(made.filter(Document(text=text, id="0")))
        return None if kept else why

    return evaluate


def documents() -> list[str]:
    """Prose, and prose spoilt in the ways that the filters look for."""
    rng = random.Random(1)
    found = []
    for number in range(12):
        prose = small_text(rng, 12).replace(" .", ".")
        lines = prose.replace(". ", ".\n")
        words = prose.split()
        found += [
            prose,
            lines,
            " ".join(words[:30]),
            "\n".join(words),
            "\n".join(f"- {word} {word}" for word in words),
            prose + "\n" + prose,
            lines + "\n" + lines + "\n\n" + lines,
            lines.replace(".", "..."),
            lines.replace(".", ""),
            prose.replace("the", "#"),
            "\n\n".join([words[number]] * 80),
            prose + " {",
            prose + " Lorem ipsum dolor.",
            lines.replace("the ", "javascript "),
            " ".join(str(rng.randrange(10**6)) for _ in range(80)),
            " ".join(word * 4 for word in words),
            " ".join(rng.choices("abcdefgh", k=200)),
        ]
    return found


@pytest.mark.parametrize("step", FILTERS, ids=lambda step: f"{step.name}-{getattr(step, 'end_marks', '')}")
def test_a_verdict_is_that_of_datatrove(step: QualityFilter) -> None:
    pytest.importorskip("datatrove")
    evaluate, theirs = step.open(Context()), reference(step)
    reasons = {theirs(text) for text in documents()}
    assert [evaluate(text) for text in documents()] == [theirs(text) for text in documents()]
    assert None in reasons and len(reasons) >= 3

    @settings(max_examples=60, deadline=None)
    @given(WILD.filter(str.strip))
    def wild(text: str) -> None:
        assert evaluate(text) == theirs(text)

    wild()


def test_the_text_stays_as_it_is_and_only_its_beginning_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datatrove")
    monkeypatch.setattr(quality_filters, "LONGEST_FILTERED", 5000)
    prose = small_text(random.Random(2), 40).replace(" . ", ".\n")
    evaluate = C4Quality().open(Context())
    assert evaluate(prose + "\nPlease read our privacy policy today.") is None  # C4 would take that line out
    assert evaluate(prose + " {") == "curly_bracket"
    assert len(prose) < 5000 and evaluate(prose + "\n" + prose + "\n" + prose + " {") is None


def test_limits_can_be_moved() -> None:
    pytest.importorskip("datatrove")
    text = small_text(random.Random(3), 2)
    assert GopherQuality().open(Context())(text) == "gopher_short_doc"
    assert GopherQuality(fewest_words=5).open(Context())(text) is None
    german = "Kinder spielen heute lange draussen beim Fluss neben alten Mauern"
    assert GopherQuality(fewest_words=5).open(Context())(german) == "gopher_enough_stop_words"
    assert GopherQuality(fewest_words=5, stop_words=0).open(Context())(german) is None
    long = "the old man and " * 30_000
    assert GopherQuality().open(Context())(long) == "gopher_long_doc"
    assert GopherQuality(most_words=0).open(Context())(long) is None
    with pytest.raises(UserError, match="words is not possible"):
        GopherQuality(fewest_words=0)
    lines = small_text(random.Random(4), 12).replace(" . ", "\n")
    assert FineWebQuality().open(Context())(lines) == "line_punct_ratio"
    assert FineWebQuality(ended_lines=0).open(Context())(lines) is None
    twice = "\n".join(line for line in lines.split("\n") for _ in range(2))
    assert GopherRepetition().open(Context())(twice) == "dup_line_frac"
    assert GopherRepetition(lines=0.6).open(Context())(twice) == "dup_line_char_frac"


def test_the_library_is_named_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("datatrove", "datatrove.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"The filter C4Quality needs datatrove, which is not.*pip install 'datatrove"):
        C4Quality().open(Context())
