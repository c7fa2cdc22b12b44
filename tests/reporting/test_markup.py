"""Text is always escaped, markup never twice."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from daybreak.reporting.markup import Markup, escape, facts, table, tag


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, name, attributes):
        self.tags.append(name)

    def handle_data(self, data):
        self.text += data


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_any_text_stays_text(text):
    reader = Reader()
    reader.feed(tag("p", text, title=text))
    reader.close()
    assert reader.tags == ["p"] and reader.text == text


def test_markup_passes_through_once():
    inner = tag("b", "a < b")
    assert tag("p", inner) == "<p><b>a &lt; b</b></p>"
    assert escape(Markup("<i>")) == "<i>"


def test_attribute_names():
    assert tag("i", class_="x", aria_label="y") == '<i class="x" aria-label="y"></i>'


def test_numbers_stand_on_the_right():
    made = table(("x", "y"), [("a", 1), ("", 2)])
    assert '<th class="w" scope="row">a</th><td class="n">1</td>' in made
    assert '<td class="w"></td><td class="n">2</td>' in made


def test_unknown_facts_are_left_out():
    assert "Commit" not in facts({"Commit": None, "Cores": "2"})
