"""SciBERT's tasks as a table (Beltagy et al. 2019, arXiv:1903.10676, section 3): paths below the repository's ``data``.

Labels have the names that the files hold, sorted; tags of named entities become IOB2.
"""

from __future__ import annotations

from pathlib import Path

from daybreak.evaluation.tasks.task import Task

ENTITIES = {
    name: Task(
        name=name,
        train=Path("ner", name, "train.txt"),
        dev=Path("ner", name, "dev.txt"),
        test=Path("ner", name, "test.txt"),
        text=(0,),
        label=3,
        kind="tokens",
        metric="span_f1",
        header=False,
        format="conll",
    )
    for name in ("bc5cdr", "JNLPBA", "NCBI-disease", "sciie")
}
TEXTS = {
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
SCIBERT = {**ENTITIES, **TEXTS}
