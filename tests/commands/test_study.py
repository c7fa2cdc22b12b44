"""``daybreak study``: what it refuses before anything trains, its tasks, and real ones that are killed and go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_studies import SMALL, cell, fake_cells
from needs import takes_long
from rendezvous import wait_for
from scipy import stats
from small_tasks import result

from daybreak.commands.record import record
from daybreak.commands.report import report
from daybreak.commands.study import read_variant, study
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.shards import open_shards
from daybreak.evaluation.finetuning.results import read_results
from daybreak.pretraining.setup import VALIDATION_LENGTH
from daybreak.recipe import Origin, load_recipe, resolved
from daybreak.reporting.studies import study_text
from daybreak.schemas.run import Summary
from daybreak.schemas.studies import ScoreComparison, Study, StudyCell, StudyTasks
from daybreak.studies import cell_runner as turns
from daybreak.studies import cell_tasks
from daybreak.studies import experiment as experiment
from daybreak.studies.cell_runner import Cell, StudyFolder
from daybreak.studies.cell_tasks import CellTasks, choose_tasks, with_scores
from daybreak.studies.experiment import Variant, check_names, heldout_sets, study_settings, without_folders
from daybreak.studies.paired_losses import compare_scores
from daybreak.training.phases import SecondPhase

# ---------------------------------------------------------------- what is refused, before anything trains


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny",), "A study compares two variants or more."),
        (("tiny", "tiny"), "The name of the variant 'tiny' is not unique,"),
        (("tiny", "tinny"), "The variant 'tinny': There is no recipe 'tinny'. Did you mean 'tiny'?"),
        (("tiny", "mini --lenght 64"), "--length"),
        (("tiny", "b=tiny --seed 3"), "The variant 'b' cannot have --seed: the study sets it."),
        (("tiny", "b=tiny --budget=3h"), "cannot have --budget"),
        (("tiny", "b="), "has no recipe"),
        (("tiny", "b='tiny"), "Correct its quotes."),
        (
            ("tiny", "b=tiny --max-grad-norm -1"),
            "The variant 'b': --max-grad-norm is -1.0. Give a number above 0.",
        ),
        (("tiny", "b=tiny --length 64"), "their losses are not comparable. Give all the same --length."),
        (("tiny", "b=mini --model.heads 7"), "The variant 'b': A hidden_size of 256 cannot be split into 7 heads"),
        (("tiny", "b=embed"), "adapts a pretrained model, but no model is given."),
        (("tiny", "b=crammed --size tiny --rows.order stops"), "--rows.order cannot be 'stops'"),
        (("tiny", "b=tiny --batch 8", "--budget", "often"), "'often' is not a budget"),
        (("tiny", "b=tiny --batch 8", "--budget", "5steps"), "too short for 20 steps"),
        (("tiny", "b=tiny --batch 8", "--threads", "999"), "would wait for each other"),
        (("tiny", "b=tiny --batch 8", "--seeds", "0"), "0 seeds are too few."),
        (("tiny", "b=tiny --batch 8", "--data", "nowhere"), "'nowhere' contains no prepared data."),
    ],
)
def test_a_variant_that_cannot_train_ends_the_study_at_once(
    arguments: tuple[str, ...], words: str, refused: Callable[..., str], data: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    more = [] if "--budget" in arguments else ["--budget", "3m"]
    more += [] if "--data" in arguments else ["--data", str(data)]
    assert words in " ".join(refused("study", *arguments, *more, "--out", "out").split())
    assert not (tmp_path / "out" / "cells").exists()


def test_shorter_sequences_first_are_evaluated_on_the_sequences_that_follow(data: Path) -> None:
    """Where a recipe only begins with short rows, its loss is comparable with that of the long ones."""
    long = replace(SMALL, length=96)
    short = replace(SMALL, length=32, phase2=SecondPhase(start=0.7, length=96))
    judged = heldout_sets([Variant(name="long", recipe=long), Variant(name="short", recipe=short)], data)
    assert [validation.length for validation in judged] == [96, 96]
    for mine, theirs in zip(judged[0].cases(), judged[1].cases(), strict=True):
        assert mine.equal(theirs)
    longer = replace(short, phase2=replace(short.phase2, length=512))
    assert heldout_sets([Variant(name="longer", recipe=longer)], data)[0].length == VALIDATION_LENGTH


def test_runs_from_different_starts_are_not_compared() -> None:
    begun = replace(SMALL, origin=Origin(init="a model"))
    with pytest.raises(UserError, match=r"different models, so they are not comparable\. Give all the same --init"):
        study_settings([Variant(name="a", recipe=SMALL), Variant(name="b", recipe=begun)], "3m", 1, 1)


def test_two_paths_of_one_folder_are_one_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of a run has the whole path of its model, and a flag may have another."""
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    begun = [replace(SMALL, origin=Origin(init=path)) for path in ("model", str(tmp_path / "model"))]
    study_settings([Variant(name=f"v{number}", recipe=recipe) for number, recipe in enumerate(begun)], "3m", 1, 1)


def test_a_variant_is_read_as_pretrain_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_variant("high=mini --optimizer.lr 2e-3 --batch 8", tmp_path)
    mini = load_recipe("mini")
    assert found.name == "high" and found.words == ("mini", "--optimizer.lr", "2e-3", "--batch", "8")
    assert found.recipe == replace(mini, batch=8, optimizer=replace(mini.optimizer, lr=2e-3))
    assert read_variant("mini --optimizer.lr=2e-3", tmp_path).name == "mini --optimizer.lr=2e-3"
    assert read_variant("bert-8gb --size mini", tmp_path).recipe == load_recipe("bert-8gb", size="mini")
    old = read_variant("mini --clip=0.5", tmp_path)
    assert old.recipe == replace(mini, max_grad_norm=0.5) and old.words == ("mini", "--max-grad-norm=0.5")
    assert capsys.readouterr().err == "daybreak: --clip is now --max-grad-norm.\n"


# ---------------------------------------------------------------- goes on


def test_a_study_goes_on_with_more_seeds_but_not_with_another_budget(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, ran, asked = without_training(data, tmp_path, monkeypatch)
    two = asked["variants"]
    study(seeds=1, **asked)
    found = study(seeds=3, **asked, question="Which batch?")
    assert ran == ["a-seed-0", "b-seed-0", "b-seed-1", "a-seed-1", "a-seed-2", "b-seed-2"]
    assert read_json(place.out / "study.json", Study) == found and found.finished and found.settings.equal_clock
    result = (place.out / "study.md").read_text()
    assert result == study_text(found) + "\n" and result.startswith("# Which batch?\n")
    assert read_json(place.out / "recipes" / "b.json") == resolved(two[1].recipe)
    for change, words in (
        ({"budget": "61s"}, "another budget"),
        ({"variants": [two[0], replace(two[1], recipe=SMALL)]}, "other variants"),
    ):
        with pytest.raises(UserError, match=words):
            study(**{**asked, **change})
    assert "seeds, and this command counts" not in capsys.readouterr().out
    assert len(study(**asked).cells) == 4
    assert "The study has 3 seeds, and this command counts 2: --seeds 3 counts all." in capsys.readouterr().out
    assert len(ran) == 6


def test_other_settings_are_taken_until_a_cell_trains(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a budget that is too short."""
    place, _, asked = without_training(data, tmp_path, monkeypatch)
    found = study(seeds=1, **asked)
    write_json(place.out / "study.json", replace(found, cells=[], finished=False))
    assert study(seeds=1, **{**asked, "budget": "90s"}).settings.budget == "90s"
    write_json(place.out / "study.json", replace(found, cells=[], finished=False))
    (place.out / "cells" / "a-seed-0" / "trace.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="another budget"):
        study(seeds=1, **{**asked, "budget": "90s"})


@pytest.mark.parametrize(("name", "what"), [("recipe.json", "a run"), ("study-data.json", "a study of another kind")])
def test_a_study_leaves_other_results_alone(
    name: str, what: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, ran, asked = without_training(data, tmp_path, monkeypatch)
    place.out.mkdir(exist_ok=True)
    (place.out / name).write_text("{}")
    with pytest.raises(UserError, match=rf"holds {what}\. Choose another --out\."):
        study(seeds=1, **asked)
    assert not ran and [path.name for path in place.out.iterdir()] == [name]


def test_a_study_goes_on_without_a_variant_that_diverges(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ran, asked = without_training(data, tmp_path, monkeypatch)
    a, b = asked["variants"]
    third = replace(b, name="c")
    study(seeds=1, **{**asked, "variants": [a, b, third]})
    found = study(seeds=2, **{**asked, "variants": [a, third]})
    assert ran[3:] == ["c-seed-1", "a-seed-1"] and found.finished
    assert {one.variant for one in found.cells} == {"a", "c"} and len(found.comparisons) == 1
    with pytest.raises(UserError, match="went on without the variant 'b', whose runs would now not alternate"):
        study(seeds=2, **{**asked, "variants": [a, b]})


def test_a_variant_that_was_left_out_by_mistake_comes_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, ran, asked = without_training(data, tmp_path, monkeypatch)
    a, b = asked["variants"]
    third = replace(b, name="c")
    whole = study(seeds=1, **{**asked, "variants": [a, b, third]})
    for one in whole.cells:
        (place.out / one.folder).mkdir(parents=True, exist_ok=True)
        (place.out / one.folder / "summary.json").touch()
    assert {one.variant for one in study(seeds=1, **{**asked, "variants": [a, b]}).cells} == {"a", "b"}
    with pytest.raises(UserError, match="other variants"):
        study(seeds=1, **{**asked, "variants": [a, b, replace(third, recipe=SMALL)]})
    monkeypatch.setattr("daybreak.commands.study.StudyRunner.play", lambda self, cells, **_: self.write([]))
    again = study(seeds=1, **{**asked, "variants": [a, b, third]})
    assert len(ran) == 3 and [one.name for one in again.settings.variants] == ["a", "b", "c"]
    assert again.settings.left_out == []


def test_a_name_that_is_no_name_of_a_folder_is_refused_at_once() -> None:
    long = Variant(name="tiny " + " ".join(["--optimizer.lr 4e-3"] * 24), recipe=SMALL)
    with pytest.raises(UserError, match="is too long for a folder"):
        check_names([replace(long, name="a"), long])


def test_a_study_does_not_go_on_with_the_same_documents_in_another_order(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their held-out sequences are others, so new cells would not compare with the finished ones."""
    place, ran, asked = without_training(data, tmp_path, monkeypatch)
    study(seeds=1, **asked)
    manifest = open_shards(data).manifest
    run = RunFolder(place.out / "cells" / "a-seed-0")
    write_json(run.manifest, manifest)
    study(seeds=2, **asked)
    ends = replace(manifest.heldout.document_ends, hashes=["0" * 16])
    write_json(run.manifest, replace(manifest, heldout=replace(manifest.heldout, document_ends=ends)))
    with pytest.raises(UserError, match="was started on other data"):
        study(seeds=3, **asked)
    assert len(ran) == 4


def test_a_study_keeps_no_path_of_its_variants(tmp_path: Path) -> None:
    run = tmp_path / "secret" / "run"
    run.mkdir(parents=True)
    write_json(run / "recipe.json", resolved(SMALL))
    variants = [read_variant(f"{run} --batch {batch}", tmp_path) for batch in (4, 8)]
    assert [one.name for one in variants] == ["run --batch 4", "run --batch 8"] and variants[0].words[0] == str(run)
    assert [one.words for one in study_settings(variants, "3m", 1, 1).variants] == ["run --batch 4", "run --batch 8"]
    assert (
        without_folders(["mini", "--init=/secret/model", "--optimizer.lr=4e-3"])
        == "mini --init=model --optimizer.lr=4e-3"
    )


def test_a_variant_is_another_when_the_code_of_its_class_changes(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "own_objective.py"
    mine = tmp_path / "mine.py"
    mine.write_text(example.read_text().replace("MaskedSpans", "SpansOfAStudy"))
    own = read_variant(f"own={mine}", tmp_path)
    variants = [Variant(name="plain", recipe=SMALL), own, replace(own, name="named", words=(), code=str(mine))]
    before = study_settings(variants, "3m", 1, 1)
    assert study_settings(variants, "3m", 1, 1) == before
    mine.write_text(mine.read_text().replace("stable=True", "stable=False"))
    after = study_settings(variants, "3m", 1, 1)
    assert before.differs(after) == "other variants"
    newer = replace(before, cores=before.cores + 1, machine=replace(before.machine, torch="9.0"))
    assert before.differs(newer) == f"torch {before.machine.torch} (now 9.0), cores {before.cores} (now {newer.cores})"
    assert [one == two for one, two in zip(before.variants, after.variants)] == [True, False, False]


# ---------------------------------------------------------------- tasks


TASK = """name = "{name}"
train = "rows.csv"
dev = "rows.csv"
text = "sentence"
label = "topic"
"""


@pytest.fixture
def tasks(tmp_path: Path) -> list[str]:
    """Two small tasks."""
    rows = [f"the {'sun' if at % 2 else 'moon'} is number {at},{'day' if at % 2 else 'night'}" for at in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence,topic", *rows]) + "\n")
    for name in ("light", "dark"):
        (tmp_path / f"{name}.toml").write_text(TASK.format(name=name))
    return [str(tmp_path / f"{name}.toml") for name in ("light", "dark")]


# ---------------------------------------------------------------- the verdict


def on(task: str, a: list[float], b: list[float], unit: str = "seconds", **more: Any) -> ScoreComparison:
    cells = [cell("a", seed, 4.0, scores={task: score}) for seed, score in enumerate(a)]
    cells += [cell("b", seed, 4.0, scores={task: score}, **more) for seed, score in enumerate(b)]
    (found,) = compare_scores(cells, ["a", "b"], unit)
    return found


def test_a_higher_score_is_better_by_the_rules_for_losses() -> None:
    """Those are proved in studies/test_paired_losses.py."""
    a, b = [0.60, 0.62, 0.61, 0.60], [0.66, 0.67, 0.68, 0.65]
    found = on("sst2", a, b)
    interval = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.verdict == "B is better" and found.seeds == [0, 1, 2, 3] and found.metric == "accuracy"
    assert on("sst2", b, a).verdict == "A is better"
    assert on("sst2", a, b, void="busy").verdict.startswith("no claim: a cell is void")
    assert on("sst2", a, b, unit="steps").verdict.startswith("B is ahead at equal steps, which does not give")
    assert on("sst2", [0.60], [0.66]).verdict == "B is ahead in one run, no claim"


def test_a_void_cell_without_scores_ends_the_claims_on_tasks() -> None:
    """The parity check refused its model, so it was not fine-tuned."""
    scores = {"a": [0.60, 0.62, 0.61], "b": [0.66, 0.67, 0.68]}
    cells = [cell(name, seed, 4.0, scores={"x": one}) for name in "ab" for seed, one in enumerate(scores[name])]
    assert compare_scores(cells, ["a", "b"], "seconds")[0].verdict == "B is better"
    cells += [cell("a", 3, 4.0, scores={"x": 0.6}), cell("b", 3, 4.0, void="refused")]
    (found,) = compare_scores(cells, ["a", "b"], "seconds")
    assert found.verdict == "no claim: a cell is void" and found.seeds == [0, 1, 2]


def test_the_mean_over_tasks_is_compared_too() -> None:
    """Cells that are not fine-tuned yet take no part."""
    cells = [cell(name, seed, 4.0, scores={"x": 0.5 + lift, "y": 0.7}) for seed in (0, 1) for name, lift in
             (("a", 0.0), ("b", 0.1))]  # fmt: skip
    found = compare_scores([*cells, cell("a", 2, 4.0), cell("b", 2, 4.0)], ["a", "b"], "seconds")
    assert [(one.task, one.metric) for one in found] == [
        ("x", "accuracy"), ("y", "accuracy"), ("mean of 2 tasks", "")
    ]  # fmt: skip
    assert [one.difference for one in found] == pytest.approx([0.1, 0.0, 0.05])
    assert found[0].seeds == [0, 1]


# ---------------------------------------------------------------- what is refused


def test_a_name_is_no_variant(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A variant is not a Variant"):
        study(["tiny", "mini"], data=data, budget="60s", out=tmp_path / "out")  # type: ignore[list-item]


def test_what_cannot_be_fine_tuned_ends_the_study_before_it_trains(tasks: list[str], tmp_path: Path) -> None:
    for names, more, words in (
        (["stbs"], {}, "There is no task 'stbs'"),
        (["stsb"], {}, "no folder was given"),
        ([str(tmp_path / "none.toml")], {}, "none.toml"),
        (tasks, {"protocol": "slow"}, "There is no protocol 'slow'"),
        (tasks, {"seeds": 0}, "0 fine-tunings of each model are too few"),
        ([], {"seeds": 1}, "No task was named"),
        ([], {"protocol": "small"}, "No task was named"),
    ):
        with pytest.raises(UserError, match=words):
            choose_tasks(names, None, **{"protocol": "quick", "seeds": None, **more})
    (tmp_path / "RTE").mkdir()
    for part in ("train", "dev"):
        (tmp_path / "RTE" / f"{part}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n")
    with pytest.raises(UserError, match="Add mnli to --tasks"):
        choose_tasks(["rte"], tmp_path, "transfer", None)
    (tmp_path / "rows.csv").write_text("sentence\nx\n")
    with pytest.raises(UserError):
        choose_tasks(tasks, None, "quick", None)
    assert choose_tasks([], None, "quick", None) is None


def test_other_rows_protocols_and_seeds_are_other_tasks(tasks: list[str], tmp_path: Path) -> None:
    def identity(protocol: str = "quick", seeds: int | None = None) -> str:
        found = choose_tasks(tasks, None, protocol, seeds)
        assert found
        return found.identity

    before = identity()
    assert len({before, identity("bert"), identity(seeds=2)}) == 3 and identity() == before
    rows = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(rows.replace("sun", "day"))
    assert identity() != before


# ---------------------------------------------------------------- cells that only pretend


def test_a_score_that_was_replaced_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``daybreak evaluate CELL --seeds 1`` between two commands of the study writes into the same results.json."""
    place, unit = StudyFolder(out=tmp_path, budget="3m", threads=1), Cell(variant="a", seed=0, words=(), data=tmp_path)
    results, ran = RunFolder(place.folder(unit)).results, []
    place.folder(unit).mkdir(parents=True)

    def run(words: list[str], *_: object, **__: object) -> int:
        ran.append(words)
        write_json(results, [result("rte", {"accuracy": [0.5, 0.6, 0.7]}, protocol="quick")])
        return 0

    monkeypatch.setattr(cell_tasks, "run_child", run)
    record = StudyTasks(tasks=["rte"], protocol="quick", seeds=3)
    tasks = CellTasks(record=record, typed=("rte",), task_dir="", identity="x")
    with turns.lock_study(tmp_path) as lock:
        for _ in range(2):
            cell_tasks.evaluate_cell(unit, place, lock, tasks)
        assert len(ran) == 1
        write_json(results, [result("rte", {"accuracy": [0.9]}, protocol="quick")])
        cell_tasks.evaluate_cell(unit, place, lock, tasks)
    assert len(ran) == 2
    assert [one.seeds for one in with_scores(cell("a", 0, 4.0), unit, place, tasks).tasks] == [3]


def test_a_task_that_starts_from_a_part_of_another_has_its_score(tmp_path: Path) -> None:
    """``transfer`` with the subset of MNLI: its results say so in the name of the protocol."""
    place, unit = StudyFolder(out=tmp_path, budget="3m", threads=1), Cell(variant="a", seed=0, words=(), data=tmp_path)
    place.folder(unit).mkdir(parents=True)
    results = [
        result("mnli-subset", {"accuracy": [0.6]}, protocol="transfer"),
        result("rte", {"accuracy": [0.7]}, protocol="transfer, from mnli-subset"),
        result("rte", {"accuracy": [0.5]}, protocol="quick"),
    ]
    write_json(RunFolder(place.folder(unit)).results, results)
    write_json(place.beside(unit, ".tasks.json"), {"identity": "", "seconds": 9.0})
    record = StudyTasks(tasks=["mnli-subset", "rte"], protocol="transfer", seeds=None)
    found = with_scores(cell("a", 0, 4.0), unit, place, CellTasks(record=record, typed=(), task_dir="", identity=""))
    assert [(one.task, one.score) for one in found.tasks] == [("mnli-subset", 0.6), ("rte", 0.7)]


def test_the_results_of_a_stopped_evaluation_are_not_those_of_earlier_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuned with three seeds, then with two until it was stopped, then with three again: nothing is mixed."""
    place, unit = StudyFolder(out=tmp_path, budget="3m", threads=1), Cell(variant="a", seed=0, words=(), data=tmp_path)
    results, stopped, ran = RunFolder(place.folder(unit)).results, False, []
    place.folder(unit).mkdir(parents=True)

    def run(words: list[str], *_: object, **__: object) -> int:
        ran.append(words[-1])
        write_json(results, [])
        if stopped:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(cell_tasks, "run_child", run)
    three, two = (
        CellTasks(
            record=StudyTasks(tasks=["x"], protocol="quick", seeds=seeds),
            typed=("x",),
            task_dir="",
            identity=f"{seeds}",
        )
        for seeds in (3, 2)
    )
    with turns.lock_study(tmp_path) as lock:
        for _ in range(2):
            cell_tasks.evaluate_cell(unit, place, lock, three)
        assert ran == ["3"]
        stopped = True
        with pytest.raises(KeyboardInterrupt):
            cell_tasks.evaluate_cell(unit, place, lock, two)
        stopped = False
        cell_tasks.evaluate_cell(unit, place, lock, three)
    assert ran == ["3", "2", "3"]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cells are fine-tuned at once, variant b always better; their names, in order."""
    names: list[str] = []

    def evaluate(one: Cell, place: StudyFolder, lock: object, asked: CellTasks) -> None:
        if one.name not in names:
            names.append(one.name)

    def scored(found: StudyCell, one: Cell, place: StudyFolder, asked: CellTasks) -> StudyCell:
        lift = 0.1 * (one.variant == "b") + 0.001 * one.seed
        return replace(found, tasks=cell("x", 0, 4.0, scores={name: 0.6 + lift for name in asked.record.tasks}).tasks)

    monkeypatch.setattr(experiment, "evaluate_cell", evaluate)
    monkeypatch.setattr(experiment, "with_scores", scored)
    monkeypatch.setattr("daybreak.commands.study.report", lambda runs, out, study: out)
    return names


def without_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[StudyFolder, list[str], dict[str, Any]]:
    """A study whose cells and report only pretend: its folder, the cells that ran, and what is asked."""
    place = StudyFolder(out=tmp_path / "out", budget="60s", threads=1)
    ran = fake_cells(place, monkeypatch, {})
    monkeypatch.setattr("daybreak.commands.study.report", lambda runs, out, study: out)
    return place, ran, asked_of(data, place.out)


def asked_of(data: Path, out: Path) -> dict[str, Any]:
    two = [Variant(name="a", recipe=SMALL), Variant(name="b", recipe=replace(SMALL, batch=4))]
    return {"variants": two, "data": data, "out": out, "budget": "60s", "threads": 1}


def test_a_finished_study_is_given_tasks_and_keeps_its_cells(
    data: Path, tasks: list[str], judged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place = StudyFolder(out=tmp_path / "out", budget="60s", threads=1)
    ran = fake_cells(place, monkeypatch, {})
    study(seeds=3, **asked_of(data, place.out), question="How many sequences?")
    assert len(ran) == 6 and not judged
    with monkeypatch.context() as stopped, pytest.raises(Interrupted):
        stopped.setattr(experiment, "evaluate_cell", lambda *_: (_ for _ in ()).throw(Interrupted(15)))
        study(seeds=3, **asked_of(data, place.out), tasks=list(map(Path, tasks)), task_seeds=1)
    kept = read_json(place.out / "study.json", Study)
    assert len(kept.cells) == 6 and kept.comparisons and kept.tasks and not kept.finished
    assert "| b       | 3 (0 fine-tuned) |" in (place.out / "study.md").read_text()
    found = study(seeds=3, **asked_of(data, place.out), tasks=list(map(Path, tasks)), task_seeds=1)
    assert found.question == "How many sequences?"
    assert len(ran) == 6 and sorted(judged) == sorted(ran)
    assert read_json(place.out / "study.json", Study) == found and found.finished
    assert found.tasks and found.tasks.tasks == ["light", "dark"]
    assert [one.verdict for one in found.task_comparisons] == ["B is better"] * 3
    told = (place.out / "study.md").read_text()
    said = capsys.readouterr().out
    table = next(line for line in told.splitlines() if "light (accuracy)" in line)
    assert "dark (accuracy)" in table and "mean of 2" in table and table in said
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in told.splitlines()]
    assert ["b", "3", "4.000 +- 0.000", *["70.1 +- 0.1"] * 3] in rows
    assert "light (accuracy), b (B) against a (A): B is better. B's score - A's score: +10.0 points" in told
    with pytest.raises(UserError, match=r"has tasks, but this command has none. Add --tasks light,dark"):
        study(seeds=3, **asked_of(data, place.out))


def test_a_void_cell_is_fine_tuned_once_and_a_refused_one_never(
    data: Path, tasks: list[str], judged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StudyFolder(out=tmp_path / "out", budget="60s", threads=1)
    void = {"a-seed-0": "busy", "b-seed-0": experiment.REFUSED, "b-seed-0-again": experiment.REFUSED}
    fake_cells(place, monkeypatch, void)
    found = study(seeds=1, **asked_of(data, place.out), tasks=tasks[0])
    assert judged == ["a-seed-0"] and not found.task_comparisons
    judged.clear()
    study(seeds=1, **asked_of(data, place.out), tasks=tasks[0], repeat_void=True)
    assert judged == ["a-seed-0-again"]


def test_a_study_is_recorded_with_its_scores(
    data: Path, tasks: list[str], judged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StudyFolder(out=tmp_path / "rates", budget="60s", threads=1)
    fake_cells(place, monkeypatch, {})
    found = study(seeds=3, **asked_of(data, place.out), tasks=tasks)
    filed = record(place.out, out=tmp_path / "records")
    assert filed.name.endswith("-study-rates") and {path.name for path in filed.iterdir()} == {
        "study.json", "study.md"
    }  # fmt: skip
    assert read_json(filed / "study.json", Study) == found and str(tmp_path) not in (filed / "study.json").read_text()
    with pytest.raises(UserError, match="never edited"):
        record(place.out, out=tmp_path / "records")
    write_json(place.out / "study.json", replace(found, finished=False))
    with pytest.raises(UserError, match="is not finished"):
        record(place.out, out=tmp_path / "records", name="other")


# ---------------------------------------------------------------- a real one


@takes_long
def test_a_killed_study_goes_on_within_its_cell_and_is_given_tasks_later(
    start: Callable[..., subprocess.Popen[str]], data: Path, shape: list[str], tasks: list[str], tmp_path: Path
) -> None:
    out, small = tmp_path / "out", " ".join(shape)
    asked = ["study", f"low=tiny {small} --optimizer.lr 1e-5", f"high=tiny {small}", "--data", data]
    asked += ["--budget", "150steps", "--seeds", "1", "--threads", "1", "--out", out]
    runs = [RunFolder(out / "cells" / f"{name}-seed-0") for name in ("low", "high")]
    low, high = runs
    killed = start(*asked)
    wait_for(high.heartbeat.exists, killed, patience=600)
    trained = low.summary.stat().st_mtime_ns
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not read_json(out / "study.json", Study).finished and not high.summary.exists()
    done = start(*asked)
    told, complaints = done.communicate(timeout=600)
    assert done.returncode == 0, complaints
    assert "1 of them done" in told
    found = read_json(out / "study.json", Study)
    assert found.finished and low.summary.stat().st_mtime_ns == trained
    assert [(one.variant, one.resumes, len(one.loads), one.threads) for one in found.cells] == [
        ("low", 0, 1, 1), ("high", 1, 2, 1)
    ]  # fmt: skip
    summary: Summary = read_json(high.summary, Summary)
    last = found.cells[1]
    assert (last.loss, last.steps, last.tokens) == (summary.validation.loss, 150, summary.tokens)
    assert last.curve[-1].loss == pytest.approx(last.loss) and len(last.curve) > 3
    assert last.loss < found.cells[0].loss and found.comparisons[0].difference == last.loss - found.cells[0].loss
    assert (out / "report.html").exists() and "in one run" in (out / "study.md").read_text()

    kept = [run.summary.stat().st_mtime_ns for run in runs]
    more = [*asked, "--tasks", ",".join(tasks), "--task-seeds", "2"]
    killed = start(*more)
    wait_for(lambda: list(runs[0].cells.glob("*/*/*/*.json")), killed, patience=600)
    os.kill(killed.pid, signal.SIGTERM)
    killed.communicate(timeout=120)
    assert killed.returncode == 143 and not read_json(out / "study.json", Study).finished
    first = {path: path.stat().st_mtime_ns for path in runs[0].cells.glob("*/*/*/*.json")}
    assert first and not runs[1].cells.exists()

    done = start(*more)
    told, complaints = done.communicate(timeout=600)
    assert done.returncode == 0, complaints
    assert [run.summary.stat().st_mtime_ns for run in runs] == kept
    assert all(path.stat().st_mtime_ns == when for path, when in first.items())
    found = read_json(out / "study.json", Study)
    for one, run in zip(found.cells, runs):
        results = {result.task: result for result in read_results(run.results)}
        assert [(score.task, score.score, score.seeds) for score in one.tasks] == [
            (name, results[name].mean, 2) for name in ("light", "dark")
        ]
        assert one.elapsed == read_json(run.summary)["elapsed"] and one.task_seconds > 0
    for one in found.task_comparisons[:2]:
        low, high = ({score.task: score.score for score in side.tasks}[one.task] for side in found.cells)
        assert one.difference == high - low and "better" not in one.verdict
    assert "mean of 2" in told and "Comparison of variants" in (out / "report.html").read_text()
    # Nothing is left to do, and what is done is known by its files.
    place = StudyFolder(out=out, budget="150steps", threads=1)
    chosen = choose_tasks(tasks, None, "quick", 2)
    assert chosen
    for one in found.cells:
        unit = Cell(variant=one.variant, seed=0, words=(), data=data)
        with turns.lock_study(out) as lock, pytest.MonkeyPatch.context() as patch:
            patch.setattr(cell_tasks, "run_child", lambda *_, **__: pytest.fail("a cell was fine-tuned again"))
            cell_tasks.evaluate_cell(unit, place, lock, chosen)
        assert with_scores(one, unit, place, chosen) == one
    page = report([run.path for run in runs], tmp_path / "page.md", form="md", study=found)
    assert "light (accuracy)" in page.read_text()
