"""Public corpora by name: ``wikipedia``, ``c4`` and ``pile-subset``, each a data set of the hub at a fixed commit."""

from __future__ import annotations

import os
from dataclasses import dataclass

from daybreak.core.errors import UserError


@dataclass(frozen=True)
class KnownCorpus:
    title: str
    address: str
    """``hf://owner/name@commit:config/split``, see ``hub``."""
    size: str
    licence: str


KNOWN_CORPORA = {
    "wikipedia": KnownCorpus(
        "English Wikipedia of 2023-11-01",
        "hf://wikimedia/wikipedia@b04c8d1ceb2f5cd4588862100d08de323dccfbaa:20231101.en",
        "6.4 million articles, about 20 GB of text",
        "CC BY-SA 3.0 and GFDL",
    ),
    "c4": KnownCorpus(
        "C4, cleaned English web pages",
        "hf://allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2:en",
        "365 million pages, about 305 GB compressed",
        "ODC-BY and Common Crawl's terms of use",
    ),
    "pile-subset": KnownCorpus(
        "the first 8 million documents of the Pile without its copyrighted parts, after Cramming's first 8 million",
        "hf://monology/pile-uncopyrighted@3be90335b66f24456a5d6659d9c8d208c0357119:/train[:8000000]",
        "about 15 GB compressed",
        "the terms of each source",
    ),
}
_WITHOUT_SOURCE = {"bookcorpus": "BookCorpus", "bookcorpusopen": "BookCorpusOpen"}


def find_corpus(given: str) -> KnownCorpus | None:
    """Return the corpus that ``given`` names; None for anything else, also for a file or folder of that name.

    Raises:
        UserError: ``given`` names a corpus that nobody publishes under a licence.
    """
    if os.path.exists(given):
        return None
    if given in _WITHOUT_SOURCE:
        raise UserError(
            f"No publisher offers {_WITHOUT_SOURCE[given]} under a licence, so '{given}' has no source.",
            f"Give your own copy as files, or one of: {', '.join(KNOWN_CORPORA)}.",
        )
    return KNOWN_CORPORA.get(given)
