"""Read articles from dumps of Wikipedia and other MediaWiki sites (pages-articles.xml, usually .bz2).

As for BERT, "we extract only the text passages and ignore lists, tables, and headers" (Devlin et al. 2019, arXiv
1810.04805, section 3.1).

Removed from the wikitext: templates, tables, references, comments, formulas, code, galleries, files, categories,
headings and lists (lines that begin with ``*``, ``#``, ``:`` or ``;``). Links become their text. Templates that stand
for words, such as units, leave a gap, because they need MediaWiki to be expanded.

Wikitext is processed in a few passes of linear time; of unclosed markup only the marks are removed. The rules of
MediaWiki's preprocessor apply: extension tags contain no markup and end at the first closing tag; a table begins and
ends at the beginning of a line.

Memory: one article of at most LARGEST_ARTICLE, and expat's buffers for at most LARGEST_GAP of the file; no tree is
built. A document type declaration is refused, so no entities can be declared.
"""

from __future__ import annotations

import re
import xml.parsers.expat as expat
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from daybreak.core.errors import UserError, reason
from daybreak.data.readers.cleaning import clean, unescape
from daybreak.data.readers.file_range import FileRange
from daybreak.data.readers.inputs import InputFile, open_file
from daybreak.data.readers.unpacking import CHUNK

LARGEST_ARTICLE = 4 << 20
"""Characters of wikitext; MediaWiki allows 2 MiB. Longer articles are skipped."""
LARGEST_GAP = 64 << 20
"""Bytes. A file without the end of a page for this long is not a dump of articles."""
DEEPEST = 16
"""Maximum nesting of elements; a dump has 5."""
ARTICLES, FILES, CATEGORIES = "0", "6", "14"
"""Numbers of namespaces. Dumps before 2012 have none; all of their pages count as articles."""
_DAMAGED = "Fetch it again: the dump of articles is named pages-articles.xml.bz2."


@dataclass
class _Page:
    number: int
    namespace: str = ""
    redirect: bool = False
    text: str = ""
    size: int = 0


class _Dump:
    """The callbacks of expat; complete pages are appended to ``pages``."""

    def __init__(self, file: InputFile):
        self._file = file
        self.pages: deque[_Page] = deque()
        self.hidden = {"file", "image", "category", "media"}
        """Names of the namespaces whose links are removed; the dump adds those of its language."""
        self._depth = 0
        self._page = _Page(0)
        self._key = ""
        self._content: list[str] = []
        """Text of the innermost element, up to LARGEST_ARTICLE."""
        self._size = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _doctype(self, *facts: object) -> None:
        raise UserError(f"'{self._file.name}' has a document type declaration, which dumps do not have.", _DAMAGED)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if (self._depth == 1 and name != "mediawiki") or self._depth > DEEPEST:
            raise UserError(f"'{self._file.name}' is not a MediaWiki dump.", "Leave it out, or convert it to text.")
        self._content, self._size, self._key = [], 0, attributes.get("key", "")
        if name == "page":
            self._page = _Page(self._page.number + 1)
        elif name == "redirect":
            self._page.redirect = True

    def _end(self, name: str) -> None:
        self._depth -= 1
        content = "".join(self._content)
        if name == "ns":
            self._page.namespace = content.strip()
        elif name == "text":  # the last of several revisions is used
            self._page.text, self._page.size = content, self._size
        elif name == "page":
            self.pages.append(self._page)
        elif name == "namespace" and self._key in (FILES, CATEGORIES):
            self.hidden.add(content.strip().lower())
        self._content = []

    def _characters(self, text: str) -> None:
        self._size += len(text)
        if self._size <= LARGEST_ARTICLE:
            self._content.append(text)


def read_dump(part: FileRange) -> Iterator[str]:
    """Yield the text of each article, one paragraph per line. Other pages are counted as skipped.

    Raises:
        UserError: the file cannot be read or decompressed, is not a dump, or is damaged.
    """
    file = part.file
    dump = _Dump(file)
    gap = 0
    with open_file(file, part.byte_counter) as stream:
        ended = False
        while not ended:
            data = stream.read(CHUNK)
            ended = not data
            try:
                dump.parser.Parse(data, ended)
            except (expat.ExpatError, ValueError, LookupError) as error:  # the latter two: unsupported encodings
                raise UserError(f"'{file.name}' is damaged: {reason(error)}.", _DAMAGED) from None
            gap = 0 if dump.pages else gap + len(data)
            if gap > LARGEST_GAP:
                raise UserError(f"'{file.name}' has a page larger than {LARGEST_GAP >> 20} MiB.", _DAMAGED)
            while dump.pages:
                if text := _article(dump.pages.popleft(), dump.hidden, part):
                    yield text


def _article(page: _Page, hidden: set[str], part: FileRange) -> str:
    if page.namespace not in ("", ARTICLES):
        why = "pages that are no articles"
    elif page.redirect:
        why = "redirects"
    elif page.size > LARGEST_ARTICLE:
        why = f"articles over {LARGEST_ARTICLE >> 20} MiB"
    elif is_disambiguation(page.text):
        why = "disambiguation pages"
    else:
        return clean("\n".join(passages(page.text, hidden)))
    part.skips.add(why, part.file.name, "page", page.number)
    return ""


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
