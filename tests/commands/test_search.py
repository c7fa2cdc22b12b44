"""The command: a run and words go in, passages come out; everything wrong is one sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from in_process import command

import daybreak
from daybreak.core.errors import UserError
from daybreak.searching.query import SearchResult

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def run(finished: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its data and an index. Shared: copy it before changing it."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    shutil.copytree(finished, folder)
    shutil.copytree(data, folder / "data")
    assert daybreak.search(folder) == []
    return folder


def test_the_command_prints_what_the_function_returns(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = daybreak.search(run, "the old sailor", top=3)
    assert len(found) == 3 and all(isinstance(result, SearchResult) for result in found)
    capsys.readouterr()
    command("search", run, "the", "old", "sailor", "--top", 3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines[1::2]] == [result.text for result in found]
    heads = [f"{result.rank}  {result.score:.3f}  {result.split} document {result.document}" for result in found]
    assert [line.strip() for line in lines[::2]] == heads
    assert daybreak.search(run, "the old sailor", top=3, method="bm25") != found
    command("search", run, "xylophone", "--method", "bm25")
    assert capsys.readouterr().out.endswith("No passage contains any of these words.\n")


def test_a_list_of_queries_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match="is not text"):
        daybreak.search(run, ["the old sailor"])  # type: ignore[arg-type]


def test_without_words_the_index_is_built_and_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, table = tmp_path / "index", tmp_path / "vectors.parquet"
    command("search", run, "--index", index)
    passages = pyarrow.parquet.read_table
    said = capsys.readouterr().out
    count = int(re.search(r"holds ([\d,]+) passages", said)[1].replace(",", ""))  # type: ignore[index]
    command("search", run, "--index", index, "--export", table)
    assert passages(table).num_rows == count
    assert f"{count:,} passages with their vectors: {table}" in capsys.readouterr().out
    files = {path.relative_to(index): path.read_bytes() for path in index.rglob("*") if path.is_file()}
    own = {path.relative_to(run / "search"): path.read_bytes() for path in (run / "search").rglob("*.*")}
    assert files == own  # deterministic


def test_what_cannot_work_ends_with_2_and_a_remedy(
    run: Path, finished: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "is not a run folder. Name one that daybreak run" in refused("search", tmp_path, "words")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished, ignore=shutil.ignore_patterns("model"))
    assert "has no exported model yet. Let the run end" in refused("search", unfinished, "words")
    assert "Name their folder with --data." in refused("search", finished, "words")
    assert "The query is empty." in refused("search", run, "  ")
    assert "0 results are too few. Use at least 1 with --top." in refused("search", run, "words", "--top", 0)
    assert "hybrid" in refused("search", run, "words", "--method", "bm52")
    inside = run / "search" / "vectors.parquet"
    assert "is in the folder of the search index." in refused("search", run, "--export", inside)
    assert not inside.exists()
    with monkeypatch.context() as before:
        before.setattr("daybreak.commands.search.open_search", lambda *_, **__: pytest.fail("the index is opened"))
        for folder in (".", "/", tmp_path):
            assert "is a folder. Name a file" in refused("search", run, "--export", folder)
    assert not (finished / "search").exists() and not (unfinished / "search").exists()
