"""SciBERT's tasks by name: metrics as published, and the files of named entities as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.known_tasks import ENTITIES, SCIBERT
from daybreak.evaluation.tasks.spans import spans
from daybreak.evaluation.tasks.task import Task, TaskRows

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "scibert"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/scibert")


def task_of(name: str) -> Task:
    task = SCIBERT[name]
    parts = {part: DATA / getattr(task, part) for part in ("train", "dev", "test")}
    return dataclasses.replace(task, **parts)


def test_each_task_has_the_metric_that_it_was_published_with() -> None:
    published = {"chemprot": "micro_f1", "sciie-relation-extraction": "macro_f1"}
    published |= {"citation_intent": "macro_f1", "sci-cite": "macro_f1"}
    published |= dict.fromkeys(("bc5cdr", "JNLPBA", "NCBI-disease", "sciie"), "span_f1")
    assert {name: task.metric for name, task in SCIBERT.items()} == published
    for name, task in SCIBERT.items():
        assert task.name == name
        assert task.metric in kind_of(task).metrics


@needs_data
@pytest.mark.parametrize(
    ("name", "published", "sentences", "types"),
    [
        ("bc5cdr", 4942, (3942, 3949, 4139), ["Entity"]),
        ("NCBI-disease", 5424, (5424, 923, 940), ["Disease"]),
        ("sciie", 2211, (1861, 275, 551), ["Generic", "Material", "Method", "Metric", "OtherScientificTerm", "Task"]),
    ],
)
def test_published_files_have_their_sizes(
    name: str, published: int, sentences: tuple[int, int, int], types: list[str]
) -> None:
    """The sizes that are told of these files count blank lines, those around each -DOCSTART- among them."""
    task = task_of(name)
    data = load_task(task)
    assert data.test is not None
    assert (len(data.train), len(data.dev), len(data.test)) == sentences
    assert data.labels == ("O", *(f"{mark}-{kind}" for mark in "BI" for kind in types))
    assert sum(not line for line in task.train.read_text("utf-8").split("\n")[:-1]) == published


@needs_data
@pytest.mark.parametrize("name", [name for name in ENTITIES if name != "JNLPBA"])
def test_every_published_span_is_learned_whatever_the_scheme_of_its_file(name: str) -> None:
    task = task_of(name)
    data: TaskRows = load_task(task)
    for part, rows in data.parts.items():
        lines = getattr(task, part).read_text("utf-8").split("\n")
        read = [line.split() for line in lines]
        tags = [cells[3] if cells and cells[0] != "-DOCSTART-" else "O" for cells in read]
        ours = [spans([data.labels[index] for index in target]) for target in rows.targets]
        assert sum(map(len, rows.texts)) == sum(bool(cells) and cells[0] != "-DOCSTART-" for cells in read)
        expected = [(kind, last - first) for kind, first, last in get_entities(tags)]
        assert [(kind, last - first) for each in ours for kind, first, last in each] == expected, part
