"""Command ``predict``: label new rows with a saved classifier, averaged with the bag of words."""

from __future__ import annotations

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from daybreak.commands.options import keywords, parse
from daybreak.core.errors import UserError
from daybreak.core.files import check_output_file, make_folder, write_text
from daybreak.core.terminal import say, working


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Each option except ``classifier``, ``rows`` and ``task`` is a keyword of ``predict``."""

    classifier: Annotated[Positional[Path], arg(metavar="CLASSIFIER")]
    """Folder written by daybreak evaluate --save."""
    rows: Annotated[Positional[Path], arg(metavar="ROWS")]
    """Rows to label: .csv, .tsv, .jsonl or .parquet with the text columns of the task. A file with the
    extension of the training file is read in the same format."""
    task: Path
    """Task file (.toml) that the classifier was fine-tuned on."""
    out: Path = Path("predictions.csv")
    """CSV file of the predictions, in the order of the rows."""
    bag_of_words: bool = True
    """Average the predictions with those of a bag-of-words model, which is fitted on the training rows of the task."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(PredictOptions, "predict", arguments))
    predict(options.pop("classifier"), options.pop("rows"), options.pop("task"), **options)


def predict(
    classifier: Path | str,
    rows: Path | str,
    task: Path | str,
    *,
    out: Path | str = "predictions.csv",
    bag_of_words: bool = True,
) -> list[dict[str, Any]]:
    """Predict the label or the number of each row, and write the predictions as a table.

    The mean of both predictions is what results call *both averaged*.

    The keywords are the options of ``daybreak predict``.

    Returns:
        One dictionary for each row: ``label`` and its ``probability``, or ``prediction`` for a task of numbers.

    Raises:
        UserError: the classifier was saved for another task, or the kind of the task has other answers.
    """
    from daybreak.evaluation.baselines.bag_of_words import bag_of_words as fit_and_evaluate
    from daybreak.evaluation.finetuning.classifier import load_classifier
    from daybreak.evaluation.finetuning.finetune import predict as outputs_of
    from daybreak.evaluation.finetuning.fingerprints import task_digest
    from daybreak.evaluation.finetuning.jobs import training_subset
    from daybreak.evaluation.tasks.batches import Padding
    from daybreak.evaluation.tasks.kinds import kind_of, load_task
    from daybreak.evaluation.tasks.tables import FORMATS, read_table
    from daybreak.evaluation.tasks.task import LabeledRows
    from daybreak.evaluation.tasks.task_file import read_task_file
    from daybreak.training.hardware.probe import choose_device

    if not isinstance(rows, (str, os.PathLike)):
        raise UserError("predict reads rows from a file.", "Write them to a .csv file, and name that.")
    folder, path, file = Path(classifier), Path(rows), Path(out)
    described = read_task_file(Path(task))
    kind = kind_of(described)
    if kind.head != "ForSequenceClassification":
        raise UserError(
            f"The kind of the task is {kind.name}, which predict does not support.",
            f"Use the folder with transformers.AutoModel{kind.head}.",
        )
    inputs = (path, Path(task), *described.paths)
    if file.resolve() in (each.resolve() for each in inputs) or folder.resolve() in file.resolve().parents:
        raise UserError(f"'{file}' is part of the input and would be overwritten.", "Choose another file with --out.")
    check_output_file(file, "--out predictions.csv")
    if file.suffix.lower() not in (".csv", ""):
        raise UserError(f"Predictions cannot be written as {file.suffix}.", "Name a .csv file with --out.")
    ending = path.suffix.lower()
    format = described.format if ending == described.train.suffix.lower() else ending.lstrip(".")
    if format not in FORMATS:
        raise UserError(f"'{path}' is not a table.", f"Give a file that ends in one of: .{', .'.join(FORMATS)}.")
    data = load_task(described)
    model, tokenizer = load_classifier(folder)
    model.to(choose_device())
    names = () if kind.numeric else tuple(model.config.id2label[number] for number in sorted(model.config.id2label))
    facts = model.config.fine_tuning
    texts = facts.get("texts", len(described.text))  # unknown in classifiers of version 0.1
    same = names == data.labels and texts == len(described.text)
    files = task_digest(described)
    known = facts.get("task") in (None, described.name) or facts["task_files"] == files
    if not (same and known) or kind.numeric != (model.config.problem_type == "regression"):
        raise UserError(
            f"The classifier in '{folder}' was not fine-tuned on the task '{described.name}'.",
            "Name its own task file with --task.",
        )
    if bag_of_words and facts.get("task_files", files) != files:
        say(
            f"Warning: the files of '{described.name}' changed after the fine-tuning, and the bag of words learns them."
        )
    cells = read_table(path, described.text, format=format, header=described.header, whole=True)
    make_folder(file.parent)
    unlabeled = LabeledRows(cells.rows, [0] * len(cells.rows))
    encoded = kind.encode(tokenizer, unlabeled, facts["length"], len(tokenizer))
    with working("Predicting"):
        found = kind.evaluate(encoded, outputs_of(model, kind, Padding.of(tokenizer), encoded), data.labels)
        if bag_of_words:
            asked = replace(data, dev=unlabeled, test=None, mismatched=None)
            words = fit_and_evaluate(kind, asked, training_subset(data.train, facts["most_train_rows"]))
            both = kind.mean_prediction(found, words.scored_rows["dev"], data.labels)
            assert both is not None
            found = both
    columns = dict(zip(kind.columns, found.T))
    if kind.numeric:
        predictions: list[dict[str, Any]] = [
            {"prediction": float(f"{value:.6g}")} for value in columns["answer"].tolist()
        ]
        summary = f"mean {math.fsum(columns['answer']) / len(found):.4g}"
    else:
        answers = [data.labels[int(answer)] for answer in columns["answer"]]
        predictions = [
            {"label": label, "probability": round(confidence, 4)}
            for label, confidence in zip(answers, columns["confidence"].tolist())
        ]
        summary = ", ".join(f"{label} {count:,}" for label, count in Counter(answers).most_common(10))
    table = io.StringIO()
    writer = csv.DictWriter(table, list(predictions[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(predictions)
    write_text(file, table.getvalue())
    say(f"Predictions of {len(predictions):,} rows: {file} ({summary}).")
    return predictions
