"""GLUE as a table (Wang et al. 2019, arXiv:1804.07461): where the files of each task lie and what its labels mean.

Label names and their order follow the ``nyu-mll/glue`` data set. Names travel with a saved model: integer orders differ
between toolkits, names do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
