"""Protocols are frozen tables, and a changed one says so in its name."""

from __future__ import annotations

import dataclasses

import pytest

from daybreak.base.errors import UserError
from daybreak.evaluation.protocols import PROTOCOLS, Setting, find_protocol

QUICK, SCIBERT = PROTOCOLS["quick"], PROTOCOLS["scibert"]


def test_quick_has_one_setting_that_follows_width() -> None:
    rates = {}
    for width in (32, 128, 256, 384, 512, 768, 1024):
        (setting,) = QUICK.settings(width)
        assert setting.epochs == 5
        rates[width] = setting.rate
    assert list(rates.values()) == [5e-4, 5e-4, 3e-4, 2e-4, 1e-4, 5e-5, 5e-5]
    assert QUICK.settings(300) == QUICK.settings(256)


def test_scibert_is_the_papers_sweep() -> None:
    settings = SCIBERT.settings(768)
    assert len(settings) == len(set(settings)) == 16
    assert {setting.epochs for setting in settings} == {2, 3, 4, 5}
    assert {setting.rate for setting in settings} == {5e-6, 1e-5, 2e-5, 5e-5}
    assert (SCIBERT.batch, SCIBERT.length, SCIBERT.warmup, SCIBERT.dropout) == (32, 512, 0.1, 0.1)
    assert (SCIBERT.train_rows, SCIBERT.reported) == (None, "test")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "quick"),
        ({"epochs": 4, "rate": 3e-4}, "quick, 4 epochs, rate 3e-4"),
        ({"epochs": 1}, "quick, 1 epoch"),
        ({"rate": 2.5e-5}, "quick, rate 2.5e-5"),
        ({"rate": 1.0, "rows": 30000}, "quick, rate 1e0, 30000 rows"),
    ],
)
def test_changes_are_part_of_the_name(changes: dict[str, float], name: str) -> None:
    assert QUICK.changed(**changes).name == name  # type: ignore[arg-type]


def test_a_change_reaches_the_settings_and_nothing_else() -> None:
    one = SCIBERT.changed(epochs=4, rate=2e-5)
    assert one.settings(768) == one.settings(64) == [Setting(4, 2e-5)]
    assert one.reported == "test"
    assert len(SCIBERT.changed(epochs=3).settings(64)) == len(SCIBERT.changed(rate=1e-4).settings(64)) == 4
    assert QUICK.changed(rows=9).train_rows == 9
    assert dataclasses.replace(SCIBERT.changed(rows=9), name="scibert", train_rows=None) == SCIBERT
    assert SCIBERT.changed() == SCIBERT


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'quick'"):
        find_protocol("quik")
