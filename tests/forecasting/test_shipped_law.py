"""The law in the package is the fit of the recorded runs, and speaks of the flagship as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_scripts import beside, script

from daybreak.core.files import read_json
from daybreak.core.serialization import from_dict
from daybreak.forecasting.law import CENTRE, RunSpec, predict_loss, shipped_law
from daybreak.pretraining.hardware_choices import why_no_forecast
from daybreak.recipe import load_recipe
from daybreak.schemas.forecast import Law

__all__ = ["beside"]  # a fixture

RECORDS = Path(__file__).resolve().parents[2] / "records"


def test_the_law_is_that_of_the_records() -> None:
    fitted, law = script("law"), shipped_law()
    again = fitted.fit(fitted.recorded(RECORDS), fitted.recorded_courses(RECORDS))
    assert again.coefficients == pytest.approx(law.coefficients, rel=1e-3, abs=1e-3)
    assert (again.inner, again.tokens, again.freedom) == (law.inner, law.tokens, law.freedom)
    assert again.spread == pytest.approx(law.spread, rel=1e-3) and again.noise == pytest.approx(law.noise, rel=1e-3)
    for there, here in ((again.course, law.course), (again.copy_heads_course, law.copy_heads_course)):
        assert [mark.at for mark in here.usual] == list(fitted.MARKS)
        assert [drop.at for drop in here.drops] == list(fitted.PROGRESS)
        for refitted, shipped in zip(there.usual + there.drops, here.usual + here.drops):
            assert vars(refitted) == pytest.approx(vars(shipped), rel=1e-3, abs=1e-5)
    assert again.residuals == [replace(one, fitted=pytest.approx(one.fitted, rel=1e-3)) for one in law.residuals]
    filed = max(RECORDS.glob("*-law.json"))
    assert from_dict(Law, read_json(filed)["law"]) == law, "python benchmarks/law.py --records records --law ..."


@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_the_law_speaks_of_the_flagship(size: str) -> None:
    assert why_no_forecast(load_recipe(size)) == ""


@pytest.mark.parametrize("name", ["bert-2018", "crammed", "scibert", "base"])
def test_it_does_not_speak_of_others(name: str) -> None:
    assert why_no_forecast(load_recipe(name)) != ""


def test_more_text_and_larger_models_have_better_forecasts() -> None:
    law = shipped_law()
    usual = RunSpec(inner=1_000_000, tokens=4e6, unique=1e9, unigram_loss=7.0, difficulty=CENTRE[2])
    losses = [predict_loss(law, replace(usual, tokens=tokens)).loss for tokens in (1e6, 4e6, 1.6e7)]
    assert losses == sorted(losses, reverse=True)
    losses = [predict_loss(law, replace(usual, inner=inner)).loss for inner in (300_000, 1_000_000, 3_000_000)]
    assert losses == sorted(losses, reverse=True)
    wide, narrow = predict_loss(law, replace(usual, inner=100_000_000)), predict_loss(law, usual)
    assert wide.beyond and not narrow.beyond
    assert wide.high / wide.low > narrow.high / narrow.low
