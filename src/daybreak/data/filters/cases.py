"""The named cases: which steps suit which text.

| case    | for                                  | readings beyond the usual two  | memory                            |
|---------|--------------------------------------|--------------------------------|-----------------------------------|
| plain   | text that is clean                   | none                           | none                              |
| books   | long prose, digitised books          | none                           | one document's words              |
| web     | web pages                            | none                           | one document's words; see         |
|         |                                      |                                | ``near_duplicates``               |
| crammed | what the Cramming paper did          | one, to train a tokenizer on   | a tokenizer                       |
|         |                                      | the text before it is filtered |                                   |

Exact duplicates are left out in every case; they are no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from daybreak.core.errors import UserError
from daybreak.core.plain import nearest
from daybreak.data.filters.boilerplate import BookLicence
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.filters.languages import Language
from daybreak.data.filters.near_duplicates import NearDuplicates
from daybreak.data.filters.quality_filters import C4Quality, FineWebQuality, GopherQuality, GopherRepetition
from daybreak.data.filters.steps import Step

PLAIN, BOOKS, WEB, CRAMMED = "plain", "books", "web", "crammed"

CASES: Mapping[str, tuple[Step, ...]] = MappingProxyType(
    {
        PLAIN: (),
        # A book has more words than a page may, and a chapter of dialogue few that are stop words.
        BOOKS: (BookLicence(), GopherRepetition(), GopherQuality(fewest_words=20, most_words=0)),
        # FineWeb's filters in its order; its C4 does not ask lines to end with a full stop.
        WEB: (GopherRepetition(), GopherQuality(), C4Quality(), FineWebQuality(), NearDuplicates()),
        # Without deduplication, as for the Pile: the paper saw no benefit downstream.
        CRAMMED: (Compressibility(),),
    }
)


def steps_of(case: str, language: Language | None = None) -> tuple[Step, ...]:
    """The steps of ``case``; ``language`` comes first, where a model for it was given.

    Raises:
        UserError: there is no such case.
    """
    if case not in CASES:
        raise UserError(f"'{case}' is no case.{nearest(case, CASES)}", f"Use {', '.join(CASES)}.")
    return (*([language] if language else []), *CASES[case])
