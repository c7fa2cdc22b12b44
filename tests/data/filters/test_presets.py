from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.core.serialization import fingerprint, from_dict, to_dict
from daybreak.data.filters import presets
from daybreak.data.filters.contamination import EvaluationText
from daybreak.data.filters.filter import DocumentFilter, Filter
from daybreak.data.filters.languages import Language
from daybreak.data.filters.near_duplicates import NearDuplicates
from daybreak.data.filters.presets import PRESETS, preset_filters
from daybreak.data.pipeline.preprocessing import Preprocessing


def test_the_language_comes_first() -> None:
    language = Language(model="m.bin", languages=("en",))
    assert preset_filters("web", language) == (language, *PRESETS["web"])
    assert preset_filters("plain") == ()
    with pytest.raises(UserError, match=r"--preset cannot be 'wed'. Did you mean 'web'"):
        preset_filters("wed")


def test_the_help_and_the_page_name_every_preset() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "text.md").read_text()
    source = inspect.getsource(Preprocessing).partition("filters: str")[0]
    for preset in PRESETS:
        assert f"| `{preset}`" in page and re.search(rf"\b{preset}\b", source) and f"\n| {preset} " in presets.__doc__


def test_a_preset_drops_what_it_dropped() -> None:
    """A data folder is recognized by the name of its preset: another combination of filters needs another name."""
    assert {preset: fingerprint(list(steps)) for preset, steps in PRESETS.items()} == {
        "plain": "71857576257465c7",
        "books": "1b875f84e6353642",
        "web": "99c7c7204cc842b7",
        "crammed": "4ec8df0faaff947c",
    }


def test_every_step_is_plain_data_that_says_what_it_is_for() -> None:
    others = (Language(model="m.bin", languages=("en",)), EvaluationText(paths=("a.tsv", "b.tsv")))
    for step in (*(step for steps in PRESETS.values() for step in steps), *others):
        assert pickle.loads(pickle.dumps(step)) == step == from_dict(Filter, to_dict(step))
        assert "\n" not in step.why() and len(step.why()) > 20
        assert isinstance(step, DocumentFilter) != isinstance(step, NearDuplicates | EvaluationText)
        assert step.passes == (step.name == "Compressibility")
