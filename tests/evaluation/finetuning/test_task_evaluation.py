"""A task's table from its cells: a kill changes nothing in it, a model can be kept, or start from another task's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from needs import takes_long
from safetensors.torch import load_file
from scipy.special import expit

from daybreak.commands.evaluate import evaluate
from daybreak.commands.predict import predict
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.evaluation.finetuning import forecast, jobs
from daybreak.evaluation.finetuning.classifier import build_classifier
from daybreak.evaluation.finetuning.results import read_results
from daybreak.evaluation.protocols import known_protocols as protocols
from daybreak.evaluation.scoring.resampling import compare
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.schemas.tasks import FinetuningRun

Start = Callable[..., "subprocess.Popen[str]"]
WriteTask = Callable[..., Path]
SHORT = replace(protocols.PROTOCOLS["quick"], name="short", epochs=(1,), train_rows=32, seeds=2)
ROWS = [("sun", "a"), ("rain", "b")] * 20
QUICK = {"epochs": 1, "rows": 64}
QUICK_FLAGS = ("--epochs", 1, "--rows", 64)


def cell_files(out: Path) -> dict[Path, int]:
    """When each was written."""
    return {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*.json")}


def table(out: Path) -> list[dict[str, object]]:
    return [{**entry, "seconds": 0} for entry in json.loads((out / "results.json").read_text())]


def on_one_core(start: Start, *arguments: object) -> subprocess.Popen[str]:
    """Begun with as many threads as the tests have: their number is part of the last bits."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        return start(*arguments)
    finally:
        os.sched_setaffinity(0, all_of_them)


def test_a_killed_evaluation_ends_with_the_table_it_would_have_had(
    encoder: Path, weather: Path, tmp_path: Path, start: Start
) -> None:
    out, task = tmp_path / "out", str(weather)
    begun = on_one_core(start, "evaluate", encoder, "--tasks", task, "--seeds", 500, *QUICK_FLAGS, "--out", out)
    while begun.poll() is None and not cell_files(out):
        time.sleep(0.02)
    begun.kill()
    begun.communicate()
    done = cell_files(out)
    assert done and not (out / "results.json").exists(), "killed in the middle"
    seeds = len(done) + 2
    evaluate(encoder, [task], seeds=seeds, out=out, **QUICK)
    assert len(cell_files(out)) == seeds
    assert done.items() <= cell_files(out).items(), "what was done is not done again"
    evaluate(encoder, [task], seeds=seeds, out=tmp_path / "whole", **QUICK)
    assert table(out) == table(tmp_path / "whole")


def test_the_mean_prediction_with_the_bag_of_words(encoder: Path, weather: Path, tmp_path: Path) -> None:
    """Against the rows that the cells and the baseline keep; a second evaluation takes the baseline from its file."""
    out = tmp_path / "out"
    evaluate(encoder, [str(weather)], seeds=2, out=out, **QUICK)
    (result,) = read_results(out / "results.json")
    (kept,) = out.glob("cells/*/*/bag-of-words.json")
    bag = np.array(read_json(kept)["scored_rows"]["dev"])
    wanted = []
    runs = [read_json(path, FinetuningRun) for path in sorted(cell_files(out))]
    words = [replace(run, scored_rows={"dev": bag.tolist()}) for run in runs]
    interval = compare(words, runs, "words", "ours", kind="classification", metric="accuracy", classes=2)
    assert result.lead == [interval.low, interval.high] and len(result.combined_lead) == 2
    for path in sorted(cell_files(out)):
        rows = np.array(read_json(path, FinetuningRun).scored_rows["dev"])
        chance = (expit(rows[:, 2]) + expit(bag[:, 2])) / 2
        wanted.append(float(((chance > 0.5) == rows[:, 0]).mean()))
    assert result.combined == pytest.approx(wanted) and len(wanted) == 2
    evaluate(encoder, [str(weather)], seeds=2, out=out, **QUICK)
    assert read_results(out / "results.json")[0].combined == result.combined
    evaluate(encoder, [str(weather)], seeds=2, out=out, baselines=False, **QUICK)
    (alone,) = read_results(out / "results.json")
    assert alone.combined == alone.combined_lead == []
    assert alone.lead[0] <= alone.mean - alone.baseline <= alone.lead[1]


def test_the_mean_prediction_of_a_number(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    """Targets with more decimals than the kept rows have."""
    rows = [(word, str(number + 1 / 3)) for word, number in (("sun", 1), ("rain", 2), ("wind", 4))] * 12
    task = write_task(rows, rows, 'kind = "regression"')
    evaluate(encoder, [str(task)], seeds=1, out=tmp_path / "out", **QUICK)
    (result,) = read_results(tmp_path / "out/results.json")
    assert len(result.combined) == 1


@pytest.mark.parametrize("protocol", ["quick", "small"])
def test_a_number_of_any_size_is_learned_and_predicted_in_its_own_units(
    protocol: str, encoder: Path, write_task: WriteTask, tmp_path: Path
) -> None:
    """A head moves by a few hundredths in a fine-tuning: prices in the hundred thousands would stay far away."""
    rows = [(word, str(number)) for word, number in (("sun", 210_000), ("rain", 250_000), ("wind", 330_000))] * 12
    task = write_task(rows, rows, 'kind = "regression"')
    saved = tmp_path / "saved"
    evaluate(encoder, [str(task)], protocol=protocol, epochs=8, rate=2e-3, seeds=1, out=tmp_path / "out", save=saved)
    (result,) = read_results(tmp_path / "out/results.json")
    assert result.mean > 0.9
    new = tmp_path / "new.csv"
    new.write_text("text0\nsun\nrain\nwind\n")
    found = predict(saved, new, task, out=tmp_path / "predicted.csv", bag_of_words=False)
    assert [row["prediction"] for row in found] == pytest.approx([210_000, 250_000, 330_000], abs=20_000)


def children_of(process: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(process).children() if "popen_loky" in " ".join(child.cmdline())]


@takes_long
def test_no_worker_outlives_a_killed_evaluation(encoder: Path, weather: Path, tmp_path: Path, start: Start) -> None:
    out = tmp_path / "out"
    begun = start(
        "evaluate", encoder, "--tasks", weather, "--seeds", 500, *QUICK_FLAGS, "--workers", 2, "--out", out
    )  # fmt: skip
    while begun.poll() is None and len(cell_files(out)) < 2:
        time.sleep(0.1)
    workers = children_of(begun.pid)
    assert len(workers) == 2
    begun.kill()
    begun.communicate(timeout=120)
    _, living = psutil.wait_procs(workers, timeout=60)
    assert living == []
    for file in cell_files(out):
        read_json(file, FinetuningRun)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(protocols.PROTOCOLS, "short", SHORT)


def test_the_kept_model_is_the_first_seed_of_the_chosen_setting(
    encoder: Path, write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = replace(SHORT, name="several", epochs=(1, 2), rates=((0, (1e-9, 1e-3)),))
    monkeypatch.setitem(protocols.PROTOCOLS, "several", several)
    task = str(write_task(ROWS, ROWS[:9]))
    (result,) = evaluate(encoder, [task], protocol="several", out=tmp_path / "out", save=tmp_path / "kept")
    assert [(tried.epochs, tried.learning_rate) for tried in result.settings_tried] == [
        (epochs, rate) for epochs in (1, 2) for rate in (1e-9, 1e-3)
    ]
    best = max(result.settings_tried, key=lambda tried: tried.mean)
    assert result.settings["learning_rate"] == best.learning_rate
    assert result.scores["accuracy"] == best.dev
    assert len(cell_files(tmp_path / "out")) == 8
    assert not list(tmp_path.rglob("model-*")), "the model was moved, not copied"
    alone = replace(several, epochs=(int(best.epochs),), rates=((0, (best.learning_rate,)),))
    monkeypatch.setitem(protocols.PROTOCOLS, "alone", replace(alone, name="alone"))
    evaluate(encoder, [task], protocol="alone", seeds=1, out=tmp_path / "other", save=tmp_path / "same")
    kept, same = (load_file(tmp_path / name / "model.safetensors") for name in ("kept", "same"))
    assert all(torch.equal(kept[name], same[name]) for name in {*kept, *same})


@pytest.mark.usefixtures("short")
def test_a_model_is_kept_later_and_over_an_older_one(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    task, kept = str(write_task(ROWS, ROWS[:9])), tmp_path / "kept"
    evaluate(encoder, [task], protocol="short", out=tmp_path / "out")
    evaluate(encoder, [task], protocol="short", out=tmp_path / "out", save=kept)
    before = load_file(kept / "model.safetensors")
    evaluate(encoder, [task], protocol="short", rate=1e-2, out=tmp_path / "out", save=kept)
    after = load_file(kept / "model.safetensors")
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])
    assert sorted(path.name for path in tmp_path.iterdir() if "kept" in path.name) == ["kept"]
    assert not list(tmp_path.rglob("model-*"))


@pytest.mark.usefixtures("short")
def test_a_kill_while_a_model_is_moved_leaves_no_half_of_it(
    encoder: Path, write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = partial(evaluate, encoder, [str(write_task(ROWS, ROWS[:9]))], protocol="short", out=tmp_path / "out")

    def killed(folder: Path, **options: object) -> None:
        for weights in folder.glob("*.safetensors") if "model-" in folder.name else ():
            weights.unlink()
            raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(shutil, "rmtree", killed)
        save(save=tmp_path / "first")
    save(save=tmp_path / "second")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in {*first, *second})
    assert not [*tmp_path.rglob("model-*"), *tmp_path.rglob(".model-*")]


def transferring(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    protocol = replace(SHORT, name="passing-on", starts=(("b", "a"),), **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(protocols.PROTOCOLS, "passing-on", protocol)


@pytest.mark.parametrize("untrained", [False, True])
def test_a_task_starts_from_the_encoder_of_another(
    encoder: Path, write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untrained: bool
) -> None:
    transferring(monkeypatch)
    tasks = [str(write_task(ROWS, ROWS[:9], name=name)) for name in ("b", "a")]
    built: list[tuple[Path, dict[str, torch.Tensor]]] = []
    real = build_classifier

    def watched(folder: Path, *rest: object) -> object:
        model = real(folder, *rest)  # type: ignore[arg-type]
        built.append((folder, {name: value.clone() for name, value in model.state_dict().items()}))
        return model

    def unwatched(*arguments: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(jobs, "build_classifier", real)
            return jobs.initial_model(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs, "build_classifier", watched)
    monkeypatch.setattr(forecast, "initial_model", unwatched)
    out = tmp_path / "out"
    again = partial(evaluate, encoder, tasks, protocol="passing-on", out=out, untrained=untrained)
    results = again(save=tmp_path / "kept")
    assert [result.task for result in results] == ["b", "a"]
    assert [folder == encoder for folder, _ in built] == [True, True, False, False], "a from the model, then b"
    (start,) = {folder for folder, _ in built[2:]}
    learned = load_file(start / "model.safetensors")
    first = load_file(tmp_path / "kept/a/model.safetensors")
    for name, value in learned.items():
        same = [torch.equal(value, weights[name]) for _, weights in built[2:]]
        assert all(same) or "classifier" in name or "head" in name, name
        assert torch.equal(value, first[name]), "the start stays where it is, and --save has it too"
    assert not torch.equal(learned["classifier.weight"], built[2][1]["classifier.weight"]), "a fresh head"
    assert not torch.equal(learned["model.layers.0.mlp.Wi.weight"], built[0][1]["model.layers.0.mlp.Wi.weight"])

    written = cell_files(out)
    built.clear()
    assert [r.scores for r in again()] == [r.scores for r in results]
    assert (built, cell_files(out)) == ([], written), "nothing is done twice"
    next(path for path in written if path.parent.parent.name == "b").unlink()
    assert [r.scores for r in again()] == [r.scores for r in results]
    assert [folder for folder, _ in built] == [start]


def test_the_forecast_of_a_repetition_has_the_tasks_that_start_from_others(
    encoder: Path,
    write_task: WriteTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    transferring(monkeypatch)
    tasks = [str(write_task(ROWS, ROWS[:9], name=name)) for name in ("b", "a")]
    for overwrite in (False, True):
        evaluate(encoder, tasks, protocol="passing-on", out=tmp_path / "out", overwrite=overwrite)
        assert "4 fine-tunings: about" in capsys.readouterr().out


def test_a_task_whose_start_is_not_asked_for(
    encoder: Path, write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transferring(monkeypatch)
    task = str(write_task(ROWS, ROWS[:9], name="b"))
    with pytest.raises(UserError, match=r"b starts from a model that learned a\. Add a to --tasks"):
        evaluate(encoder, [task], protocol="passing-on", out=tmp_path / "out")
    assert not cell_files(tmp_path / "out")


@pytest.mark.usefixtures("short")
def test_a_price_that_is_none_removes_no_fine_tuning(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    task = str(write_task(ROWS, ROWS[:9]))
    evaluate(encoder, [task], protocol="short", out=tmp_path)
    kept = cell_files(tmp_path)
    for price in (-0.5, float("nan"), float("inf")):
        with pytest.raises(UserError, match="is not a price"):
            evaluate(encoder, [task], protocol="short", out=tmp_path, overwrite=True, price=price)
    assert kept and cell_files(tmp_path) == kept


@pytest.mark.usefixtures("short")
def test_a_table_of_two_machines_tells_both(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    task = str(write_task(ROWS, ROWS[:9]))
    evaluate(encoder, [task], protocol="short", out=tmp_path)
    file = min(cell_files(tmp_path))
    file.write_text(file.read_text().replace('"threads":1', '"threads":8'))
    (result,) = evaluate(encoder, [task], protocol="short", out=tmp_path)
    assert result.hardware == "CPU, 1 thread and CPU, 8 threads"
    assert read_results(tmp_path / "results.json") == [result]
    assert set(KINDS["classification"].metrics) <= set(result.scores)
