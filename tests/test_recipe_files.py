"""Recipes out of files: which kinds are known, what is no recipe, and what only the prepared text can tell."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import daybreak
from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.pretraining.flops import vocabulary_of
from daybreak.recipe import MOST_SEED, load_recipe, resolved

ABSTRACT = "TokenizerConfig TrainedTokenizer SequencesConfig EncoderConfig Objective OptimizerConfig Schedule".split()


def in_a_process_of_its_own(code: str) -> str:
    """What ``code`` prints where no test has imported anything yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_kind_that_ships_is_known_before_json_is_read() -> None:
    root = Path(daybreak.__file__).parent
    wanted = {
        ".".join(("daybreak", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in ABSTRACT for base in node.bases)
    }
    known = in_a_process_of_its_own("import sys, daybreak.recipe; print(*sys.modules)").split()
    assert "daybreak.data.tokenizers.byte_bpe" in wanted and wanted <= set(known)


def test_a_run_of_byte_tokens_is_read_again(tmp_path: Path) -> None:
    """By a command that imports no more than it needs."""
    recipe = dataclasses.replace(load_recipe("tiny"), tokenizer=ByteBPE(vocabulary=512))
    write_json(tmp_path / "recipe.json", resolved(recipe))
    code = f"from daybreak.recipe import load_recipe; print(load_recipe({str(tmp_path)!r}).tokenizer.vocabulary)"
    assert in_a_process_of_its_own(code) == "512\n"
    assert load_recipe(tmp_path) == recipe and vocabulary_of(recipe) == 512


def test_a_json_file_that_is_no_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text("[1, 2]")
    with pytest.raises(UserError, match="holds no recipe"):
        load_recipe(path)


def test_the_tokens_of_a_tokenizer_that_is_not_trained_are_known_only_later() -> None:
    strange: Any = types.SimpleNamespace(tokenizer=types.SimpleNamespace())
    with pytest.raises(UserError, match="The vocabulary size of a SimpleNamespace"):
        vocabulary_of(strange)


def test_the_largest_seed_is_one_for_torch() -> None:
    """As a step seeds it: see ``training.step.accumulate``."""
    for seed in (MOST_SEED, -MOST_SEED):
        dataclasses.replace(load_recipe("tiny"), seed=seed).check()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + 10**12)
