"""Read articles from dumps of Wikipedia and other MediaWiki sites (pages-articles.xml, usually .bz2).

As for BERT, "we extract only the text passages and ignore lists, tables, and headers" (Devlin et al. 2019, arXiv
1810.04805, section 3.1); see ``wikitext``.

Memory: one article of at most LARGEST_ARTICLE, and expat's buffers for at most LARGEST_GAP of the file; no tree is
built. A document type declaration is refused, so no entities can be declared.
"""

from __future__ import annotations

import xml.parsers.expat as expat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from daybreak.core.errors import UserError, reason
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.file_range import FileRange
from daybreak.data.readers.inputs import InputFile, open_file
from daybreak.data.readers.unpacking import CHUNK
from daybreak.data.readers.wikitext import is_disambiguation, passages

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
