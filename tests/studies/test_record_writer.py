"""What a record keeps of a run and says of it: no path, nothing that quotes, whether the machine was busy."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import small_tasks
from fake_runs import WriteRun

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.evaluation.finetuning.fingerprints import model_digest
from daybreak.schemas.records import Record, Verified
from daybreak.schemas.run import Change, Decisions, Manifest, Summary
from daybreak.studies.record_writer import commit_of, describe, evidence, refuse_contradictions, refuse_unfit
from daybreak.training.recovery import with_change

KEPT = {f"{name}.json" for name in "data decisions environment recipe summary results".split()}
KEPT |= {"metrics.jsonl", "metrics.lost.jsonl"}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# ---------------------------------------------------------------- what may be filed


def test_the_tolerance_is_that_of_the_rules(write_run: WriteRun) -> None:
    for place, elapsed in enumerate([178.21, 180.0, 181.79]):
        folder = RunFolder(write_run(f"run{place}"))
        change(folder.summary, elapsed=elapsed)
        refuse_unfit(folder)
    change(folder.summary, budget="30s", elapsed=30.99)
    refuse_unfit(folder)
    change(folder.summary, elapsed=31.01)
    with pytest.raises(UserError, match=r"allows 1\.0 s"):
        refuse_unfit(folder)


def test_the_summary_must_fit_the_trace(write_run: WriteRun) -> None:
    def verified(last: int) -> Verified:
        return Verified(first=0, last=last, gradient_norms=last, weights=["the exported model"])

    folder = RunFolder(write_run())
    steps = read_json(folder.summary, Summary).steps
    refuse_contradictions(folder, verified(steps))
    with pytest.raises(UserError, match=f"says {steps} steps"):
        refuse_contradictions(folder, verified(steps + 1))


# ---------------------------------------------------------------- what is told


def test_paths_become_names_and_what_quotes_stays_behind(write_run: WriteRun) -> None:
    origin = {"init": "../secret/model", "parent": "google/bert", "branch": "/home/secret/run", "general": "secret/g"}
    tokenizer = {"kind": "Existing", "folder": "/home/someone/secret/tokenizer"}
    folder = RunFolder(write_run(recipe={"origin": origin, "tokenizer": tokenizer}))
    folder.corpus.write_text('{"steps": [{"examples": [{"text": "secret"}]}]}')
    with folder.lost_metrics.open("w") as lost:
        lost.write(
            '{"type": "note", "text": "secret"}\n' + folder.metrics.read_text().splitlines()[0] + '\n{"type": "st'
        )
    files = evidence(folder)
    assert "secret" not in json.dumps(files)
    assert files.keys() == KEPT
    assert files["recipe.json"]["origin"] == {"init": "model", "parent": "google/bert", "branch": "run", "general": "g"}
    assert files["recipe.json"]["tokenizer"]["folder"] == "tokenizer"
    assert len(files["metrics.lost.jsonl"]) == 1
    assert files["data.json"]["sources"][0]["path"] == "docstrings.jsonl"
    assert read_json(folder.manifest, Manifest).sources[0].path != "docstrings.jsonl"


def test_seeds_of_one_recipe_are_one_variant(write_run: WriteRun) -> None:
    def found(name: str, **values: Any) -> Record:
        return describe(RunFolder(write_run(name, **values)))

    first, second = found("a", seed=0), found("b", seed=1)
    assert first.variant == second.variant and first.fingerprint != second.fingerprint
    assert found("c", recipe={"max_grad_norm": 2.0}).variant != first.variant
    told = first.results[0]
    assert (told.protocol, told.task, told.model, told.seeds) == ("quick", "which-package", "pretrained", 3)


def test_the_processes_are_the_most_that_the_run_had(write_run: WriteRun) -> None:
    """A run on one GPU that eight resumed for a while is none of the class of one GPU."""
    folder = RunFolder(write_run())
    assert (describe(folder).processes, describe(folder).threads) == (1, 2)
    eight, one = (
        Change(step=step, why="resumed", microbatch=32, world_size=size, threads=threads)
        for step, size, threads in ((100, 8, 1), (400, 1, 2))
    )
    change(folder.decisions, changes=[to_dict(eight), to_dict(one)])
    assert (describe(folder).processes, describe(folder).threads) == (8, 1)


def test_scores_of_other_models_in_the_folder_are_not_those_of_the_run(write_run: WriteRun) -> None:
    folder = RunFolder(write_run())
    (folder.model / "config.json").write_text("{}")
    own = model_digest(folder.model, random=False)
    results = [small_tasks.result("rte", {"accuracy": [0.5 + place / 10]}, weights=weights, model_name=name)
               for place, (weights, name) in enumerate(((own, "tiny"), ("", ""), ("other", "bert-base")))]  # fmt: skip
    write_json(folder.results, results)
    assert [result.mean for result in describe(folder).results] == [0.5, 0.6]


def seen_by_the_run(folder: RunFolder, elapsed: float, load: float) -> None:
    line = {"type": "machine", "step": 1, "elapsed": elapsed, "processor": 1.0, "load": load, "memory": 1,
            "memory_free": 1, "disk_free": 1}  # fmt: skip
    with folder.metrics.open("a") as metrics:
        metrics.write(json.dumps(line) + "\n")


def test_a_busy_machine_voids_its_run(write_run: WriteRun) -> None:
    """Two cores and two threads, as the fake run has it."""
    folder = RunFolder(write_run())
    assert describe(folder).void == "the machine load was not recorded"
    seen_by_the_run(folder, 30.0, 9.0)
    assert describe(folder).void == "the machine load was not recorded"  # that load is of the minute before the run
    seen_by_the_run(folder, 60.0, 2.5)
    assert (describe(folder).load, describe(folder).void) == (2.5, "")
    seen_by_the_run(folder, 90.0, 2.6)
    assert (describe(folder).load, describe(folder).void) == (2.6, "the load was 2.6 on 2 cores")


def test_a_run_that_moved_is_void(write_run: WriteRun) -> None:
    """The record names the machine and the torch of the first start."""
    folder = RunFolder(write_run())
    seen_by_the_run(folder, 60.0, 1.0)
    decisions = read_json(folder.decisions, Decisions)
    write_json(folder.decisions, with_change(decisions, 5, "out of memory", microbatch=1))
    assert describe(folder).void == ""
    write_json(folder.decisions, with_change(decisions, 7, "resumed with torch 2.14.0", torch="2.14.0"))
    assert describe(folder).void == "its machine or torch changed at step 7 (resumed with torch 2.14.0)"


def test_a_study_that_watched_its_cell_knows_whose_the_load_was(write_run: WriteRun) -> None:
    folder = RunFolder(write_run())
    seen_by_the_run(folder, 90.0, 2.6)
    watched = folder.path.with_name("tiny.load.jsonl")
    for others, void in ((0.02, ""), (0.3, "others used 0.3 of 2 cores"), (0.9, "others used 0.9 of 2 cores")):
        lines = [{"event": "start", "load": [1.0, 1.0, 1.0]}, {"event": "look", "load": [2.6, 1.0, 1.0]}]
        lines.append({"event": "end", "load": [2.0, 1.0, 1.0], "seconds": 180.0, "others": others})
        watched.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = describe(folder)
        assert (found.load, found.others, found.void) == (2.6, others, void)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_checkout_which_holds_the_file(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *settings, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    file = tmp_path / "package.py"
    file.write_text("")
    assert commit_of(file) == ""
    git("init")
    assert commit_of(file) == ""
    git("add", "package.py")
    git("commit", "-m", "first")
    assert commit_of(file) == git("rev-parse", "HEAD")
    (tmp_path / "training").mkdir()
    below = tmp_path / "training/step.py"
    below.write_text("# new\n")
    assert commit_of(file) == git("rev-parse", "HEAD") + " with changes"
    below.unlink()
    file.write_text("# changed\n")
    assert commit_of(file) == git("rev-parse", "HEAD") + " with changes"
