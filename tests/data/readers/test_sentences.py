from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.data.readers.documents import Document
from daybreak.data.readers.sentences import split_sentences, with_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "Nobody came!", "Why?", "They stayed at home..."],
        ["Dr. Smith and Mrs. J. R. Jones met St. John at 3 p.m. on Jan. 5, 1999.", "It cost $3.50, e.g. a coffee."],
        ["See Fig. 3, Eq. 4 and vol. 2, pp. 7, i.e. the appendix.", "Smith et al. found none."],
        ["The U.S. Senate met.", "He lives in the U.S.", "There it is cold.", "She rose at 5 a.m.", "The day began."],
        ['"Why?" she asked.', '"Because."', "(He left.)", "[1] And so on."],
        ["So did I.", "We know no.", "He was there.", "Vitamin C is one, K. Marx another."],
        ["Version 1.2.3 is at www.example.org today.", "It runs.", "1. First point.", "2. Second point."],
        ["He bought Yahoo! in May.", "The answer was no.", "In 1999.", "Then it ended."],
        ["\u201cStop.\u201d", "\u2018Go!\u2019", "\u00abVraiment?\u00bb", "\u00c9cole est finie.", "\u0414\u0430."],
        ["\u4f60\u597d\u3002", "\u518d\u89c1\uff01"],
    ],
)
def test_sentences_come_back(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences
    assert split_sentences("\n".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["वह घर है।", "वह नदी है।"],
        ["كيف حالك؟!", "الحمد لله."],
        ["یہ گھر ہے\u06d4", "یہ دریا ہے\u06d4"],
        ["本当\uff01\uff1f", "「はい。」", "えっ\uff1f\uff1f\uff1f"],
    ],
)
def test_sentences_of_other_scripts_come_back(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_wrapped_lines_are_joined_and_blank_lines_part() -> None:
    text = "A Heading\n\nA sentence that\nis wrapped. Another\none.\n \n\nLast"
    assert split_sentences(text) == ["A Heading", "A sentence that is wrapped.", "Another one.", "Last"]
    assert split_sentences("") == split_sentences(" \n\n ") == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aB. !?\n\"'()1,\u2026\u3002Dr")))
def test_nothing_is_added_lost_or_moved_and_cutting_again_keeps_the_marks(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == " ".join(sentence.split()) != "" for sentence in sentences)


def test_a_long_text_takes_time_in_proportion() -> None:
    assert len(split_sentences("A sentence of five words. " * 20_000)) == 20_000
    assert len(split_sentences("..." * 100_000)) == 1
    assert len(split_sentences('"' * 100_000 + "a")) == 1


def test_documents_get_their_sentences() -> None:
    documents = [Document("One. Two\nlines. Three.", "a"), Document("One. Two.\nThree.", "b", ("One. Two.", "Three."))]
    first, second = with_sentences(documents)
    assert first == Document("One.\nTwo lines.\nThree.", "a", ("One.", "Two lines.", "Three."))
    assert second.sentences == ("One.", "Two.", "Three.")
