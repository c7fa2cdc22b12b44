"""The mark of a test that needs more than ``make test`` installs.

Without it the test skips itself and names what is missing. ``make test-all`` installs everything and sets
``DAYBREAK_TEST_ALL``; such a test then runs, and fails if something is missing after all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])


def marks(what: str, *modules: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test of ``pytest -m extra`` that needs ``modules``, for a module's ``pytestmark``.

    ``what`` says how to get them, for the list of skipped tests.
    """
    missing = [name for name in modules if find_spec(name) is None]
    without = bool(missing) and "DAYBREAK_TEST_ALL" not in os.environ
    return [pytest.mark.extra, pytest.mark.skipif(without, reason=f"needs {what}")]


def needs(what: str, *modules: str) -> Callable[[Test], Test]:
    """Put ``marks`` on one test."""
    extra, skip = marks(what, *modules)
    return lambda test: extra(skip(test))
