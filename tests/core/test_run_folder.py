"""What ``--overwrite`` deletes: runs, and what runs begin with. Never a folder with anything of the user's in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.core.locks import alone_in
from daybreak.core.run_folder import RunFolder


def made(folder: Path, *names: str) -> RunFolder:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("something")
    return RunFolder(folder)


@pytest.mark.parametrize(
    "names",
    [
        ("recipe.json", "model/config.json", "notes of mine.txt"),
        ("data/manifest.json", "data/unigram.bin", "general/manifest.json", "corpus/docstrings.jsonl"),
        ("environment.json", "data.json", "corpus.json", "checkpoints/step-000000000/state.pt", ".recipe.json.7.tmp"),
        (".data.preparing/lock", "corpus/.docstrings.jsonl.7.tmp", ".DS_Store"),
    ],
)
def test_a_run_and_its_beginnings_are_deleted(names: tuple[str, ...], tmp_path: Path) -> None:
    made(tmp_path / "run", *names).delete()
    assert not (tmp_path / "run").exists()
    made(tmp_path / "run").delete()  # nothing is there
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_deleted_for_a_new_one_that_its_name_forbids(tmp_path: Path) -> None:
    run = made(Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9")), "recipe.json")
    with pytest.raises(UserError, match="is not UTF-8"):
        run.delete()
    assert run.recipe.exists()


def test_a_run_that_another_process_trains_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daybreak.core.run_folder.PATIENCE", 0.0)
    run = made(tmp_path / "run", "recipe.json")
    with alone_in(run.path), pytest.raises(UserError, match="Another process is at work in"):
        run.delete()
    assert run.recipe.exists()
    run.delete()
    assert not run.path.exists()


def test_a_deletion_that_was_killed_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path / "run", "recipe.json", "model/config.json", "zeta.txt", "checkpoints/a")
    monkeypatch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.delete()
    assert run.recipe.exists() and run.model.exists()
    monkeypatch.undo()
    run.delete()
    assert not run.path.exists()


def test_a_run_behind_a_link_is_deleted_and_the_link_stays(tmp_path: Path) -> None:
    made(tmp_path / "disk", "recipe.json", "model/config.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "disk" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    RunFolder(tmp_path / "run").delete()
    assert (tmp_path / "run").is_symlink() and list((tmp_path / "disk").iterdir()) == []
    assert (tmp_path / "elsewhere").is_dir()


def test_what_cannot_be_deleted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    run = made(tmp_path / "run", "recipe.json", "model/config.json")
    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(UserError, match="model' cannot be deleted: Permission denied"):
        run.delete()
    assert run.recipe.exists()


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (("thesis.tex",), "thesis.tex"),
        (("data/manifest.json", "thesis.tex"), "thesis.tex"),
        (("data/measurements.csv",), "data"),
        (("corpus/novel.txt",), "corpus"),
        (("data/manifest.json", ".git/HEAD"), ".git"),
        (("data",), "data"),
    ],
)
def test_what_is_somebody_elses_stays(names: tuple[str, ...], named: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "mine", *names)
    with pytest.raises(UserError, match=rf"holds '{named}' and is not a run folder, so --overwrite will not delete it"):
        folder.delete()
    assert all((tmp_path / "mine" / name).read_text() == "something" for name in names)
