"""GLUE as a table (Wang et al. 2019, arXiv:1804.07461): where the files of each task lie and what its labels mean.

Label names and their order follow the ``nyu-mll/glue`` data set. Names travel with a saved model: integer orders differ
between toolkits, names do not. The files come in two layouts: as GLUE distributes them, one folder of .tsv files a
task, and as the hub holds them, one folder of .parquet files a configuration. Rows and ids are the same in both.

Columns are found by the names in the header, because their places differ between copies; CoLA's labelled files alone
have no header. The diagnostic set AX is nothing to train on: the model of MNLI answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daybreak.evaluation.tasks.task import Hidden, Task

Columns = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One task in both layouts."""

    name: str
    folder: str
    """Of the original files."""
    text: Columns
    label: str | int
    hidden: tuple[tuple[str, str], ...]
    """(file of a submission, the split that it answers)."""
    metric: str
    names: tuple[str, ...] = ()
    """Of the labels, in the hub's order; none for regression."""
    named: bool = False
    """The original files hold the labels' names; otherwise their ids, as the hub does."""
    header: bool = True
    """Of the original labelled files."""
    hidden_text: Columns = ()
    hub_text: Columns = ()
    """Both as ``text`` when empty."""
    genres: tuple[str, str] = ("", "")
    """What the names of the dev splits end in: the one of train's genres, and the one of others."""
    diagnostic: bool = False
    symmetric: bool = False


_TABLE = (
    _Entry(
        name="cola",
        folder="CoLA",
        text=(3,),
        label=1,
        header=False,
        hidden_text=("sentence",),
        hub_text=("sentence",),
        hidden=(("CoLA", "test"),),
        metric="mcc",
        names=("unacceptable", "acceptable"),
    ),
    _Entry(
        name="sst2",
        folder="SST-2",
        text=("sentence",),
        label="label",
        hidden=(("SST-2", "test"),),
        metric="accuracy",
        names=("negative", "positive"),
    ),
    _Entry(
        name="mrpc",
        folder="MRPC",
        text=("#1 String", "#2 String"),
        label="Quality",
        hub_text=("sentence1", "sentence2"),
        hidden=(("MRPC", "test"),),
        metric="f1",
        names=("not_equivalent", "equivalent"),
        symmetric=True,
    ),
    _Entry(
        name="qqp",
        folder="QQP",
        text=("question1", "question2"),
        label="is_duplicate",
        hidden=(("QQP", "test"),),
        metric="f1",
        names=("not_duplicate", "duplicate"),
        symmetric=True,
    ),
    _Entry(
        name="stsb",
        folder="STS-B",
        text=("sentence1", "sentence2"),
        label="score",
        hidden=(("STS-B", "test"),),
        metric="spearman",
        symmetric=True,
    ),
    _Entry(
        name="mnli",
        folder="MNLI",
        text=("sentence1", "sentence2"),
        label="gold_label",
        hub_text=("premise", "hypothesis"),
        genres=("_matched", "_mismatched"),
        hidden=(("MNLI-m", "test_matched"), ("MNLI-mm", "test_mismatched")),
        diagnostic=True,
        metric="accuracy",
        names=("entailment", "neutral", "contradiction"),
        named=True,
    ),
    _Entry(
        name="qnli",
        folder="QNLI",
        text=("question", "sentence"),
        label="label",
        hidden=(("QNLI", "test"),),
        metric="accuracy",
        names=("entailment", "not_entailment"),
        named=True,
    ),
    _Entry(
        name="rte",
        folder="RTE",
        text=("sentence1", "sentence2"),
        label="label",
        hidden=(("RTE", "test"),),
        metric="accuracy",
        names=("entailment", "not_entailment"),
        named=True,
    ),
    # The other way round than QNLI and RTE: here 1 is entailment.
    _Entry(
        name="wnli",
        folder="WNLI",
        text=("sentence1", "sentence2"),
        label="label",
        hidden=(("WNLI", "test"),),
        metric="accuracy",
        names=("not_entailment", "entailment"),
    ),
)
_PARTS = {
    "qqp-subset": ("QQP/train_subset.tsv", "QQP/dev_subset.tsv", None),
    "mnli-subset": ("MNLI/train_subset.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched_sample.tsv"),
    "qnli-subset": ("QNLI/train_subset.tsv", "QNLI/dev.tsv", None),
}
"""Parts of tasks that go round under these file names. A score on a part is not the task's score, nor has it its name.
"""
_DIAGNOSTIC = ("diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX.tsv")
"""The same file under its three names."""


def _original(entry: _Entry, name: str, train: str, dev: str, mismatched: str | None) -> Task:
    values = entry.names if entry.named else tuple(str(index) for index in range(len(entry.names)))
    text = entry.hidden_text or entry.text
    hidden = [Hidden(file, Path(entry.folder, f"{split}.tsv"), text) for file, split in entry.hidden]
    hidden += [Hidden("AX", Path(path), text) for path in _DIAGNOSTIC if entry.diagnostic]
    return Task(
        name=name,
        family=entry.name,
        train=Path(train),
        dev=Path(dev),
        mismatched=Path(mismatched) if mismatched else None,
        hidden=tuple(hidden),
        text=entry.text,
        label=entry.label,
        header=entry.header,
        kind="classification" if entry.names else "regression",
        metric=entry.metric,
        labels=tuple(zip(values, entry.names)),
        symmetric=entry.symmetric,
    )


def _distributed(entry: _Entry) -> Task:
    matched, mismatched = (f"{entry.folder}/dev{genres}.tsv" for genres in entry.genres)
    other = mismatched if mismatched != matched else None
    return _original(entry, entry.name, f"{entry.folder}/train.tsv", matched, other)


def _on_hub(entry: _Entry) -> Task:
    text = entry.hub_text or entry.text
    hidden = [Hidden(file, Path(entry.name, f"{split}.parquet"), text, "parquet") for file, split in entry.hidden]
    hidden += [Hidden("AX", Path("ax/test.parquet"), text, "parquet")] if entry.diagnostic else []
    matched, mismatched = (Path(entry.name, f"validation{genres}.parquet") for genres in entry.genres)
    return Task(
        name=entry.name,
        family=entry.name,
        train=Path(entry.name, "train.parquet"),
        dev=matched,
        mismatched=mismatched if mismatched != matched else None,
        hidden=tuple(hidden),
        text=text,
        label="label",
        kind="classification" if entry.names else "regression",
        metric=entry.metric,
        format="parquet",
        labels=tuple((str(index), name) for index, name in enumerate(entry.names)),
        symmetric=entry.symmetric,
    )


_ENTRIES = {entry.name: entry for entry in _TABLE}
GLUE = {
    **{entry.name: _distributed(entry) for entry in _TABLE},
    **{name: _original(_ENTRIES[name.removesuffix("-subset")], name, *files) for name, files in _PARTS.items()},
}
"""As GLUE distributes the files. Paths are below the user's folder; of the hidden files of one name, one is there."""
GLUE_ON_HUB = {entry.name: _on_hub(entry) for entry in _TABLE}
"""As the hub holds them; ``train.parquet`` stands for ``train-00000-of-00001.parquet`` too."""
