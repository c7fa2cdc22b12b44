"""Steps of the user's own, from a Python file: ``daybreak prepare TEXT --filters my_filter.py``.

The file is code, and code of a file by path cannot be sent to another process. So what is sent is the path, and each
process reads the file itself; a digest says whether all of them read the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from daybreak.core.errors import UserError
from daybreak.core.serialization import fingerprint
from daybreak.core.user_code import cause, import_file, read_code
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction

Value = TypeVar("Value")

REMEDY = "Let the file end with a tuple of instances: steps = (MyStep(),)."
MOST_REASONS = 100
"""Different ones that a step may give in one part of the text: they are counted, and stand in corpus.json."""
LONGEST_REASON = 100
"""Characters."""


class FilterFailed(Exception):
    """A evaluate raised an exception or returned what it may not.

    Args:
        file: where it is defined.
        why: what it did, fit to stand at the end of a sentence.
    """

    def __init__(self, file: str, why: str):
        super().__init__(file, why)
        self.file, self.why = file, why

    def on(self, document: str) -> UserError:
        """The error to tell, with the name of the document on which it happened."""
        return UserError(f"'{self.file}' failed on {document}: {self.why}.", "Mend it there.")


@dataclass(frozen=True, kw_only=True)
class CustomFilter(DocumentFilter):
    """A step that a file of the user's defines, as a process is sent it."""

    memory: ClassVar[str] = "what the step in the file holds"

    file: str
    """As the user typed it."""
    digest: str
    """Of the file and of the fields of all its steps."""
    place: int
    """Which of its steps, counted from 0."""

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def needs_tokenizer(self) -> bool:
        return self._own.needs_tokenizer

    def why(self) -> str:
        return f"{self._own.why()} ({Path(self.file).name}, {self.digest})"

    def open(self, context: Context) -> FilterFunction:
        own = self._own
        found = _of(self.file, lambda: own.open(context))
        if not callable(found):
            raise UserError(
                f"'{self.file}' cannot be used: {own.name}.open returns no function.",
                "Let it return one that takes a text and returns a reason, or None where the text stays.",
            )
        return _checked(found, own.name, self.file)

    @property
    def _own(self) -> DocumentFilter:
        return _known(self.file, self.digest)[self.place]


def custom_filters(file: str) -> tuple[CustomFilter, ...]:
    """The steps that a Python file of the user's defines: its ``steps``.

    Raises:
        UserError: the file cannot be read or raises an exception, defines no steps, or one of them is none; a field
            holds what is no plain value.
    """
    filters, digest = _read(file)
    return tuple(CustomFilter(file=file, digest=digest, place=place) for place in range(len(filters)))


@functools.lru_cache(maxsize=4)
def _known(file: str, digest: str) -> tuple[DocumentFilter, ...]:
    """The steps of a file that must still be what it was when it was first read."""
    filters, found = _read(file)
    if found != digest:
        raise UserError(
            f"'{file}' changed while the text was read, or defines other steps each time.",
            "Start again when nothing writes to it, and let nothing in it depend on chance or time.",
        )
    return filters


def _read(file: str) -> tuple[tuple[DocumentFilter, ...], str]:
    """The steps in a file, and a digest of the file and of their fields."""
    path = Path(os.path.expanduser(file))
    code = read_code(path)
    filters = getattr(import_file(path, code, "steps"), "steps", None)
    if not isinstance(filters, list | tuple) or not filters:
        raise UserError(f"'{file}' defines no 'steps'.", REMEDY)
    for own in filters:
        if not isinstance(own, DocumentFilter):
            raise UserError(f"'{file}' has {own!r:.60} among its steps, which is no DocumentFilter.", REMEDY)
        why = _of(file, own.why)
        if not isinstance(why, str) or not why.strip() or "\n" in why:
            raise UserError(
                f"'{file}' cannot be used: {own.name}.why does not say in one line what the step is for.",
                "Let it return a few words.",
            )
    try:
        digest = fingerprint({"code": hashlib.blake2b(code).hexdigest(), "steps": list(filters)})
    except (TypeError, ValueError):
        raise UserError(
            f"'{file}' cannot be used: a field of its steps holds what cannot be written down.",
            "Give fields numbers, words and tuples of them, and make the rest in open.",
        ) from None
    return tuple(filters), digest


def _checked(evaluate: FilterFunction, name: str, file: str) -> FilterFunction:
    """The evaluate, with what it does wrong as ``FilterFailed``."""
    reasons: set[str] = set()

    def checked(text: str) -> str | None:
        try:
            why = evaluate(text)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            raise FilterFailed(file, cause(error, Path(os.path.expanduser(file)))) from None
        if why is None:
            return None
        if not isinstance(why, str) or not 0 < len(why) <= LONGEST_REASON or "\n" in why:
            raise FilterFailed(file, f"{name} returns {why!r:.60}, neither None nor a reason in a few words")
        reasons.add(why)
        if len(reasons) > MOST_REASONS:
            raise FilterFailed(file, f"{name} gives more than {MOST_REASONS} different reasons, such as {why!r}")
        return why

    return checked


def _of(file: str, call: Callable[[], Value]) -> Value:
    """What code of the file returns; an exception in it is told with its line."""
    try:
        return call()
    except (UserError, MemoryError):
        raise
    except Exception as error:
        why = cause(error, Path(os.path.expanduser(file)))
        raise UserError(f"'{file}' cannot be used: {why}.", "Mend it there.") from None
