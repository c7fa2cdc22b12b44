from __future__ import annotations

import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.data.readers import markup
from daybreak.data.readers.documents import Document, DocumentRule, Skips, read_documents
from daybreak.data.readers.inputs import ByteCounter, find_files
from daybreak.data.readers.markup import decode_page, visible_text

PAGE = """<!DOCTYPE html><html><head><title>Sun &amp; moon</title><style>p { color: red }</style>
<meta charset="utf-8"><script>var a = "<p>no</p>";</script></head>
<body class="x"><nav><ul><li>Home</ul></nav><header>Logo</header>
<h1>Sun &amp; moon</h1>
<p>First <b>para</b>graph,
wrapped<br>and broken.<p>Second <!-- <p> --> one, not closed
<div><aside>Advertisement</div><p title="a > b" hidden>unseen<p>caf&eacute; &#20320;&#x597d;
<div role="navigation">Menu <div>more</div> menu</div> after it
<table><tr><th>Year<td>1950</table>
<table><tr><td><p>Prose in a cell.</p>no prose</td></tr></table>
<ul><li>One<li>Two</ul><pre>kept
as it is</pre><form><label>Search <input></label><button>Go</button></form><footer>Imprint</footer></body></html>"""


def test_a_page_is_its_prose() -> None:
    assert visible_text(PAGE).split("\n") == [
        "Sun & moon",
        "First paragraph, wrapped",
        "and broken.",
        "Second one, not closed",
        "caf\u00e9 \u4f60\u597d",
        "after it",
        "Prose in a cell.",
        "One",
        "Two",
        "kept",
        "as it is",
    ]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("just text", "just text"),
        ("<title>Only this</title>", "Only this"),
        ("<head><title>T</title><p>no end of the head", "T\nno end of the head"),
        ("<p>a<nav>rest", "a"),
        ("<p>a<script>never ended <p>b", "a"),
        ("<p>a<!-- never ended <p>b", "a"),
        ("<p>a <b", "a"),
        ("a < b and c > d", "a < b and c > d"),
        (
            "<form action=x><nav>Menu</nav><p>a page in a form</p><select><option>b</select></form>c",
            "a page in a form\nc",
        ),
        ("</div></nav><p>a</p></p>", "a"),
        ("<div><nav><div>x</div></div>after", "after"),
        ("<svg/>a<svg><title>x</title></svg>b", "ab"),
        ("<body><svg><title>Menu</title></svg><title>Real</title>a", "Real\na"),
        ("<ul><li hidden>menu<li>one<li>two</ul><p>end", "one\ntwo\nend"),
        ("<ul><li>a<ul><li hidden>x<li>b</ul>c<li>d</ul>", "a\nb\nc\nd"),
        ("<p>start <span aria-hidden='true'>*</p><p>next<p>third", "start\nnext\nthird"),
        ("<span hidden><p>x</p><p>y</p></span>z", "z"),
        ("<div hidden><p>x</div></p>a", "a"),
        ("<table><td><p>a<td><p>b</table>c", "a\nb\nc"),
        ("<p style='display: none'>a<p>b", "b"),
        ('<p>keep</p><div title="The hidden cost"><p>Second</p></div>', "keep\nSecond"),
        ('<p>keep</p><div class="relative hidden md:block"><p>Second</p></div>', "keep\nSecond"),
        ('<p>keep</p><div data-a="it\'s hidden here"><p>Second</p></div>', "keep\nSecond"),
        ('<p>keep</p><div aria-label="x role=search"><p>Second</p></div>', "keep\nSecond"),
        ('<p>keep</p><div class="a" hidden=""><p>Second</p></div>', "keep"),
        ('<p>keep</p><div class="a" role="navigation"><p>Second</p></div>', "keep"),
        ("<body hidden>shown by a script", "shown by a script"),
        ("&#99999999999999999999; &#xd800; &bogus; &lt;p&gt;", "\ufffd &bogus; <p>"),
    ],
)
def test_broken_pages(page: str, text: str) -> None:
    assert visible_text(page) == text


class _Texts(HTMLParser):
    """The reference: the standard library's parser, text between tags."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found += data.split()


WORD = st.sampled_from(["word", "&amp;", "&eacute;t&eacute;", "&#8364;", "\u4f60\u597d", "a>b", "1 &lt; 2", "'quoted'"])
INLINE = st.sampled_from(["b", "i", "em", "span", 'a href="x?a=1&b=2"', "a title='x > y'", "td", "p", "div", "li"])
TREE = st.recursive(
    WORD,
    lambda inside: st.tuples(INLINE, st.lists(inside, min_size=1, max_size=3)).map(
        lambda node: f"<{node[0]}> {' '.join(node[1])} </{node[0].split()[0]}>"
    ),
    max_leaves=20,
)


@settings(max_examples=80, deadline=None)
@given(TREE)
def test_words_are_those_that_the_standard_library_sees(page: str) -> None:
    reference = _Texts()
    reference.feed(page)
    reference.close()
    assert visible_text(page).split() == reference.found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from("< > </ <!-- --> <p> </p> <nav </nav> <table> = ' \" & ; a &# <script> hidden \n".split(" "))
    )
)
def test_bracket_soup_is_no_error(pieces: list[str]) -> None:
    found = visible_text("".join(pieces))
    assert visible_text(found.replace("<", " ").replace("&", " ")) is not None


HOSTILE = (
    "<!--|<![CDATA[|<a |<a href='|<a b=\"|</|<script>|<div>|<p hidden>|<li><span hidden>|</p><p><div>|<table><p>|&#9|&"
)


@pytest.mark.parametrize("pattern", HOSTILE.split("|"))
def test_time_grows_with_the_page_only(pattern: str) -> None:
    started = time.process_time()
    visible_text(pattern * 50_000)
    assert time.process_time() - started < 5  # in quadratic time minutes


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xc3\xa9", "caf\u00e9"),
        (b"\xef\xbb\xbfcaf\xc3\xa9", "caf\u00e9"),
        ("caf\u00e9".encode("utf-16"), "caf\u00e9"),
        (b'<meta charset="ISO-8859-1">caf\xe9 \x93q\x94', '<meta charset="ISO-8859-1">caf\u00e9 \u201cq\u201d'),
        (b"<META content='; charset=windows-1251'>\xe4\xe0", "<META content='; charset=windows-1251'>\u0434\u0430"),
        (b"<meta charset=rot13>abc", "<meta charset=rot13>abc"),
        (b"<meta charset=idna>abc", "<meta charset=idna>abc"),
        (b"<meta charset=nonsense>caf\xc3\xa9", "<meta charset=nonsense>caf\u00e9"),
        (b"mostly fine \xff text", "mostly fine \ufffd text"),
        (b"\xff\xfa\xfb" * 200, None),
        (b"\x7fELF\0\0", None),
    ],
)
def test_encodings(raw: bytes, text: str | None) -> None:
    assert decode_page(raw) == text


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("gb2312", "gbk", "\u6731\u9555\u57fa"),
        ("Shift_JIS", "cp932", "\u2460 \u9ad9\u5cf6\u5c4b"),
        ("euc-kr", "cp949", "\ub620\ubc29\uac01\ud558"),
        ("big5", "big5hkscs", "\u5cef \u5605"),
        ("tis-620", "cp874", "\u0e44\u0e17\u0e22 \u201c"),
        ("x-sjis", "cp932", "\u65e5\u672c"),
        ("windows-874", "cp874", "\u0e44\u0e17\u0e22"),
        ("iso-8859-8-i", "iso8859-8", "\u05e9\u05dc\u05d5\u05dd"),
    ],
)
def test_encodings_are_read_as_browsers_do(label: str, codec: str, text: str) -> None:
    """Many pages name an encoding and use characters of the larger one that contains it."""
    page = f"<meta charset={label}>{text}"
    assert decode_page(page.encode(codec)) == page


def test_files_that_are_no_pages_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markup, "LARGEST_PAGE", 1000)
    (tmp_path / "a.html").write_text("<p>fine")
    (tmp_path / "b.html").write_text("<p>long" * 200)
    (tmp_path / "c.htm").write_bytes(b"\0\1\2")
    (tmp_path / "d.html").write_text("<script>only()</script>")
    (tmp_path / "e.html").write_bytes(b"<p>na\xefve caf\xe9")
    skips = Skips()
    files = find_files([tmp_path])
    found = list(read_documents(files, DocumentRule("line"), "text", skips, ByteCounter()))
    assert [document.text for document in found] == ["fine", "nave caf"]
    assert found[0] == Document("fine", str(tmp_path))
    assert skips.counts == {
        "pages over 0 MiB": 1,
        "undecodable pages": 1,
        "undecodable characters of pages": 2,
        "pages without text": 1,
    }
    assert skips.first["undecodable characters of pages"].endswith("e.html'")
