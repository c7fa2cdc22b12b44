"""Base classes of filters, which check documents one by one or the corpus as a whole.

A filter is plain data that can be sent to a worker process, where it loads what it needs (a model, a tokenizer, an
index). Named combinations of filters are in ``presets``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.extras import install_hint
from daybreak.core.serialization import Component

FilterFunction = Callable[[str], str | None]
"""Takes the clean text of a document. Returns the reason to remove it, a short constant phrase, or None to keep it."""
Judge = FilterFunction
"""The earlier name of ``FilterFunction``, kept for one version so that filter files of users still import."""

LONGEST_FILTERED = 4 << 20
"""Characters of a document that filters examine, which bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a filter may need from the preparation."""

    tokenizer: Path | None = None
    """Folder of a tokenizer trained on the unfiltered text; only if a filter has ``needs_tokenizer``."""


@dataclass(frozen=True, kw_only=True)
class Filter(Component):
    """A filter of documents or of the corpus."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def passes(self) -> int:
        """Additional passes over the text, beyond the two passes of every preparation."""
        return 1 if self.needs_tokenizer else 0

    @property
    def needs_tokenizer(self) -> bool:
        """Whether ``Context.tokenizer`` is required."""
        return False

    @abstractmethod
    def why(self) -> str:
        """Return its purpose and source, in one line for users."""


@dataclass(frozen=True, kw_only=True)
class DocumentFilter(Filter):
    """A filter whose decision on a document depends only on the text of the document."""

    @abstractmethod
    def open(self, context: Context) -> FilterFunction:
        """Load what is needed and return the filter function; called in the process that reads.

        Raises:
            UserError: a requirement is not installed or cannot be read.
        """


def missing_extra(what: str, package: str) -> UserError:
    """Return the error for a filter whose library, from the extra ``corpus``, is not installed."""
    return UserError(f"{what} needs {package}, which is not installed.", install_hint("corpus"))
