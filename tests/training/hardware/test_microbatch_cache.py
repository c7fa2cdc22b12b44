"""What was the fastest microbatch is remembered, and whatever is wrong with the memory only means measuring again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from daybreak.training.hardware.microbatch_cache import cache_file, lower, recall, remember

FACTS: list[Any] = ["Some GPU", "2.13.0", {"kind": "ModernEncoder", "layers": 2}, 128, False, 256]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_remembered_is_recalled(home: Path) -> None:
    assert recall(FACTS) is None
    remember(FACTS, 64)
    assert recall(list(FACTS)) == 64 and cache_file() == home / "daybreak" / "microbatch.json"
    remember(FACTS, 32)
    assert recall(FACTS) == 32
    assert [path.name for path in cache_file().parent.iterdir()] == ["microbatch.json"]


def test_a_number_that_did_not_fit_is_lowered_and_never_raised() -> None:
    lower(FACTS, 8)
    assert recall(FACTS) is None
    remember(FACTS, 64)
    lower(FACTS, 256)  # half of what somebody asked for
    assert recall(FACTS) == 64
    lower(FACTS, 32)
    assert recall(FACTS) == 32


@pytest.mark.parametrize("place", range(len(FACTS)))
def test_other_facts_are_measured_again(place: int) -> None:
    remember(FACTS, 64)
    other = [*FACTS]
    other[place] = {"kind": "ModernEncoder", "layers": 3} if place == 2 else True if place == 4 else f"{FACTS[place]}9"
    assert recall(other) is None
    remember(other, 8)
    assert (recall(FACTS), recall(other)) == (64, 8)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "7", "\x00\xff", '{"a": '])
def test_a_corrupt_file_is_measured_again_and_replaced(text: str) -> None:
    cache_file().parent.mkdir(parents=True)
    cache_file().write_bytes(text.encode("latin-1"))
    assert recall(FACTS) is None
    remember(FACTS, 16)
    assert recall(FACTS) == 16


@pytest.mark.parametrize("rows", ['"many"', "0", "-8", "2.5", "null", "[64]"])
def test_rows_that_make_no_sense_are_measured_again(rows: str) -> None:
    remember(FACTS, 64)
    cache_file().write_text(cache_file().read_text().replace("64", rows))
    assert recall(FACTS) is None


def test_a_file_or_a_folder_in_the_way_is_no_fault(home: Path) -> None:
    home.write_text("no folder")
    remember(FACTS, 64)
    assert recall(FACTS) is None and home.read_text() == "no folder"
    home.unlink()
    cache_file().mkdir(parents=True)  # a folder where the file should be
    remember(FACTS, 64)
    assert recall(FACTS) is None


def test_a_write_that_fails_is_no_fault_and_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(FACTS, 64)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", denied)
        remember(FACTS, 8)
    assert recall(FACTS) == 64


def test_without_a_home_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    remember(FACTS, 64)
    assert recall(FACTS) is None


def test_no_test_sees_the_users_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conftest of all tests says where; processes that tests start inherit it."""
    monkeypatch.undo()
    assert not cache_file().is_relative_to(Path.home())
