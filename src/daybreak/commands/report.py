"""Command ``report``: one self-contained HTML page about a run, or about several with a comparison on each task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from daybreak.commands.options import listed, parse
from daybreak.core.errors import UserError
from daybreak.core.files import check_output_file, make_folder, read_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import check_choice
from daybreak.core.task_pairs import pair_results, several_models
from daybreak.core.terminal import open_in_browser, say
from daybreak.evaluation.protocols.anchors import (
    average_for_compute,
    comparable_published,
    published_by_compute,
    table_anchors,
)
from daybreak.evaluation.protocols.conventions import averages
from daybreak.evaluation.scoring.resampling import compare
from daybreak.reporting.corpus import corpus_page, is_data_folder
from daybreak.reporting.page import render_page, with_unique_labels
from daybreak.reporting.runs import RunRecords, read_folder
from daybreak.reporting.tasks import glue_table, line
from daybreak.schemas.studies import DataStudy, Study
from daybreak.schemas.tasks import Comparison, FinetuningRun, TaskResult

FORMS = ("html", "md")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Run folders, or folders with results.json. Several are plotted together and compared with the first. Or one
    folder of prepared data, for a page about the text."""
    out: Path | None = None
    """File for the page. Defaults to report.html (or .md) in the first folder."""
    format: str = "html"
    """html, or md: text and tables without plots."""
    table: Literal["", "glue"] = ""
    """glue: instead of a report, a Markdown table of GLUE scores beside published models, printed or written to
    --out."""
    text: bool = True
    """Quote held-out sentences, and documents that filters removed."""
    open: bool = False
    """Open the page in the browser."""


def main(arguments: Sequence[str]) -> None:
    options = parse(ReportOptions, "report", arguments)
    if not options.runs:
        raise UserError("No run folder is given.", "Put it first: daybreak report RUN --out report.html.")
    if options.table:
        if options.open or options.format != ReportOptions.format or not options.text:
            raise UserError("--table prints a table and no page.", "Leave out --open, --format and --no-text.")
        written = glue_scores(options.runs, options.out)
        print(written if options.out is None else options.out)
        return
    ending = options.out.suffix[1:].lower() if options.out else ""
    if ending not in ("", "htm", "txt", *FORMS):
        raise UserError(f"A report cannot be written as .{ending}.", "Name a file that ends in .html or .md.")
    if ending in FORMS and ending != options.format:
        if options.format != ReportOptions.format:
            raise UserError(f"'{options.out}' does not end in .{options.format}.", "Rename it, or leave out --format.")
        options = replace(options, format=ending)
    out = options.out or options.runs[0] / f"report.{options.format}"
    page = report(options.runs, out, form=options.format, text=options.text)
    print(page)
    if options.open:
        open_in_browser(page)


def report(
    runs: Sequence[Path | str] | Path | str,
    out: Path | str,
    *,
    form: str = "html",
    text: bool = True,
    study: Study | DataStudy | None = None,
) -> Path:
    """Write the report of one or several runs, or of a folder of prepared data; return its path.

    Unfinished runs and folders with results alone are accepted: the page lists what is missing. Each further folder is
    compared with the first on every task that both have under the same protocol; with a single folder, the pretrained
    model is compared with the untrained one. The comparisons are printed, one line per task.

    Args:
        form, text: the options ``--format`` and ``--text`` of ``daybreak report``.
        study: the study that the runs are cells of; its comparisons, which pair pretraining seeds, replace the
            comparisons of runs.

    Raises:
        UserError: a folder contains neither a run nor results nor prepared data, or ``out`` cannot be written.
    """
    folders, out = list({Path(run).resolve(): Path(run) for run in listed(runs)}.values()), Path(out)
    if not folders:
        raise UserError("No run folder is given.", "Name at least one, as in `daybreak report runs/tiny`.")
    check_choice("--format", form, FORMS)
    check_output_file(out, "--out report.html")
    sentences: list[str] = []
    if len(folders) == 1 and is_data_folder(folders[0]):
        page = corpus_page(folders[0], form=form, text=text)
    else:
        read = with_unique_labels([_with_averages(read_folder(path)) for path in folders])
        comparisons, unpaired = ([], []) if study else _compared(read)
        published = published_by_compute()
        page = render_page(read, comparisons, unpaired, form=form, published=published, text=text, study=study)
        sentences = [*map(line, comparisons), *unpaired]
    make_folder(out.parent)
    write_text(out, page)
    for sentence in sentences:
        say(sentence)
    return out


def glue_scores(runs: Sequence[Path], out: Path | None = None) -> str:
    """Return, and write, a Markdown table of GLUE dev scores, with a row for each model of the runs or published."""
    if out is not None:
        check_output_file(out, "--out glue.md")
    read = with_unique_labels([read_folder(path) for path in dict.fromkeys(runs)])
    found = glue_table(read, table_anchors())
    if not found:
        raise UserError(
            "None of these folders has a result of a whole GLUE task.",
            "Evaluate first: daybreak evaluate RUN --tasks glue --task-dir GLUE --protocol cramming.",
        )
    if out is not None:
        make_folder(out.parent)
        write_text(out, f"{found}\n")
    return found


def _with_averages(run: RunRecords) -> RunRecords:
    found = [(average, comparable_published(average)) for average in averages(run.results)]
    glue, lacks = average_for_compute(run.results)
    return replace(run, averages=found, glue=glue, glue_lacks=lacks)


@dataclass(frozen=True)
class _Side:
    """One side of a comparison: a result, the displayed name of its model, and the fine-tunings of its folder."""

    result: TaskResult
    name: str
    files: _CellFiles

    def cells(self) -> list[FinetuningRun]:
        """Return the fine-tunings of the result: those with its chosen settings and scores."""
        result = self.result
        scores = dict(zip(result.seeds, result.scores.get(result.metric, [])))
        chosen = result.settings.get("epochs"), result.settings.get("learning_rate")
        found = [
            cell
            for cell in (read_json(file, FinetuningRun) for file in self.files[result.key])
            if (cell.epochs, cell.learning_rate) == chosen
            and cell.scores.get(result.metric) == scores.get(cell.seed, math.nan)
        ]
        if not found:
            # Not the full path: reports are shared.
            raise UserError(
                f"The results of the single fine-tunings are not in '{self.files.name}'.", "Evaluate the model again."
            )
        return found


class _CellFiles(defaultdict[tuple[str, ...], list[Path]]):
    """The files of a run folder's fine-tunings by protocol, task, name of the model and kind of the model."""

    def __init__(self, run: Path):
        super().__init__(list)
        folder = RunFolder(run).cells
        self.name = f"{folder.parent.name}/{folder.name}"
        for file in sorted(folder.glob("*/*/*/*.json")):
            with suppress(UserError, KeyError, TypeError):  # incomplete or old; the next evaluation writes it again
                cell = read_json(file)
                self[tuple(cell[name] for name in ("protocol", "task", "model_name", "model"))].append(file)


def _compared(runs: Sequence[RunRecords]) -> tuple[list[Comparison], list[str]]:
    """Return the comparisons of runs, and a sentence for each that is not possible."""
    found: list[Comparison] = []
    unpaired: dict[tuple[str, str], list[str]] = {}
    for a, b in _pairs(runs):
        result = a.result
        try:
            _check_same_training(result, b.result)
            one = compare(
                a.cells(),
                b.cells(),
                a.name,
                b.name,
                kind=result.kind,
                metric=result.metric,
                classes=len(result.labels),
            )
        except UserError as error:
            pair_and_reason = f"{b.name} against {a.name}", error.sentence
            unpaired.setdefault(pair_and_reason, []).append(f"{result.task} ({result.protocol})")
        else:
            found.append(one)
    return found, [
        f"{pair}, not compared on {', '.join(tasks)}: {reason}" for (pair, reason), tasks in unpaired.items()
    ]


def _check_same_training(a: TaskResult, b: TaskResult) -> None:
    if a.training_size != b.training_size:
        raise UserError(
            f"The two models were fine-tuned on different numbers of rows, {a.training_size} and {b.training_size}.",
            "Evaluate both on the same files.",
        )
    if a.labels != b.labels or not a.has_files_of(b):
        raise UserError("The two models were fine-tuned on other files.", "Evaluate both on the same files.")


def _pairs(runs: Sequence[RunRecords]) -> Iterator[tuple[_Side, _Side]]:
    if len(runs) == 1:
        pairs, files = pair_results(runs[0].results), _CellFiles(runs[0].path)
        for pair in pairs:
            if pair.untrained is not None and pair.pretrained is not None:
                of = f" {pair.model_name}" if several_models(pairs) else ""
                yield (
                    _Side(pair.untrained, f"untrained{of}", files),
                    _Side(pair.pretrained, f"pretrained{of}", files),
                )
        return
    first, *others = [list(_pretrained(run)) for run in runs]
    for other in others:
        for a in first:
            for b in other:
                if (a.result.protocol, a.result.task) == (b.result.protocol, b.result.task):
                    yield a, b


def _pretrained(run: RunRecords) -> Iterator[_Side]:
    several, files = several_models(pair_results(run.results)), _CellFiles(run.path)
    for result in run.results:
        if result.model == "pretrained":
            yield _Side(result, f"{run.label}, {result.model_name}" if several else run.label, files)
