"""SciBERT's tasks as a table (Beltagy et al. 2019, arXiv:1903.10676, section 3): paths below the repository's ``data``.

Labels have the names that the files hold, sorted.
"""

from __future__ import annotations

from pathlib import Path

from daybreak.evaluation.tasks import Task

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
