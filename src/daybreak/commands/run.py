"""Verb: all of it, in order: prepare, pretrain, evaluate, report. Each stage that is done already is passed over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from daybreak.core.deadline import Deadline
from daybreak.core.errors import TooLate, UserError
from daybreak.core.files import make_folder, read_json
from daybreak.core.formatting import check_price
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.terminal import duration, open_in_browser, quiet, say, say_link
from daybreak.data.readers.inputs import STDIN, find_files
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.pretraining.flops import meta_model
from daybreak.pretraining.starting_points import source_folders
from daybreak.recipe import Recipe
from daybreak.schemas.run import FillMask, Summary
from daybreak.schemas.tasks import TaskResult
from daybreak.training.monitoring.trackers import check_trackers

SHOWN_EXAMPLES = 6
AFTER_SECONDS = 45.0
AFTER_SHARE = 0.02
"""Kept back before a deadline for the parity gate, the examples and the report: so many seconds or this share of the
time, whichever is more."""
TASKS_SHARE = 0.25
"""Of the time until a deadline, kept back for fine-tuning where there are tasks."""
ANY_PIECES = 8
"""Of a vocabulary: whether a shape can be built does not hang on it."""
LATE = 1.3
"""How much longer than forecast a fine-tuning may take before a deadline."""


def run(
    recipe: Recipe,
    *,
    out: Path,
    corpus: Sequence[str | Path] = (),
    general: Sequence[str | Path] = (),
    text_field: str = "text",
    overwrite: bool = False,
    tasks: Sequence[str] = (),
    task_dir: str | Path | None = None,
    seeds: int = 3,
    baselines: bool = True,
    track: Sequence[str] = (),
    price: float | None = None,
    deadline: Deadline | None = None,
    open_report: bool = False,
) -> Path:
    """Go from text to a tested encoder and its report.

    Args:
        out: run folder; data go to ``out/data``. The same call again resumes.
        corpus: what ``prepare`` reads; empty for the docstrings of the installed packages, with their own task.
        general: text on which a continued model shows what it forgets; empty for none.
        overwrite: delete ``out`` first, once all else that is asked for was looked at.
        tasks: what to fine-tune on, with and without pretraining.
        baselines: fit the bag-of-words baseline of each task too.
        track, price: see ``pretrain.Watching``.
        deadline: when everything is to be done. Pretraining then gets what preparation leaves, without a share for the
            tasks; where that becomes late, seeds of the evaluation are left out, and never the export or the report.
        open_report: open the report in the browser at the end.

    Returns:
        The path of the report.
    """
    begun = time.monotonic()
    folder = RunFolder(out)
    _check_asked(recipe, tasks, task_dir, seeds, track, price)
    if overwrite:
        folder.delete([*_files([*corpus, *general]), *source_folders(recipe)])
    say("1/4  Prepare: text to tokens")
    if not corpus:
        corpus, tasks = _docstrings(folder, tasks)
    recipe = _prepare(recipe, out, corpus, general, text_field)
    from daybreak.commands.pretrain import Watching, pretrain
    from daybreak.commands.report import report
    from daybreak.reporting.headline import opening

    if deadline:
        recipe = replace(recipe, budget=_budget_by(deadline, folder, bool(tasks)))
    say(f"2/4  Pretrain: {recipe.name} for {recipe.budget}")
    pretrain(recipe, data=out / "data", out=out, watching=Watching(track=tuple(track), price=price))
    counted = f"{len(tasks)} task{'s' if len(tasks) > 1 else ''} with {seeds} seed{'s' if seeds > 1 else ''} each"
    say(f"3/4  Evaluate: {counted if tasks else 'no task was named'}")
    if deadline:
        report([out], folder.report)  # the one without results is there in time, whatever follows
        _evaluate_by(deadline, folder, tasks, task_dir, seeds, baselines)
    else:
        _evaluate(folder, tasks, task_dir, seeds, baselines)
    say("4/4  Report")
    _show_examples(folder)
    page = report([out], folder.report)
    code = ", trust_remote_code=True" if recipe.model.modelling_files() else ""
    results = read_json(folder.results, list[TaskResult]) if folder.results.exists() else []
    say(f"\n{opening(results, read_json(folder.summary, Summary).validation)}")
    say(f"\nModel   {folder.model}  (AutoModelForMaskedLM.from_pretrained(...{code}) loads it)")
    say_link("Report  ", page)
    say(f"All of it took {duration(time.monotonic() - begun)}.")
    if open_report:
        open_in_browser(page)
    return page


def _check_asked(
    recipe: Recipe,
    tasks: Sequence[str],
    task_dir: str | Path | None,
    seeds: int,
    track: Sequence[str],
    price: float | None,
) -> None:
    """What is wrong with it is said now: not when an older run is deleted, nor after the training.

    Raises:
        UserError: one of these cannot be.
    """
    recipe.check()
    recipe.refuse_without_origin()
    meta_model(recipe, ANY_PIECES)
    check_trackers(track)
    check_price(price)
    if seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Use at least 1; 3 make a claim.")
    if tasks:
        from daybreak.evaluation.model_source import find_tasks

        find_tasks(tasks, task_dir)


def _files(texts: Sequence[str | Path]) -> list[Path]:
    """The files of the text, of which nothing is read from standard input.

    Raises:
        UserError: one is missing.
    """
    named = [text for text in texts if str(text) != STDIN]
    with quiet():
        return [file.path for file in find_files(named)] if named else []


def _prepare(
    recipe: Recipe, out: Path, corpus: Sequence[str | Path], general: Sequence[str | Path], text_field: str
) -> Recipe:
    """Prepare all text; return the recipe, with the place of the general text in it."""
    from daybreak.commands.prepare import prepare

    texts = to_dict(recipe.texts)
    prepare(corpus, out / "data", tokenizer=recipe.tokenizer, text_field=text_field, **texts)
    if not general:
        return recipe
    same = Existing(folder=str(out / "data" / "tokenizer"))
    prepare(general, out / "general", tokenizer=same, text_field=text_field)
    return replace(recipe, origin=replace(recipe.origin, general=str(out / "general")))


def _docstrings(folder: RunFolder, tasks: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The built-in corpus, and its task in front of those that were asked for."""
    from daybreak.data.demo_corpus.docstrings import write_corpus

    found = write_corpus(make_folder(folder.path) / "corpus")
    say(
        f"No corpus was named: using the docstrings of {len(found.packages)} installed packages "
        f"({found.documents:,} modules, {found.characters / 1e6:.1f}M characters)."
    )
    return [found.corpus], [str(found.task), *tasks]


def _evaluate(
    folder: RunFolder,
    tasks: Sequence[str],
    task_dir: str | Path | None,
    seeds: int,
    baselines: bool = True,
    within: Callable[[], float] | None = None,
) -> None:
    """Fine-tune on each task that has no result of so many seeds, from the model and from random weights.

    Args:
        within: seconds that are left for both.

    Raises:
        TooLate: they would take longer.
    """
    if not tasks:
        return
    from daybreak.commands.evaluate import evaluate
    from daybreak.evaluation.finetuning.results import read_results
    from daybreak.evaluation.tasks.known_tasks import spelled_out

    done = read_results(folder.results)
    have = {(item.task, item.model) for item in done if item.protocol == "quick" and len(item.seeds) >= seeds}
    for untrained in (False, True):
        model = "untrained" if untrained else "pretrained"
        left = [task for task in spelled_out(tasks) if (_task_name(task), model) not in have]
        if left:
            share = None if within is None else within() / (1 if untrained else 2)
            evaluate(
                folder.path, left, task_dir=task_dir, seeds=seeds, untrained=untrained, within=share,
                baselines=baselines,
            )  # fmt: skip


def _budget_by(deadline: Deadline, folder: RunFolder, with_tasks: bool) -> str:
    """The budget that ends in time; that of the run where it has begun.

    Raises:
        UserError: nothing of the time is left.
    """
    if folder.recipe.exists():
        return str(read_recipe_file(folder.recipe)["budget"])
    left = deadline.left()
    after = max(AFTER_SECONDS, AFTER_SHARE * left)
    seconds = int((left - after) * (1.0 - (TASKS_SHARE if with_tasks else 0.0)))
    if seconds <= 0:
        raise UserError(f"Until {deadline.at:%H:%M} only {duration(left)} are left.", "Give a later --deadline.")
    say(f"Until {deadline.at:%H:%M} there are {duration(left)}: a budget of {duration(seconds)} for pretraining.")
    return f"{seconds}s"


def _evaluate_by(
    deadline: Deadline,
    folder: RunFolder,
    tasks: Sequence[str],
    task_dir: str | Path | None,
    seeds: int,
    baselines: bool = True,
) -> None:
    """Fine-tune with one seed more at a time, while that fits; what the forecast says may take LATE times as long."""
    for count in range(1, seeds + 1):
        try:
            _evaluate(
                folder, tasks, task_dir, count, baselines, within=lambda: (deadline.left() - AFTER_SECONDS / 2) / LATE
            )
        except TooLate as late:
            say(f"{late.sentence} Seed {count} of {seeds} is left out, with those after it.")
            return


def _task_name(task: str) -> str:
    if not task.endswith(".toml"):
        return task
    from daybreak.evaluation.tasks.task_file import read_task_file

    return read_task_file(Path(task)).name


def _show_examples(folder: RunFolder) -> None:
    """Print a few held-out sentences with a word hidden, each sentence once."""
    found = [from_dict(FillMask, item) for item in read_json(folder.examples)]
    examples = list({(example.text, example.answer): example for example in found}.values())
    if not examples:
        say("No held-out sentence is short and whole enough to hide a word in it and show the model's guesses.")
        return
    say("\nHeld-out sentences with one word hidden, and the model's guesses:")
    for example in examples[:SHOWN_EXAMPLES]:
        guesses = ", ".join(
            f"{word} {chance:.0%}" for word, chance in zip(example.guesses, example.probabilities, strict=True)
        )
        mark = "=" if example.guesses[0] == example.answer else " "
        say(f"  {example.text}\n   {mark} was: {example.answer}   guesses: {guesses}")
