"""Command ``study``: compare recipes at equal training time, with confidence intervals."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from tyro.conf import Positional, arg

from daybreak.commands import with_current_flags
from daybreak.commands.options import CommaSeparated, TaskDirOptions, keywords, listed, parse
from daybreak.commands.report import report
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.data.sequences.shards import open_shards
from daybreak.reporting.studies import study_text
from daybreak.schemas.studies import STUDY_FILE, DataStudy, Study, StudyCell
from daybreak.schemas.tasks import DEFAULT_PROTOCOL
from daybreak.studies.cell_runner import Cell, StudyFolder, lock_study

if TYPE_CHECKING:
    from daybreak.studies.cell_tasks import CellTasks
    from daybreak.studies.experiment import Variant

STUDY_OPTIONS = ("--data", "--out", "--budget", "--seed", "--overwrite", "--from", "--extend")
"""Options of ``pretrain`` that a variant cannot have, because the study sets them."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """The options of both studies."""

    budget: str
    """Budget of each run: 3m, 8h. Budgets in steps or tokens give no verdict, because times differ."""
    seeds: int = 2
    """Runs of each variant, or of each source and preprocessing. A verdict needs 3."""
    out: Path
    """Folder of the study. The same folder resumes; more --seeds add runs."""
    threads: int = 0
    """CPU threads of each run; 0 for one per usable core."""
    repeat_void: bool = False
    """Repeat each void run once: one that other processes disturbed, or that missed its budget."""
    question: str = ""
    """Heading of the result."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions(ComparisonOptions, TaskDirOptions):
    variants: Annotated[Positional[tuple[str, ...]], arg(metavar="VARIANT [VARIANT ...]")]
    """Two or more variants, each in quotes: a recipe with options of daybreak pretrain, optionally after a name:
    "high=mini --optimizer.lr 4e-3"."""
    data: Path
    """Folder made by daybreak prepare, the same for all variants."""
    tasks: CommaSeparated = ()
    """Tasks of daybreak evaluate to fine-tune each model on: cola,rte. They can be added to a finished study."""
    protocol: str = DEFAULT_PROTOCOL
    """Fine-tuning protocol: quick, small, distilled, cramming, electra, transfer, bert, bert-8gb or
    scibert."""
    task_seeds: int | None = None
    """Fine-tunings of each model on each task. Defaults to the protocol's number."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(StudyOptions, "study", arguments))
    study([read_variant(text, options["data"]) for text in options.pop("variants")], **options)


def read_variant(text: str, data: Path) -> Variant:
    """Parse ``high=mini --optimizer.lr 4e-3`` into a name and a recipe, with the options of ``pretrain``."""
    from daybreak.commands.pretrain import parse_options
    from daybreak.studies.experiment import Variant, without_folders

    found = re.match(r"([^\s=/-][^\s=/]*)=(.*)", text, re.DOTALL)
    name, flags = (found[1], found[2]) if found else (text, text)
    try:
        words = with_current_flags("pretrain", *shlex.split(flags))
    except ValueError as error:
        raise UserError(f"The variant '{text}' cannot be parsed: {error}.", "Correct its quotes.") from None
    if not words:
        raise UserError(f"The variant '{text}' has no recipe.", 'Write "NAME=RECIPE OPTIONS".')
    for word in words:
        if (flag := word.partition("=")[0]) in STUDY_OPTIONS:
            raise UserError(f"The variant '{name}' cannot have {flag}: the study sets it.", "Leave it out.")
    try:
        recipe = parse_options([*words, "--data", str(data)]).recipe
    except UserError as error:
        raise UserError(f"The variant '{name}': {error.sentence}", error.remedy) from None
    return Variant(name=without_folders(name.split()), recipe=recipe, words=tuple(words))


def study(
    variants: Sequence[Variant],
    *,
    data: Path | str,
    out: Path | str,
    budget: str,
    seeds: int = 2,
    threads: int = 0,
    repeat_void: bool = False,
    question: str = "",
    tasks: Sequence[Path | str] | Path | str = (),
    task_dir: Path | str | None = None,
    protocol: str = DEFAULT_PROTOCOL,
    task_seeds: int | None = None,
) -> Study:
    """Pretrain every variant with every seed, alternating between variants, and compare each pair.

    Every cell (variant x seed) is a separate process of ``daybreak pretrain``, so its budget includes the start of
    Python and the imports. The same call keeps finished cells and resumes an interrupted one; more seeds add cells.

    The keywords are the options of ``daybreak study``.

    Args:
        variants: two or more; ``Variant(name="high", recipe=replace(load_recipe("mini"), ...))``.
        out: folder for study.json, study.md, report.html and cells/, with one run folder per cell.

    Raises:
        UserError: a variant, the data, the budget, a task or ``out`` cannot be used; raised before the first cell.
        Interrupted: a signal was received; the same call resumes.
    """
    from daybreak.pretraining.run_start import refuse_other_data
    from daybreak.recipe import Recipe
    from daybreak.studies.cell_tasks import choose_tasks
    from daybreak.studies.experiment import (
        Variant,
        cells_of,
        check_names,
        heldout_sets,
        refuse_late_return,
        refuse_others,
        say_fewer_seeds,
        study_settings,
    )
    from daybreak.studies.paired_losses import compare_all, compare_scores

    data, out, variants = Path(data), Path(out), list(variants)
    if not all(isinstance(one, Variant) and isinstance(one.recipe, Recipe) for one in variants):
        raise UserError("A variant is not a Variant.", 'Pass Variant(name="mini", recipe=load_recipe("mini")).')
    check_names(variants)
    settings = study_settings(variants, budget, seeds, threads)
    heldout_sets(variants, data)
    chosen = choose_tasks([str(task) for task in listed(tasks)], task_dir, protocol, task_seeds)
    shards, names = open_shards(data), [one.name for one in variants]
    manifest = shards.manifest
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
    unit = Budget.parse(budget).unit

    def with_cells(cells: list[StudyCell]) -> Study:
        compared, scored = compare_all(cells, names, unit), compare_scores(cells, names, unit)
        return replace(found, cells=cells, comparisons=compared, task_comparisons=scored)

    with lock_study(out) as lock:
        earlier = read_json(out / STUDY_FILE, Study) if (out / STUDY_FILE).exists() else None
        if earlier:
            # If nothing has trained, as with a budget that is too short, nothing has to compare.
            if earlier.cells or any(out.glob("cells/*/trace.jsonl")):
                refuse_others(out, earlier.settings, found.settings)
                _refuse_other_data(out, earlier, found)
                known = earlier.settings.variants + earlier.settings.left_out
                left_out = [variant for variant in known if variant not in settings.variants]
                found = replace(found, settings=replace(settings, left_out=left_out))
            say_fewer_seeds(earlier.seeds, seeds)
            found = replace(found, question=question or earlier.question)
        place = StudyFolder(out=out, budget=budget, threads=settings.threads)
        cells = cells_of(variants, place, seeds, lambda _: data)
        if earlier:
            refuse_late_return(earlier, cells, place)
        for run in (RunFolder(place.folder(cell)) for cell in cells):
            if run.manifest.exists():  # finished cells are not read again, and new ones must compare with them
                refuse_other_data(run, shards)
        runner = StudyRunner(file=STUDY_FILE, place=place, lock=lock, with_cells=with_cells, text=study_text)
        ended: Study = runner.play(cells, repeat_void=repeat_void, tasks=chosen)
    conclude(out, ended.cells, study_text(ended), ended)
    return ended


@dataclass(frozen=True, kw_only=True)
class StudyRunner:
    """Runs the cells of a study of either kind, and writes OUT/FILE.json and OUT/FILE.md after each."""

    file: str
    place: StudyFolder
    lock: TextIO
    with_cells: Callable[[list[StudyCell]], Any]
    """Returns the study with these finished cells, compared."""
    text: Callable[[Any], str]

    def write(self, cells: list[StudyCell], *, finished: bool = False) -> Any:
        """Write and return the study with these finished cells."""
        now = replace(self.with_cells(cells), finished=finished)
        file = self.place.out / self.file
        write_json(file, now)
        write_text(file.with_suffix(".md"), self.text(now) + "\n")
        return now

    def play(self, cells: Sequence[Cell], *, repeat_void: bool, tasks: CellTasks | None = None) -> Any:
        """Run the cells that are not finished, after a forecast; return the finished study."""
        from daybreak.studies.experiment import forecast, run_cells

        forecast(cells, self.place, tasks)
        played = run_cells(cells, self.place, self.lock, repeat_void=repeat_void, done=self.write, tasks=tasks)
        return self.write(played, finished=True)


def conclude(out: Path, cells: Sequence[StudyCell], text: str, study: Study | DataStudy) -> None:
    """Print the result ``text`` and write the report of the runs."""
    say(f"\n{text}")
    page = report([out / cell.folder for cell in cells], out / "report.html", study=study)
    say(f"\nReport  {page}")


def _refuse_other_data(out: Path, earlier: Study, now: Study) -> None:
    """Raise UserError unless a study continues with its data and tasks."""
    if (earlier.tokenizer, earlier.train_tokens) != (now.tokenizer, now.train_tokens):
        raise UserError(f"The study in '{out}' was started on other data.", "Give its --data, or another --out.")
    if earlier.tasks and not now.tasks:
        raise UserError(
            f"The study in '{out}' has tasks, but this command has none.",
            f"Add --tasks {','.join(earlier.tasks.tasks)}.",
        )
