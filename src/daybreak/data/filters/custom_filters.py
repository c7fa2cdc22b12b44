"""Filters from a Python file of the user: ``daybreak prepare TEXT --filters my_filter.py``.

Classes from a file outside a package cannot be pickled. Each worker process therefore receives the path and reads the
file itself; a digest ensures that all processes read the same content.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from daybreak.core.errors import UserError
from daybreak.core.serialization import fingerprint
from daybreak.core.user_code import cause, import_file, read_code
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction

Value = TypeVar("Value")

REMEDY = "End the file with a tuple of instances: steps = (MyFilter(),)."
MOST_REASONS = 100
"""Maximum number of different reasons of a filter in one part; they are counted in corpus.json."""
LONGEST_REASON = 100
"""Characters."""


class FilterFailed(Exception):
    """A custom filter raised an exception or returned an invalid value.

    Args:
        file: the file that defines it.
        why: what happened, as the end of a sentence.
    """

    def __init__(self, file: str, why: str):
        super().__init__(file, why)
        self.file, self.why = file, why

    def on(self, document: str) -> UserError:
        """Return the error to show, with the name of the document."""
        return UserError(f"'{self.file}' failed on {document}: {self.why}.", "Correct that file.")


@dataclass(frozen=True, kw_only=True)
class CustomFilter(DocumentFilter):
    """A filter from a file of the user, in the form that is sent to worker processes."""

    file: str
    """Path as the user typed it."""
    digest: str
    """Digest of the file and of the fields of all its filters."""
    place: int
    """0-based index among its filters."""

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
                f"'{self.file}' cannot be used: {own.name}.open does not return a function.",
                "Return a function that takes a text and returns a reason to remove it, or None.",
            )
        return _checked(found, own.name, self.file)

    @property
    def _own(self) -> DocumentFilter:
        return _known(self.file, self.digest)[self.place]


def custom_filters(file: str) -> tuple[CustomFilter, ...]:
    """Return the filters that a Python file defines as ``steps``.

    Raises:
        UserError: the file cannot be read or raises an exception, defines no filters, or contains an invalid one; or a
            field is not a plain value.
    """
    filters, digest = _read(file)
    return tuple(CustomFilter(file=file, digest=digest, place=place) for place in range(len(filters)))


@functools.lru_cache(maxsize=4)
def _known(file: str, digest: str) -> tuple[DocumentFilter, ...]:
    """Return the filters of a file, which must not have changed since it was first read."""
    filters, found = _read(file)
    if found != digest:
        raise UserError(
            f"'{file}' changed while the text was read, or defines different filters at each import.",
            "Start again when no process writes to it, and make it independent of randomness and time.",
        )
    return filters


def _read(file: str) -> tuple[tuple[DocumentFilter, ...], str]:
    """Return the filters in a file, and a digest of the file and of their fields."""
    path = Path(os.path.expanduser(file))
    code = read_code(path)
    filters = getattr(import_file(path, code, "steps"), "steps", None)
    if not isinstance(filters, list | tuple) or not filters:
        raise UserError(f"'{file}' defines no 'steps'.", REMEDY)
    for own in filters:
        if not isinstance(own, DocumentFilter):
            raise UserError(f"'{file}' has {own!r:.60} in its steps, which is not a DocumentFilter.", REMEDY)
        why = _of(file, own.why)
        if not isinstance(why, str) or not why.strip() or "\n" in why:
            raise UserError(
                f"'{file}' cannot be used: {own.name}.why must return the purpose of the filter in one line.",
                "Return a few words.",
            )
    try:
        digest = fingerprint({"code": hashlib.blake2b(code).hexdigest(), "steps": list(filters)})
    except (TypeError, ValueError):
        raise UserError(
            f"'{file}' cannot be used: a field of its filters is not a plain value.",
            "Use numbers, strings and tuples of them as fields, and create everything else in open.",
        ) from None
    return tuple(filters), digest


def _checked(evaluate: FilterFunction, name: str, file: str) -> FilterFunction:
    """Wrap a filter function so that its errors become ``FilterFailed``."""
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
    """Call code of the file; convert an exception to a UserError that names the line."""
    try:
        return call()
    except (UserError, MemoryError):
        raise
    except Exception as error:
        why = cause(error, Path(os.path.expanduser(file)))
        raise UserError(f"'{file}' cannot be used: {why}.", "Correct that file.") from None
