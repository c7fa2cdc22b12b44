"""Pretraining as a user meets it: finished once, stopped at any moment, resumed, verified, refused."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import bits, exit_code, stopped_at
from needs import takes_long
from rendezvous import wait_for_step
from rich.console import Console
from small_models import small_recipe

from daybreak.commands import pretrain
from daybreak.commands.prepare import prepare
from daybreak.commands.verify import verify
from daybreak.core import terminal
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.locks import alone_in
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.pretraining.run_start import refuse_other_data
from daybreak.recipe import Origin, load_recipe
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import (
    BLOCK_BYTES,
    Decisions,
    Environment,
    MachineRecord,
    Manifest,
    Parity,
    StepRecord,
    Summary,
    ValidationRecord,
)
from daybreak.training.clock import read_trace
from daybreak.training.monitoring.heartbeat import INTERVAL, read_heartbeat

Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]
pytestmark = pytest.mark.usefixtures("on_the_cpu")  # the bits of the CPU are those that are compared


# ---------------------------------------------------------------- a run that ends


def test_a_run_leaves_its_records(finished: Path, data: Path) -> None:
    run = RunFolder(finished)
    assert sorted(path.name for path in finished.iterdir()) == sorted(
        "recipe.json environment.json decisions.json data.json corpus.json trace.jsonl metrics.jsonl model "
        "summary.json before-decay before-end examples.json".split()
    )
    assert [record.step for record in read_trace(run.trace)] == list(range(40))
    read_json(run.environment, Environment)
    decisions = read_json(run.decisions, Decisions)
    assert (decisions.device, decisions.threads, decisions.microbatch, decisions.world_size) == ("cpu", 1, 8, 1)
    own, theirs = read_json(run.manifest, Manifest), read_json(data / "manifest.json", Manifest)
    account = read_json(run.corpus, CorpusReport)
    assert account.tokens == len(open_shards(data).train) + len(open_shards(data).heldout)
    assert not any("/" in source.path for source in account.sources)
    assert own.tokenizer == theirs.tokenizer and own.train.token_files[0].hashes == []
    assert theirs.content_fingerprint and not own.content_fingerprint and not own.settings_fingerprint
    summary = read_json(run.summary, Summary)
    assert (summary.steps, summary.tokens, summary.resumes) == (40, 40 * 8 * 32, 0)
    assert summary.validation.final and summary.validation.loss < summary.validation.unigram_loss + 0.5
    assert isinstance(summary.parity, Parity) and summary.parity.passed
    assert summary.parity.masked_accuracy == pytest.approx(summary.validation.accuracy, abs=1e-3)
    assert summary.elapsed > 0 and summary.wall >= summary.elapsed - 60
    assert sum(summary.time_by_category.values()) == pytest.approx(summary.elapsed, rel=0.1, abs=0.5)
    assert min(summary.time_by_category.values()) >= 0


def test_every_line_of_the_metrics_is_a_record(finished: Path) -> None:
    elapsed, tokens, finals = [], [], 0
    for line in (finished / "metrics.jsonl").read_text().splitlines():
        plain = json.loads(line)
        kind = {"step": StepRecord, "validation": ValidationRecord, "machine": MachineRecord}[plain.pop("type")]
        record = from_dict(kind, plain)
        elapsed.append(record.elapsed)
        tokens.append(getattr(record, "tokens", max(tokens, default=0)))
        finals += getattr(record, "final", False)
    assert elapsed == sorted(elapsed) and tokens == sorted(tokens) and finals == 1


def test_the_same_command_again_is_done_at_once(
    finished: Path, data: Path, shape: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert exit_code("pretrain", "tiny", "--data", data, "--out", finished, "--budget", "40steps", *shape) == 0
    assert "is finished; --overwrite starts it again" in capsys.readouterr().out
    summary = pretrain.pretrain(str(finished), data=str(data), out=str(finished))  # paths may be text
    assert summary == read_json(finished / "summary.json", Summary)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


# ---------------------------------------------------------------- stopped, killed, resumed, verified


def test_a_run_that_is_stopped_after_its_export_does_only_the_rest(
    data: Path, shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    recipe = small_recipe(budget="30steps")
    recipe = replace(recipe, model=replace(recipe.model, layers=2, copy_heads=True))

    def stopped(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("daybreak.pretraining.run_end.check_parity", stopped)
        with pytest.raises(KeyboardInterrupt):
            pretrain.pretrain(recipe, data=data, out=run)
    kept, weights = read_json(run / "exported.json", Summary), (run / "model/model.safetensors").stat().st_mtime_ns
    summary = pretrain.pretrain(replace(recipe, budget="30 steps"), data=data, out=run)
    again = verify(run, data=data)
    assert (
        summary and summary.parity and summary.parity.passed and again is not None and summary.context_use is not None
    )
    rest = {"parity": None, "parity_seconds": kept.parity_seconds, "context_use": None}
    assert replace(summary, **rest) == kept
    assert (run / "model/model.safetensors").stat().st_mtime_ns == weights and not (run / "exported.json").exists()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert sum('"final": true' in line or '"final":true' in line for line in lines) == 1


@pytest.mark.usefixtures("ungated")
def test_a_run_whose_data_were_deleted_goes_on_when_they_are_back(
    data: Path, shape: list[str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, run = Path(shutil.copytree(data, tmp_path / "data")), tmp_path / "run"
    command = ["pretrain", "tiny", "--data", copy, "--out", run, "--budget", "40steps", *shape]
    fit = pretrain.fit

    def deleting(*arguments: Any) -> Any:
        shutil.rmtree(copy)
        return fit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "fit", deleting)
        said = refused(*command)
    assert f"The data in '{copy}' were deleted while the run trained; its last checkpoint is saved." in said
    assert "the same command then ends the run" in said
    shutil.copytree(data, copy)
    assert exit_code(*command) == 0
    summary = read_json(run / "summary.json", Summary)
    assert (summary.steps, summary.resumes) == (40, 1)


@takes_long
def test_stopped_and_killed_runs_go_on_and_equal_their_replay(
    start: Start, daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", "600steps", *shape]
    first = start(*command)
    wait_for_step(run, 60, first)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and "the same command resumes" in said and "Traceback" not in said
    saved = len(read_trace(run / "trace.jsonl"))
    assert (run / "checkpoints" / f"step-{saved:09d}" / "progress.json").is_file()

    second = start(*command)
    wait_for_step(run, saved + 40, second)
    second.kill()
    second.communicate(timeout=60)
    with (run / "trace.jsonl").open("a") as trace:
        trace.write('{"step": 99')  # torn, as a crash of the machine may leave it

    last = daybreak(*command)
    assert last.returncode == 0, last.stderr
    assert f"Resuming at step {saved}" in last.stdout
    assert "is skipped" not in last.stdout  # where masked words follow next tokens the loss jumps, and nothing explodes
    trace_ = read_trace(run / "trace.jsonl")
    assert [record.step for record in trace_] == list(range(600))
    elapsed = [record.elapsed for record in trace_]
    assert elapsed == sorted(elapsed)
    summary = read_json(run / "summary.json", Summary)
    assert summary.resumes == 2 and summary.time_by_category["lost"] > 0
    assert sum(summary.time_by_category.values()) == pytest.approx(summary.elapsed, rel=0.1, abs=0.5)

    again = daybreak("verify", run, "--data", data)
    assert again.returncode == 0, again.stderr
    assert "the exported model: equal, 600 of 600 steps." in again.stdout
    assert f"Verified: steps 0 to 600 of '{run}' are equal bit for bit" in again.stdout


@takes_long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: torch compiles for a CPU with it")
def test_a_compiled_run_goes_on_compiled_and_equals_its_replay(
    start: Start, daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", "60steps", "--compile", "on", *shape]
    first = start(*command)
    wait_for_step(run, 15, first, patience=280)  # of 60: the causal stage is over and its graph no longer in use
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 143
    saved = len(read_trace(run / "trace.jsonl"))
    last = daybreak(*command)
    assert last.returncode == 0 and f"Resuming at step {saved}" in last.stdout, last.stderr
    decisions = read_json(run / "decisions.json", Decisions)
    assert decisions.compiled and not decisions.changes
    again = daybreak("verify", run, "--data", data)
    assert f"Verified: steps 0 to 60 of '{run}' are equal bit for bit" in again.stdout, again.stderr


@pytest.mark.usefixtures("ungated")
def test_a_start_that_was_killed_before_it_became_a_run_is_begun_again(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    """A kill while costs are measured leaves a checkpoint at step 0, perhaps of another shape, and no recipe."""
    run = tmp_path / "run"
    (run / "checkpoints" / "step-000000000").mkdir(parents=True)
    shutil.copy(finished / "model" / "model.safetensors", run / "checkpoints" / "step-000000000")
    shutil.copy(finished / "environment.json", run)
    (run / ".recipe.json.123.tmp").write_text("{")
    pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run)
    assert bits(run) == bits(finished)  # and two runs of one recipe are one run


@pytest.mark.usefixtures("ungated")
def test_what_a_resume_does_before_its_first_step_is_charged_while_it_does_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as compiling for minutes: a kill in the middle of it must not be free."""
    run = RunFolder(tmp_path / "run")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretrain, "fit", stop)
        pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run.path)
    seen: list[float] = []

    def compile_long(*_: object, **__: object) -> None:
        deadline = time.monotonic() + 30
        while len(seen) < 3 and time.monotonic() < deadline:
            if (now := read_heartbeat(run.heartbeat)) > max(seen, default=0.0):
                seen.append(now)
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "resume", compile_long)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run.path)
    assert len(seen) == 3
    assert read_heartbeat(run.heartbeat) >= seen[-1] - INTERVAL and not [
        thread for thread in threading.enumerate() if thread.name == "heartbeat"
    ]


def test_a_run_that_lost_its_decisions_keeps_its_checkpoints(data: Path, tmp_path: Path) -> None:
    """As in a folder that was copied incompletely."""
    run = RunFolder(tmp_path / "run")
    with stopped_at(10), pytest.raises(Interrupted):
        pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run.path)
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    run.decisions.unlink()
    with pytest.raises(UserError, match=r"holds checkpoints but not its decisions\.json"):
        pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run.path)
    assert kept and sorted(path.name for path in run.checkpoints.iterdir()) == kept


@pytest.mark.usefixtures("ungated")
def test_a_time_budget_ends_by_itself_and_is_accounted_for(data: Path, tmp_path: Path) -> None:
    """Whether it ends in time is measured on a quiet machine, by benchmarks/kills.py."""
    summary = pretrain.pretrain(small_recipe(budget="5s"), data=data, out=tmp_path / "run")
    assert summary.steps >= 20 and summary.elapsed > 2
    assert sum(summary.time_by_category.values()) == pytest.approx(summary.elapsed, rel=0.1)
    last = read_trace(tmp_path / "run" / "trace.jsonl")[-1]
    assert 0.5 < last.progress < 1.0
    decisions = read_json(tmp_path / "run" / "decisions.json", Decisions)
    assert 0 < decisions.reserve_seconds < 5


@pytest.mark.usefixtures("ungated")
def test_a_terminal_shows_what_is_done_also_before_and_after_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=screen, force_terminal=True, color_system=None))
    pretrain.pretrain(small_recipe(budget="20steps"), data=data, out=tmp_path / "run")
    shown = dict.fromkeys(re.findall("Measuring step times|Training(?= )|Checking the model", screen.getvalue()))
    assert list(shown) == ["Measuring step times", "Training", "Checking the model"]


@pytest.mark.usefixtures("ungated")
def test_it_learns_what_the_text_holds(data: Path, tmp_path: Path) -> None:
    """A few hundred steps of the smallest shape end far below the unigram baseline."""
    seen = pretrain.pretrain(small_recipe(budget="500steps"), data=data, out=tmp_path / "run").validation
    assert seen.loss < seen.unigram_loss - 0.5
    assert seen.accuracy > 1.3 * seen.most_frequent_fraction
    assert seen.distinct >= 8


# ---------------------------------------------------------------- what is refused


Refused = Callable[..., str]


def test_another_budget_recipe_or_data_is_refused(
    run: Path, data: Path, corpus: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    (run / "summary.json").unlink()
    same = ["pretrain", "tiny", "--out", run, *shape]
    said = refused(*same, "--data", data, "--budget", "41steps")
    assert "started with a budget of 40steps, not 41steps" in said and "--overwrite" in said
    assert f"--from {run} --extend" in said
    said = refused(*same, "--data", data, "--budget", "40steps", "--optimizer.beta1", "0.8")
    assert "'optimizer.beta1' differs" in said and f"daybreak pretrain {run} --data DATA --out {run}" in said
    (tmp_path / "less.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[:300]))
    prepare([tmp_path / "less.jsonl"], tmp_path / "other", tokenizer=WordPiece(vocabulary=400))
    said = refused(*same, "--data", tmp_path / "other", "--budget", "40steps")
    assert "started on other data" in said
    assert "started on other data" in refused("verify", run, "--data", tmp_path / "other")


def test_the_same_documents_in_another_order_are_other_data(
    run: Path, data: Path, corpus: Path, refused: Refused, tmp_path: Path
) -> None:
    """As after a file of the corpus was renamed: the sequences at each position are others."""
    (tmp_path / "turned.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[::-1]))
    turned = prepare([tmp_path / "turned.jsonl"], tmp_path / "turned", tokenizer=Existing(folder=str(data)))
    before = read_json(data / "manifest.json", Manifest)
    assert (turned.tokenizer, turned.train.tokens) == (before.tokenizer, before.train.tokens)
    assert "started on other data" in refused("verify", run, "--data", tmp_path / "turned")
    manifest = read_json(run / "data.json")  # as runs of earlier versions have it
    for file in (manifest["unigram_counts"], manifest["train"]["document_ends"], manifest["heldout"]["document_ends"]):
        file["hashes"] = []
    write_json(run / "data.json", manifest)
    refuse_other_data(RunFolder(run), open_shards(tmp_path / "turned"))


def test_fresh_deletes_nothing_before_all_is_looked_at(
    run: Path, data: Path, shape: list[str], refused: Refused, tmp_path: Path
) -> None:
    shutil.copytree(data, run / "data")
    before = sorted(run.rglob("*"))
    same = ["pretrain", "tiny", "--out", run, "--budget", "40steps", "--overwrite", *shape]
    assert "no prepared data" in refused(*same, "--data", tmp_path / "dta")
    assert "which --overwrite would delete" in refused(*same, "--data", run / "data")
    parts = ["--out", run, "--budget", "40steps", "--overwrite"]
    assert "which --overwrite would delete" in refused("pretrain", *parts, "--data", data, "--init", run / "model")
    assert "heads" in refused(*same, "--data", data, "--model.heads", "3")
    assert "too short for 20 steps" in refused(*same, "--data", data, "--budget", "19steps")
    said = refused(*same, "--data", data, "--length", "9000")
    assert "The corpus is too small" in said and "tokens that are held out of it do not fill one sequence" in said
    paper = ["pretrain", "bert-2018", "--size", "tiny", "--data", data, *parts]
    assert "The tokenizer of the data differs from that of bert-2018" in refused(*paper)
    branch = ["pretrain", "--from", run, "--extend", "80steps", "--data", data, "--out", run, "--overwrite"]
    assert "which --overwrite would delete" in refused(*branch)
    assert sorted(run.rglob("*")) == before


def test_an_automatic_restart_does_not_delete_the_run_again(
    finished: Path, data: Path, shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """torchrun --max-restarts repeats the whole command, --overwrite included."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    same = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", "40steps", "--overwrite", *shape]
    assert exit_code(*same) == 0
    said = capsys.readouterr().out
    assert "--overwrite is ignored" in said and "is finished" in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_that_another_process_trains_is_left_alone(
    run: Path, data: Path, shape: list[str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.commands.pretrain.PATIENCE", 0.0)
    monkeypatch.setattr("daybreak.core.run_folder.PATIENCE", 0.0)
    new = tmp_path / "new"
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
        ("19steps", "too short for 20 steps. Give at least 20steps"),
        ("5000tok", "Give at least 5120tok"),
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
    for flag, value in (("--phase2.length", "64"), ("--phase2.batch", "4"), ("--phase2.lr", "1e-4")):
        assert f"{flag} sets the second phase" in refused(
            *plain, "--data", data, "--out", tmp_path / "run", flag, value
        )
    for flag, said in (
        ("--finish.weight", "sets the embedding finish"),
        ("--average.every", "sets the average"),
        ("--ramp.batch-multiple", "sets the growth of the batch"),
        ("--devices.reference", "belongs to the rule"),
    ):
        off = ["--finish.start", "1"] if "finish" in flag else []
        assert f"{flag} {said}" in refused(*plain, *off, "--data", data, "--out", tmp_path / "run", flag, "4")
    bert = ["pretrain", "bert-2018", "--size", "tiny", "--budget", "90s", "--schedule.warmup-steps", "9"]
    assert "a budget of 90s has no fixed number of steps" in refused(*bert, "--data", data)
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_chosen_by_its_place_and_not_by_the_file_of_its_classes(data: Path, refused: Refused) -> None:
    assert "daybreak pretrain mini --data DATA" in refused("pretrain", "--recipe", "mini", "--data", data)
    assert "daybreak pretrain own.py --data DATA" in refused("pretrain", "--recipe", "own.py", "--data", data)
    assert "chooses no recipe" in refused("pretrain", "tiny", "--recipe", "mini", "--data", data)


def test_a_continued_model_keeps_its_shape(finished: Path, run: Path, data: Path, refused: Refused) -> None:
    start = ["pretrain", "tiny", "--data", data, "--budget", "40steps", "--init", finished]
    for flag, value in (("--model.layers", "2"), ("--model.heads", "1"), ("--model.hidden-size", "64")):
        assert f"{flag} would change the model that the run continues" in refused(*start, flag, value)
    other = replace(small_recipe(budget="40steps"), origin=Origin(init=str(finished / "model")))
    other = replace(other, model=replace(other.model, hidden_size=64))
    with pytest.raises(UserError, match="have another size than in the recipe"):
        pretrain.pretrain(other, data=data, out=run.parent / "other")
    shutil.rmtree(run / "model")
    said = refused("pretrain", "tiny", "--data", data, "--budget", "40steps", "--init", run)
    assert "is not finished, so it has no model yet" in said and f"daybreak export {run} --out MODEL" in said


def test_a_run_whose_source_is_gone_is_continued_by_itself(run: Path, data: Path, refused: Refused) -> None:
    said = refused("pretrain", "--from", run.parent / "gone", "--extend", "20steps", "--data", data, "--out", run)
    assert f"Continue that: daybreak pretrain {run} --data DATA --out {run}" in said


def test_a_run_without_its_manifest_says_which_file_is_missing(
    run: Path, data: Path, shape: list[str], refused: Refused
) -> None:
    for name in ("summary.json", "data.json"):
        (run / name).unlink()
    said = refused("pretrain", "tiny", "--data", data, "--out", run, "--budget", "40steps", *shape)
    assert "lacks its data.json. Restore that file, start again with --overwrite" in said


def test_a_run_folder_whose_name_is_not_utf8_is_refused_before_it_exists(data: Path, tmp_path: Path) -> None:
    run = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    with pytest.raises(UserError, match="is not UTF-8"):
        pretrain.pretrain(small_recipe(budget="40steps"), data=data, out=run)
    assert not Path(run).exists()


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
    assert "does not match the one that encoded its shards" in refused(*plain, "--data", copy)
    assert not (tmp_path / "run").exists()
