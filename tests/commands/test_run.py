"""The whole way from text to report: without a network, to a deadline, and as publications filter and evaluate."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_runs import fake_results
from in_process import exit_code
from small_models import small_recipe

from daybreak.commands import evaluate, run
from daybreak.commands.prepare import filter_tokenizer
from daybreak.core.budget import Budget, Deadline
from daybreak.core.errors import TooLate, TooShort, UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.task_pairs import baseline_sentence
from daybreak.data.demo_corpus import docstrings
from daybreak.data.demo_corpus.docstrings import Package
from daybreak.data.filters.presets import PRESETS
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.evaluation.finetuning import task_evaluation
from daybreak.evaluation.model_source import tasks_in
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks.known_tasks import KNOWN, SCIBERT, TASK_LISTS, spelled_out
from daybreak.recipe import FAMILY, SIZES, Procedure, Recipe, load_recipe, procedure_of, recipe_names, resolved
from daybreak.reporting.headline import loss_sentence
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import FillMask, Summary, TraceRecord
from daybreak.schemas.tasks import TaskResult
from daybreak.training.hardware import probe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]

NO_NETWORK = """
import socket

def forbid(name):
    inner = getattr(socket.socket, name)

    def guarded(self, address, *rest):
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"the network was called: {name} {address}")
        return inner(self, address, *rest)

    setattr(socket.socket, name, guarded)

def resolve(*address, **_):
    raise AssertionError(f"a name was looked up: {address}")

for each in ("connect", "connect_ex", "sendto"):
    forbid(each)
socket.getaddrinfo = resolve
"""
"""A sitecustomize.py: it is imported by every Python process that sees its folder on PYTHONPATH."""


def without_network() -> list[str]:
    """The prefix of a command that has no network at all, also in the gate, which obeys no PYTHONPATH; or nothing."""
    unshare = shutil.which("unshare")
    if unshare and subprocess.run([unshare, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [unshare, "-n"]
    return []


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Does the sentence speak of the day or of the night? 80 rows."""
    chance = random.Random(3)
    rows = [
        f"{chance.choice(('every morning', 'at noon') if i % 2 else ('every evening', 'at midnight'))} the "
        f"{chance.choice(('teacher', 'farmer', 'doctor'))} walks near the river\t{'day' if i % 2 else 'night'}"
        for i in range(80)
    ]
    (tmp_path / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    path = tmp_path / "day.toml"
    path.write_text('name = "day"\ntrain = "rows.tsv"\ntext = "sentence"\nlabel = "label"\nheader = true\n')
    return path


def test_from_text_to_report_without_a_network(
    corpus: Path, shape: list[str], task: Path, daybreak: Daybreak, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    out = tmp_path / "out"
    command = ["run", "tiny", "--corpus", str(corpus), "--budget", "40steps", "--out", str(out)]
    command += ["--tasks", str(task), "--seeds", "1", *shape]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "CUDA_VISIBLE_DEVICES": ""}
    python = [*without_network(), sys.executable, "-m", "daybreak", *command]
    first = subprocess.run(python, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    summary = read_json(out / "summary.json", Summary)
    assert summary.steps == 40 and summary.parity is not None and summary.parity.passed
    results = [from_dict(TaskResult, item) for item in read_json(out / "results.json")]
    assert [(result.task, result.model, len(result.seeds)) for result in results] == [
        ("day", "pretrained", 1),
        ("day", "untrained", 1),
    ]
    examples = [from_dict(FillMask, item) for item in read_json(out / "examples.json")]
    assert examples and all("[MASK]" in example.text and len(example.guesses) == 5 for example in examples)
    page = (out / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert (out / "report.html").as_uri() in first.stdout and "one masked word" in first.stdout
    sentence = baseline_sentence(results)
    assert (
        sentence in " ".join(first.stdout.split())
        and sentence in page
        and all(result.bag_of_words for result in results)
    )
    stages = [line for line in first.stdout.splitlines() if re.match(r"\d/4  ", line)]
    assert [line[:9] for line in stages] == ["1/4  Prep", "2/4  Pret", "3/4  Eval", "4/4  Repo"]
    assert "rough" not in first.stdout
    card = (out / "model" / "README.md").read_text()
    assert "day" in card and "walks near the river" not in card

    kept = [out / "data" / "manifest.json", out / "model" / "model.safetensors", out / "results.json"]
    before = [path.stat().st_mtime_ns for path in kept]
    second = daybreak(*command, PYTHONPATH=environment["PYTHONPATH"])
    assert second.returncode == 0, second.stderr
    assert "is ready" in second.stdout and "is finished" in second.stdout
    assert [path.stat().st_mtime_ns for path in kept] == before

    printed = " ".join(second.stdout.split())
    saving = re.search(r"To save the classifier: daybreak (evaluate .* --save \S+)", printed)
    assert saving and daybreak(*saving[1].split(), PYTHONPATH=environment["PYTHONPATH"]).returncode == 0
    config = read_json(out / "classifier-day" / "config.json")
    assert config["id2label"] == {"0": "day", "1": "night"} and (out / "classifier-day" / "heads.py").exists()


def test_the_guard_guards(tmp_path: Path) -> None:
    """The test above would prove nothing with a guard that lets everything through."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    script = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 1 and "AssertionError: a name was looked up" in done.stderr


NOUNS = "river mountain garden winter kitchen sailor teacher window letter engine market orchard".split()


def site(folder: Path) -> list[Package]:
    """Two installed packages, as the default corpus finds them: 24 modules of prose each."""
    chance = random.Random(2)
    found = []
    for name in ("alphalib", "betalib"):
        (folder / name).mkdir(parents=True)
        for number in range(24):
            prose = "\n\n".join(
                f"The {chance.choice(NOUNS)} of this module is kept when the {chance.choice(NOUNS)} near the "
                f"{chance.choice(NOUNS)} was told about the {noun} and the number {number} of {name}."
                for noun in NOUNS
            )
            (folder / name / f"part{number:02d}.py").write_text(f'"""{prose}\n"""\n')
        found.append(Package(name, folder / name, "1.0", ()))
    return found


@pytest.mark.usefixtures("ungated")
def test_without_a_corpus_the_docstrings_are_read_and_their_task_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []
    packages = site(tmp_path / "site")
    monkeypatch.setattr(docstrings, "installed_packages", lambda: packages)
    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
    monkeypatch.setattr("daybreak.commands.evaluate.evaluate", lambda model, tasks, **more: asked.append((tasks, more)))
    recipe = small_recipe(batch=4, budget="20steps")
    monkeypatch.setattr("daybreak.evaluation.model_source.find_tasks", lambda *_: [])  # there are no GLUE files here
    page = run.run(recipe, out=tmp_path / "out", tasks=["cola"], seeds=2)
    assert page == tmp_path / "out" / "report.html" and page.is_file()
    validation = read_json(tmp_path / "out" / "summary.json", Summary).validation
    assert loss_sentence(validation) in " ".join(capsys.readouterr().out.split())
    task = str(tmp_path / "out" / "corpus" / "task.toml")
    assert [(tasks, more["untrained"], more["seeds"]) for tasks, more in asked] == [
        ((task, "cola"), False, 2),
        ((task, "cola"), True, 2),
    ]
    first = json.loads((tmp_path / "out" / "corpus" / "docstrings.jsonl").read_text().splitlines()[0])
    assert first["package"] in ("alphalib", "betalib")
    before = {path: path.read_bytes() for path in (tmp_path / "out" / "corpus").iterdir()}
    packages[:] = [package._replace(version="2.0") for package in packages]
    (packages[0].root / "part00.py").write_text("")
    run.run(recipe, out=tmp_path / "out", tasks=["cola"], seeds=2)  # of the text and the task that it has
    assert {path: path.read_bytes() for path in (tmp_path / "out" / "corpus").iterdir()} == before
    assert len(asked) == 4


@pytest.fixture
def ended(finished: Path, data: Path, tmp_path: Path) -> Path:
    """A copy of a finished run with its data, as ``daybreak run`` leaves it."""
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copytree(data, out / "data")
    return out


@pytest.mark.usefixtures("on_the_cpu", "ungated")
def test_a_model_that_failed_its_parity_check_is_not_evaluated_and_not_offered(
    ended: Path,
    corpus: Path,
    shape: list[str],
    task: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("daybreak.commands.evaluate.evaluate", lambda *_, **__: pytest.fail("evaluated"))
    out = ended
    summary = read_json(out / "summary.json")
    summary["parity"] |= {"passed": False, "failure": "the logits differ"}
    write_json(out / "summary.json", summary)
    words = ["run", "tiny", "--corpus", corpus, "--budget", "40steps", "--out", out, "--tasks", task, *shape]
    assert exit_code(*words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3/4 Evaluate: nothing, because the exported model failed its parity check" in said
    assert "do not use it" in said and "loads it" not in said
    page = (out / "report.html").read_text()
    assert "Export refused: the logits differ" in page and "Use the model" not in page


@pytest.mark.usefixtures("on_the_cpu", "ungated")
def test_a_task_that_fails_costs_no_report(
    ended: Path,
    corpus: Path,
    shape: list[str],
    task: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    def diverge(*_: Any, **__: Any) -> None:
        raise UserError("Fine-tuning on 'task' diverged.", "Lower the learning rate.")

    monkeypatch.setattr("daybreak.commands.evaluate.evaluate", diverge)
    words = ["run", "tiny", "--corpus", corpus, "--budget", "40steps", "--out", ended, "--tasks", task, *shape]
    said = refused(*words)
    assert "diverged" in said and (ended / "report.html").is_file()


@pytest.mark.usefixtures("on_the_cpu", "ungated")
def test_a_run_whose_text_was_moved_is_evaluated(
    ended: Path,
    corpus: Path,
    shape: list[str],
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("daybreak.commands.evaluate.evaluate", lambda model, tasks, **_: asked.append((model, tasks)))
    out, moved = ended, Path(shutil.copy(corpus, tmp_path / corpus.name))
    summary = read_json(out / "summary.json")
    words = ["run", "tiny", "--corpus", moved, "--budget", "40steps", "--out", out, "--tasks", task, *shape]
    assert exit_code(*words) == 0
    said = capsys.readouterr().out
    assert "its content is the same" in said and "is finished" in said and asked == [(out, (str(task),))] * 2
    assert read_json(out / "summary.json") == summary and (out / "report.html").exists()


@pytest.mark.usefixtures("on_the_cpu", "ungated")
def test_a_run_whose_text_was_changed_ends_as_its_refusal_says(
    ended: Path, corpus: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    out, changed = ended, Path(shutil.copy(corpus, tmp_path / corpus.name))
    changed.write_text(changed.read_text().replace("bridge", "castle"))
    (out / "summary.json").unlink()
    said = refused("run", "tiny", "--corpus", changed, "--budget", "40steps", "--out", out, *shape)
    assert "daybreak run --overwrite deletes the run as well" in said
    assert "daybreak pretrain RUN --data RUN/data --out RUN" in said
    assert exit_code("pretrain", out, "--data", out / "data", "--out", out) == 0
    assert read_json(out / "summary.json", Summary).steps == 40


def test_another_recipe_does_not_touch_the_data_of_a_run(
    finished: Path, corpus: Path, data: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copytree(data, out / "data")
    before = {path: path.read_bytes() for path in (out / "data").rglob("*") if path.is_file()}
    command = ["run", "tiny", "--corpus", corpus, "--budget", "40steps", "--out", out, *shape]
    assert "with other settings" in refused(*command, "--tokenizer.vocabulary", "500")
    assert "'seed' differs" in refused(*command, "--seed", "9")
    assert {path: path.read_bytes() for path in (out / "data").rglob("*") if path.is_file()} == before


def test_a_folder_that_is_refused_is_so_before_the_text_is_prepared(
    finished: Path, corpus: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    """Preparation may take hours."""
    out, mine = Path(shutil.copytree(finished, tmp_path / "run")), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    command = ["run", "tiny", "--corpus", corpus, "--budget", "40steps", *shape]
    assert "'seed' differs" in refused(*command, "--seed", "9", "--out", out)
    assert "holds other files" in refused(*command, "--out", mine)
    assert not (out / "data").exists() and [path.name for path in mine.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--corpus", "nowhere.txt"], "There is no 'nowhere.txt'"),
        (["--tasks", "none.toml"], "Cannot read the task file 'none.toml'"),
        (["--tasks", "no_column.toml"], "has no column 'queues'"),
        (["--tasks", "rte", "--task-dir", "GLUE", "--protocol", "transfer"], "Add mnli to --tasks"),
        (["--tasks", str(EXAMPLES / "own_task.toml"), "--seeds", "0"], "0 seeds are too few"),
        (["--max-grad-norm", "0"], "--max-grad-norm is 0"),
        (["--track", "wand"], "--track cannot be 'wand'"),
        (["--price", "-1"], "is not a price"),
        (["--budget", "19steps"], "too short for 20 steps"),
        (["--preset", "wep"], "--preset cannot be 'wep'"),
        (["--document", "pages"], "--document cannot be 'pages'"),
        (["--evaluation", "nowhere.tsv"], "'nowhere.tsv' cannot be read"),
        (["--epochs", "1", "2"], "--epochs has 2 numbers for 1 inputs"),
    ],
)
def test_a_mistake_costs_no_run_that_was_to_be_replaced(
    wrong: list[str], said: str, finished: Path, corpus: Path, refused: Callable[..., str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for part in ("train", "dev"):
        write_table(tmp_path / "GLUE" / "RTE" / f"{part}.tsv", "index\tsentence1\tsentence2\tlabel")
    task = (EXAMPLES / "own_task.toml").read_text().replace('"own_', f'"{EXAMPLES}/own_').replace('"queue"', '"queues"')
    (tmp_path / "no_column.toml").write_text(task)
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    corpus_of = [] if "--corpus" in wrong else ["--corpus", corpus]
    assert said in refused("run", "tiny", "--budget", "40steps", "--out", out, "--overwrite", *corpus_of, *wrong)
    for kept in ("model/model.safetensors", "summary.json"):
        assert (out / kept).read_bytes() == (finished / kept).read_bytes()


def test_a_missing_general_text_is_refused_before_the_corpus_is_prepared(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no 'nowhere\.txt'"):
        run.run("tiny", out=tmp_path / "out", corpus=[corpus], general=["nowhere.txt"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["text", "task", "unlabeled"])
def test_a_text_or_task_inside_the_run_is_not_deleted_with_it(
    what: str, finished: Path, corpus: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / "own").mkdir()
    for file in (corpus, *(EXAMPLES / f"own_task{name}" for name in (".toml", "_train.csv", "_dev.csv"))):
        shutil.copy(file, out / "own")
    own = task = out / "own" / (corpus.name if what == "text" else "own_task.toml")
    if what == "unlabeled":
        task = Path(shutil.copytree(out / "own", tmp_path / "tasks")) / "own_task.toml"
        own = out / "own" / "more.csv"
        own.write_text("subject,body\nHello,It rains.\n")
        task.write_text(f"{task.read_text()}unlabeled = '{own}'\n")
    asked = ["--corpus", own] if what == "text" else ["--corpus", corpus, "--tasks", task]
    said = refused("run", "tiny", "--budget", "40steps", "--out", out, "--overwrite", *asked)
    assert "which --overwrite would delete" in said and own.is_file()


def test_the_rows_of_a_task_are_checked_before_the_text_is_read(
    corpus: Path, task: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    task.write_text(task.read_text().replace('"sentence"', '"sentences"'))
    out = tmp_path / "out"
    told = refused("run", "tiny", "--budget", "40steps", "--corpus", corpus, "--tasks", task, "--out", out)
    assert "has no column 'sentences'" in told and not out.exists()


def test_examples_are_shown_once_and_their_lack_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    example = FillMask(text="A [MASK] .", answer="text", guesses=["text", "word"], probabilities=[0.5, 0.25])
    write_json(folder.examples, [example, replace(example, probabilities=[0.4, 0.3])])
    run._show_examples(folder)
    said = capsys.readouterr().out
    assert said.count("A [MASK] .") == 1 and "predictions: text 40%, word 30% (correct)" in " ".join(said.split())
    write_json(folder.examples, [])
    run._show_examples(folder)
    assert capsys.readouterr().out.startswith("No held-out sentence is suitable to show")


# ---------------------------------------------------------------- a deadline


COLA = run.FineTuning(tasks=("cola",), task_dir=None, protocol="quick", seeds=3)


def ahead(seconds: float) -> Deadline:
    return Deadline(datetime.now() + timedelta(seconds=seconds))


def test_pretraining_gets_what_is_left_but_for_the_rest(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    alone, beside = (Budget.parse(run._budget_by(ahead(36_000), folder, tasks)).amount for tasks in (False, True))
    assert alone == pytest.approx(36_000 * (1 - run.END_FRACTION), abs=2)
    assert beside == pytest.approx(alone * (1 - run.TASKS_FRACTION), abs=2)
    assert Budget.parse(run._budget_by(ahead(300), folder, False)).amount == pytest.approx(300 - 45, abs=2)
    with pytest.raises(UserError, match="Give a later --deadline"):
        run._budget_by(ahead(30), folder, False)


@pytest.mark.parametrize(("deadline", "remedy"), [(True, "Give a later --deadline."), (False, "Give at least 21s.")])
def test_a_time_that_is_too_short_for_a_run_asks_for_what_set_it(
    deadline: bool, remedy: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(recipe: Recipe, **_: object) -> None:
        raise TooShort(f"A budget of {recipe.budget} is too short.", "Give at least 21s.")

    monkeypatch.setattr("daybreak.commands.pretrain.pretrain", pretrain)
    asked: dict[str, Any] = {"deadline": ahead(3600)} if deadline else {}
    with pytest.raises(UserError, match="is too short") as refused:
        run.run("tiny", corpus=[corpus], out=tmp_path / "run", **asked)
    assert refused.value.remedy == remedy


def test_a_run_that_has_begun_keeps_its_budget_and_says_if_it_will_be_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.recipe, {"budget": "1234s"})
    assert run._budget_by(ahead(60), folder, True) == "1234s"
    assert "will not be ready by" in capsys.readouterr().out
    assert run._budget_by(ahead(2000), folder, True) == "1234s"
    folder.trace.write_text(json.dumps(to_dict(TraceRecord(step=7, elapsed=1200.0, progress=0.97))) + "\n")
    assert run._budget_by(ahead(100), folder, True) == "1234s"
    assert capsys.readouterr().out == ""


def test_each_task_gets_the_seeds_of_its_protocol(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tuning = replace(COLA, tasks=("mnli", "rte"), protocol="transfer", seeds=None)
    assert "2 tasks with 1 to 5 seeds each under the protocol transfer" in tuning.words()
    asked: list[int] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, most_seeds, untrained, **__: asked.append(most_seeds))
    tuning.evaluate_by(ahead(600), RunFolder(tmp_path))
    assert asked == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_what_cannot_be_is_refused_before_a_run_is_deleted_and_text_is_read(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    soon = Deadline(datetime.now() + timedelta(seconds=30))
    asked: dict[str, Any] = {"out": tmp_path, "corpus": [corpus], "overwrite": True}
    for more, said in (
        ({"deadline": soon}, r"Only \d+s are left until"),
        ({"deadline": "7 o'clock"}, "is not a time"),
        ({"general": [corpus]}, "this run continues none"),
    ):
        with pytest.raises(UserError, match=said):
            run.run("tiny", **asked, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


def test_seeds_are_left_out_when_it_becomes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, bool]] = []

    def fine_tune(folder: Path, tasks: Any, *, most_seeds: int, untrained: bool, within: float, **_: Any) -> None:
        assert 0 < within < 600 / run.FORECAST_MARGIN
        if most_seeds == 2 and untrained:
            raise TooLate("2 fine-tunings take about 9m and 4m are left.", "Evaluate later.")
        asked.append((most_seeds, untrained))

    monkeypatch.setattr(evaluate, "evaluate", fine_tune)
    COLA.evaluate_by(ahead(600), RunFolder(tmp_path))
    assert asked == [(1, False), (1, True), (2, False)]
    assert "1 of 3 seeds are complete." in capsys.readouterr().out


def test_a_finished_evaluation_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its labeled rows may have changed; evaluate keeps the fine-tunings whose rows are the same.
    results = [replace(one, task="cola") for one in fake_results(random.Random(0), 0.0)[:2]]
    write_json(RunFolder(tmp_path).results, [to_dict(one) for one in results])
    asked: list[bool] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, untrained, **__: asked.append(untrained))
    COLA.evaluate(RunFolder(tmp_path))
    assert asked == [False, True]


def test_no_baselines_reaches_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, baselines, **__: asked.append(baselines))
    without = replace(COLA, seeds=1, baselines=False)
    without.evaluate_by(ahead(600), RunFolder(tmp_path))
    without.evaluate(RunFolder(tmp_path))
    assert asked == [False] * 4


def test_what_does_not_fit_is_not_begun() -> None:
    class Planned:
        remaining, seconds = 3, 600.0

    told: Callable[..., str] = task_evaluation.forecast
    assert "3 fine-tunings: about 10m" in told([Planned()], 1, None, 601.0)
    assert told([Planned()], 1, None, None) == told([Planned()], 1, None, 1e9)
    with pytest.raises(TooLate, match="10m 00s and 9m 59s are left"):
        told([Planned()], 1, None, 599.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--corpus", "x.txt", "--deadline", "07:00", "--budget", "5m"], "Give one of them"),
        (["--deadline", "07:00"], "needs a corpus"),
        (["--corpus", "x.txt", "--deadline", "7 o'clock"], "is not a time"),
        (["--corpus", "x.txt", "--budget", "5m", "--seeds", "3"], "--seeds sets the evaluation on tasks"),
        (["--corpus", "x.txt", "--budget", "5m", "--protocol=bert"], "--protocol sets the evaluation on tasks"),
        (["--corpus", "x.txt", "--budget", "5m", "--no-baselines"], "--no-baselines sets the evaluation on tasks"),
        (["--corpus", "x.txt", "--budget", "5m", "--phase2.length", "256"], "this run has one phase"),
    ],
)
def test_what_contradicts_itself(words: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused("run", "tiny", *words)


def test_a_text_and_a_time_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is chosen, told, and kept when the same command is given again."""
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def size_for(budget: Budget) -> str:
        asked.append(budget.text)
        return "daybreak-mini"

    monkeypatch.setattr("daybreak.pretraining.planning.size_for", size_for)
    words = ["--corpus", "x.txt", "--budget", "20m"]
    assert run._with_size(words) == (["mini", *words], Path("runs/chosen")) and asked == ["20m"]
    (tmp_path / "runs" / "chosen").mkdir(parents=True)
    write_json(tmp_path / "runs" / "chosen" / "recipe.json", {})
    assert run._with_size(words) == (["runs/chosen", *words], Path("runs/chosen")) and asked == ["20m"]
    again = [*words, "--overwrite"]
    assert run._with_size(again)[0][0] == "mini"
    (tmp_path / "small").mkdir()
    write_json(tmp_path / "small" / "recipe.json", resolved(load_recipe("tiny")))
    (name, *_), _ = run._with_size([*words, "--out", "small"])
    assert load_recipe(name) == load_recipe("tiny"), "the run in the folder, not the recipe of that name"
    for mine in (
        ["tiny", *words],
        [*words, "--size", "tiny"],
        ["--corpus", "x.txt"],
        ["--budget", "3m"],
        [*words, "--help"],
    ):
        assert run._with_size(mine) == (mine, None)
    steps = ["--corpus", "x.txt", "--budget", "100steps", "--out", "elsewhere"]
    assert run._with_size(steps) == (steps, None)


# ---------------------------------------------------------------- the filter, tasks and protocol of a publication


GLUE = list(TASK_LISTS["glue"])
CRAMMED = """--size tiny --model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 32
--length 32 --batch 8 --ramp.fraction 0 --precision float32 --tokenizer.vocabulary 400 --workers 1""".split()
"""The recipe crammed so small that a step takes milliseconds."""


def write_cola(folder: Path, parts: tuple[str, ...] = ("train", "dev")) -> None:
    """CoLA as distributed: no header; source, label, mark, sentence."""
    chance = random.Random(5)
    (folder / "CoLA").mkdir(parents=True)
    for part in parts:
        rows = [
            f"gj04\t{label}\t\tThe {chance.choice(('teacher', 'farmer'))} {'walks' if label else 'walk'} here."
            for label in (0, 1) * 16
        ]
        (folder / "CoLA" / f"{part}.tsv").write_text("\n".join(rows) + "\n")


def write_table(path: Path, columns: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(columns + "\n")


def test_each_recipe_follows_its_paper() -> None:
    found = {name: procedure_of(load_recipe(name)) for name in recipe_names()}
    for name, procedure in found.items():
        assert procedure.preset in PRESETS, name
        assert procedure.protocol in PROTOCOLS or not procedure.protocol, name
        assert all(task in KNOWN for task in spelled_out(procedure.tasks)), name
        if name.startswith(FAMILY):
            assert procedure == Procedure()
    expected = {
        "crammed": ("crammed", "cramming", GLUE),
        "crammed-legacy": ("crammed", "cramming", GLUE),
        "crammed-8gpu": ("crammed", "cramming", GLUE),
        "bert-2018": ("plain", "bert", GLUE),
        "bert-8gb": ("plain", "bert-8gb", GLUE),
        "bert-gpu": ("plain", "bert", ["qqp"]),
        "scibert": ("plain", "scibert", list(SCIBERT)),
    }
    for name, wanted in expected.items():
        assert (found[name].preset, found[name].protocol, spelled_out(found[name].tasks)) == wanted, name
    assert "auc" in _metrics("qqp") and "accuracy" in _metrics("qqp")


def _metrics(task: str) -> tuple[str, ...]:
    from daybreak.evaluation.tasks.kinds import kind_of

    return tuple(kind_of(KNOWN[task]).metrics)


def test_a_task_counts_if_its_files_are_there_and_a_subset_stands_for_its_task(tmp_path: Path) -> None:
    write_cola(tmp_path)
    pairs = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    for part in ("train_subset", "dev_subset"):
        write_table(tmp_path / "QQP" / f"{part}.tsv", pairs)
    write_table(tmp_path / "QNLI" / "dev.tsv", "index\tquestion\tsentence\tlabel")
    write_table(tmp_path / "text_classification" / "sci-cite" / "train.txt", "{}")
    assert tasks_in(tmp_path, ("glue",)) == (
        ["cola", "qqp-subset"],
        [name for name in GLUE if name not in ("cola", "qqp")],
    )
    assert tasks_in(tmp_path, ("qqp",)) == (["qqp-subset"], [])
    assert tasks_in(tmp_path, ())[0] == ["cola", "qqp-subset"], "sci-cite lacks its dev file"
    with pytest.raises(UserError, match="contains no training and dev files of bc5cdr"):
        tasks_in(tmp_path, ("scibert",))


def test_prepare_filters_as_the_recipe_did_by_default(corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    noise = json.dumps({"text": "".join(random.Random(1).sample("qxzvkjwyfbghp#@!%&*^~?" * 20, 400))})
    text.write_text(corpus.read_text() + noise + "\n")
    filtered, plain = tmp_path / "filtered", tmp_path / "plain"
    for out, options in ((filtered, []), (plain, ["--preset", "plain"])):
        more = ["--tokenizer.vocabulary", "400", "--workers", "1", *options]
        assert exit_code("prepare", text, "--out", out, "--recipe", "crammed", "--size", "tiny", *more) == 0
    reports = [read_json(out / "corpus.json", CorpusReport) for out in (filtered, plain)]
    assert [[step.name for step in report.steps if step.name == "Compressibility"] for report in reports] == [
        ["Compressibility"],
        [],
    ]


@pytest.mark.usefixtures("ungated")
def test_crammed_evaluates_the_tasks_of_a_folder_under_its_protocol(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cola(tmp_path / "GLUE")
    out = tmp_path / "out"
    command = ["run", "crammed", "--corpus", corpus, "--budget", "30steps", "--preset", "plain", "--out", out]
    assert exit_code(*command, "--task-dir", tmp_path / "GLUE", *CRAMMED) == 0
    printed = " ".join(capsys.readouterr().out.split())
    results = read_json(out / "results.json", list[TaskResult])
    assert [(one.task, one.model, one.protocol, one.seeds) for one in results] == [
        ("cola", model, "cramming", [0, 1, 2, 3, 4]) for model in ("pretrained", "untrained")
    ]
    assert "Tasks in" in printed and "no files of sst2, mrpc" in printed
    forecast = re.search(r"Evaluation after pretraining: (\d+) fine-tunings under the protocol cramming", printed)
    cells = [path for path in (out / "cells").rglob("*seed-*.json")]
    assert forecast is not None and int(forecast[1]) == len(cells) == 10
    assert printed.index(forecast[0]) < printed.index("2/4 Pretrain")


def test_the_filter_counts_with_the_vocabulary_of_the_paper_at_every_size() -> None:
    for size in SIZES:
        tokenizer = load_recipe("crammed", size=size).tokenizer
        counted = filter_tokenizer(tokenizer)
        assert counted.vocabulary == 32_768
        assert dataclasses.replace(counted, vocabulary=tokenizer.vocabulary) == tokenizer
    existing = Existing(folder="somewhere")
    assert filter_tokenizer(existing) is existing


def test_options_go_before_the_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "run", lambda recipe, **more: received.append(more))
    (tmp_path / "text.txt").write_text("A sentence.\n")
    command = ["run", "crammed", "--corpus", str(tmp_path / "text.txt"), "--budget", "1m"]
    run.main(command[1:])
    run.main([*command[1:], "--preset", "plain", "--tasks", "cola", "--protocol", "quick", "--seeds", "1"])
    assert [(one["preprocessing"].preset, one["protocol"], one["seeds"]) for one in received] == [
        ("crammed", "", None),
        ("plain", "quick", 1),
    ]
    run.main([*command[1:], "--name", "mine"])
    assert received[-1]["preprocessing"].preset == "crammed" and received[-1]["procedure"].protocol == "cramming"


def test_a_folder_without_the_tasks_or_an_unknown_protocol_is_refused_before_the_text_is_read(
    corpus: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    command = ["run", "bert-gpu", "--corpus", corpus, "--budget", "1m", "--out", tmp_path / "out"]
    write_cola(tmp_path / "GLUE")
    assert "contains no training and dev files of qqp" in refused(*command, "--task-dir", tmp_path / "GLUE")
    assert "There is no protocol 'bird'" in refused(*command, "--tasks", "cola", "--protocol", "bird")
    assert not (tmp_path / "out").exists()
