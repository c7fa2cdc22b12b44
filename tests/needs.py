"""The mark of a test that ``make test`` leaves to ``make test-all``, because it needs more packages or takes long.

Such a test skips itself and says why. ``make test-all`` installs everything and sets ``DAYBREAK_TEST_ALL``; the test
then runs, and fails if something is missing after all. ``-m extra`` selects these tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])


def marks(what: str, *modules: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test that needs ``modules``, for a module's ``pytestmark``.

    ``what`` says how to get them, for the list of skipped tests.
    """
    missing = [name for name in modules if find_spec(name) is None]
    without = bool(missing) and "DAYBREAK_TEST_ALL" not in os.environ
    return [pytest.mark.extra, pytest.mark.skipif(without, reason=f"needs {what}")]


def needs(what: str, *modules: str) -> Callable[[Test], Test]:
    """Put ``marks`` on one test."""
    extra, skip = marks(what, *modules)
    return lambda test: extra(skip(test))


def takes_long(test: Test) -> Test:
    """Leave a test to ``make test-all`` that takes more than ten seconds on idle cores and cannot be made shorter."""
    skip = pytest.mark.skipif("DAYBREAK_TEST_ALL" not in os.environ, reason="takes long: make test-all")
    return pytest.mark.extra(skip(test))
