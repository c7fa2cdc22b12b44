"""Verb: all of it, in order: prepare, pretrain, evaluate, report. Each stage that is done already is passed over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from daybreak.base.files import make_folder, read_json
from daybreak.base.plain import from_plain, to_plain
from daybreak.base.records import FillMask
from daybreak.base.run_folder import RunFolder
from daybreak.base.task_records import TaskResult
from daybreak.base.terminal import duration, say
from daybreak.data.tokenizer_import import Existing
from daybreak.recipe import Recipe

SHOWN_EXAMPLES = 6


def run(
    recipe: Recipe,
    *,
    out: Path,
    corpus: Sequence[str | Path] = (),
    general: Sequence[str | Path] = (),
    text_field: str = "text",
    fresh: bool = False,
    tasks: Sequence[str] = (),
    task_dir: str | Path | None = None,
    seeds: int = 3,
    track: Sequence[str] = (),
    price: float | None = None,
) -> Path:
    """Go from text to a tested encoder and its report.

    Args:
        out: run folder; data go to ``out/data``. The same call again resumes.
        corpus: what ``prepare`` reads; empty for the docstrings of the installed packages, with their own task.
        general: text on which a continued model shows what it forgets; empty for none.
        fresh: delete ``out`` first.
        tasks: what to fine-tune on, with and without pretraining.
        track, price: see ``pretrain.Watching``.

    Returns:
        The path of the report.
    """
    begun = time.monotonic()
    folder = RunFolder(out)
    if fresh:
        folder.delete()
    if tasks:
        # What is wrong with them is said now, not after the training.
        from daybreak.subject import find_tasks

        find_tasks(tasks, task_dir)
    if not corpus:
        make_folder(out)
        corpus, tasks = _docstrings(folder, tasks)
    recipe = _prepare(recipe, out, corpus, general, text_field)
    from daybreak.pretrain import Watching, pretrain

    pretrain(recipe, data=out / "data", out=out, watching=Watching(track=tuple(track), price=price))
    _evaluate(folder, tasks, task_dir, seeds)
    _show_examples(folder)

    from daybreak.report import report

    page = report([out], folder.report)
    code = ", trust_remote_code=True" if recipe.model.modelling_files() else ""
    say(f"\nModel   {folder.model}  (AutoModelForMaskedLM.from_pretrained(...{code}) loads it)")
    say(f"Report  {page}")
    say(f"All of it took {duration(time.monotonic() - begun)}.")
    return page


def _prepare(
    recipe: Recipe, out: Path, corpus: Sequence[str | Path], general: Sequence[str | Path], text_field: str
) -> Recipe:
    """Prepare all text; return the recipe, with the place of the general text in it."""
    from daybreak.prepare import prepare

    texts = to_plain(recipe.texts)
    prepare(corpus, out / "data", tokenizer=recipe.tokenizer, text_field=text_field, **texts)
    if not general:
        return recipe
    same = Existing(folder=str(out / "data" / "tokenizer"))
    prepare(general, out / "general", tokenizer=same, text_field=text_field)
    return replace(recipe, origin=replace(recipe.origin, general=str(out / "general")))


def _docstrings(folder: RunFolder, tasks: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The built-in corpus, and its task in front of those that were asked for."""
    from daybreak.data.docstrings import write_corpus

    found = write_corpus(folder.path / "corpus")
    say(
        f"No corpus was named: using the docstrings of {len(found.packages)} installed packages "
        f"({found.documents:,} modules, {found.characters / 1e6:.1f}M characters)."
    )
    return [found.corpus], [str(found.task), *tasks]


def _evaluate(folder: RunFolder, tasks: Sequence[str], task_dir: str | Path | None, seeds: int) -> None:
    """Fine-tune on each task that has no result yet, from the model and from random weights."""
    if not tasks:
        return
    from daybreak.evaluate import evaluate
    from daybreak.evaluation.known_tasks import spelled_out

    done = read_json(folder.results, list[TaskResult]) if folder.results.exists() else []
    have = {(item.task, item.model) for item in done if item.protocol == "quick"}
    for untrained in (False, True):
        model = "untrained" if untrained else "pretrained"
        left = [task for task in spelled_out(tasks) if (_task_name(task), model) not in have]
        if left:
            evaluate(folder.path, left, task_dir=task_dir, seeds=seeds, untrained=untrained)


def _task_name(task: str) -> str:
    if not task.endswith(".toml"):
        return task
    from daybreak.evaluation.task_file import read_task_file

    return read_task_file(Path(task)).name


def _show_examples(folder: RunFolder) -> None:
    """Print a few held-out sentences with a word hidden."""
    examples = [from_plain(FillMask, item) for item in read_json(folder.examples)]
    say("\nHeld-out sentences with one word hidden, and the model's guesses:")
    for example in examples[:SHOWN_EXAMPLES]:
        guesses = ", ".join(
            f"{word} {chance:.0%}" for word, chance in zip(example.guesses, example.probabilities, strict=True)
        )
        mark = "=" if example.guesses[0] == example.answer else " "
        say(f"  {example.text}\n   {mark} was: {example.answer}   guesses: {guesses}")
