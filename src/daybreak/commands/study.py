"""Verb: A against B at equal clock, in turns, on pinned threads: who is better, and how sure that is."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json, write_text
from daybreak.core.terminal import say
from daybreak.data.sequences.shards import open_shards
from daybreak.reporting.study_log import check_log, put_on_top
from daybreak.reporting.study_table import log_entry, study_text
from daybreak.schemas.studies import STUDY_FILE, Study, StudyCell
from daybreak.studies.cell_runner import StudyFolder, held
from daybreak.studies.cell_tasks import CellTasks, choose_tasks
from daybreak.studies.experiment import (
    Variant,
    cells_of,
    forecast,
    heldout_sets,
    named_apart,
    play,
    refuse_others,
    settled,
)
from daybreak.studies.paired_losses import compare_all, compare_scores
from daybreak.training.clock import Budget

__all__ = ["Variant", "study"]


def study(
    variants: Sequence[Variant],
    *,
    data: Path,
    out: Path,
    budget: str,
    seeds: int = 2,
    threads: int = 0,
    repeat_void: bool = False,
    question: str = "",
    log: Path | None = None,
    tasks: Sequence[str] = (),
    task_dir: str | Path | None = None,
    protocol: str = "quick",
    task_seeds: int | None = None,
) -> Study:
    """Pretrain every variant with every seed, in turns, and say of each two which is better and how sure that is.

    Every cell (variant x seed) is a process of its own that runs ``daybreak pretrain``, so its budget charges the
    start of Python and the imports. The same call again keeps the finished cells and goes on with the one that was
    stopped; a call with more seeds adds these.

    Args:
        variants: two or more; ``Variant(name="high", recipe=replace(load_recipe("mini"), ...))``.
        data: folder made by ``prepare``, the same for all.
        out: folder for study.json, study.md, report.html and cells/, a run folder a cell.
        budget: of each cell, as 3m or 8h; in steps or tokens no claim is made, for that is no equal clock.
        seeds: 0, 1, ...; a claim needs three.
        threads: of every cell; 0 for the usable cores.
        repeat_void: run a cell once more that was disturbed.
        question: heading of study.md and of the entry in ``log``.
        log: a Markdown file that gets an entry above its others when all cells are done.
        tasks: after its pretraining, and outside of its budget, each model is fine-tuned on these; a finished study
            that is given tasks keeps its cells and adds the scores.
        task_dir, protocol: see ``evaluate.evaluate``.
        task_seeds: fine-tunings of each model on each task; as many as the protocol has when None.

    Raises:
        UserError: a variant, the data, the budget, a task or ``out`` cannot be used; said before the first cell
            begins.
        Interrupted: a signal came; the same call goes on.
    """
    named_apart(variants)
    settings = settled(variants, budget, seeds, threads)
    heldout_sets(variants, data)
    check_log(log)
    chosen = choose_tasks(tasks, task_dir, protocol, task_seeds)
    manifest, names = open_shards(data).manifest, [one.name for one in variants]
    found = Study(
        question=question or f"{' against '.join(names)}, {budget} each on {data.resolve().name}",
        settings=settings,
        data=data.resolve().name,
        tokenizer=manifest.tokenizer,
        train_tokens=manifest.train.tokens,
        seeds=seeds,
        finished=False,
        cells=[],
        comparisons=[],
        tasks=chosen.record if chosen else None,
    )
    ended = _played(found, variants, data, out, repeat_void, chosen)
    say()
    say(study_text(ended))
    page = report([out / cell.folder for cell in ended.cells], out / "report.html", study=ended)
    if log is not None:
        put_on_top(log, log_entry(ended, datetime.date.today().isoformat()))
    say(f"\nReport  {page}")
    return ended


def _played(
    found: Study,
    variants: Sequence[Variant],
    data: Path,
    out: Path,
    repeat_void: bool,
    tasks: CellTasks | None,
) -> Study:
    """Run all cells; ``out`` tells at any time how far it is."""
    place = StudyFolder(out=out, budget=found.settings.budget, threads=found.settings.threads)
    with held(out) as lock:
        _refuse_other(out, found)
        names = [one.name for one in variants]
        cells = cells_of(variants, place, found.seeds, lambda _: data)
        forecast(cells, place, tasks)

        def written(done: Sequence[StudyCell], finished: bool = False) -> Study:
            unit = Budget.parse(place.budget).unit
            now = replace(
                found,
                cells=list(done),
                comparisons=compare_all(done, names, unit),
                task_comparisons=compare_scores(done, names, unit),
                finished=finished,
            )
            write_json(out / STUDY_FILE, now)
            write_text(out / "study.md", study_text(now) + "\n")
            return now

        written([])
        ended = play(cells, place, lock, repeat_void=repeat_void, done=written, tasks=tasks)
        return written(ended, finished=True)


def _refuse_other(out: Path, now: Study) -> None:
    """A study is gone on with under the settings and on the data that it began with."""
    if not (out / STUDY_FILE).exists():
        return
    before = read_json(out / STUDY_FILE, Study)
    refuse_others(out, before.settings, now.settings)
    if (before.tokenizer, before.train_tokens) != (now.tokenizer, now.train_tokens):
        raise UserError(f"The study in '{out}' was begun on other data.", "Name its own --data, or another --out.")
    if before.tasks and not now.tasks:
        raise UserError(
            f"The study in '{out}' has tasks, and this command names none.",
            f"Add --tasks {','.join(before.tasks.tasks)}.",
        )
