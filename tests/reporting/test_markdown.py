"""The Markdown form against markdown-it, which reads it as GitHub would."""

from __future__ import annotations

import re

import pytest
from fake_corpus import fake_corpus, write_data
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.markdown import as_markdown
from daybreak.reporting.markup import figure, fold, join, note, section, table, tag

READER = MarkdownIt("commonmark").enable("table")
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30)


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


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
    found = READER.parse(as_markdown(tag("p", text)))
    wanted = one_line(text)
    assert said(found) == ([wanted] if wanted else [])
    assert {token.type for token in found} <= {"paragraph_open", "inline", "paragraph_close"}


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_any_cell_stays_in_its_column(rows: list[tuple[str, str]]) -> None:
    found = READER.parse(as_markdown(table(("a", "b"), rows)))
    assert found[0].type == "table_open"
    assert said(found) == ["a", "b", *[one_line(cell) for row in rows for cell in row]]


def test_pieces_of_a_page() -> None:
    plot = figure("Loss", "falls", {"layout": {"height": 300}, "data": []})
    page = join(
        tag("h1", "tiny", tag("small", "a run")),
        section("Plots", plot),
        section("Words", note("A note."), tag("pre", "a < b\n  c")),
        tag("div", tag("div", tag("b", "4.5"), tag("span", "nats"), tag("em", "below")), tag("div", tag("b", "2"))),
        fold("my_run <b", tag("pre", "```\ncode")),
        fold("More", table(("Run", "Loss"), [("a", join("1.0", tag("small", "low")))])),
        tag("dl", tag("div", tag("dt", "Cores"), tag("dd", "2"))),
    )
    assert as_markdown(page) == (
        "# tiny (a run)\n\n## Words\n\nA note.\n\n```\na < b\n  c\n```\n\n- **4.5** nats (below)\n- **2**\n\n"
        "<details><summary>my_run &lt;b</summary>\n\n````\n```\ncode\n````\n\n</details>\n\n"
        "<details><summary>More</summary>\n\n| Run | Loss |\n| --- | ---: |\n| a | 1.0 (low) |\n\n</details>\n\n"
        "- Cores: 2\n"
    )


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
    assert "Fill-mask examples" not in without and "Where the time went" in without


def test_a_corpus_page_has_both_forms_and_no_text_where_asked(tmp_path) -> None:
    folder, out = write_data(tmp_path / "web", fake_corpus()), tmp_path / "c.md"
    assert "Sign up" in report([folder], out, form="md").read_text()
    without = report([folder], out, form="md", text=False).read_text()
    assert "Sign up" not in without and "Gopher quality" in without


def test_an_unknown_form_is_refused(write_run, tmp_path) -> None:
    with pytest.raises(UserError, match="'pdf' is not a report format"):
        report([write_run()], tmp_path / "r.pdf", form="pdf")
