"""The three files beside the card: named as Cramming names them, and with nothing private in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.exporting.budget_files import budget_name, write_budget_files
from daybreak.exporting.card import write_card


@pytest.fixture
def run(write_run) -> RunFolder:
    """A finished run of three minutes whose recipe names a folder of this machine."""
    path: Path = write_run(recipe={"origin": {"init": "/home/someone/secret/encoder"}, "rows": {"kind": "StreamRows"}})
    write_json(path / "model" / "config.json", {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"})
    return RunFolder(path)


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        ("24h", "budget_hours_24"),
        ("8m", "budget_hours_0.133"),
        ("47.5h", "budget_hours_47.5"),
        ("60d", "budget_hours_1440"),
        ("90s", "budget_hours_0.025"),
        ("2e9tok", "budget_2e9tok"),
        ("10000steps", "budget_10000steps"),
    ],
)
def test_names_are_hours_or_the_budget_in_words(budget, name):
    assert budget_name(budget) == name


def test_the_files_hold_the_recipe_the_counts_and_the_numbers(run):
    write_budget_files(run)
    arch, data, train = (read_json(run.model / f"{part}_budget_hours_0.05.json") for part in ("arch", "data", "train"))
    recipe = read_json(run.recipe)
    assert arch["model"] == recipe["model"] and arch["parameters"] == 1_476_992 and arch["vocabulary"] == 8192
    assert arch["architectures"] == ["ModernBertForMaskedLM"]
    assert data["rows"] == recipe["rows"] and data["train"] == {"documents": 41_230, "tokens": 3_412_000}
    assert data["sources"][0]["path"] == "docstrings.jsonl"
    for part in ("optimizer", "schedule", "objective", "batch", "max_grad_norm", "seed", "budget"):
        assert train[part] == recipe[part]
    assert train["decisions"]["precision"] == "float32" and train["environment"]["cores"] == 2
    assert train["summary"]["validation"]["accuracy"] == read_json(run.summary)["validation"]["accuracy"]
    assert set(recipe) <= arch.keys() | data.keys() | train.keys()


def test_nothing_private_is_in_them(run):
    write_budget_files(run)
    written = "".join(path.read_text() for path in run.model.glob("*_budget_*.json"))
    assert "encoder" in written and "/home" not in written and "secret" not in written
    assert "hashes" not in written and "5f1c0a77d2e9b431" not in written
    assert not any(example["text"] in written for example in read_json(run.examples))


def test_the_card_brings_them(run):
    write_card(run, [])
    assert sorted(path.name for path in run.model.iterdir()) == [
        "README.md",
        "arch_budget_hours_0.05.json",
        "config.json",
        "data_budget_hours_0.05.json",
        "train_budget_hours_0.05.json",
    ]
