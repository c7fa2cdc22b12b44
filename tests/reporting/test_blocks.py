"""Blocks as HTML and as Markdown, which markdown-it reads as GitHub would."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from fake_corpus import fake_corpus, html_of, write_data
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.blocks import (
    Block,
    bold,
    code,
    document,
    facts,
    figure,
    fold,
    header,
    join,
    note,
    section,
    small,
    table,
    tiles,
)

READER = MarkdownIt("commonmark").enable("table")
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30)


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def markdown(*blocks: Block) -> str:
    """The blocks as Markdown, without the last line of the page."""
    return document("", blocks, "", form="md").rpartition("Made by")[0]


def said(tokens: list[Token]) -> list[str]:
    """The text of each inline piece, without marks."""
    inline = [token for token in tokens if token.type == "inline"]
    return ["".join(child.content for child in token.children or []) for token in inline]


@given(TEXT)
@example("1. no item")
@example("# no heading | *no* stress <b> ~~gone~~ [no](link) `code`")
@example("- no item")
@example("<!-- -->")
@example("&lt;b&gt; or &nbsp; & more")
@example("print () and f ( x ) ****")
def test_any_text_stays_text(text: str) -> None:
    found = READER.parse(markdown(note(text)))
    wanted = one_line(text)
    assert said(found) == ([wanted] if wanted else [])
    assert {token.type for token in found} <= {"paragraph_open", "inline", "paragraph_close"}


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_any_cell_stays_in_its_column(rows: list[tuple[str, str]]) -> None:
    found = READER.parse(markdown(table(("a", "b"), rows)))
    assert found[0].type == "table_open"
    assert said(found) == ["a", "b", *[one_line(cell) for row in rows for cell in row]]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_any_text_stays_text_in_html(text: str) -> None:
    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)

        def handle_data(self, data):
            texts.append(data)

    tags: list[str] = []
    texts: list[str] = []
    reader = Reader()
    reader.feed(html_of(note(bold(text))))
    reader.close()
    assert tags == ["p", "b"] and "".join(texts).removesuffix("\n") == text


def test_pieces_of_a_page() -> None:
    plot = figure("Loss", "falls", {"layout": {"height": 300}, "data": []})
    page = markdown(
        header("Report", "tiny", "a run", "It works.", tiles([("4.5", "nats", "below"), ("2", "runs", "so far")])),
        section("Plots", plot),
        section("Words", note("A note."), code("a < b\n  c")),
        fold("my_run <b", code("```\ncode")),
        fold("More", table(("Run", "Loss"), [("a", join("1.0", small("low")))])),
        facts({"Cores": "2", "Commit": None}),
    )
    assert page == (
        "Report\n\n# tiny (a run)\n\nIt works.\n\n- **4.5** nats (below)\n- **2** runs (so far)\n\n"
        "## Words\n\nA note.\n\n```\na < b\n  c\n```\n\n"
        "<details><summary>my_run &lt;b</summary>\n\n````\n```\ncode\n````\n\n</details>\n\n"
        "<details><summary>More</summary>\n\n| Run | Loss |\n| --- | ---: |\n| a | 1.0 (low) |\n\n</details>\n\n"
        "- Cores: 2\n\n"
    )


def test_numbers_stand_on_the_right() -> None:
    made = html_of(table(("x", "y"), [("a", 1), ("", 2)]))
    assert '<th class="w" scope="row">a</th><td class="n">1</td>' in made
    assert '<td class="w"></td><td class="n">2</td>' in made


def test_a_run_says_the_same_in_both_forms(write_run, tmp_path) -> None:
    runs = [write_run("one"), write_run("two", seed=2)]
    page = report(runs, tmp_path / "r.html").read_text()
    found = report(runs, tmp_path / "r.md", form="md").read_text()
    assert "plotly" not in found and "<script" not in found and len(found) < 60_000
    plain = re.sub(r"<(figure|script|style|nav|head|noscript).*?</\1>", " ", page, flags=re.DOTALL)
    for row in re.findall(r"<tr>.*?</tr>", plain, flags=re.DOTALL):
        numbers = re.findall(r">\s*([\d.,]+)\s*<", row)
        assert all(number in found for number in numbers), row
    tables = [token for token in READER.parse(found) if token.type == "table_open"]
    assert len(tables) == plain.count("<table>")


@pytest.mark.parametrize("form", ["html", "md"])
def test_no_text_leaves_out_what_quotes_it(form: str, write_run, tmp_path) -> None:
    run = write_run()
    quoted = read_json(RunFolder(run).examples)[0]["text"].split("[MASK]")[0].strip()
    with_text = report([run], tmp_path / "with", form=form).read_text()
    without = report([run], tmp_path / "without", form=form, text=False).read_text()
    assert quoted and quoted in with_text and quoted not in without
    assert "Fill-mask examples" not in without and "Time by category" in without


def test_a_corpus_page_has_both_forms_and_no_text_where_asked(tmp_path) -> None:
    folder, out = write_data(tmp_path / "web", fake_corpus()), tmp_path / "c.md"
    assert "Sign up" in report([folder], out, form="md").read_text()
    without = report([folder], out, form="md", text=False).read_text()
    assert "Sign up" not in without and "Gopher quality" in without


def test_an_unknown_form_is_refused(write_run, tmp_path) -> None:
    with pytest.raises(UserError, match="--format cannot be 'pdf'"):
        report([write_run()], tmp_path / "r.pdf", form="pdf")
