"""Wikitext to passages: paragraphs of prose, without the markup and without what is no prose.

Left out: templates, tables, references, comments, formulas, code and galleries; files and categories; headings; lists
(lines that begin with ``*``, ``#``, ``:`` or ``;``). Links become their text. Templates that stand for words (units,
foreign words) leave a gap, as they do for every reader of dumps that does not run MediaWiki.

Works in passes over the whole text, each of which takes time proportional to it whatever it holds: what is opened and
never closed only loses its marks. Rules are those of MediaWiki's preprocessor where they matter: extension tags hold no
markup, and end at the first closing tag; a table begins and ends at the beginning of a line.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection

_OPAQUE = """nowiki pre ref math chem ce gallery timeline score syntaxhighlight source imagemap hiero graph mapframe
    maplink templatestyles inputbox references indicator section categorytree charinsert templatedata""".split()
"""Extension tags: what is in them is no markup of ours, and no prose but in nowiki."""
_LEFT_OUT = ("table", "ul", "ol", "dl", "noinclude")
_EXTENSION = re.compile(rf"<!--|<(?P<name>{'|'.join(_OPAQUE)})\b(?P<rest>[^<>]*+)>", re.IGNORECASE)
_CLOSE = {name: re.compile(rf"</{name}\s*+>", re.IGNORECASE) for name in _OPAQUE}
_MARKS = re.compile(r"[\[\]{}|'<>=*#:;]")
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\}(?!\}))|<(?P<close>/?)(?P<tag>[A-Za-z][A-Za-z0-9]*+)[^<>]*+>")
_BEGINS = {"{{": "template", "[[": "link", "{|": "table"}
_ENDS = {"}}": "template", "|}": "table"}
_INDENT = " \t:"
"""What may stand before a table in its line."""
_LINE_TAGS = frozenset("br p div center blockquote poem hr tr td h1 h2 h3 h4 h5 h6".split())
DEEPEST_INDENT = 100
"""Characters."""
DEEPEST_LINK = 8
"""Links within each other (captions of files); marks further in are left out."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:[^ ]")
_EXTERNAL = re.compile(r"\[(?:(?:https?|ftps?|irc|news|mailto):|//)[^\s\[\]<>]*+([^\[\]\n]*+)\]")
_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
_SWITCH = re.compile(r"__[A-Z]++(?:_[A-Z]++)*+__")
_QUOTES = re.compile("''+")
_EMPTY = re.compile(r"[(\uff08][\s,;:/\uff0c\uff1b]*+[)\uff09]")
_BEGUN = re.compile(r"([(\uff08])[\s,;:/\uff0c\uff1b]++")
_BEFORE_MARK = re.compile(r" (?=[,.;:)](?: |$))")
_HUGE_REFERENCE = re.compile(r"&#[0-9]{8,}+;?")
_LEFTOVER = re.compile(r"\{\{++|\}\}++|\[\[++|\]\]++|<(?=/?ref)", re.IGNORECASE)
_NO_PROSE = re.compile(r"[*#:;|=]|\{\||!(?=[ !])|----")
_DISAMBIGUATION = frozenset(
    """
    disambig disambiguation dab disamb geodis hndis surname-dis schooldis hospitaldis mathdab numberdis roaddis
    shipindex letter-numbercombdisambig begriffskl\xe4rung homonymie desambiguaci\xf3n desambigua\xe7\xe3o desambig
    disambigua dp doorverwijspagina t\xe4smennyssivu f\xf6rgrening flertydig ujednoznacznienie rozcestn\xedk
    egy\xe9rt dezambiguizare
    \u043d\u0435\u043e\u0434\u043d\u043e\u0437\u043d\u0430\u0447\u043d\u043e\u0441\u0442\u044c
    \u0431\u0430\u0433\u0430\u0442\u043e\u0437\u043d\u0430\u0447\u043d\u0456\u0441\u0442\u044c
    \u062a\u0648\u0636\u064a\u062d \u6d88\u6b67\u4e49 \u6d88\u6b67\u7fa9 aimai \u66d6\u6627\u3055\u56de\u907f
    \ub3d9\uc74c\uc774\uc758 anlam_ayr\u0131m\u0131
    """.split()
)
"""Names of templates by which large Wikipedias mark such pages."""
_TEMPLATE = re.compile(r"\{\{\s*+([^{}|\n]{1,80}+)")


def is_disambiguation(text: str) -> bool:
    """Whether the page only lists what a name can mean."""
    if "__DISAMBIG__" in text:
        return True
    names = (found[1].strip().lower().replace(" ", "_") for found in _TEMPLATE.finditer(text))
    return any(name in _DISAMBIGUATION or name.endswith("_disambiguation") for name in names)


def passages(text: str, hidden: Collection[str] = ("file", "image", "category")) -> list[str]:
    """The paragraphs of a page.

    Args:
        text: wikitext.
        hidden: names of the namespaces, in small letters, whose links are no text.
    """
    text = _resolve(_without_extensions(text), hidden)
    text = _VARIANT.sub(_first_variant, text)
    text = _EXTERNAL.sub(lambda found: found[1], text)
    text = _QUOTES.sub("", _SWITCH.sub("", text))
    found: list[str] = []
    held: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        if line and not _NO_PROSE.match(line):
            held.append(line)
            continue
        if held and (paragraph := _prose(" ".join(held))):
            found.append(paragraph)
        held.clear()
    return found


def _prose(paragraph: str) -> str:
    """Entities resolved, gaps closed that templates left; empty without a letter or digit."""
    text = html.unescape(_HUGE_REFERENCE.sub("", paragraph))
    text = _LEFTOVER.sub(" ", text)
    text = _BEGUN.sub(r"\1", _EMPTY.sub("", text))
    text = _BEFORE_MARK.sub("", " ".join(text.split()))
    return text if any(map(str.isalnum, text)) else ""


def _without_extensions(text: str) -> str:
    """Leave out comments and extension tags with what is in them; a tag that is never closed only itself."""
    out: list[str] = []
    place = 0
    unclosed: set[str] = set()
    while found := _EXTENSION.search(text, place):
        out.append(text[place : found.start()])
        place = found.end()
        if found["name"] is None:
            end = text.find("-->", place)
            place = end + 3 if end >= 0 else len(text)
            continue
        name = found["name"].lower()
        if found["rest"].endswith("/") or name in unclosed:
            continue
        closing = _CLOSE[name].search(text, place)
        if closing is None:
            unclosed.add(name)  # nor is any later one
            continue
        if name == "nowiki":
            out.append(_MARKS.sub("", text[place : closing.start()]))
        place = closing.end()
    out.append(text[place:])
    return "".join(out)


class _Pieces:
    """Text so far, and what is open in it: templates, tables, links and elements that are left out."""

    def __init__(self, hidden: Collection[str]):
        self._hidden = hidden
        self._out: list[str] = []
        self._open: list[tuple[str, int]] = []
        """What it is, and how many pieces there were before it."""
        self._count: Counter[str] = Counter()

    def add(self, text: str) -> None:
        if text:
            self._out.append(text)

    def begin(self, kind: str) -> None:
        if kind != "link" or self._count["link"] < DEEPEST_LINK:
            self._open.append((kind, len(self._out)))
            self._count[kind] += 1

    def end(self, kind: str) -> None:
        """Leave out the innermost of this kind with all that is open in it; nothing where none is open."""
        while self._count[kind]:
            inner, before = self._open.pop()
            self._count[inner] -= 1
            if inner == kind:
                del self._out[before:]
                break

    def end_link(self) -> None:
        """Put the text of a link in its place; a template that was opened within and not closed keeps it open."""
        if not self._open or self._open[-1][0] != "link":
            return
        _, before = self._open.pop()
        self._count["link"] -= 1
        text = "".join(self._out[before:])
        del self._out[before:]
        self.add(_link_text(text, self._hidden))

    def __str__(self) -> str:
        return "".join(self._out)


def _resolve(text: str, hidden: Collection[str]) -> str:
    """Leave out templates and tables, put links' texts in their place, drop other tags."""
    pieces = _Pieces(hidden)
    place = 0
    for found in _TOKEN.finditer(text):
        pieces.add(text[place : found.start()])
        place = found.end()
        mark, tag = found[0], (found["tag"] or "").lower()
        if mark == "]]":
            pieces.end_link()
        elif tag in _LEFT_OUT:
            if found["close"]:
                pieces.end(tag)
            elif not mark.endswith("/>"):
                pieces.begin(tag)
        elif tag:
            pieces.add("\n" if tag in _LINE_TAGS else "")
        elif "|" in mark and not _begins_line(text, found.start()):
            pieces.add(mark)
        elif mark in _ENDS:
            pieces.end(_ENDS[mark])
        else:
            pieces.begin(_BEGINS[mark])
    pieces.add(text[place:])
    return str(pieces)


def _begins_line(text: str, place: int) -> bool:
    before = text[max(0, place - DEEPEST_INDENT) : place].rpartition("\n")
    return (before[1] != "" or place <= DEEPEST_INDENT) and not before[2].strip(_INDENT)


def _link_text(text: str, hidden: Collection[str]) -> str:
    target, bar, label = text.partition("|")
    space, colon, _ = target.partition(":")
    if colon and space.strip().lower() in hidden:
        return ""
    if "\n" in text:  # no link: brackets that were never closed
        return text
    if colon and "|" in label:  # a file by an older name of its namespace, which no dump tells: its size, its caption
        return ""
    if not bar and _LANGUAGE.match(target):
        return ""
    return (label if bar else target.strip().removeprefix(":")).strip()


def _first_variant(found: re.Match[str]) -> str:
    """Of ``-{zh-hans:A; zh-hant:B}-`` the A: text in one script, whichever comes first."""
    text = found[1].rpartition("|")[2]
    first = text.split(";")[0]
    return first.partition(":")[2].strip() if ":" in first else text
