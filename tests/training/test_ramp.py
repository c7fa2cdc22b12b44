"""The growing batch of Cramming, against its table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.training.schedule import Ramp


@pytest.mark.parametrize(
    ("progress", "rows"), [(0.0, 128), (0.15, 2176), (0.3, 4224), (0.45, 6272), (0.6, 8192), (0.9, 8192)]
)
def test_the_table_of_crammed_bert(progress: float, rows: int) -> None:
    assert Ramp(fraction=0.6).rows(8192, progress, 0, 128) == rows


def test_a_microbatch_that_does_not_divide_the_batch_is_rounded_down() -> None:
    """85 microbatches of 96 rows, not the original's 86 under a divisor of 85."""
    ramp = Ramp(fraction=0.6)
    assert [ramp.rows(8192, progress, 0, 96) for progress in (0.0, 0.3, 0.6, 1.0)] == [96, 43 * 96, 8160, 8160]
    assert Ramp(fraction=0.6, batch_multiple=96).rows(8192, 1.0, 0, 128) == 8160


def test_the_first_crammed_bert_counts_microbatches() -> None:
    ramp = Ramp(microbatches=300_000)
    found = [ramp.rows(4096, 0.9, 128 * step, 128) for step in (0, 9_374, 9_375, 150_000, 299_999, 300_000, 500_000)]
    assert found == [128, 128, 256, 17 * 128, 4096, 4096, 4096]
    assert Ramp(microbatches=300_000).rows(4032, 0.0, 96 * 300_000, 96) == 42 * 96
    assert Ramp(microbatches=300_000).rows(4032, 1.0, 0, 96) == 42 * 96, "the whole batch, as for a second phase"


def test_without_a_ramp_the_batch_is_what_it_is() -> None:
    assert Ramp().rows(100, 0.0, 0, 64) == 100 == Ramp(batch_multiple=64).rows(100, 0.5, 0, 32)


@given(
    full=st.integers(1, 10_000),
    batch_multiple=st.integers(1, 600),
    fraction=st.floats(0.01, 1),
    progress=st.floats(0, 1),
    later=st.floats(0, 1),
)
def test_it_grows_in_whole_quanta_up_to_the_batch(
    full: int, batch_multiple: int, fraction: float, progress: float, later: float
) -> None:
    ramp, unit = Ramp(fraction=fraction), min(batch_multiple, full)
    progress, later = sorted((progress, later))
    rows = ramp.rows(full, progress, 0, batch_multiple)
    assert rows % unit == 0 and unit <= rows <= full // unit * unit
    assert rows <= ramp.rows(full, later, 0, batch_multiple)
    assert ramp.rows(full, 1.0, 0, batch_multiple) == full // unit * unit


@pytest.mark.parametrize(
    "fields",
    [
        {"fraction": 1.2},
        {"fraction": -0.1},
        {"microbatches": -1},
        {"batch_multiple": -1},
        {"fraction": 0.5, "microbatches": 9},
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(UserError, match="--ramp"):
        Ramp(**fields)  # type: ignore[arg-type]
