"""What a step of the preparation is: it evaluates documents one by one, or the corpus as a whole.

A step is plain data that a worker process can be sent; what it needs (a model, a tokenizer, an index) it loads there.
The named cases, which put steps together, are in ``cases``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from daybreak.core.errors import UserError
from daybreak.core.extras import install_hint
from daybreak.core.serialization import Component

FilterFunction = Callable[[str], str | None]
"""Takes the clean text of a document. Returns the reason to drop it, a short constant phrase, or None to keep it."""
Judge = FilterFunction
"""The earlier name of ``FilterFunction``, kept for one version so that filter files of users still import."""

LONGEST_FILTERED = 4 << 20
"""Characters. Of a longer document only its beginning is judged, so that memory does not grow with it."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a step may need and cannot know itself."""

    tokenizer: Path | None = None
    """Folder of a tokenizer trained on the text before any step; made only where ``needs_tokenizer`` says so."""


@dataclass(frozen=True, kw_only=True)
class Filter(Component):
    """One step of the preparation."""

    memory: ClassVar[str]
    """What it holds while it works, in words for people."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def passes(self) -> int:
        """How often the whole text is read on its behalf, beyond the two readings that every preparation takes."""
        return 1 if self.needs_tokenizer else 0

    @property
    def needs_tokenizer(self) -> bool:
        """Whether ``Context.tokenizer`` must be given."""
        return False

    @abstractmethod
    def why(self) -> str:
        """What it is for and where it comes from, in one line for people."""


@dataclass(frozen=True, kw_only=True)
class DocumentFilter(Filter):
    """A step whose verdict on a document depends on its text alone."""

    @abstractmethod
    def open(self, context: Context) -> FilterFunction:
        """Load what is needed; call it in the process that evaluates.

        Raises:
            UserError: something that it needs is not installed or cannot be read.
        """


def missing_extra(what: str, package: str) -> UserError:
    """The error for a step whose library, of the extra ``corpus``, is not there."""
    return UserError(f"{what} needs {package}, which is not installed.", install_hint("corpus"))
