"""Tasks by name: the files of GLUE and SciBERT as they were published, and QQP's traps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.known_tasks import KNOWN, SCIBERT, TASK_LISTS, known_task, spelled_out

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
    (file,) = task.unlabelled
    unlabelled = kind.load_unlabelled(task, file.name)
    assert len(unlabelled) == hidden
    columns = 1 if name in ("cola", "sst2") else 2
    assert {len(texts) for texts in (*data.dev.texts, *unlabelled.texts)} == {columns}
    found = kind.score(kind.constant(data, data.dev), data.labels)
    assert {metric: found[metric] for metric in floors} == pytest.approx(floors, abs=5e-4)
    assert task.metric in floors


@needs_data
def test_the_parts_of_mnli_and_qnli_are_read_whole(tmp_path: Path) -> None:
    for place in ("glue/QNLI/dev.tsv", "glue/QNLI/test.tsv", "glue/diagnostic/diagnostic.tsv"):
        link = tmp_path / Path(place).relative_to("glue")
        link.parent.mkdir(exist_ok=True)
        link.symlink_to((DATA / place).resolve())
    (tmp_path / "QNLI/train_subset.tsv").symlink_to((DATA / "glue-subsets/QNLI/train_subset.tsv").resolve())
    (tmp_path / "MNLI").symlink_to((DATA / "glue-subsets/MNLI").resolve())
    mnli, qnli = (load_task(known_task(name, tmp_path)) for name in ("mnli-subset", "qnli-subset"))
    assert (len(mnli.train), len(mnli.dev), mnli.skipped) == (10_471, 9_815, 0)
    assert mnli.mismatched is not None
    assert (len(mnli.mismatched), mnli.labels) == (999, ("entailment", "neutral", "contradiction"))
    assert (len(qnli.train), len(qnli.dev), qnli.skipped) == (12_096, 5_463, 0)
    assert qnli.labels == ("entailment", "not_entailment")
    answered = {}
    for data in (mnli, qnli):
        task = data.task
        answered |= {file.name: len(kind_of(task).load_unlabelled(task, file.name)) for file in task.unlabelled}
    assert answered == {"AX": 1104, "QNLI": 5463}
    kind = kind_of(mnli.task)
    majority = {part: kind.score(kind.constant(mnli, rows), mnli.labels) for part, rows in mnli.parts.items()}
    assert majority["dev"]["accuracy"] == pytest.approx(0.354, abs=5e-4)


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
            assert (task.text, task.label, task.labels, task.metric) == (
                whole.text,
                whole.label,
                whole.labels,
                whole.metric,
            )


@pytest.mark.parametrize(
    ("name", "folder", "fault"),
    [
        ("colla", "there", "no task 'colla'. Did you mean 'cola'?"),
        ("ax", "there", "no task 'ax'"),
        ("cola", None, "no folder was given"),
        ("rte", "there", "holds neither 'RTE/train.tsv' nor 'rte/train-*.parquet'"),
        ("mnli-subset", "there", "holds no 'MNLI/train_subset.tsv'"),
        ("rte", "x" * 5000, "Cannot look into"),
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


@needs_data
def test_qqp_subsets_are_read_whole() -> None:
    data = load_task(known_task("qqp-subset", DATA / "glue-subsets"))
    assert (len(data.train), len(data.dev), data.skipped) == (28_157, 5_000, 0)
    assert data.labels == ("not_duplicate", "duplicate")
    assert data.train.texts[1] == (
        '"How true is what Tony Stark said in Iron Man 3: ""Einstein slept 3 hours a year. Look what he did.""?"',
        "Where are the Avengers in Iron Man 3?",
    ), "read without quoting, by the header's names"
    kind = kind_of(data.task)
    found = kind.score(kind.constant(data, data.dev), data.labels)
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
        for part in (task.train, task.dev, task.test):
            assert part is not None
            with pytest.raises(UserError, match=part.as_posix()):
                known_task(name, tmp_path)
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            line = {"text": "the [[ odd ]]\n<< line >>", "label": part.stem[:1], "metadata": {}}
            (tmp_path / part).write_text(json.dumps(line) + "\n", encoding="utf-8")
        assert known_task(name, tmp_path).test == tmp_path / str(task.test)
