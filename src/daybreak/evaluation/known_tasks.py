"""The tasks that are known by name: a table of the original files of GLUE and of SciBERT's classification tasks.

GLUE's label names and their order follow the ``nyu-mll/glue`` data set (Wang et al. 2019, "GLUE", arXiv:1804.07461);
SciBERT's tasks (Beltagy et al. 2019, arXiv:1903.10676, section 3) have the names that their files hold, sorted. Names
travel with a saved model: integer orders differ between toolkits, names do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest
from daybreak.evaluation.tasks import Task

_QQP: dict[str, Any] = {
    "text": ("question1", "question2"),
    "label": "is_duplicate",
    "metric": "f1",
    "labels": (("0", "not_duplicate"), ("1", "duplicate")),
}
GLUE = {
    task.name: task
    for task in (
        Task(
            name="cola",
            train=Path("CoLA/train.tsv"),
            dev=Path("CoLA/dev.tsv"),
            text=(3,),
            label=1,
            header=False,
            metric="mcc",
            labels=(("0", "unacceptable"), ("1", "acceptable")),
        ),
        Task(
            name="sst2",
            train=Path("SST-2/train.tsv"),
            dev=Path("SST-2/dev.tsv"),
            text=("sentence",),
            label="label",
            metric="accuracy",
            labels=(("0", "negative"), ("1", "positive")),
        ),
        Task(
            name="mrpc",
            train=Path("MRPC/train.tsv"),
            dev=Path("MRPC/dev.tsv"),
            text=("#1 String", "#2 String"),
            label="Quality",
            metric="f1",
            labels=(("0", "not_equivalent"), ("1", "equivalent")),
        ),
        Task(
            name="qqp",
            train=Path("QQP/train.tsv"),
            dev=Path("QQP/dev.tsv"),
            **_QQP,
        ),
        # Parts of QQP go round under these file names. A score on a part is not the task's score: it has its own name.
        Task(
            name="qqp-subset",
            train=Path("QQP/train_subset.tsv"),
            dev=Path("QQP/dev_subset.tsv"),
            **_QQP,
        ),
        Task(
            name="stsb",
            train=Path("STS-B/train.tsv"),
            dev=Path("STS-B/dev.tsv"),
            text=("sentence1", "sentence2"),
            label="score",
            kind="regression",
            metric="spearman",
        ),
        Task(
            name="rte",
            train=Path("RTE/train.tsv"),
            dev=Path("RTE/dev.tsv"),
            text=("sentence1", "sentence2"),
            label="label",
            metric="accuracy",
            labels=(("entailment", "entailment"), ("not_entailment", "not_entailment")),
        ),
    )
}

SCIBERT = {
    name: Task(
        name=name,
        train=Path("text_classification", name, "train.txt"),
        dev=Path("text_classification", name, "dev.txt"),
        test=Path("text_classification", name, "test.txt"),
        text=("text",),
        label="label",
        metric=metric,
        format="jsonl",
    )
    for name, metric in (
        ("sci-cite", "macro_f1"),
        ("citation_intent", "macro_f1"),
        # Relations between two entities, which the text marks as << one >> and [[ the other ]].
        ("chemprot", "micro_f1"),
        ("sciie-relation-extraction", "macro_f1"),
    )
}
"""Paths below the ``data`` folder of SciBERT's repository."""
KNOWN = {**GLUE, **SCIBERT}
TASK_LISTS = {"glue5": ("cola", "sst2", "mrpc", "stsb", "rte")}


def spelled_out(names: Sequence[str]) -> list[str]:
    """Put the tasks of each list, such as glue5, in the place of its name."""
    return [each for name in names for each in TASK_LISTS.get(name, (name,))]


def known_task(name: str, task_dir: Path | None) -> Task:
    """Return the task ``name`` with its files under ``task_dir``.

    Raises:
        UserError: the name is unknown, no folder was given, or it lacks one of the task's files.
    """
    if name not in KNOWN:
        choices = [*KNOWN, *TASK_LISTS]
        raise UserError(
            f"There is no task '{name}'.{nearest(name, choices)}",
            f"Use {', '.join(choices)}, or the path of a .toml file that describes your own task.",
        )
    task = KNOWN[name]
    source = "GLUE" if name in GLUE else "SciBERT"
    if task_dir is None:
        raise UserError(
            f"Task '{name}' needs the files of {source}, and no folder was given.",
            f"Name the folder that holds {task.train} with --task-dir.",
        )
    found: dict[str, Path] = {}
    for part in ("train", "dev", "test"):
        path = getattr(task, part)
        if path is None:
            continue
        found[part] = task_dir / path
        if not found[part].is_file():
            raise UserError(
                f"Task '{name}' needs '{found[part]}', which does not exist.",
                f"Name the folder that holds {path} with --task-dir.",
            )
    return dataclasses.replace(task, **found)  # type: ignore[arg-type]
