"""Files of earlier versions load with the current names of their fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daybreak.core.files import read_json
from daybreak.core.recipe_file import is_edited, read_recipe_file, without_extras
from daybreak.recipe import load_recipe
from daybreak.schemas.forecast import ForecastLog
from daybreak.schemas.old_names import RECIPE, current_recipe
from daybreak.schemas.run import Summary
from daybreak.schemas.studies import STUDY_FILE, Study

RECORDS = Path(__file__).resolve().parents[2] / "records"
OLD = RECORDS / "2026-11-22-mini-muon-wiki-15m"
needs_records = pytest.mark.skipif(not OLD.is_dir(), reason="needs the records of the repository")


def has(fields: object, dotted: str) -> bool:
    for name in dotted.split("."):
        if not isinstance(fields, dict) or name not in fields:
            return False
        fields = fields[name]
    return True


@needs_records
def test_an_old_recipe_loads_with_current_names_and_its_values() -> None:
    old = json.loads((OLD / "recipe.json").read_text())
    assert has(old, "model.width") and has(old, "later") and has(old, "clip") and has(old, "ramp.quantum")
    recipe = load_recipe(OLD)
    assert recipe.model.hidden_size == old["model"]["width"] == 256
    assert recipe.model.intermediate_size == old["model"]["inner"]  # type: ignore[attr-defined]
    assert recipe.phase2.length == old["later"]["length"] and recipe.max_grad_norm == old["clip"]
    assert recipe.objective.causal_fraction == old["objective"]["causal_share"]  # type: ignore[attr-defined]
    assert (recipe.ramp.fraction, recipe.ramp.batch_multiple) == (old["ramp"]["share"], old["ramp"]["quantum"])
    assert recipe.gradient_checkpointing == old["recompute"]


@needs_records
def test_a_recipe_file_is_read_with_current_names_only_and_counts_as_unedited() -> None:
    current = read_recipe_file(OLD / "recipe.json")
    assert not is_edited(current)
    assert [name for name in RECIPE if has(without_extras(current), name)] == []


@needs_records
def test_an_old_summary_keeps_its_times() -> None:
    old = json.loads((OLD / "summary.json").read_text())
    summary: Summary = read_json(OLD / "summary.json", Summary)
    assert summary.time_by_category == old["spent"]


@needs_records
def test_an_old_study_has_variants_and_loads_and_no_tasks() -> None:
    study: Study = read_json(RECORDS / "2026-11-22-study-causal" / STUDY_FILE, Study)
    assert {cell.variant for cell in study.cells} == {variant.name for variant in study.settings.variants}
    assert all(cell.loads for cell in study.cells) and study.tasks is None


def test_a_finish_of_an_earlier_version_keeps_its_sequences() -> None:
    old = {"finish": {"start": 0.9, "weight": 1.0}}
    assert current_recipe(old)["finish"] == {"start": 0.9, "weight": 1.0, "views": 0.0, "ordinary": 0.0}
    new = {"finish": {"start": 0.9, "views": 0.1, "ordinary": 0.5}}
    assert current_recipe(new) == new


@pytest.mark.parametrize("measure", ["pairs", "compression"])
def test_an_old_forecast_loads_without_its_measure_of_difficulty(tmp_path: Path, measure: str) -> None:
    """The number is on another scale than the law's."""
    first = {"made_at": 0.0, "tokens": 1e6, "loss": 4.0, "low": 3.8, "high": 4.2, "beyond": ""}
    (tmp_path / "forecast.json").write_text(json.dumps({"forecasts": [first], "usual": [], measure: -0.2}))
    log: ForecastLog = read_json(tmp_path / "forecast.json", ForecastLog)
    assert log.difficulty is None and log.forecasts[0].loss == 4.0
