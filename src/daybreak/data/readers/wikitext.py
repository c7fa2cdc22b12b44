"""Extract paragraphs of prose from wikitext.

Removed: templates, tables, references, comments, formulas, code, galleries, files, categories, headings and lists
(lines that begin with ``*``, ``#``, ``:`` or ``;``). Links become their text. Templates that stand for words, such as
units, leave a gap, because they need MediaWiki to be expanded.

The text is processed in a few passes of linear time; of unclosed markup only the marks are removed. The rules of
MediaWiki's preprocessor apply: extension tags contain no markup and end at the first closing tag; a table begins and
ends at the beginning of a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from daybreak.data.readers.cleaning import unescape

_OPAQUE = """nowiki pre ref math chem ce gallery timeline score syntaxhighlight source imagemap hiero graph mapframe
    maplink templatestyles inputbox references indicator section categorytree charinsert templatedata""".split()
"""Extension tags. Their content is not wikitext, and prose only in nowiki."""
_REMOVED = ("table", "ul", "ol", "dl", "noinclude")
_EXTENSION = re.compile(rf"<!--|<(?P<name>{'|'.join(_OPAQUE)})\b(?P<rest>[^<>]*+)>", re.IGNORECASE)
_CLOSE = {name: re.compile(rf"</{name}\s*+>", re.IGNORECASE) for name in _OPAQUE}
_MARKS = re.compile(r"[\[\]{}|'<>=*#:;]")
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}(?!\}(?!\}))|<(?P<close>/?)(?P<tag>[A-Za-z][A-Za-z0-9]*+)[^<>]*+>")
_BEGINS = {"{{": "template", "[[": "link", "{|": "table"}
_ENDS = {"}}": "template", "|}": "table"}
_INDENT = " \t:"
"""Characters allowed before a table in its line."""
_LINE_TAGS = frozenset("br p div center blockquote poem hr tr td h1 h2 h3 h4 h5 h6".split())
DEEPEST_INDENT = 100
"""Characters."""
DEEPEST_LINK = 8
"""Maximum nesting of links, as in captions of files; the marks of deeper links are removed."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:[^ ]")
_EXTERNAL = re.compile(r"\[(?:(?:https?|ftps?|irc|news|mailto):|//)[^\s\[\]<>]*+([^\[\]\n]*+)\]")
_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
_SWITCH = re.compile(r"__[A-Z]++(?:_[A-Z]++)*+__")
_QUOTES = re.compile("''+")
_EMPTY = re.compile(r"[(\uff08][\s,;:/\uff0c\uff1b]*+[)\uff09]")
_BEGUN = re.compile(r"([(\uff08])[\s,;:/\uff0c\uff1b]++")
_BEFORE_MARK = re.compile(r" (?=[,.;:)](?: |$))")
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
"""Names of templates that mark disambiguation pages in large Wikipedias."""
_TEMPLATE = re.compile(r"\{\{\s*+([^{}|\n]{1,80}+)")


def is_disambiguation(text: str) -> bool:
    """Return whether this is a disambiguation page, which lists the meanings of a name."""
    if "__DISAMBIG__" in text:
        return True
    names = (found[1].strip().lower().replace(" ", "_") for found in _TEMPLATE.finditer(text))
    return any(name in _DISAMBIGUATION or name.endswith("_disambiguation") for name in names)


def passages(text: str, hidden: Collection[str] = ("file", "image", "category")) -> list[str]:
    """Return the paragraphs of a page.

    Args:
        text: wikitext.
        hidden: lower-case names of the namespaces whose links are removed.
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
    """Decode entities and close the gaps of removed templates; return "" without a letter or digit."""
    text = unescape(paragraph)
    text = _LEFTOVER.sub(" ", text)
    text = _BEGUN.sub(r"\1", _EMPTY.sub("", text))
    text = _BEFORE_MARK.sub("", " ".join(text.split()))
    return text if any(map(str.isalnum, text)) else ""


def _without_extensions(text: str) -> str:
    """Remove comments and extension tags with their content; of an unclosed tag only the tag itself."""
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
            unclosed.add(name)  # later ones are unclosed as well
            continue
        if name == "nowiki":
            out.append(_MARKS.sub("", text[place : closing.start()]))
        place = closing.end()
    out.append(text[place:])
    return "".join(out)


class _Output:
    """The text so far, and the open templates, tables, links and removed elements."""

    def __init__(self, hidden: Collection[str]):
        self._hidden = hidden
        self._out: list[str] = []
        self._open: list[tuple[str, int]] = []
        """(Kind, length of ``_out`` at its beginning)."""
        self._count: Counter[str] = Counter()

    def add(self, text: str) -> None:
        if text:
            self._out.append(text)

    def begin(self, kind: str) -> None:
        if kind != "link" or self._count["link"] < DEEPEST_LINK:
            self._open.append((kind, len(self._out)))
            self._count[kind] += 1

    def end(self, kind: str) -> None:
        """Remove the innermost element of this kind with everything open inside it; do nothing if none is open."""
        while self._count[kind]:
            inner, before = self._open.pop()
            self._count[inner] -= 1
            if inner == kind:
                del self._out[before:]
                break

    def end_link(self) -> None:
        """Replace a link by its text; an unclosed template inside it keeps it open."""
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
    """Remove templates, tables and other tags, and replace links by their text."""
    output = _Output(hidden)
    place = 0
    for found in _TOKEN.finditer(text):
        output.add(text[place : found.start()])
        place = found.end()
        mark, tag = found[0], (found["tag"] or "").lower()
        if mark == "]]":
            output.end_link()
        elif tag in _REMOVED:
            if found["close"]:
                output.end(tag)
            elif not mark.endswith("/>"):
                output.begin(tag)
        elif tag:
            output.add("\n" if tag in _LINE_TAGS else "")
        elif "|" in mark and not _begins_line(text, found.start()):
            output.add(mark)
        elif mark in _ENDS:
            output.end(_ENDS[mark])
        else:
            output.begin(_BEGINS[mark])
    output.add(text[place:])
    return str(output)


def _begins_line(text: str, place: int) -> bool:
    before = text[max(0, place - DEEPEST_INDENT) : place].rpartition("\n")
    return (before[1] != "" or place <= DEEPEST_INDENT) and not before[2].strip(_INDENT)


def _link_text(text: str, hidden: Collection[str]) -> str:
    target, bar, label = text.partition("|")
    space, colon, _ = target.partition(":")
    if colon and space.strip().lower() in hidden:
        return ""
    if "\n" in text:  # unclosed brackets
        return text
    if colon and "|" in label:  # a file with a caption, under a former name of its namespace
        return ""
    if not bar and _LANGUAGE.match(target):
        return ""
    return (label if bar else target.strip().removeprefix(":")).strip()


def _first_variant(found: re.Match[str]) -> str:
    """Return A of ``-{zh-hans:A; zh-hant:B}-``, the text in the first script."""
    text = found[1].rpartition("|")[2]
    first = text.split(";")[0]
    return first.partition(":")[2].strip() if ":" in first else text
