"""Extract English prose from docstrings: reStructuredText, Markdown, NumPy style, Google style and Sphinx fields.

Code, doctests, tables, headings, directives and type lines of parameters are dropped line by line. The remaining lines
are joined to paragraphs, inline markup is removed, and paragraphs that are not English prose (many symbols, few
words) are dropped.
"""

from __future__ import annotations

import inspect
import itertools
import re
from functools import lru_cache

KEPT_DIRECTIVES = frozenset("note warning tip important caution hint attention seealso admonition".split())
"""Directives whose first line and indented body are prose."""
KEPT_BODIES = KEPT_DIRECTIVES | {"versionadded", "versionchanged", "deprecated"}
"""Directives whose indented body is prose; the bodies of others (code, math, plots, tables) are dropped."""

FUNCTION_WORDS = frozenset(
    """a an the this that these those it its he they them their we our you your i is are was were be been being has
    have had do does did will would can could may might must should shall not no of in on at by for with from to into
    as if when then than and or but so which what where who how all any each both only also there such same other
    whether while because between until""".split()
)

_UNDERLINE = re.compile(r"([=\-~^\"#*+`])\1{2,}$")
_DROPPED_LINES = (
    _UNDERLINE,
    re.compile(r"[\s|+=:\-]+$|.*\|.*\||\S++(?: {3,}+\S++){2,}$"),  # a table
    re.compile(r">>>|\.\.\. |\$ |In \[\d|Out\[\d|import \w|from [\w.]+ import|@\w|def \w+\(|class \w+[(:]|\w+ = "),
    re.compile(r"[A-Z][\w /]{0,30}:$|#+ "),  # a heading
)
_DIRECTIVE = re.compile(r"\.\. ([\w:-]+):: ?(.*)$")
_NUMPY_ENTRY = re.compile(r"[`*\\]*[\w.]+[\w.*`\\'\"\[\](){}/| ,=-]{0,60}? :(?: |$)")
_SPHINX_FIELD = re.compile(r":(\w+)[^:`]*:(?!`)\s*")
_BULLET = re.compile(r"(?:[-*+]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
_NAME = r"[`*\\]*[A-Za-z_][\w.*\\\[\]]*[`*]*"
_TYPED_ENTRY = re.compile(rf"{_NAME}(?:[,/] ?{_NAME})* ?\((?:[^()]|\([^()]*\))*\)\s*(?::|--?)(?:\s+|$)")
_PLAIN_ENTRY = re.compile(rf"{_NAME}(?:[,/] ?{_NAME})*\s*(?::|--)(?:\s+|$)")

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


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of English prose in ``docstring``, each on one line, without markup."""
    lines = inspect.cleandoc(docstring).expandtabs().splitlines()
    reader = _Reader()
    for line, following in itertools.pairwise([*lines, ""]):
        reader.read(line, following)
    return list(filter(None, (_clean(" ".join(lines)) for lines in reader.paragraphs)))


@lru_cache(maxsize=200_000)  # packages repeat many paragraphs
def _clean(text: str) -> str:
    """Remove the markup; return an empty string if the rest is not prose."""
    if _MARKED.search(text):  # half of the paragraphs contain no markup
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    text = _BROKEN_WORD.sub("-", " ".join(text.split()))
    return text if _is_prose(text) else ""


def _is_prose(text: str) -> bool:
    words = text.split()
    if len(words) < 5 or not any(c.islower() for c in text):
        return False
    ordinary = sum(_WORD.match(word) is not None for word in words)
    if ordinary < 0.75 * len(words):
        return False
    functional = sum(word in FUNCTION_WORDS for word in text.lower().split())
    return functional >= 0.1 * len(words) or (text[0].isupper() and text[-1] == "." and ordinary == len(words))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Reader:
    """Splits one docstring into ``paragraphs``, each a list of lines."""

    def __init__(self) -> None:
        self.paragraphs: list[list[str]] = []
        self._section = ""
        self._skip_indent: int | None = None
        """Lines with a deeper indentation belong to a dropped block."""
        self._in_fence = self._in_doctest = False
        self._indent: int | None = None
        """Indentation of the first line of the current paragraph; None between paragraphs."""
        self._hanging = False
        """Whether the current paragraph began with a bullet or entry, so that its other lines may be indented."""

    def read(self, line: str, following: str) -> None:
        """Read a line, given the next one; add it to a paragraph unless it is code, a table or in a dropped block."""
        text, indent = line.strip(), _indent(line)
        if text.startswith("```"):
            self._in_fence = not self._in_fence and not (len(text) > 3 and text.endswith("```"))
            self._indent = None
        elif self._in_fence:
            pass
        elif not text:
            self._in_doctest, self._indent = False, None
        elif _UNDERLINE.match(following.strip()) and not _UNDERLINE.match(text):
            self._section, self._skip_indent = text.lower().rstrip(":"), None
            self._in_doctest, self._indent = False, None
        elif self._skip_indent is None or indent <= self._skip_indent:
            self._skip_indent = None
            self._in_doctest = self._in_doctest or text.startswith((">>>", "In ["))
            if self._in_doctest or self._section == "references" or any(kind.match(text) for kind in _DROPPED_LINES):
                self._skip_indent = indent if text in ("References:", "Reference:") else None
                self._indent = None
            elif text.split()[0] == "..":
                self._begin_directive(text, indent)
            else:
                self._take(text, indent, following)

    def _begin_directive(self, text: str, indent: int) -> None:
        self._indent = None
        directive = _DIRECTIVE.match(text)
        if directive is None or directive[1] not in KEPT_BODIES:
            self._skip_indent = indent
        elif directive[1] in KEPT_DIRECTIVES:
            self.paragraphs.append([directive[2]])

    def _take(self, text: str, indent: int, following: str) -> None:
        """Add a line of text to the current paragraph, or begin another one with it."""
        if text.endswith("::"):
            self._skip_indent, text = indent, text.rstrip(": ") + ":"
        deeper_follows = following.strip() != "" and _indent(following) > indent
        if deeper_follows and len(text.split()) <= 3 and text[-1] not in ".,:;":
            self._indent = None
            return
        starts, rest = self._entry(text, indent)
        own = self._indent is not None and (indent > self._indent if self._hanging else indent == self._indent)
        if own and not starts:
            self.paragraphs[-1].append(text)
            return
        if starts and deeper_follows and self._section and text[0].isalpha() and text[-1] not in ".:":
            rest = ""  # "name: type" of a parameter, its description follows
        self.paragraphs.append([rest])
        self._indent, self._hanging = indent, starts

    def _entry(self, text: str, indent: int) -> tuple[bool, str]:
        """Return whether a line begins a bullet, parameter or field, and the line without that beginning."""
        fresh = self._indent is None or (self._hanging and indent <= self._indent)
        if field := _SPHINX_FIELD.match(text):
            return True, "" if "type" in field[1] else text[field.end() :]
        if " :" in text and (fresh or self._section) and (entry := _NUMPY_ENTRY.match(text)):
            return True, text[entry.end() :] if self._section == "see also" else ""
        bullet = _BULLET.match(text)
        rest = text[bullet.end() :] if bullet else text
        head = None
        if ":" in rest or "--" in rest or " - " in rest:  # the patterns take long on others
            head = _TYPED_ENTRY.match(rest) or (_PLAIN_ENTRY.match(rest) if fresh or bullet else None)
        return bool(bullet or head), rest[head.end() :] if head else rest
