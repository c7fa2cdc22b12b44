"""Tasks by name: the files of GLUE and SciBERT as they were published, and QQP's traps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daybreak.base.errors import UserError
from daybreak.evaluation.known_tasks import SCIBERT, known_task, spelled_out
from daybreak.evaluation.metrics import METRICS, constant_answer, score
from daybreak.evaluation.tasks import load_task

DATA = Path(__file__).parents[2] / "../shared/data"
GLUE_DIR = DATA / "glue"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "dev", "labels"),
    [
        ("cola", 8551, 1043, ("unacceptable", "acceptable")),
        ("sst2", 67349, 872, ("negative", "positive")),
        ("mrpc", 3668, 408, ("not_equivalent", "equivalent")),
        ("stsb", 5749, 1500, ()),
        ("rte", 2490, 277, ("entailment", "not_entailment")),
    ],
)
def test_published_files_have_their_published_sizes(name: str, train: int, dev: int, labels: tuple[str, ...]) -> None:
    data = load_task(known_task(name, GLUE_DIR))
    assert (len(data.train), len(data.dev), data.skipped, data.labels) == (train, dev, 0, labels)
    assert {len(texts) for texts in data.dev.texts} == {1 if name in ("cola", "sst2") else 2}


@needs_data
@pytest.mark.parametrize(
    ("name", "metric", "floor"),
    [
        ("cola", "accuracy", 0.691),
        ("cola", "mcc", 0.0),
        ("sst2", "accuracy", 0.509),
        ("mrpc", "accuracy", 0.684),
        ("mrpc", "f1", 0.812),
        ("rte", "accuracy", 0.527),
        ("stsb", "spearman", 0.0),
    ],
)
def test_constant_answers_score_the_documented_floors(name: str, metric: str, floor: float) -> None:
    data = load_task(known_task(name, GLUE_DIR))
    answer = constant_answer(data.task.kind, data.train.targets)
    found = score(data.task.kind, len(data.labels), data.dev.targets, [answer] * len(data.dev))
    assert found[metric] == pytest.approx(floor, abs=5e-4)


def test_glue5_is_the_five() -> None:
    assert spelled_out(["glue5", "qqp"]) == ["cola", "sst2", "mrpc", "stsb", "rte", "qqp"]


@pytest.mark.parametrize(
    ("name", "folder", "fault"),
    [
        ("colla", "there", "no task 'colla'. Did you mean 'cola'?"),
        ("cola", None, "no folder was given"),
        ("rte", "there", "RTE/train.tsv', which does not exist"),
        ("sci-citte", "there", "Did you mean 'sci-cite'?"),
        ("sci-cite", None, "needs the files of SciBERT"),
        ("chemprot", "there", "text_classification/chemprot/train.txt', which does not exist"),
    ],
)
def test_missing_files_are_refused(tmp_path: Path, name: str, folder: str | None, fault: str) -> None:
    with pytest.raises(UserError) as caught:
        known_task(name, tmp_path / folder if folder else None)
    assert fault in caught.value.sentence


@needs_data
def test_qqp_subsets_are_read_whole() -> None:
    data = load_task(known_task("qqp-subset", DATA / "glue-subsets"))
    assert (len(data.train), len(data.dev), data.skipped) == (28_157, 5_000, 0)
    assert data.labels == ("not_duplicate", "duplicate")
    assert data.train.texts[1] == (
        '"How true is what Tony Stark said in Iron Man 3: ""Einstein slept 3 hours a year. Look what he did.""?"',
        "Where are the Avengers in Iron Man 3?",
    ), "read without quoting, by the header's names"
    answer = constant_answer("classification", data.train.targets, data.task.metric)
    found = score("classification", 2, data.dev.targets, [answer] * 5_000, [answer] * 5_000)
    assert found["f1"] == pytest.approx(0.538, abs=0.02), "near the whole task's floor"
    assert found["auc"] == 0.5


def write_qqp(
    folder: Path, train: list[str], header: str = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
) -> Path:
    (folder / "QQP").mkdir()
    for name, rows in (("train", train), ("dev", ["0\t1\t2\tWhy?\tWhy not?\t1"])):
        lines = [header, *rows] if name == "train" else ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", *rows]
        (folder / f"QQP/{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_malformed_qqp_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    good = [f"{i}\t1\t2\tIs {i} odd?\tIs {i} even?\t{i % 2}" for i in range(40)]
    quoted = '40\t1\t2\t"What is "open?\tWhat\u2028is it?\t1'
    broken = ["41\t1\t2\tA question over", "two lines?\tAnother?\t0", "42\t1\t2\tNo second?\t\t0"]
    data = load_task(known_task("qqp", write_qqp(tmp_path, [*good, quoted, *broken])))
    assert (len(data.train), data.skipped) == (41, 3)
    assert data.train.texts[40] == ('"What is "open?', "What\u2028is it?")
    assert (data.train.targets[:2], data.task.metric) == ([0, 1], "f1")


def test_qqp_columns_are_found_by_name(tmp_path: Path) -> None:
    header = "is_duplicate\tquestion2\tid\tquestion1"
    data = load_task(known_task("qqp", write_qqp(tmp_path, ["1\tB?\t0\tA?", "0\tD?\t1\tC?"], header)))
    assert data.train.texts == [("A?", "B?"), ("C?", "D?")]
    assert data.train.targets == [1, 0]


def test_a_qqp_test_file_in_the_place_of_dev_is_refused(tmp_path: Path) -> None:
    folder = write_qqp(tmp_path, ["0\t1\t2\tA?\tB?\t1", "1\t1\t2\tC?\tD?\t0"])
    (folder / "QQP/dev.tsv").write_text("id\tquestion1\tquestion2\n0\tA?\tB?\n")
    with pytest.raises(UserError, match="no column 'is_duplicate'"):
        load_task(known_task("qqp", folder))


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "labels", "metric"),
    [
        ("sci-cite", (7320, 916, 1861), 3, "macro_f1"),
        ("citation_intent", (1688, 114, 139), 6, "macro_f1"),
        ("chemprot", (4169, 2427, 3469), 13, "micro_f1"),
        ("sciie-relation-extraction", (3219, 455, 974), 7, "macro_f1"),
    ],
)
def test_scibert_files_have_their_published_sizes(name: str, rows: tuple[int, ...], labels: int, metric: str) -> None:
    data = load_task(known_task(name, DATA / "scibert"))
    assert data.test is not None
    assert (len(data.train), len(data.dev), len(data.test)) == rows
    assert (len(data.labels), data.skipped, data.task.metric) == (labels, 0, metric)
    assert data.labels == tuple(sorted(data.labels))
    if name in ("chemprot", "sciie-relation-extraction"):
        assert all("[[ " in text and "<< " in text for (text,) in data.train.texts), "the entities stay marked"


def test_every_scibert_task_needs_all_three_files(tmp_path: Path) -> None:
    for name, task in SCIBERT.items():
        assert task.metric in METRICS["classification"]
        for part in (task.train, task.dev, task.test):
            assert part is not None
            with pytest.raises(UserError, match=str(part)):
                known_task(name, tmp_path)
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            line = {"text": "the [[ odd ]]\n<< line >>", "label": part.stem[:1], "metadata": {}}
            (tmp_path / part).write_text(json.dumps(line) + "\n", encoding="utf-8")
        assert known_task(name, tmp_path).test == tmp_path / str(task.test)
