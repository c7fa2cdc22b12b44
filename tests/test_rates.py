"""benchmarks/rates.py: the rule it tests is the flagship's, and its optimum is the one of a known curve."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest
from benchmark_scripts import beside, script
from page_commands import called

from daybreak.models.modern import ModernEncoder
from daybreak.recipe import load_recipe
from daybreak.training.optim.muon import Muon

__all__ = ["beside"]  # a fixture


@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_the_rule_is_that_of_the_recipes(size: str) -> None:
    recipe = load_recipe(size)
    model, optimizer = recipe.model, recipe.optimizer
    assert isinstance(model, ModernEncoder) and isinstance(optimizer, Muon) and not optimizer.adam_lr
    words = shlex.split(script("rates").rule(model.layers, model.hidden_size, 1.0))
    made = dict(zip(words[::2], map(float, words[1::2])))
    names = ("layers", "hidden_size", "heads", "intermediate_size")
    same = {name: made[f"--model.{name.replace('_', '-')}"] for name in names}
    assert same == {name: getattr(model, name) for name in same}
    assert made["--model.init-std"] == pytest.approx(model.init_std, rel=0.05)
    assert made["--optimizer.lr"] == pytest.approx(optimizer.lr, rel=0.1)


def test_pretrain_takes_the_flags_of_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"daybreak pretrain mini --data data --out run {script('rates').rule(3, 192, 0.5)}"
    recipe = called(command, tmp_path, monkeypatch)[0][0]
    assert (recipe.model.layers, recipe.model.hidden_size, recipe.model.heads) == (3, 192, 3)
    assert recipe.optimizer.lr == pytest.approx(1.5e-3 * math.sqrt(256 / 192), rel=1e-3)


def test_the_best_factor_of_a_known_curve() -> None:
    rates = script("rates")
    losses = {factor: 5 + 0.1 * math.log2(factor / 0.8) ** 2 for factor in (0.25, 0.5, 1.0, 2.0)}
    assert rates.best_factor(losses) == pytest.approx(0.8)
    assert rates.best_factor({0.5: 5.0, 1.0: 4.9, 2.0: 4.8}) is None
    found = [{"best_factor": 0.8}, {"best_factor": 1.2}]
    assert rates.spread_of(found) == pytest.approx(1.5)
    assert rates.spread_of([*found, {"best_factor": None}]) is None
