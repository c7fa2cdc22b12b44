"""Presets: named combinations of filters for kinds of text.

| preset  | for                                  | additional passes              | memory                            |
|---------|--------------------------------------|--------------------------------|-----------------------------------|
| plain   | text that is clean                   | none                           | none                              |
| books   | long prose, digitized books          | none                           | one document's words              |
| web     | web pages                            | none                           | one document's words; see         |
|         |                                      |                                | ``near_duplicates``               |
| crammed | what the Cramming paper did          | one, to train a tokenizer on   | a tokenizer                       |
|         |                                      | the text before it is filtered |                                   |

Exact duplicates are removed in every preset; this is not a filter.

``daybreak prepare`` recognizes a data folder by the name of its preset. A combination that removes other documents
needs a new name: under the old name, a folder made earlier would be taken for its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from daybreak.core.serialization import check_choice
from daybreak.data.filters.boilerplate import BookLicence
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.filters.filter import Filter
from daybreak.data.filters.languages import Language
from daybreak.data.filters.near_duplicates import NearDuplicates
from daybreak.data.filters.quality_filters import C4Quality, FineWebQuality, GopherQuality, GopherRepetition

PLAIN, BOOKS, WEB, CRAMMED = "plain", "books", "web", "crammed"

PRESETS: Mapping[str, tuple[Filter, ...]] = MappingProxyType(
    {
        PLAIN: (),
        # A book exceeds the word limit for pages, and a chapter of dialogue has few stop words.
        BOOKS: (BookLicence(), GopherRepetition(), GopherQuality(fewest_words=20, most_words=0)),
        # FineWeb's filters in its order; its C4 rules do not require lines to end with a full stop.
        WEB: (GopherRepetition(), GopherQuality(), C4Quality(), FineWebQuality(), NearDuplicates()),
        # Without deduplication, as for the Pile: the paper saw no benefit downstream.
        CRAMMED: (Compressibility(),),
    }
)


def preset_filters(preset: str, language: Language | None = None) -> tuple[Filter, ...]:
    """Return the filters of ``preset``, preceded by ``language`` if given."""
    check_choice("--preset", preset, PRESETS)
    return (*([language] if language else []), *PRESETS[preset])
