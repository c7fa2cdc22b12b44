"""A text, and what comes of it on this machine, for the tests of clusters."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_clusters import SMALL
from small_texts import Contents, contents, write_records

from daybreak.commands.prepare import prepare


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("records") / "records.jsonl", 300)


@pytest.fixture(scope="session")
def as_here(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    out = tmp_path_factory.mktemp("here") / "data"
    prepare([records], out, tokenizer=SMALL, workers=1)
    return contents(out)
