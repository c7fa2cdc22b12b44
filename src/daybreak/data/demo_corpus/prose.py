"""Extract English prose from docstrings: reStructuredText, Markdown, NumPy style, Google style and Sphinx fields.

Code, doctests, tables, headings, directives and type lines of parameters are dropped line by line. The remaining lines
are joined to paragraphs, inline markup is removed, and paragraphs that are not English prose (many symbols, few
words) are dropped.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from functools import lru_cache

KEPT_DIRECTIVES = frozenset(
    """note warning tip important caution hint attention seealso admonition versionadded versionchanged
    deprecated""".split()
)
"""Directives whose indented body is prose; the bodies of others (code, math, plots, tables) are dropped."""

FUNCTION_WORDS = frozenset(
    """a an the this that these those it its he they them their we our you your i is are was were be been being has
    have had do does did will would can could may might must should shall not no of in on at by for with from to into
    as if when then than and or but so which what where who how all any each both only also there such same other
    whether while because between until""".split()
)

_UNDERLINES = frozenset('=-~^"#*+`')
_CODE_STARTS = frozenset(("In ", "Out", "imp", "fro", "def", "cla"))
_UNDERLINE = re.compile(r"^([=\-~^\"#*+`])\1{2,}$")
_DIRECTIVE = re.compile(r"^\.\. ([\w:-]+):: ?(.*)$")
_TABLE = re.compile(r"^[\s|+=:\-]+$|\|.*\||^\S+( {3,}\S+){2,}$")
_CODE_LINE = re.compile(
    r"^(>>>|\.\.\. |\$ |In \[\d|Out\[\d|import \w|from [\w.]+ import|@\w|def \w+\(|class \w+[(:]|\w+ = )"
)
_LABEL = re.compile(r"^[A-Z][\w /]{0,30}:$|^#+ ")
_NUMPY_ENTRY = re.compile(r"^[`*\\]*[\w.]+[\w.*`\\'\"\[\](){}/| ,=-]{0,60}? :(?: |$)")
_SPHINX_FIELD = re.compile(r"^:(\w+)[^:`]*:(?!`)\s*")
_BULLET = re.compile(r"^(?:[-*+]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
_NAME = r"[`*\\]*[A-Za-z_][\w.*\\\[\]]*[`*]*"
_TYPED_ENTRY = re.compile(rf"^{_NAME}(?:[,/] ?{_NAME})* ?\((?:[^()]|\([^()]*\))*\)\s*(?::|--?)(?:\s+|$)")
_PLAIN_ENTRY = re.compile(rf"^{_NAME}(?:[,/] ?{_NAME})*\s*(?::|--)(?:\s+|$)")

_LEAD = r"\s?(?:\b(?:see|xref|refer to|at|in|from|by|of)(?: also)?:?\s+)?"
_INLINE = (
    (re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>(?!`)"), " "),
    (re.compile(r"!?\[([^\[\]]*)\]\((?:[^()]|\([^()]*\))*\)"), r"\1"),
    (re.compile(r":[\w:+-]+:`([^`<]*?)\s*<[^`]*>`"), r"\1"),
    (re.compile(r":[\w:+-]+:`[~!.]?([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),
    (re.compile(r"\[`[~!.]?([^`]*)`\]"), r"\1"),
    (re.compile(rf"{_LEAD}(?:(?:https?|ftp)://|\bwww\.)[^\s)]*[^\s).,]"), ""),
    (re.compile(rf"{_LEAD}\[[\w#*-]+\]_(?!\w)(?:(?:,| and|, and) \[[\w#*-]+\]_)*"), ""),
    (re.compile(r"(?<=[\w.,)]) \[\d{1,2}\](?!\w)"), ""),
    (re.compile(r"``?([^`]*)``?_{0,2}"), r"\1"),
    (re.compile(r"\|(\w+)\|"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"\$([^$]{1,40})\$"), r"\1"),
    (re.compile(r"\\([*_`'\"|])"), r"\1"),
    (re.compile(r"[`\u200b]|<[^<>\w]*>|\(\s*\)|\[\s*\]"), ""),
    (re.compile(r" +([.,;:!?)])(?=\s|$)"), r"\1"),
    (re.compile(r"[,;:]\s*(?=\.(?:\s|$))"), ""),
)
_BROKEN_WORD = re.compile(r"(?<=[a-z])- (?=[a-z])(?!and |or |to )")
_MARKED = re.compile(r"[`*<\[\\|$\u200b]|://|www\.|\(\s*\)")
_WORD = re.compile(r"^[(\"'\[]*[A-Za-z]+(?:['-][A-Za-z]+)*[)\"'\]]*[.,;:!?]*[)\"']*$")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!cf\.)(?<!vs\.)(?<! al\.)\s+(?=[A-Z\"'(])")


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of English prose in ``docstring``, each on one line, without markup."""
    reader = _Reader(inspect.cleandoc(docstring).expandtabs().splitlines())
    reader.read()
    paragraphs = (_clean(" ".join(lines)) for lines in reader.paragraphs)
    return [paragraph for paragraph in paragraphs if paragraph]


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph after each ``.``, ``?`` or ``!`` that a capital letter or an opening quote follows."""
    return _SENTENCE_END.split(paragraph)


def is_english(text: str) -> bool:
    """Return whether at least 15 % of the words are English function words (about 40 % in English text)."""
    words = text.lower().split()
    return sum(word in FUNCTION_WORDS for word in words) >= 0.15 * max(1, len(words))


@lru_cache(maxsize=200_000)  # packages repeat many paragraphs
def _clean(text: str) -> str:
    """Remove the markup; return an empty string if the rest is not prose."""
    if _MARKED.search(text):  # half of the paragraphs contain no markup
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    text = _BROKEN_WORD.sub("-", " ".join(text.split()))
    return text if _is_prose(text) else ""


def _is_underline(text: str) -> bool:
    return text[:1] in _UNDERLINES and _UNDERLINE.match(text) is not None


def _is_code(text: str) -> bool:
    """Return whether a line is a table row, code, a label or a rule; fast tests come first."""
    if (text[0] in "|+=:-" or "|" in text or "   " in text) and _TABLE.search(text):
        return True
    if (text[0] in ">.$@" or "=" in text or text[:3] in _CODE_STARTS) and _CODE_LINE.match(text):
        return True
    return ((text[-1] == ":" or text[0] == "#") and _LABEL.match(text) is not None) or _is_underline(text)


def _is_prose(text: str) -> bool:
    words = text.split()
    if len(words) < 5 or not any(c.islower() for c in text):
        return False
    ordinary = sum(_WORD.match(word) is not None for word in words)
    if ordinary < 0.75 * len(words):
        return False
    functional = sum(word in FUNCTION_WORDS for word in text.lower().split())
    return functional >= 0.1 * len(words) or (text[0].isupper() and text[-1] == "." and ordinary == len(words))


@dataclass
class _Reader:
    """Reads one docstring line by line; ``paragraphs`` collects lists of lines."""

    lines: list[str]
    paragraphs: list[list[str]] = field(default_factory=list)
    section: str = ""
    skip_indent: int | None = None
    """Lines with a deeper indentation belong to a dropped block."""
    in_fence: bool = False
    in_doctest: bool = False
    paragraph_indent: int | None = None
    """Indentation of the first line of the current paragraph; None between paragraphs."""
    hanging: bool = False
    """Whether the current paragraph began with a bullet or entry, so that its other lines may be indented."""

    def read(self) -> None:
        number = 0
        while number < len(self.lines):
            text = self.lines[number].strip()
            indent = len(self.lines[number]) - len(self.lines[number].lstrip())
            following = self.lines[number + 1] if number + 1 < len(self.lines) else ""
            if text and not self.in_fence and _is_underline(following.strip()) and not _is_underline(text):
                self._close()
                self.section, self.skip_indent, self.in_doctest = text.lower().rstrip(":"), None, False
                number += 2
                continue
            if not self._dropped(text, indent):
                self._take(text, indent, following)
            number += 1

    def _close(self) -> None:
        self.paragraph_indent, self.hanging = None, False

    def _dropped(self, text: str, indent: int) -> bool:
        """Return whether a line is dropped: blank, code, doctest, table or body of a dropped block."""
        if text.startswith(("```", "~~~")):
            self.in_fence = not self.in_fence and not (len(text) > 3 and text.endswith("```"))
            self._close()
            return True
        if self.in_fence:
            return True
        if not text:
            self.in_doctest = False
            self._close()
            return True
        if self.skip_indent is not None and indent > self.skip_indent:
            return True
        self.skip_indent = None
        if text.startswith((">>>", "In [")):
            self.in_doctest = True
        if self.in_doctest or self.section == "references" or _is_code(text):
            if text in ("References:", "Reference:"):
                self.skip_indent = indent
            self._close()
            return True
        return self._is_dropped_directive(text, indent)

    def _is_dropped_directive(self, text: str, indent: int) -> bool:
        if not text.startswith((".. ", "..\t")):
            return text == ".."
        self._close()
        directive = _DIRECTIVE.match(text)
        if directive is None or directive[1] not in KEPT_DIRECTIVES:
            self.skip_indent = indent
        elif not directive[1].startswith(("version", "deprecated")):
            self._open([directive[2]], indent, hanging=False)
            self._close()
        return True

    def _take(self, text: str, indent: int, following: str) -> None:
        """Add a line of text to the current paragraph, or begin another one with it."""
        if text.endswith("::"):
            self.skip_indent, text = indent, text[:-1].rstrip(": ")
            text += ":" if text else ""
        deeper_follows = bool(following.strip()) and len(following) - len(following.lstrip()) > indent
        if deeper_follows and len(text.split()) <= 3 and text[-1:] not in (".", ",", ":", ";"):
            self._close()
            return
        started, rest = self._entry(text, indent)
        if started and deeper_follows and self.section and text[0].isalpha() and text[-1] not in ".:":
            rest = ""  # "name: type" of a parameter, its description follows
        if started:
            self._open([rest], indent, hanging=True)
        elif self._continues(indent):
            self.paragraphs[-1].append(text)
        else:
            self._open([text], indent, hanging=False)

    def _continues(self, indent: int) -> bool:
        if self.paragraph_indent is None:
            return False
        return indent > self.paragraph_indent if self.hanging else indent == self.paragraph_indent

    def _open(self, lines: list[str], indent: int, hanging: bool) -> None:
        self.paragraphs.append(lines)
        self.paragraph_indent, self.hanging = indent, hanging

    def _entry(self, text: str, indent: int) -> tuple[bool, str]:
        """Return whether a line begins a bullet, parameter or field, and the line without that beginning."""
        fresh = self.paragraph_indent is None or (self.hanging and indent <= self.paragraph_indent)
        if text[0] == ":" and (field_name := _SPHINX_FIELD.match(text)):
            return True, "" if "type" in field_name[1] else text[field_name.end() :]
        if " :" in text and (fresh or self.section) and (numpy_entry := _NUMPY_ENTRY.match(text)):
            return True, text[numpy_entry.end() :] if self.section == "see also" else ""
        bullet = _BULLET.match(text) if text[0] in "-*+(" or text[1:2] in ".)" or text[2:3] in ".)" else None
        rest = text[bullet.end() :] if bullet else text
        head = None
        if ":" in rest or "--" in rest or " - " in rest:
            head = _TYPED_ENTRY.match(rest) or (_PLAIN_ENTRY.match(rest) if fresh or bullet else None)
        return bool(bullet or head), rest[head.end() :] if head else rest
