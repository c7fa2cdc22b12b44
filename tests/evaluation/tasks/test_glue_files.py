"""GLUE as it is distributed and as it lies on the hub: the same rows and ids, whatever the traps of the files.

The layouts below were written down from descriptions of the published files, not from the table under test.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.known_tasks import files_of, known_task
from daybreak.evaluation.tasks.task import TaskRows

MNLI = "index promptID pairID genre parse1 parse2 tree1 tree2 sentence1 sentence2".split()
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2".split()
ENTAILED = ("entailment", "not_entailment")
PAIR, INDEXED = ("sentence1", "sentence2"), ["index", "sentence1", "sentence2", "label"]
QUESTIONS = ("question1", "question2")
# fmt: off
LAYOUTS = {
    # folder, header of train, text columns, label column, text columns on the hub, names in the hub's order
    "cola": ("CoLA", None, ("sentence",), "label", ("sentence",), ("unacceptable", "acceptable")),
    "sst2": ("SST-2", ["sentence", "label"], ("sentence",), "label", ("sentence",), ("negative", "positive")),
    "mrpc": ("MRPC", ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ("#1 String", "#2 String"), "Quality",
             PAIR, ("not_equivalent", "equivalent")),
    "qqp": ("QQP", ["id", "qid1", "qid2", *QUESTIONS, "is_duplicate"], QUESTIONS, "is_duplicate", QUESTIONS,
            ("not_duplicate", "duplicate")),
    "stsb": ("STS-B", [*STSB, "score"], PAIR, "score", PAIR, ()),
    "mnli": ("MNLI", [*MNLI, "label1", "gold_label"], PAIR, "gold_label", ("premise", "hypothesis"),
             ("entailment", "neutral", "contradiction")),
    "qnli": ("QNLI", ["index", "question", "sentence", "label"], ("question", "sentence"), "label",
             ("question", "sentence"), ENTAILED),
    "rte": ("RTE", INDEXED, PAIR, "label", PAIR, ENTAILED),
    "wnli": ("WNLI", INDEXED, PAIR, "label", PAIR, ("not_entailment", "entailment")),
}
# fmt: on
SPELLED = ("mnli", "qnli", "rte")
"""Their files hold the labels' names, the others their ids."""
HIDDEN = {
    "cola": ["CoLA"], "sst2": ["SST-2"], "mrpc": ["MRPC"], "qqp": ["QQP"], "stsb": ["STS-B"], "qnli": ["QNLI"],
    "rte": ["RTE"], "wnli": ["WNLI"], "mnli": ["MNLI-m", "MNLI-mm", "AX"],
}  # fmt: skip
TEXTS = ['"torn quote', "it 's", "a\u2028b", "caf\u00e9 | x", 'say "no" ', "\u4e2d\u6587", "-lrb- ok -rrb-", "'", '""']
Row = tuple[tuple[str, ...], str]
"""Texts, and the name of the label or the score as the original file spells it."""


def drawn(name: str, split: str, count: int) -> list[Row]:
    chance = random.Random(f"{name} {split}")
    _, _, columns, _, _, names = LAYOUTS[name]
    score = name == "stsb"
    return [
        (
            tuple(f"{chance.choice(TEXTS)} {index} {column}" for column in columns),
            f"{chance.randint(0, 5000) / 1000:.3f}" if score else names[chance.randrange(len(names))],
        )
        for index in range(count)
    ]


def splits(name: str) -> dict[str, tuple[str, str]]:
    """Our part -> (original file, split on the hub)."""
    if name == "mnli":
        ends = {"dev": "_matched", "mismatched": "_mismatched"}
        labeled = {part: (f"dev{end}", f"validation{end}") for part, end in ends.items()}
        hidden = {"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched"}
    else:
        labeled = {"dev": ("dev", "validation")}
        hidden = {HIDDEN[name][0]: "test"}
    return {"train": ("train", "train"), **labeled, **{file: (split, split) for file, split in hidden.items()}}


def original(folder: Path, name: str, end: str = "\n") -> None:
    """Write a task as GLUE distributes it."""
    place, header, columns, label, _, names = LAYOUTS[name]
    (folder / place).mkdir(parents=True)
    for part, (file, _) in splits(name).items():
        told = part in ("train", "dev", "mismatched")
        lines = []
        if name == "cola" and told:
            rows = [["gj04", str(names.index(value)), "", *texts] for texts, value in drawn(name, part, 12)]
        else:
            full = header or [label, *columns]
            there = full if told else ["index", *(column for column in full if column not in (label, "index"))]
            if name == "mnli" and part in ("dev", "mismatched"):
                there = [*MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"]
            lines = [("\ufeff" if name == "mrpc" and part == "dev" else "") + "\t".join(there)]
            rows = []
            for index, (texts, value) in enumerate(drawn(name, part, 12)):
                spelled = value if name in SPELLED or not names else str(names.index(value))
                cells = {**dict(zip(columns, texts)), label: spelled, "index": str(index)}
                rows.append([cells.get(column, f"{column}?") for column in there])
        lines += ["\t".join(row) for row in rows]
        (folder / place / f"{file}.tsv").write_bytes((end.join(lines) + end).encode())


def on_hub(folder: Path, name: str, shard: str = "-00000-of-00001") -> None:
    """Write a task as nyu-mll/glue holds it."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    _, _, _, _, columns, names = LAYOUTS[name]
    (folder / name).mkdir(parents=True)
    for part, (_, split) in splits(name).items():
        rows = drawn(name, part, 12)
        told = part in ("train", "dev", "mismatched")
        texts = {column: [texts[at] for texts, _ in rows] for at, column in enumerate(columns)}
        if names:
            labels = pyarrow.array([names.index(value) if told else -1 for _, value in rows], pyarrow.int64())
        else:
            labels = pyarrow.array([float(value) if told else -1.0 for _, value in rows], pyarrow.float32())
        idx = pyarrow.array(range(len(rows)), pyarrow.int32())
        parquet.write_table(
            pyarrow.table({**texts, "label": labels, "idx": idx}), folder / name / f"{split}{shard}.parquet"
        )


def named(data: TaskRows, part: str) -> list[Row | tuple[tuple[str, ...], float]]:
    rows = data.train if part == "train" else data.parts[part]
    return [(texts, data.labels[target] if data.labels else target) for texts, target in zip(rows.texts, rows.targets)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_layouts_give_the_same_rows_under_the_right_names(tmp_path: Path, name: str) -> None:
    original(tmp_path / "tsv", name)
    on_hub(tmp_path / "hub", name)
    names = LAYOUTS[name][-1]
    tasks = [known_task(name, tmp_path / layout) for layout in ("tsv", "hub")]
    first, second = (load_task(task) for task in tasks)
    for data in (first, second):
        assert data.labels == names, "ids stand for the hub's names in the hub's order"
        assert data.skipped == 0
        assert list(data.parts) == (["dev", "mismatched"] if name == "mnli" else ["dev"])
        for part in ("train", *data.parts):
            wanted = [(texts, value if names else float(value)) for texts, value in drawn(name, part, 12)]
            assert named(data, part) == wanted
    assert (first.train, first.parts) == (second.train, second.parts)
    for task in tasks:
        files = [file.name for file in task.unlabeled]
        assert files == [file for file in HIDDEN[name] if file != "AX"]
        for file in files:
            assert kind_of(task).load_unlabeled(task, file).texts == [texts for texts, _ in drawn(name, file, 12)]


def test_in_wnli_1_is_entailment_and_in_rte_0(tmp_path: Path) -> None:
    for name, values in (("WNLI", ("0", "1")), ("RTE", ("not_entailment", "entailment"))):
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            rows = "".join(f"{index}\tA cat sat.\tIt sat.\t{value}\n" for index, value in enumerate(values))
            (tmp_path / name / f"{split}.tsv").write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
    wnli, rte = (load_task(known_task(name, tmp_path)) for name in ("wnli", "rte"))
    assert [wnli.labels[target] for target in wnli.dev.targets] == ["not_entailment", "entailment"]
    assert [rte.labels[target] for target in rte.dev.targets] == ["not_entailment", "entailment"]
    assert (wnli.dev.targets, rte.dev.targets) == ([0, 1], [1, 0])


def test_mnli_columns_are_found_by_name_wherever_they_stand(tmp_path: Path) -> None:
    original(tmp_path, "mnli")
    for file, part in (("train", "train"), ("dev_matched", "dev"), ("dev_mismatched", "mismatched")):
        lines = ["gold_label\tsentence2\tx\tsentence1"]
        lines += [f"{label}\t{second}\t?\t{first}" for (first, second), label in drawn("mnli", part, 12)]
        moved = tmp_path / "moved/MNLI"
        moved.mkdir(parents=True, exist_ok=True)
        (moved / f"{file}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    published, moved_rows = (load_task(known_task("mnli", folder)) for folder in (tmp_path, tmp_path / "moved"))
    assert published.train == moved_rows.train
    assert published.parts == moved_rows.parts


@pytest.mark.parametrize("place", ["diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX.tsv"])
def test_the_diagnostic_set_is_found_under_each_of_its_names(tmp_path: Path, place: str) -> None:
    original(tmp_path, "mnli")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("index\tsentence1\tsentence2\n0\tA cat sat.\tNo cat sat.\n")
    task = known_task("mnli", tmp_path)
    assert [file.name for file in task.unlabeled] == ["MNLI-m", "MNLI-mm", "AX"]
    assert kind_of(task).load_unlabeled(task, "AX").texts == [("A cat sat.", "No cat sat.")]


def test_the_diagnostic_set_of_the_hub_belongs_to_mnli(tmp_path: Path) -> None:
    on_hub(tmp_path, "mnli", shard="")
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "ax").mkdir()
    table = pyarrow.table({"premise": ["A cat sat."], "hypothesis": ["No cat."], "label": [-1], "idx": [0]})
    parquet.write_table(table, tmp_path / "ax/test-00000-of-00001.parquet")
    task = known_task("mnli", tmp_path)
    assert kind_of(task).load_unlabeled(task, "AX").texts == [("A cat sat.", "No cat.")]


def test_a_split_in_pieces_or_a_test_split_in_the_place_of_dev_is_refused(tmp_path: Path) -> None:
    on_hub(tmp_path, "rte")
    train, dev = (tmp_path / f"rte/{split}-00000-of-00001.parquet" for split in ("train", "validation"))
    dev.write_bytes((tmp_path / "rte/test-00000-of-00001.parquet").read_bytes())
    with pytest.raises(UserError, match=r"^Row 1 of .* has the label '-1', which is none of '0', '1'"):
        load_task(known_task("rte", tmp_path))
    train.with_name("train-00001-of-00002.parquet").write_bytes(train.read_bytes())
    with pytest.raises(UserError, match="stands for 2 files"):
        known_task("rte", tmp_path)


def test_what_is_asked_of_the_hub_is_what_is_read(tmp_path: Path) -> None:
    asked = files_of(["mnli", "mine.toml", "cola", "mnli"])
    assert len(asked) == len(set(asked))
    assert {"mnli/validation_mismatched-*.parquet", "ax/test-*.parquet", "cola/train-*.parquet"} <= set(asked)
    assert not any(path.startswith(("rte", "RTE", "sst2")) for path in asked)
    on_hub(tmp_path, "mnli")
    task = known_task("mnli", tmp_path)
    paths = [task.train, task.dev, task.mismatched, *(file.path for file in task.unlabeled)]
    assert all(any(path.relative_to(tmp_path).match(pattern) for pattern in asked) for path in paths if path)
    with pytest.raises(UserError, match="no task 'mnlli'"):
        files_of(["mnlli"])
