"""The built-in tasks, GLUE's, SciBERT's and SWAG, and how their files are found in the user's folder.

GLUE (Wang et al. 2019, arXiv:1804.07461): label names and their order follow the data set ``nyu-mll/glue``. The files
have two layouts with the same rows: .tsv files as GLUE distributes them, one folder per task, and .parquet files as on
the Hugging Face Hub. Columns are found by header name because their order differs between copies; only CoLA's labeled
files have no header. The diagnostic set AX has no training data: the model of MNLI predicts it.

SciBERT's tasks (Beltagy et al. 2019, arXiv:1903.10676, section 3): paths below the folder ``data`` of its repository.
Labels have the names in the files, sorted; tags of named entities become IOB2.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.evaluation.tasks.tables import FORMATS
from daybreak.evaluation.tasks.task import Task, UnlabeledFile

Columns = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One GLUE task in both layouts."""

    name: str
    folder: str
    """Folder of the original files."""
    text: Columns
    label: str | int
    unlabeled: tuple[tuple[str, str], ...]
    """(file of a submission, split that it answers)."""
    metric: str
    names: tuple[str, ...] = ()
    """Label names in the order of the hub; none for regression."""
    named: bool = False
    """The original files hold label names; otherwise ids, as the hub does."""
    header: bool = True
    """Whether the original labeled files have a header."""
    unlabeled_text: Columns = ()
    hub_text: Columns = ()
    """Both as ``text`` if empty."""
    genres: tuple[str, ...] = ("",)
    """Suffix of the dev split with the genres of train, and of that with other genres."""
    diagnostic: bool = False


# fmt: off
_TABLE = (
    _Entry(name="cola", folder="CoLA", text=(3,), label=1, header=False, metric="mcc", unlabeled=(("CoLA", "test"),),
           unlabeled_text=("sentence",), hub_text=("sentence",), names=("unacceptable", "acceptable")),
    _Entry(name="sst2", folder="SST-2", text=("sentence",), label="label", metric="accuracy",
           unlabeled=(("SST-2", "test"),), names=("negative", "positive")),
    _Entry(name="mrpc", folder="MRPC", text=("#1 String", "#2 String"), label="Quality", metric="f1",
           unlabeled=(("MRPC", "test"),), hub_text=("sentence1", "sentence2"),
           names=("not_equivalent", "equivalent")),
    _Entry(name="qqp", folder="QQP", text=("question1", "question2"), label="is_duplicate", metric="f1",
           unlabeled=(("QQP", "test"),), names=("not_duplicate", "duplicate")),
    _Entry(name="stsb", folder="STS-B", text=("sentence1", "sentence2"), label="score", metric="spearman",
           unlabeled=(("STS-B", "test"),)),
    _Entry(name="mnli", folder="MNLI", text=("sentence1", "sentence2"), label="gold_label", metric="accuracy",
           hub_text=("premise", "hypothesis"), genres=("_matched", "_mismatched"), diagnostic=True, named=True,
           unlabeled=(("MNLI-m", "test_matched"), ("MNLI-mm", "test_mismatched")),
           names=("entailment", "neutral", "contradiction")),
    _Entry(name="qnli", folder="QNLI", text=("question", "sentence"), label="label", metric="accuracy", named=True,
           unlabeled=(("QNLI", "test"),), names=("entailment", "not_entailment")),
    _Entry(name="rte", folder="RTE", text=("sentence1", "sentence2"), label="label", metric="accuracy", named=True,
           unlabeled=(("RTE", "test"),), names=("entailment", "not_entailment")),
    # Unlike in QNLI and RTE, 1 means entailment.
    _Entry(name="wnli", folder="WNLI", text=("sentence1", "sentence2"), label="label", metric="accuracy",
           unlabeled=(("WNLI", "test"),), names=("not_entailment", "entailment")),
)
# fmt: on
_PARTS = {
    "qqp-subset": ("QQP/train_subset.tsv", "QQP/dev_subset.tsv"),
    "mnli-subset": ("MNLI/train_subset.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched_sample.tsv"),
    "qnli-subset": ("QNLI/train_subset.tsv", "QNLI/dev.tsv"),
}
"""Published subsets of tasks. A score on a subset is not the task's score, so each has its own name."""
_DIAGNOSTIC = ("diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX.tsv")
"""File names of the diagnostic set."""


def _distributed(entry: _Entry, name: str = "", paths: Sequence[str] = ()) -> Task:
    """Return the task with its original files, or its subset of that name and these paths (train, dev, mismatched)."""
    whole = (f"{entry.folder}/train.tsv", *(f"{entry.folder}/dev{genres}.tsv" for genres in entry.genres))
    train, dev, *mismatched = map(Path, paths or whole)
    values = entry.names if entry.named else tuple(str(index) for index in range(len(entry.names)))
    text = entry.unlabeled_text or entry.text
    files = [UnlabeledFile(file, Path(entry.folder, f"{split}.tsv"), text) for file, split in entry.unlabeled]
    files += [UnlabeledFile("AX", Path(path), text) for path in _DIAGNOSTIC if entry.diagnostic]
    return Task(
        name=name or entry.name,
        family=entry.name,
        train=train,
        dev=dev,
        mismatched=mismatched[0] if mismatched else None,
        unlabeled=tuple(files),
        text=entry.text,
        label=entry.label,
        header=entry.header,
        kind="classification" if entry.names else "regression",
        metric=entry.metric,
        labels=tuple(zip(values, entry.names)),
    )


def _on_hub(entry: _Entry) -> Task:
    text = entry.hub_text or entry.text
    paths = [(file, Path(entry.name, f"{split}.parquet")) for file, split in entry.unlabeled]
    paths += [("AX", Path("ax/test.parquet"))] if entry.diagnostic else []
    dev, *mismatched = (Path(entry.name, f"validation{genres}.parquet") for genres in entry.genres)
    return dataclasses.replace(
        _distributed(entry),
        train=Path(entry.name, "train.parquet"),
        dev=dev,
        mismatched=mismatched[0] if mismatched else None,
        unlabeled=tuple(UnlabeledFile(name, path, text, "parquet") for name, path in paths),
        text=text,
        label="label",
        header=True,
        format="parquet",
        labels=tuple((str(index), name) for index, name in enumerate(entry.names)),
    )


_ENTRIES = {entry.name: entry for entry in _TABLE}
GLUE = {
    **{entry.name: _distributed(entry) for entry in _TABLE},
    **{name: _distributed(_ENTRIES[name.removesuffix("-subset")], name, paths) for name, paths in _PARTS.items()},
}
"""GLUE as it is distributed, with paths below the user's folder. One of several unlabeled files of a name exists."""
GLUE_ON_HUB = {entry.name: _on_hub(entry) for entry in _TABLE}
"""GLUE as on the hub; ``train.parquet`` also stands for ``train-00000-of-00001.parquet``."""


def _scibert(folder: str, name: str, **fields: Any) -> Task:
    files: dict[str, Any] = {part: Path(folder, name, f"{part}.txt") for part in ("train", "dev", "test")}
    return Task(name=name, **files, **fields)


ENTITIES = {
    name: _scibert("ner", name, text=(0,), label=3, kind="tokens", metric="span_f1", header=False, format="conll")
    for name in ("bc5cdr", "JNLPBA", "NCBI-disease", "sciie")
}
TEXTS = {
    name: _scibert("text_classification", name, text=("text",), label="label", metric=metric, format="jsonl")
    for name, metric in (
        ("sci-cite", "macro_f1"),
        ("citation_intent", "macro_f1"),
        # Relations between two entities, which the text marks as << one >> and [[ the other ]].
        ("chemprot", "micro_f1"),
        ("sciie-relation-extraction", "macro_f1"),
    )
}
SCIBERT = {**ENTITIES, **TEXTS}

SWAG = {
    "swag": Task(
        name="swag",
        train=Path("SWAG/train.csv"),
        dev=Path("SWAG/val.csv"),
        text=("sent1", "sent2"),
        choices=("ending0", "ending1", "ending2", "ending3"),
        label="label",
        kind="choice",
        metric="accuracy",
        format="csv",
    )
}
"""SWAG (Zellers et al. 2018, arXiv:1808.05326) with the files of its repository's folder ``data``."""

KNOWN = {**GLUE, **SCIBERT, **SWAG}
TASK_LISTS = {
    # WNLI, whose dev file contradicts its training file, is not part of public averages.
    "glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"),
    "glue5": ("cola", "sst2", "mrpc", "stsb", "rte"),
    "scibert": tuple(SCIBERT),
}
BUILT_IN = ("glue", "scibert")
"""The lists of all tasks with a public average or a paper's table."""


# ---------------------------------------------------------------- finding the files


def spelled_out(names: Sequence[str]) -> list[str]:
    """Replace each list, such as glue5, by its tasks."""
    return [each for name in names for each in TASK_LISTS.get(name, (name,))]


def known_task(name: str, task_dir: Path | None) -> Task:
    """Return the task ``name`` with its files below ``task_dir``, in the original layout or that of the hub.

    Only the unlabeled files that exist are included.
    """
    layouts = _layouts(name)
    wanted = [_spellings(layout.train)[-1] for layout in layouts]
    if task_dir is None:
        source = "GLUE" if name in GLUE else "SciBERT" if name in SCIBERT else "SWAG"
        raise UserError(
            f"Task '{name}' needs the files of {source}, and no folder was given.",
            f"Name the folder that holds {' or '.join(wanted)} with --task-dir.",
        )
    for layout in layouts:
        if _find(task_dir, layout.train) is not None:
            return _with_files(layout, task_dir)
    shown = f"'{wanted[0]}'" if len(wanted) == 1 else "neither " + " nor ".join(f"'{path}'" for path in wanted)
    raise UserError(
        f"Task '{name}' needs its files, and '{task_dir}' holds {'no ' if len(wanted) == 1 else ''}{shown}.",
        "Name the folder that holds them with --task-dir.",
    )


def standardizes(task: Task) -> bool:
    """Return whether training standardizes the targets: those of regression tasks of the user, whose scale is unknown.

    The published protocols of the built-in tasks do not.
    """
    return task.kind == "regression" and task.name not in KNOWN


def whole_task(name: str) -> str:
    """Return the name of the task, or of the whole task for a built-in subset."""
    return KNOWN[name].whole if name in KNOWN else name


def held_task(name: str, folder: Path) -> str:
    """Return ``name`` if the folder holds its labeled files, the name of its subset if only that is there, or ""."""
    for each in (name, f"{name}-subset"):
        if each in KNOWN and any(
            all(_find(folder, path) is not None for path in layout.files.values()) for layout in _layouts(each)
        ):
            return each
    return ""


def files_of(names: Sequence[str]) -> list[str]:
    """Return the files that ``known_task`` looks for, as patterns below the folder; none for .toml names."""
    layouts = [layout for name in names if not name.endswith(".toml") for layout in _layouts(name)]
    paths = [path for each in layouts for path in (*each.files.values(), *(file.path for file in each.unlabeled))]
    return list(dict.fromkeys(spelling for path in paths for spelling in _spellings(path)))


def _layouts(name: str) -> list[Task]:
    if name not in KNOWN:
        choices = [*KNOWN, *TASK_LISTS]
        if Path(name).suffix.lower().lstrip(".") in FORMATS:
            raise UserError(
                f"'{name}' is a table, not a task.",
                f"Write a task file for it with daybreak init-task {shlex.quote(name)}, and give --tasks that file.",
            )
        raise UserError(
            f"There is no task '{name}'.{nearest(name, choices)}",
            f"Use {', '.join(choices)}, or the path of a .toml file that describes your own task.",
        )
    return [KNOWN[name], *([GLUE_ON_HUB[name]] if name in GLUE_ON_HUB else [])]


def _with_files(task: Task, folder: Path) -> Task:
    found: dict[str, Path] = {}
    for part, path in task.files.items():
        file = _find(folder, path)
        if file is None:
            raise UserError(
                f"Task '{task.name}' needs '{folder / _spellings(path)[-1]}', which does not exist.",
                "Add the missing files to that folder, or name another one with --task-dir.",
            )
        found[part] = file
    unlabeled: dict[str, UnlabeledFile] = {}
    for each in task.unlabeled:
        if (file := _find(folder, each.path)) is not None:
            unlabeled.setdefault(each.name, dataclasses.replace(each, path=file))
    return dataclasses.replace(task, **found, unlabeled=tuple(unlabeled.values()))  # type: ignore[arg-type]


def _find(folder: Path, path: Path) -> Path | None:
    """Return the only file of that name, or None."""
    for spelling in _spellings(path):
        try:
            files = sorted(file for file in folder.glob(spelling) if file.is_file())
        except OSError as error:
            raise UserError(
                f"Cannot read the folder '{folder}': {error.strerror or error}.", "Check the path."
            ) from None
        if len(files) > 1:
            fault = f"'{folder / spelling}' stands for {len(files)} files, and a task reads one."
            raise UserError(fault, "Join them into one.")
        if files:
            return files[0]
    return None


def _spellings(path: Path) -> list[str]:
    """Return the names of a file; ``train.parquet`` is called train-00000-of-00001.parquet on the hub."""
    if path.suffix != ".parquet":
        return [path.as_posix()]
    return [path.as_posix(), f"{path.with_suffix('').as_posix()}-*.parquet"]
