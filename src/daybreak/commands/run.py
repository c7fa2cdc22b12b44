"""Command ``run``: prepare, pretrain, evaluate and report in one go. Finished stages are skipped."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from daybreak.commands import evaluate, prepare, pretrain, report
from daybreak.commands.options import (
    CommaSeparated,
    InitOptions,
    RunOutOptions,
    TaskDirOptions,
    default_run_folder,
    given_flags,
    keywords,
    listed,
    load_chosen_recipe,
    parse,
    refuse_idle,
    refuse_idle_settings,
    split_recipe,
    value_of,
)
from daybreak.commands.prepare import PreparationOptions
from daybreak.commands.pretrain import Watching
from daybreak.core.budget import Budget, Deadline
from daybreak.core.errors import TooLate, TooShort, UserError
from daybreak.core.files import make_folder, read_json
from daybreak.core.formatting import check_price, check_seeds
from daybreak.core.process import process_started, uptime
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import REFUSED, RunFolder, as_argument
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.terminal import duration, hanging, open_in_browser, quiet, say, say_link, working
from daybreak.data.filters.presets import PLAIN
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import STDIN, find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.pretraining.flops import ANY_VOCABULARY, meta_model
from daybreak.pretraining.run_start import check_recipe
from daybreak.pretraining.starting_points import source_folders
from daybreak.recipe import FAMILY, Procedure, Recipe, Texts, load_recipe, procedure_of, recipe_names
from daybreak.reporting.headline import opening
from daybreak.reporting.runs import last_trace
from daybreak.schemas.run import FillMask, Summary
from daybreak.schemas.tasks import TaskResult
from daybreak.training.calibration import refuse_few_steps
from daybreak.training.monitoring.trackers import check_trackers

SHOWN_EXAMPLES = 6
END_SECONDS = 45.0
END_FRACTION = 0.02
"""Time reserved before a deadline for the parity check, the examples and the report: the larger of these seconds and
this fraction of the time left."""
TASKS_FRACTION = 0.25
"""Fraction of the time until a deadline that is reserved for fine-tuning if there are tasks."""
FORECAST_MARGIN = 1.3
"""Factor by which a fine-tuning may exceed its forecast time before a deadline."""
SMALL_HIDDEN_SIZE = 512
"""Largest hidden size whose tasks are fine-tuned with the protocol ``distilled``."""
DOCSTRING_SECONDS = 600
"""Longest budget for the docstrings of the installed packages, which are a few million characters."""
CHOSEN_FOLDER = "runs/chosen"
"""Default run folder if Daybreak chooses the size, because its name is not known beforehand."""


@dataclass(frozen=True, kw_only=True)
class TextAndTasks:
    """What most runs are given; the help lists the options of the last base class first."""

    corpus: tuple[str, ...] = ()
    """Files, folders or globs of text, hf://owner/name, or wikipedia, c4 or pile-subset; see daybreak prepare. Defaults
    to the docstrings of the packages installed on this machine."""
    tasks: CommaSeparated = ()
    """Tasks to fine-tune on after pretraining: cola,rte,glue5,my_task.toml. With --task-dir, defaults to the recipe's
    tasks whose files are in that folder."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(PreparationOptions, InitOptions, TaskDirOptions, RunOutOptions, TextAndTasks):
    recipe: Annotated[Recipe, arg(name="")]
    general: tuple[str, ...] = ()
    """With --init: general text, to measure how much of it the model forgets. It is read with --document auto and
    without filters, because it need not look like the corpus."""
    protocol: str = ""
    """Fine-tuning protocol. Defaults to the recipe's, else distilled up to hidden size 512 and quick above."""
    seeds: int | None = None
    """Fine-tuning seeds per task. Defaults to the protocol's."""
    baselines: bool = True
    """Also fit the bag-of-words baseline of each task."""
    watching: Annotated[Watching, arg(name="")] = Watching()
    deadline: str = ""
    """Time by which everything is done, 07:00 or 2026-11-23 07:00, instead of --budget."""
    open: bool = False
    """Open the report in the browser at the end."""


def main(arguments: Sequence[str]) -> None:
    startup = uptime() - process_started()
    arguments, out = _with_size(list(arguments))
    name, rest = split_recipe("run", "--corpus", arguments)
    recipe = load_chosen_recipe("run", name, rest)
    # The filters of publications are made for pages and books, not for the docstrings of packages.
    procedure = procedure_of(recipe)  # --name changes the name of the recipe, but not what it is
    preprocessing = Preprocessing(preset=procedure.preset if value_of("--corpus", rest) else PLAIN)
    defaults = RunOptions(recipe=recipe, preprocessing=preprocessing, **to_dict(recipe.texts))
    options = parse(RunOptions, "run", rest, defaults)
    _refuse_recipe_in_corpus(options.corpus)
    _check_budget(options, rest)
    refuse_idle_settings(recipe, options.recipe, rest)
    _refuse_idle_tasks(options, rest)
    run(
        replace(options.recipe, texts=Texts(**keywords(options, Texts))),
        out=options.out or out or default_run_folder(options.recipe.name),
        corpus=options.corpus,
        general=options.general,
        text_field=options.text_field,
        preprocessing=options.preprocessing,
        workers=options.workers,
        overwrite=options.overwrite,
        tasks=options.tasks,
        task_dir=options.task_dir,
        protocol=options.protocol,
        seeds=options.seeds,
        baselines=options.baselines,
        watching=options.watching,
        deadline=options.deadline or None,
        open_report=options.open,
        startup=startup,
        procedure=procedure,
    )


def _with_size(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Choose the size if the arguments have a corpus and a time but no recipe; an existing run keeps its size.

    The arguments are returned with a recipe in front, with the run folder if ``--out`` does not name it.
    """
    time_given = value_of("--budget", arguments) or value_of("--deadline", arguments)
    chosen = any(value_of(flag, arguments) for flag in ("--size", "--init", "--from"))
    named = bool(arguments) and not arguments[0].startswith("-")
    if named or chosen or not time_given or not value_of("--corpus", arguments) or {"-h", "--help"} & set(arguments):
        return arguments, None
    out = Path(value_of("--out", arguments) or CHOSEN_FOLDER)
    if (out / "recipe.json").is_file() and "--overwrite" not in arguments:
        return [as_argument(out), *arguments], out
    deadline = value_of("--deadline", arguments)
    budget = Budget.parse(f"{max(1, round(Deadline.parse(deadline).left()))}s" if deadline else time_given)
    if budget.unit != "seconds":
        return arguments, None
    from daybreak.pretraining.planning import size_for

    size = size_for(budget).removeprefix(FAMILY)
    say(
        f"Size: {size}, with the lowest forecast loss for {deadline or time_given} on this machine "
        "(daybreak run SIZE chooses another)."
    )
    return [size, *arguments], out


def _refuse_recipe_in_corpus(corpus: Sequence[str]) -> None:
    """Refuse ``run --corpus a.txt tiny``, where the recipe is parsed as another text."""
    for word in corpus:
        if not Path(word).exists() and {word, FAMILY + word} & set(recipe_names()):
            raise UserError(
                f"The recipe '{word}' is parsed as a text of --corpus.",
                f"Put the recipe first: daybreak run {word} --corpus TEXT.",
            )


def _refuse_idle_tasks(options: RunOptions, arguments: Sequence[str]) -> None:
    """Raise UserError for an option of the fine-tuning if there are no tasks; without a corpus, there is always one."""
    if options.corpus and not options.tasks and not options.task_dir:
        refuse_idle(
            arguments,
            ("--protocol", "--seeds", "--baselines", "--no-baselines"),
            "sets the evaluation on tasks, and this run has none.",
            "Add --tasks NAME or --task-dir FOLDER",
        )


def _check_budget(options: RunOptions, arguments: Sequence[str]) -> None:
    """Require a budget with a corpus, because the default is too small for most, and limit it without one."""
    budgeted = "--budget" in given_flags(arguments)
    if budgeted and options.deadline:
        raise UserError("--deadline and --budget both set the length of the run.", "Give one of them.")
    if options.corpus and not budgeted and not options.deadline:
        raise UserError("A corpus needs a budget.", "Add one, such as --budget 15m for a first try.")
    if options.deadline and not options.corpus:
        raise UserError("--deadline needs a corpus.", "Add --corpus TEXT; without one, a run takes minutes.")
    budget = Budget.parse(options.recipe.budget)
    if not options.corpus and budget.unit == "seconds" and budget.amount > DOCSTRING_SECONDS:
        raise UserError(
            f"A budget of {budget.text} is too long without a corpus: the docstrings on this machine suffice for at "
            "most 10 minutes.",
            "Add --corpus TEXT, or give --budget 10m or less.",
        )


def run(
    recipe: Recipe | Path | str,
    *,
    out: Path | str,
    corpus: Sequence[Path | str] | Path | str = (),
    general: Sequence[Path | str] | Path | str = (),
    text_field: str = "text",
    preprocessing: Preprocessing | None = None,
    workers: int = 0,
    overwrite: bool = False,
    tasks: Sequence[Path | str] | Path | str = (),
    task_dir: Path | str | None = None,
    protocol: str = "",
    seeds: int | None = None,
    baselines: bool = True,
    watching: Watching = Watching(),
    deadline: Deadline | str | None = None,
    open_report: bool = False,
    startup: float = 0.0,
    procedure: Procedure | None = None,
) -> Path:
    """Go from text to a tested encoder and its report, whose path is returned.

    The keywords are the options of ``daybreak run``.

    Args:
        recipe: a recipe, or what ``load_recipe`` reads one from, such as its name.
        out: run folder; the data go to ``out/data``. The same call resumes.
        preprocessing: of ``corpus``; the recipe's preset by default.
        deadline: when everything is done. Pretraining gets the time that preparation leaves, minus a reserve for the
            tasks. If time runs out, evaluation seeds are skipped, but not the export or the report.
        startup: seconds that Python and the imports took to start. They count against the budget of pretraining.
        procedure: preset, protocol and tasks of the recipe; by default those of the shipped recipe of its name.

    Raises:
        UserError: an argument cannot be used, which is found before anything is deleted or trained; or the fine-tuning
            on a task failed, which is raised after the report is written.
        Interrupted: a signal was received; the same call resumes.
    """
    started, out = uptime(), Path(out)
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    corpus, general = listed(corpus), listed(general)
    deadline = Deadline.parse(deadline) if isinstance(deadline, str) else deadline
    names = [str(task) for task in listed(tasks)]
    folder = RunFolder(out)
    procedure = procedure or procedure_of(recipe)
    if preprocessing is None:
        preprocessing = Preprocessing(preset=procedure.preset if corpus else PLAIN)
    if task_dir and not names:
        names = _tasks_in(task_dir, procedure)
    fine_tuning = FineTuning(
        tasks=tuple(names),
        task_dir=task_dir,
        protocol=protocol or procedure.protocol,
        seeds=seeds,
        baselines=baselines,
    )
    if deadline and (overwrite or not folder.recipe.exists()) and deadline.left() <= END_SECONDS:
        raise _too_late(deadline)
    _check_arguments(recipe, fine_tuning, watching)
    general_files = _files(general)  # a missing one appears before the corpus is prepared
    if general and not recipe.origin.init:
        raise UserError(
            "General text measures what a continued model forgets, and this run continues none.",
            "Name a model with --init, or leave --general out.",
        )
    if overwrite:
        _check_preparation(corpus, recipe, preprocessing)
        folder.delete([*_files(corpus), *general_files, *source_folders(recipe), *fine_tuning.files()])
    data = out / "data"
    if general:
        recipe = replace(recipe, origin=replace(recipe.origin, general=str(out / "general")))
    if not (data / "manifest.json").is_file():  # else the preparation takes no time
        kept = deadline is not None and folder.recipe.exists()
        check_recipe(folder, replace(recipe, budget=read_recipe_file(folder.recipe)["budget"]) if kept else recipe)
    say("1/4  Prepare: text to tokens")
    if not corpus:
        if (data / "manifest.json").is_file() and not (out / "corpus").is_dir():
            raise UserError(f"The run in '{out}' was made from a text that you named.", "Give its --corpus again.")
        corpus, task = _docstrings(folder)
        fine_tuning = replace(fine_tuning, tasks=(task, *fine_tuning.tasks))
    prepare.prepare(
        corpus,
        data,
        tokenizer=recipe.tokenizer,
        text_field=text_field,
        preprocessing=preprocessing,
        workers=workers,
        **to_dict(recipe.texts),
    )
    if general:
        tokenizer = Existing(folder=str(data / "tokenizer"))
        prepare.prepare(general, out / "general", tokenizer=tokenizer, text_field=text_field, workers=workers)
    if fine_tuning.tasks and fine_tuning.protocol and not folder.summary.exists():
        fine_tuning.forecast(recipe, data)
    if deadline:
        recipe = replace(recipe, budget=_budget_by(deadline, folder, bool(fine_tuning.tasks)))
    say(f"2/4  Pretrain: {recipe.name} for {recipe.budget}")
    try:
        pretrain.pretrain(recipe, data=data, out=out, watching=watching, started=uptime() - startup)
    except TooShort as error:
        if deadline:  # which set the budget
            raise UserError(error.sentence, "Give a later --deadline.") from None
        raise
    fine_tuning = replace(fine_tuning, protocol=fine_tuning.protocol or _protocol_for_size(folder))
    summary = read_json(folder.summary, Summary)
    if summary.is_refused:
        fine_tuning = replace(fine_tuning, tasks=())
        say("3/4  Evaluate: nothing, because the exported model failed its parity check")
    else:
        say(f"3/4  Evaluate: {fine_tuning.words() if fine_tuning.tasks else _without_tasks(procedure)}")
    failure: UserError | None = None
    try:
        if deadline:
            report.report([out], folder.report)  # a report without results is ready in time
            fine_tuning.evaluate_by(deadline, folder)
        else:
            fine_tuning.evaluate(folder)
    except UserError as error:  # the report of what there is comes first
        failure = error
    say("4/4  Report")
    page = report.report([out], folder.report)
    _show_examples(folder)
    code = ", trust_remote_code=True" if recipe.model.modelling_files() else ""
    results = read_json(folder.results, list[TaskResult]) if folder.results.exists() else []
    say(f"\n{opening(results, summary.validation)}")
    if summary.is_refused:
        say(f"\nThe model failed its parity check, so do not use it: {folder.model / REFUSED} says why.")
    else:
        say(f"\nModel   {folder.model}  (AutoModelForMaskedLM.from_pretrained(...{code}) loads it)")
    say_link("Report  ", page)
    if command := fine_tuning.saving(out):
        say("To save the classifier:", command)
    say(f"Total time: {duration(uptime() - started)}.")
    if open_report:
        open_in_browser(page)
    if failure is not None:
        raise failure
    return page


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """The tasks of a run, and how the model is fine-tuned on them."""

    tasks: tuple[str, ...]
    task_dir: str | Path | None
    protocol: str
    """Empty until the size of the model chooses one."""
    seeds: int | None
    """None for the protocol's number for each task."""
    baselines: bool = True

    def check(self) -> None:
        """Read the tasks, so that an error in them or in the protocol appears before the training."""
        from daybreak.evaluation.model_source import find_tasks
        from daybreak.evaluation.protocols.known_protocols import find_protocol
        from daybreak.evaluation.tasks.kinds import load_task

        protocol = find_protocol(self.protocol) if self.protocol else None
        tasks = find_tasks(self.tasks, self.task_dir) if self.tasks else []
        if protocol:
            protocol.check_starts(tasks)
        for task in tasks:
            load_task(task, unlabeled_train=protocol is None or bool(protocol.distillation_of(task)))

    def words(self) -> str:
        """Describe the fine-tunings to come."""
        numbers = self._seeds_by_task()
        count, least, most = len(numbers), min(numbers.values()), max(numbers.values())
        each = f"{most} seed{'s' if most > 1 else ''}" if least == most else f"{least} to {most} seeds"
        return (
            f"{count} task{'s' if count > 1 else ''} with {each} each under the protocol {self.protocol}, with and "
            "without pretraining"
        )

    def files(self) -> list[Path]:
        """Return the files that the tasks read."""
        if not self.tasks:
            return []
        from daybreak.evaluation.model_source import find_tasks

        named = [Path(task) for task in self.tasks if task.endswith(".toml")]
        return named + [file for task in find_tasks(self.tasks, self.task_dir) for file in task.paths]

    def _seeds_by_task(self) -> dict[str, int]:
        from daybreak.evaluation.protocols.known_protocols import find_protocol
        from daybreak.evaluation.tasks.known_tasks import spelled_out, whole_task

        chosen = find_protocol(self.protocol)
        return {task: self.seeds or chosen.seeds_of(whole_task(task)) for task in spelled_out(self.tasks)}

    def saving(self, out: Path) -> str:
        """Return the command that saves the fine-tuned model of the first task with a file; empty if none is saved."""
        from daybreak.evaluation.model_source import find_tasks
        from daybreak.evaluation.protocols.known_protocols import find_protocol

        own = [task for task in self.tasks if task.endswith(".toml")]
        if not own:
            return ""
        try:
            evaluate.check_savable(find_tasks(own[:1], None), find_protocol(self.protocol), RunFolder(out).model)
        except UserError:
            return ""
        words = ["daybreak", "evaluate", str(out), "--tasks", own[0], "--protocol", self.protocol]
        words += ["--seeds", str(self.seeds)] if self.seeds else []
        return shlex.join([*words, "--save", str(out / f"classifier-{Path(own[0]).stem}")])

    def forecast(self, recipe: Recipe, data: Path) -> None:
        """Print before pretraining how long the evaluation takes, timed with random weights of the recipe's model.

        The protocols of publications fine-tune on all training rows, which may take longer than pretraining.
        """
        manifest = open_shards(data).manifest
        with tempfile.TemporaryDirectory() as folder, working("Timing the evaluation") as work:
            work.show(0.0)
            model = Path(folder) / "model"
            write_model_folder(
                model,
                model=recipe.model.build(manifest.vocabulary),
                shape=recipe.model,
                tokenizer=data / "tokenizer",
                length=recipe.longest_row,
                special=manifest.special,
            )
            count, seconds = evaluate.forecast_evaluation(
                model, self.tasks, task_dir=self.task_dir, protocol=self.protocol, seeds=self.seeds
            )
        say(
            f"Evaluation after pretraining: {2 * count} fine-tunings under the protocol {self.protocol}, half of them "
            f"from random weights, about {duration(2 * seconds)} on this machine. --protocol quick and --seeds shorten "
            "it."
        )

    def evaluate(
        self, folder: RunFolder, within: Callable[[], float] | None = None, most_seeds: int | None = None
    ) -> None:
        """Fine-tune the model and random weights on each task; finished fine-tunings are kept.

        ``within`` returns the seconds that are left for both; TooLate is raised if the forecast is longer.
        """
        for untrained in (False, True) if self.tasks else ():
            evaluate.evaluate(
                folder.path,
                self.tasks,
                task_dir=self.task_dir,
                protocol=self.protocol,
                seeds=self.seeds,
                most_seeds=most_seeds,
                untrained=untrained,
                within=None if within is None else within() / (1 if untrained else 2),
                baselines=self.baselines,
            )

    def evaluate_by(self, deadline: Deadline, folder: RunFolder) -> None:
        """Add one fine-tuning seed at a time until FORECAST_MARGIN times its forecast exceeds the time left."""
        most = max(self._seeds_by_task().values(), default=0)
        for count in range(1, most + 1):
            try:
                self.evaluate(
                    folder,
                    within=lambda: (deadline.left() - END_SECONDS / 2) / FORECAST_MARGIN,
                    most_seeds=count,
                )
            except TooLate as late:
                say(f"{late.sentence} {count - 1} of {most} seeds are complete.")
                return


def _tasks_in(task_dir: str | Path, procedure: Procedure) -> list[str]:
    """Return the recipe's tasks whose files ``task_dir`` holds, at least one, and print which those are."""
    from daybreak.evaluation.model_source import tasks_in

    held, others = tasks_in(task_dir, procedure.tasks)
    missing = f"; no files of {', '.join(others)}" if others and procedure.tasks else ""
    say(f"Tasks in '{task_dir}': {', '.join(held)}{missing}.")
    return held


def _without_tasks(procedure: Procedure) -> str:
    if not procedure.tasks:
        return "no tasks"
    names = ", ".join(procedure.tasks)
    return f"no tasks (--task-dir FOLDER evaluates {names} under the protocol {procedure.protocol})"


def _check_arguments(recipe: Recipe, fine_tuning: FineTuning, watching: Watching) -> None:
    """Raise UserError for an argument that cannot be used, before an older run is deleted and before the training."""
    recipe.check()
    recipe.refuse_without_origin()
    refuse_few_steps(Budget.parse(recipe.budget), recipe.global_batch(1) * recipe.length)
    meta_model(recipe, ANY_VOCABULARY)
    check_trackers(watching.track)
    check_price(watching.price)
    check_seeds(fine_tuning.seeds)
    fine_tuning.check()


def _check_preparation(corpus: Sequence[str | Path], recipe: Recipe, preprocessing: Preprocessing) -> None:
    """Raise UserError where ``prepare`` would, as far as it can be known before any text is read."""
    preprocessing.check(max(1, len(corpus)), trains=isinstance(recipe.tokenizer, TrainedTokenizer))
    preprocessing.identity(preprocessing.all_filters())
    choose_rule([], recipe.texts.document)


def _files(texts: Sequence[str | Path]) -> list[Path]:
    """Return the files of the texts, all of which exist, without standard input."""
    named = [text for text in texts if str(text) != STDIN]
    with quiet():
        return [file.path for file in find_files(named)] if named else []


def _docstrings(folder: RunFolder) -> tuple[list[Path], str]:
    """Write the docstring corpus, once for a run; return its files and its task."""
    from daybreak.data.demo_corpus.docstrings import CORPUS, write_corpus

    out = make_folder(folder.path) / "corpus"
    # An update of a package changes neither the text nor the task of a run that has begun.
    found = write_corpus(out, keep_other_versions=(folder.path / "data" / "manifest.json").is_file())
    say(
        f"No --corpus: using the docstrings of {len(found.packages)} installed packages "
        f"({found.documents:,} modules, {found.characters / 1e6:.1f}M characters)."
    )
    return [out / CORPUS], str(out / "task.toml")


def _protocol_for_size(folder: RunFolder) -> str:
    """Return the protocol ``distilled`` for the hidden sizes that it was made for, else ``quick``."""
    hidden_size = read_json(folder.model / "config.json").get("hidden_size", SMALL_HIDDEN_SIZE + 1)
    return "distilled" if hidden_size <= SMALL_HIDDEN_SIZE else "quick"


def _budget_by(deadline: Deadline, folder: RunFolder, with_tasks: bool) -> str:
    """Return the pretraining budget that meets the deadline; an existing run keeps its own, also if it ends later."""
    left = deadline.left()
    reserve = max(END_SECONDS, END_FRACTION * left)
    if folder.recipe.exists():
        budget = Budget.parse(read_recipe_file(folder.recipe)["budget"])
        trace = last_trace(folder.trace)
        remaining = budget.amount - (trace.elapsed if trace else 0.0)
        if budget.unit == "seconds" and not folder.summary.exists() and remaining > left - reserve:
            say(
                f"This run keeps its budget of {budget.text}, of which {duration(remaining)} are left: it will not be "
                f"ready by {deadline.at:%H:%M}. A new run with another --out would be."
            )
        return budget.text
    seconds = int((left - reserve) * (1.0 - (TASKS_FRACTION if with_tasks else 0.0)))
    if seconds <= 0:
        raise _too_late(deadline)
    say(f"{duration(left)} until {deadline.at:%H:%M}: pretraining gets a budget of {duration(seconds)}.")
    return f"{seconds}s"


def _too_late(deadline: Deadline) -> UserError:
    left = duration(max(0.0, deadline.left()))
    return UserError(f"Only {left} are left until {deadline.at:%H:%M}.", "Give a later --deadline.")


def _show_examples(folder: RunFolder) -> None:
    """Print a few held-out sentences with one masked word, each sentence once."""
    found = [from_dict(FillMask, item) for item in read_json(folder.examples)]
    examples = list({(example.text, example.answer): example for example in found}.values())
    if not examples:
        say("No held-out sentence is suitable to show the model's predictions of a masked word.")
        return
    say("\nHeld-out sentences with one masked word, and the model's predictions:")
    for example in examples[:SHOWN_EXAMPLES]:
        guesses = ", ".join(
            f"{word} {probability:.0%}"
            for word, probability in zip(example.guesses, example.probabilities, strict=True)
        )
        right = " (correct)" if example.guesses[0] == example.answer else ""
        say(hanging("  ", example.text))
        say(hanging("     ", f"answer: {example.answer}   predictions: {guesses}{right}"))
