from __future__ import annotations

import bz2
import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers import wikipedia
from daybreak.data.readers.documents import DocumentRule, Skips, read_documents
from daybreak.data.readers.inputs import ByteCounter, find_files
from daybreak.data.readers.wikipedia import passages

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="fi">
<siteinfo><sitename>Wikipedia</sitename><namespaces>
<namespace key="0" case="first-letter" /><namespace key="6">Tiedosto</namespace>
<namespace key="14">Luokka</namespace></namespaces></siteinfo>
"""


def page(text: str, namespace: int = 0, redirect: str = "") -> str:
    return (
        f"<page><title>T</title><ns>{namespace}</ns><id>1</id>{redirect}<revision><id>2</id>"
        f'<contributor><username>x</username></contributor><text bytes="1">{escape(text)}</text></revision></page>\n'
    )


def texts(path: Path, skips: Skips | None = None) -> list[str]:
    files = find_files([path])
    return [item.text for item in read_documents(files, DocumentRule("line"), "text", skips or Skips(), ByteCounter())]


def test_a_multistream_dump_gives_its_articles(tmp_path: Path) -> None:
    articles = [f"'''Art {number}''' & <b>bold</b>.\n\nSecond \u4f60 [[x|y]]." for number in range(300)]
    streams = [HEAD, *("".join(map(page, articles[start : start + 100])) for start in range(0, 300, 100))]
    streams += [
        page("[[Tiedosto:a.jpg|kuva]]Teksti.[[Luokka:B]]"),
        page("talk", namespace=1),
        page("#REDIRECT [[x]]", redirect='<redirect title="x" />'),
        page("'''X''':\n* a\n{{t\u00e4smennyssivu}}"),
        page("{{only|a template}}"),
        "</mediawiki>",
    ]
    path = tmp_path / "fiwiki-pages-articles-multistream.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    skips = Skips()
    wanted = ["\n".join(passages(text)) for text in articles] + ["Teksti."]
    assert texts(path, skips) == wanted and wanted[7] == "Art 7 & bold.\nSecond \u4f60 y."
    assert skips.counts == {"pages that are no articles": 1, "redirects": 1, "disambiguation pages": 1}
    assert skips.first["redirects"] == f"'{path}' page 303"


@pytest.mark.parametrize("encoding", ["gbk", "euc-jp", "no-such-encoding"])
def test_an_encoding_that_cannot_be_read_is_said(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "wiki.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?>\n{HEAD}</mediawiki>')
    with pytest.raises(UserError, match="is damaged"):
        texts(tmp_path / "wiki.xml")


def test_pages_of_old_dumps_have_no_number_of_a_namespace(tmp_path: Path) -> None:
    (tmp_path / "wiki.xml").write_text(HEAD + page("Some text.").replace("<ns>0</ns>", "") + "</mediawiki>")
    assert texts(tmp_path / "wiki.xml") == ["Some text."]


def test_memory_does_not_grow_with_the_dump(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(HEAD + page("Some text. " * 500) * 800 + "</mediawiki>")
    (file,) = find_files([path])
    tracemalloc.start()
    found = sum(1 for _ in read_documents([file], DocumentRule("line"), "text", Skips(), ByteCounter()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == 800
    assert peak < 2 << 20  # the dump has 4.6 MB


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>' + HEAD, "has a document type declaration"),
        ("<rss><channel/></rss>", "is not a MediaWiki dump"),
        (HEAD + "<a>" * 50, "is not a MediaWiki dump"),
        (HEAD + page("fine"), "is damaged: no element found"),
        (HEAD + "<page></oops>", "is damaged: mismatched tag"),
        (HEAD + "&bomb;", "is damaged: undefined entity"),
        ("no xml", "is damaged: syntax error"),
        ("", "is damaged: no element found"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, data: str, message: str) -> None:
    (tmp_path / "x.xml").write_text(data)
    with pytest.raises(UserError, match=message):
        texts(tmp_path / "x.xml")


def test_endless_pages_are_left_out_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "LARGEST_ARTICLE", 1 << 20)
    monkeypatch.setattr(wikipedia, "LARGEST_GAP", 2 << 20)
    (tmp_path / "x.xml").write_text(HEAD + page("word " * 250_000) + page("fine") + "</mediawiki>")
    skips = Skips()
    assert texts(tmp_path / "x.xml", skips) == ["fine"]
    assert skips.counts == {"articles over 1 MiB": 1}
    for endless in ("word " * 600_000, '<text a="' + "x" * 3_000_000):
        (tmp_path / "x.xml").write_text(HEAD + "<page><revision><text>" + endless)
        with pytest.raises(UserError, match=r"has a page larger than 2 MiB. Fetch it again"):
            texts(tmp_path / "x.xml")
