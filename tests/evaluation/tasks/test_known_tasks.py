"""Tasks by name: the files of GLUE and SciBERT as they were published, and QQP's traps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.known_tasks import ENTITIES, KNOWN, SCIBERT, TASK_LISTS, known_task, spelled_out
from daybreak.evaluation.tasks.task import Task, TaskRows
from daybreak.evaluation.tasks.token_labels import spans

DATA = Path(__file__).parents[3] / "../shared/data"
GLUE_DIR = DATA / "glue"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "dev", "hidden", "labels", "floors"),
    [
        ("cola", 8551, 1043, 1063, ("unacceptable", "acceptable"), {"accuracy": 0.691, "mcc": 0.0}),
        ("sst2", 67349, 872, 1821, ("negative", "positive"), {"accuracy": 0.509}),
        ("mrpc", 3668, 408, 1725, ("not_equivalent", "equivalent"), {"accuracy": 0.684, "f1": 0.812}),
        ("stsb", 5749, 1500, 1379, (), {"spearman": 0.0, "pearson": 0.0}),
        ("rte", 2490, 277, 3000, ("entailment", "not_entailment"), {"accuracy": 0.527}),
        ("wnli", 635, 71, 146, ("not_entailment", "entailment"), {"accuracy": 0.563}),
    ],
)
def test_published_files_have_their_published_sizes_and_floors(
    name: str, train: int, dev: int, hidden: int, labels: tuple[str, ...], floors: dict[str, float]
) -> None:
    task = known_task(name, GLUE_DIR)
    kind, data = kind_of(task), load_task(task)
    assert (len(data.train), len(data.dev), data.skipped, data.labels) == (train, dev, 0, labels)
    (file,) = task.unlabeled
    unlabeled = kind.load_unlabeled(task, file.name)
    assert len(unlabeled) == hidden
    columns = 1 if name in ("cola", "sst2") else 2
    assert {len(texts) for texts in (*data.dev.texts, *unlabeled.texts)} == {columns}
    found = kind.score(kind.constant(data, data.dev), data.labels)
    assert {metric: found[metric] for metric in floors} == pytest.approx(floors, abs=5e-4)
    assert task.metric in floors


def test_the_lists_are_the_eight_and_the_five() -> None:
    assert spelled_out(["glue5", "qqp"]) == ["cola", "sst2", "mrpc", "stsb", "rte", "qqp"]
    assert spelled_out(["glue"]) == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert {name for names in TASK_LISTS.values() for name in names} <= KNOWN.keys()


def test_every_known_task_has_a_kind_with_its_metric_and_a_part_has_the_settings_of_the_whole() -> None:
    assert len(set(KNOWN.values())) == len(KNOWN), "workers keep what they read by task"
    for name, task in KNOWN.items():
        assert (task.name, task.metric in kind_of(task).metrics) == (name, True)
        if name.endswith("-subset"):
            whole = KNOWN[task.family]
            assert all(getattr(task, name) == getattr(whole, name) for name in ("text", "label", "labels", "metric"))


@pytest.mark.parametrize(
    ("name", "folder", "fault"),
    [
        ("colla", "there", "no task 'colla'. Did you mean 'cola'?"),
        ("ax", "there", "no task 'ax'"),
        ("cola", None, "no folder was given"),
        ("rte", "there", "holds neither 'RTE/train.tsv' nor 'rte/train-*.parquet'"),
        ("mnli-subset", "there", "holds no 'MNLI/train_subset.tsv'"),
        ("rte", "x" * 5000, "Cannot read the folder"),
        ("sci-citte", "there", "Did you mean 'sci-cite'?"),
        ("sci-cite", None, "needs the files of SciBERT"),
        ("chemprot", "there", "holds no 'text_classification/chemprot/train.txt'"),
    ],
)
def test_missing_files_are_refused(tmp_path: Path, name: str, folder: str | None, fault: str) -> None:
    with pytest.raises(UserError) as caught:
        known_task(name, tmp_path / folder if folder else None)
    assert fault in caught.value.sentence


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ("MNLI/train.tsv", "MNLI/dev_matched.tsv"),
        ("mnli/train-00000-of-00001.parquet", "mnli/validation_matched-*.parquet"),
    ],
)
def test_half_a_task_names_the_file_that_is_missing(tmp_path: Path, there: str, missing: str) -> None:
    (tmp_path / there).parent.mkdir()
    (tmp_path / there).touch()
    with pytest.raises(UserError) as caught:
        known_task("mnli", tmp_path)
    assert caught.value.sentence == f"Task 'mnli' needs '{tmp_path / missing}', which does not exist."


def test_every_scibert_task_needs_all_three_files(tmp_path: Path) -> None:
    for name, task in SCIBERT.items():
        for part in (task.train, task.dev, task.test):
            assert part is not None
            with pytest.raises(UserError, match=part.as_posix()):
                known_task(name, tmp_path)
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            line = {"text": "the [[ odd ]]\n<< line >>", "label": part.stem[:1], "metadata": {}}
            (tmp_path / part).write_text(json.dumps(line) + "\n", encoding="utf-8")
        assert known_task(name, tmp_path).test == tmp_path / str(task.test)


def task_of(name: str) -> Task:
    task = SCIBERT[name]
    parts = {part: DATA / "scibert" / getattr(task, part) for part in ("train", "dev", "test")}
    return dataclasses.replace(task, **parts)


def test_each_task_has_the_metric_that_it_was_published_with() -> None:
    published = {"chemprot": "micro_f1", "sciie-relation-extraction": "macro_f1"}
    published |= {"citation_intent": "macro_f1", "sci-cite": "macro_f1"}
    published |= dict.fromkeys(("bc5cdr", "JNLPBA", "NCBI-disease", "sciie"), "span_f1")
    assert {name: task.metric for name, task in SCIBERT.items()} == published


@needs_data
@pytest.mark.parametrize(
    ("name", "published", "sentences", "types"),
    [
        ("bc5cdr", 4942, (3942, 3949, 4139), ["Entity"]),
        ("NCBI-disease", 5424, (5424, 923, 940), ["Disease"]),
        ("sciie", 2211, (1861, 275, 551), ["Generic", "Material", "Method", "Metric", "OtherScientificTerm", "Task"]),
    ],
)
def test_published_scibert_files_have_their_sizes(
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
