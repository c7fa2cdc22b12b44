"""What pretraining refuses: in one sentence and one remedy, with exit code 2, and nothing left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daybreak.commands import pretrain
from daybreak.commands.prepare import prepare
from daybreak.core.files import read_json
from daybreak.core.locks import alone_in
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.recipe import load_recipe
from daybreak.schemas.run import BLOCK_BYTES, Summary

Refused = Callable[..., str]


def test_another_budget_recipe_or_data_is_refused(
    finished: Path, data: Path, corpus: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "summary.json").unlink()
    same = ["pretrain", "tiny", "--out", run, *shape]
    said = refused(*same, "--data", data, "--budget", "41steps")
    assert "started with a budget of 40steps, not 41steps" in said and "--overwrite" in said
    said = refused(*same, "--data", data, "--budget", "40steps", "--optimizer.beta1", "0.8")
    assert "'optimizer.beta1' differs" in said
    (tmp_path / "less.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[:300]))
    prepare([tmp_path / "less.jsonl"], tmp_path / "other", tokenizer=WordPiece(vocabulary=400))
    said = refused(*same, "--data", tmp_path / "other", "--budget", "40steps")
    assert "started on other data" in said
    assert "started on other data" in refused("verify", run, "--data", tmp_path / "other")


def test_fresh_deletes_nothing_before_all_is_looked_at(
    finished: Path, data: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.copytree(data, run / "data")
    before = sorted(run.rglob("*"))
    same = ["pretrain", "tiny", "--out", run, "--budget", "40steps", "--overwrite", *shape]
    assert "no prepared data" in refused(*same, "--data", tmp_path / "dta")
    assert "which --overwrite would delete" in refused(*same, "--data", run / "data")
    parts = ["--out", run, "--budget", "40steps", "--overwrite"]
    assert "which --overwrite would delete" in refused("pretrain", *parts, "--data", data, "--init", run / "model")
    assert "heads" in refused(*same, "--data", data, "--model.heads", "3")
    branch = ["pretrain", "--from", run, "--extend", "80steps", "--data", data, "--out", run, "--overwrite"]
    assert "which --overwrite would delete" in refused(*branch)
    assert sorted(run.rglob("*")) == before


def test_a_run_that_another_process_trains_is_left_alone(
    finished: Path, data: Path, shape: list[str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.commands.pretrain.PATIENCE", 0.0)
    monkeypatch.setattr("daybreak.core.run_folder.PATIENCE", 0.0)
    run, new = tmp_path / "run", tmp_path / "new"
    shutil.copytree(finished, run)
    (run / "summary.json").unlink()
    same = ["pretrain", "tiny", "--data", data, "--budget", "40steps", *shape, "--out"]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with alone_in(run), alone_in(new):
        for more in ([run], [run, "--overwrite"], [new]):
            said = refused(*same, *more)
            assert f"Another process is at work in '{more[0]}'. Wait for it, or end it" in " ".join(said.split())
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    assert list(new.iterdir()) == []


def test_what_a_process_made_of_the_folder_meanwhile_is_looked_at_again(
    finished: Path, data: Path, shape: list[str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was waited for may have begun a run of another recipe, or have ended this one."""
    hold = pretrain._hold
    run = tmp_path / "run"

    def waiting(*arguments: Any) -> bool:
        created = hold(*arguments)
        shutil.copytree(finished, run, dirs_exist_ok=True)
        return created

    monkeypatch.setattr(pretrain, "_hold", waiting)
    assert "'seed' differs" in refused(
        "pretrain", "tiny", "--data", data, "--budget", "40steps", *shape, "--seed", "7", "--out", run
    )
    shutil.rmtree(run)
    found = pretrain.pretrain(load_recipe(finished), data=data, out=run)
    assert found == read_json(run / "summary.json", Summary)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("19steps", "too short for 20 steps. Give at least --budget 20steps"),
        ("5000tok", "Give at least --budget 5120tok"),
        ("1s", "is too short: starting, 20 steps and saving take about"),
        ("soon", "Write it like 90s"),
    ],
)
def test_a_budget_too_short_or_unreadable_leaves_nothing(
    budget: str, said: str, data: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    assert said in refused("pretrain", "tiny", "--data", data, "--out", run, "--budget", budget, *shape)
    assert not run.exists()


def test_folders_that_cannot_be_used_are_refused(
    data: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    plain = ["pretrain", "tiny", "--budget", "40steps", *shape]
    (tmp_path / "file").write_text("mine")
    assert "is not a folder" in refused(*plain, "--data", data, "--out", tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"
    assert "Cannot write" in refused(*plain, "--data", data, "--out", "/proc/run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    assert "holds other files" in refused(*plain, "--data", data, "--out", tmp_path / "mine")
    assert "will not delete" in refused(*plain, "--data", data, "--out", tmp_path / "mine", "--overwrite")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert "no prepared data" in refused(*plain, "--data", tmp_path / "none", "--out", tmp_path / "run")
    assert "heads" in refused(*plain, "--data", data, "--out", tmp_path / "run", "--model.heads", "3")
    assert not (tmp_path / "run").exists()


def test_damaged_data_is_refused_by_the_name_of_the_file(
    data: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    plain = ["pretrain", "tiny", "--budget", "40steps", "--out", tmp_path / "run", *shape]
    for name in ("train-00000.tokens.bin", "heldout-00000.tokens.bin", "unigram.bin"):
        copy = tmp_path / name.replace(".", "-")
        shutil.copytree(data, copy)
        held = bytearray((copy / name).read_bytes())
        assert len(held) < BLOCK_BYTES
        held[len(held) // 2] ^= 1
        (copy / name).write_bytes(held)
        said = refused(*plain, "--data", copy)
        assert name in said and "does not match its hash" in said
    copy = tmp_path / "tokenizer"
    shutil.copytree(data, copy)
    path = copy / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("teacher", "teachar"))
    assert "is not the one that made its tokens" in refused(*plain, "--data", copy)
    assert not (tmp_path / "run").exists()
