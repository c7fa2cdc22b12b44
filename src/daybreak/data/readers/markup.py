"""Extract the visible prose of HTML pages: the title, then one paragraph per line.

Removed: scripts and styles, navigation and page furniture (nav, header, footer, aside, menus, and elements with such a
role), forms, hidden elements and figures. From tables only paragraphs (``<p>``) are kept, because old pages use tables
for layout while data cells contain no prose. Lists are kept, one item per line.

The tokenizer reads every character a bounded number of times; the one of the standard library takes quadratic time on
broken markup (CVE-2025-6069). Memory: a page of at most LARGEST_PAGE and its parsed form.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator

from daybreak.data.readers.cleaning import clean, unescape
from daybreak.data.readers.file_range import BAD_FRACTION, FEW_BAD, FileRange
from daybreak.data.readers.inputs import open_file

LARGEST_PAGE = 16 << 20
"""Bytes. Larger pages are skipped."""
ENCODING_HEAD = 4096
"""Bytes that are searched for the declared encoding."""
UNDECODABLE = "\ufffd"
LONGEST_VALUE = 1 << 16
"""Characters of an attribute value. A quote that is not closed within them is ignored."""

_RAW = frozenset("script style title textarea xmp iframe noembed noframes".split())
"""Elements whose content is not markup."""
_REMOVED = frozenset(
    """script style template noscript nav header footer aside menu dialog label button select textarea iframe object
    svg math audio video canvas figure noembed noframes head""".split()
)
_BLOCKS = frozenset(
    """address article aside blockquote body br caption center dd details dialog div dl dt fieldset figcaption figure
    footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu nav ol option p pre section summary table tbody td
    tfoot th thead tr ul""".split()
)
_CONTAINERS = frozenset(
    "article blockquote body center details div form html main section table td ul ol dl pre".split()
)
"""Elements that may contain removed elements; their end tag closes those too."""
_HIDEABLE = (_CONTAINERS | {"p", "span", "li"}) - {"html", "body"}
_UNCLOSED = frozenset({"p", "li"})
"""Elements that end where the next one of the same name begins, unless a container was opened in between."""
_SEARCHED = 64
"""Number of open elements searched for an unclosed one, so that broken markup does not take quadratic time."""
_OPENS = re.compile(r"<(?:!--|[!?]|(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+))")
_ENDS = re.compile(r"""(?P<end>>)|=\s*+(?P<quote>["'])""")
_HIDDEN = re.compile(
    r"""(?:^|\s)(?:hidden(?=[\s=/]|$)|aria-hidden\s*+=\s*+["']?true
    |role\s*+=\s*+["']?(?:banner|complementary|contentinfo|dialog|menu|navigation|search)\b
    |style\s*+=\s*+["'][^"']*?display\s*+:\s*+none)""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTED = re.compile(r"""([^\s=]++)\s*+=\s*+(?:"[^"]*+"|'[^']*+')""")
_HIDING = frozenset({"aria-hidden", "role", "style"})
"""Attributes whose value can hide an element."""
_NAMED = re.compile(
    rb"""<(?:meta[^>]*?charset|\?xml[^>]*?encoding)\s*+=\s*+["']?\s*+([A-Za-z0-9._:-]+)""", re.IGNORECASE
)
_ENCODINGS = frozenset(
    """utf-8 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp866 cp874 cp932 cp949 koi8-r koi8-u
    iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 iso8859-10 iso8859-13 iso8859-14 iso8859-15
    iso8859-16 mac-roman mac-cyrillic euc_jp iso2022_jp gb18030 big5hkscs""".split()
)
"""Accepted codecs. Others of Python's codecs are slow or not text encodings."""
_LABELS = {
    "iso-8859-8-i": "iso8859-8", "windows-874": "cp874", "windows-31j": "cp932", "x-sjis": "cp932",
    "windows-949": "cp949", "x-gbk": "gb18030", "x-euc-jp": "euc_jp",
}  # fmt: skip
"""Names of encodings on pages that Python does not know."""
_CONTAINED_IN = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874", "iso8859-11": "cp874",
    "shift_jis": "cp932", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs",
}  # fmt: skip
"""Codecs that browsers decode as a larger one that contains them, because pages use its characters, too."""


def read_page(part: FileRange) -> Iterator[str]:
    """Yield the text of one HTML file, unless it is too large or cannot be decoded; what is left out is counted."""
    with open_file(part.file, part.byte_counter) as stream:
        raw = stream.read(LARGEST_PAGE + 1)
    if len(raw) > LARGEST_PAGE:
        part.skips.add(f"pages over {LARGEST_PAGE >> 20} MiB", f"'{part.file.name}'")
        return
    text = decode_page(raw)
    if text is None:
        part.skips.add("undecodable pages", f"'{part.file.name}'")
        return
    if dropped := text.count(UNDECODABLE):
        part.skips.add("undecodable characters of pages", f"'{part.file.name}'", count=dropped)
    if found := visible_text(text.replace(UNDECODABLE, "")):
        yield found
    else:
        part.skips.add("pages without text", f"'{part.file.name}'")


def decode_page(raw: bytes) -> str | None:
    """Decode by byte order mark, by the declared encoding, or as UTF-8.

    Returns:
        The text, with UNDECODABLE in place of a few invalid bytes; None if it contains many of them or NULs.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif raw.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    else:
        named = _NAMED.search(raw[:ENCODING_HEAD])
        encoding = _encoding(named[1].decode()) if named else "utf-8"
    text = raw.decode(encoding, "replace")
    wrong = text.count(UNDECODABLE)
    return None if "\0" in text or wrong > max(FEW_BAD, BAD_FRACTION * len(text)) else text


def _encoding(label: str) -> str:
    try:
        name = codecs.lookup(_LABELS.get(label.lower(), label)).name
    except LookupError:
        return "utf-8"
    name = _CONTAINED_IN.get(name, name)
    return name if name in _ENCODINGS else "utf-8"


def visible_text(page: str) -> str:
    """Return the normalized prose of an HTML page, one paragraph per line, or "". Broken markup is not an error."""
    prose = _Prose()
    place = 0
    while found := _OPENS.search(page, place):
        prose.text(page[place : found.start()])
        name = (found["name"] or "").lower()
        if not name:
            mark = "-->" if found[0] == "<!--" else ">"
            close = page.find(mark, found.end())
            place = close + len(mark) if close >= 0 else len(page)
            continue
        place = _tag_end(page, found.end())
        if found["close"]:
            prose.end(name)
            continue
        attributes = page[found.end() : place - 1]
        if name in _RAW:
            end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(page, place)
            inside = page[place : end.start()] if end else ""
            if name == "title" and not prose.title and not prose.in_drawing:
                prose.title = _line(inside)
            place = _tag_end(page, end.end()) if end else len(page)
        else:
            prose.begin(name, attributes)
    prose.text(page[place:])
    return prose.close()


def _tag_end(page: str, place: int) -> int:
    """Return the end of the tag whose name ends at ``place``: the end of the page for an unclosed tag."""
    while found := _ENDS.search(page, place):
        place = found.end()
        if found["end"]:
            return place
        end = page.find(found["quote"], place, place + LONGEST_VALUE)
        place = end + 1 if end >= 0 else place
    return len(page)


def _line(text: str) -> str:
    return " ".join(unescape(text).split())


def _hides(attributes: str) -> bool:
    """Whether the attributes of an element hide it; words in the values of others, such as ``title``, do not."""
    if not _HIDDEN.search(attributes):
        return False
    own = _QUOTED.sub(lambda found: found[0] if found[1].lower() in _HIDING else f'{found[1]}=""', attributes)
    return _HIDDEN.search(own) is not None


class _Prose:
    """Collects lines and tracks the open elements."""

    def __init__(self) -> None:
        self.title = ""
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._open: list[tuple[str, bool]] = []
        """(Name, whether it is removed) of the open elements."""
        self._count: Counter[str] = Counter()
        self._hidden = 0
        self._in_paragraph = False

    @property
    def in_drawing(self) -> bool:
        return bool(self._count["svg"])

    def text(self, text: str) -> None:
        if text and not self._hidden and (self._in_paragraph or not self._count["table"]):
            self._pieces.append(text)

    def begin(self, name: str, attributes: str) -> None:
        self._block(name)
        if name in ("svg", "math") and attributes.endswith("/"):
            return
        if name in _BLOCKS and name != "html":
            self.end("head")  # in case it was not closed
        if name in _UNCLOSED:
            self.end(name)
        self._in_paragraph = self._in_paragraph or name == "p"
        hidden = name in _REMOVED or (name in _HIDEABLE and _hides(attributes))
        if hidden or name in _CONTAINERS or name in _UNCLOSED or self._count[name]:
            self._open.append((name, hidden))
            self._count[name] += 1
            self._hidden += hidden

    def end(self, name: str) -> None:
        """Close the innermost element of this name and all elements open inside it."""
        self._block(name)
        if name in _UNCLOSED and not self._is_innermost(name):
            return
        while self._count[name]:
            inner, hidden = self._open.pop()
            self._count[inner] -= 1
            self._hidden -= hidden
            if inner == name:
                break

    def _is_innermost(self, name: str) -> bool:
        """Return whether an element of this name is open without an open container inside it."""
        for inner, _ in self._open[: -_SEARCHED - 1 : -1] if self._count[name] else ():
            if inner == name:
                return True
            if inner in _CONTAINERS:
                return False
        return False

    def _block(self, name: str) -> None:
        if name in _BLOCKS:
            self._break()
            self._in_paragraph = self._in_paragraph and name == "br"

    def _break(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        for piece in text.split("\n") if self._count["pre"] else [text]:
            if line := _line(piece):
                self._lines.append(line)

    def close(self) -> str:
        self._break()
        if self.title and self._lines[:1] != [self.title]:
            self._lines.insert(0, self.title)
        return clean("\n".join(self._lines))
