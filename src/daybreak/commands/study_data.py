"""Command ``study-data``: compare sources of text and their preprocessing at equal training time.

This is the data experiment of Cramming (Geiping and Goldstein 2022, section 4.4) on your own text. A cell is a source
with a preprocessing and a seed; each model is evaluated on the held-out text of every source.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, Suppress, arg

from daybreak.commands.options import DEFAULT_RECIPE, CommaSeparated, keywords, parse, value_of
from daybreak.commands.report import report
from daybreak.commands.study import ComparisonOptions, read_variant
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, replace_folder, write_json, write_text
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import say
from daybreak.data.pipeline.preprocessed import find_text, make_texts
from daybreak.data.pipeline.resuming import work_folder
from daybreak.data.pipeline.split_assignment import PREPROCESSINGS, RAW, SORTED, check_preprocessings
from daybreak.data.pipeline.workers import released
from daybreak.data.sequences.sampler import PackedRows, StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.data.sequences.views import ViewRows
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.reporting.studies import check_log, data_log_entry, data_study_text, data_variant, put_on_top
from daybreak.schemas.studies import DATA_STUDY_FILE, DataStudy, LossComparison, StudyCell, StudySettings
from daybreak.studies.cell_runner import StudyFolder, held, slug

if TYPE_CHECKING:
    from daybreak.recipe import Recipe
    from daybreak.studies.experiment import Variant


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How the texts are read and preprocessed, besides the settings of the recipe."""

    preprocessings: CommaSeparated = PREPROCESSINGS
    """raw, then the preprocessings to compare with it: filtered, sorted, deduplicated. Each includes those before
    it."""
    order: str = "full-stops"
    """Order of the sequences in the preprocessing sorted: full-stops, prevalence or stream."""
    threshold: float = 0.25
    """Tokens per character from which the filter removes a document; the default is Cramming's."""
    tokenizer: Suppress[TokenizerConfig | None] = None
    """Tokenizer to train on all sources, or an existing one, instead of the recipe's."""
    document: str = "auto"
    """What one document of a text file is: file, line, blank-line or auto."""
    text_field: str = "text"
    """Field of a record, or column of a table, that contains the text."""
    workers: int = 0
    """Processes that read text in parallel; 0 for one per core. The result does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class StudyDataOptions(ComparisonOptions):
    texts: Positional[tuple[str, ...]]
    """NAME=TEXT: a source and a file, folder or glob of it. Repeat a name to add text to it."""
    recipe: str = DEFAULT_RECIPE
    """Recipe to train, in quotes with options of daybreak pretrain: "tiny --batch 8"."""
    tokenizer_from: str = ""
    """Use the tokenizer of this folder (a model, prepared text or a run) instead of training one on all sources."""
    preparation: Annotated[Preparation, arg(name="")] = Preparation()


def main(arguments: Sequence[str]) -> None:
    options = parse(StudyDataOptions, "study-data", arguments)
    texts = _named_texts(options.texts)
    trained = read_variant(options.recipe, Path("data"))
    code = value_of("--recipe", trained.words) or (trained.words[0] if trained.words[0].endswith(".py") else "")
    preparation = options.preparation
    if options.tokenizer_from:
        from daybreak.exporting.hub import local_folder

        preparation = replace(preparation, tokenizer=Existing(folder=str(local_folder(options.tokenizer_from))))
    study_data(texts, recipe=trained.recipe, code=code, preparation=preparation, **keywords(options, ComparisonOptions))


def _named_texts(texts: Sequence[str]) -> dict[str, list[str]]:
    """Group ``wiki=a.txt wiki=b.txt books=books/`` by name.

    Raises:
        UserError: a text has no name.
    """
    found: dict[str, list[str]] = {}
    for word in texts:
        name, mark, text = word.partition("=")
        if not mark or not name or not text:
            raise UserError(f"'{word}' is not NAME=TEXT.", "Give every text a name, as in wiki=wiki.jsonl.")
        found.setdefault(name, []).append(text)
    return found


def study_data(
    texts: Mapping[str, Sequence[str]],
    *,
    recipe: Recipe,
    out: Path,
    budget: str,
    preparation: Preparation = Preparation(),
    seeds: int = 2,
    threads: int = 0,
    repeat_void: bool = False,
    question: str = "",
    log: Path | None = None,
    code: str = "",
) -> DataStudy:
    """Pretrain ``recipe`` on every source with every preprocessing and compare on the same held-out text.

    The held-out documents of a source are set aside before any preprocessing. All cells share one tokenizer. If one
    preprocessing sorts sequences, the others pack them in the same way (``PackedRows``) and shuffle them, so that only
    the order differs. The same call resumes.

    Args:
        texts: name of a source -> its files, folders or globs, see ``prepare``.
        recipe: the recipe of every cell.
        out: folder for study-data.json, study-data.md, report.html, data/ and cells/.
        budget, seeds, threads, repeat_void, question, log: see ``study.study``.
        preparation: how the texts are read and preprocessed.
        code: the Python file that defines the recipe's classes, if it uses your own.

    Raises:
        UserError: a text, the recipe, a preprocessing, the budget or ``out`` cannot be used.
        Interrupted: a signal was received; the same call resumes.
    """
    from daybreak.studies.experiment import agreed, cells_of, forecast, heldout_sets, play, settled

    check_preprocessings(preparation.preprocessings)
    check_log(log)
    _check_names(texts)
    variants = _variants(texts, recipe, preparation, code)
    settings = settled(variants, budget, seeds, threads)
    with held(out) as lock:
        started = _prepared(texts, recipe, out, preparation, settings, question, seeds)
        data = {data_variant(text.source, text.preprocessing): out / "data" / text.folder for text in started.texts}
        for one in variants:
            heldout_sets([one], data[one.name])
        place = StudyFolder(out=out, budget=budget, threads=settings.threads)
        cells = cells_of(variants, place, seeds, lambda one: data[one.name])
        forecast(cells, place)
        evaluator = _Evaluator(started, {one.name: agreed(one, budget) for one in variants}, out)

        def written(done: Sequence[StudyCell], finished: bool = False) -> DataStudy:
            evaluated = [evaluator.with_losses(cell) for cell in done]
            now = replace(
                started, cells=evaluated, comparisons=_against_raw(started, evaluated, budget), finished=finished
            )
            write_json(out / DATA_STUDY_FILE, now)
            write_text(out / "study-data.md", data_study_text(now) + "\n")
            return now

        ended = written(play(cells, place, lock, repeat_void=repeat_void, done=written), finished=True)
    say(f"\n{data_study_text(ended)}")
    page = report([out / cell.folder for cell in ended.cells], out / "report.html")
    if log is not None:
        put_on_top(log, data_log_entry(ended, datetime.date.today().isoformat()))
    say(f"\nReport  {page}")
    return ended


def _check_names(texts: Mapping[str, Sequence[str]]) -> None:
    if not texts:
        raise UserError("No text is given.", "Write each as NAME=TEXT: daybreak study-data wiki=wiki/ --out OUT.")
    for name in texts:
        if slug(name) != name:
            raise UserError(f"'{name}' is not a valid name of a source.", "Use letters, digits, dots and dashes.")


def _variants(
    texts: Mapping[str, Sequence[str]], recipe: Recipe, preparation: Preparation, code: str = ""
) -> list[Variant]:
    """Return a variant for each source and preprocessing; all pack sequences in the same way."""
    from daybreak.models.importing import FAMILIES
    from daybreak.studies.experiment import Variant

    preprocessings = preparation.preprocessings
    if recipe.model.to_hugging_face(1, 1).get("model_type") not in FAMILIES:
        raise UserError(
            f"An exported {type(recipe.model).__name__} cannot be loaded again for the evaluation on every text.",
            "Use a recipe with one of Daybreak's models.",
        )
    ordered = PackedRows(order=preparation.order)
    if ordered.order == PackedRows().order:
        raise UserError(f"The order '{ordered.order}' does not sort the sequences.", "Choose another --order.")
    if SORTED in preprocessings and not isinstance(recipe.rows, StreamRows | PackedRows | ViewRows):
        raise UserError(
            f"Sequences of the type {type(recipe.rows).__name__} cannot be sorted.",
            "Leave sorted out of --preprocessings.",
        )
    found = []
    for source in texts:
        for place, preprocessing in enumerate(preprocessings):
            rows = recipe.rows
            if SORTED in preprocessings:
                rows = ordered if SORTED in preprocessings[: place + 1] else PackedRows()
            name = data_variant(source, preprocessing)
            found.append(Variant(name=name, recipe=replace(recipe, rows=rows), code=code))
    return found


def _prepared(
    texts: Mapping[str, Sequence[str]],
    recipe: Recipe,
    out: Path,
    preparation: Preparation,
    settings: StudySettings,
    question: str,
    seeds: int,
) -> DataStudy:
    """Prepare the texts and return the study before its first cell; data prepared from the same texts are kept."""
    from daybreak.studies.experiment import refuse_others

    found = [
        find_text(
            name,
            inputs,
            document=preparation.document,
            text_field=preparation.text_field,
            split_sentences=recipe.texts.split_sentences,
            chunk_characters=recipe.texts.chunk_characters,
        )
        for name, inputs in texts.items()
    ]
    config = preparation.tokenizer or recipe.tokenizer
    how = [preparation.preprocessings, preparation.threshold, config.identity()]
    identity = fingerprint([[text.name, text.identity] for text in found] + how)
    if (out / DATA_STUDY_FILE).exists():
        earlier: DataStudy = read_json(out / DATA_STUDY_FILE, DataStudy)
        if earlier.identity != identity:
            raise UserError(f"The study in '{out}' was started on other text.", "Give its texts, or another --out.")
        refuse_others(out, earlier.settings, settings)
        return replace(earlier, seeds=seeds, question=question or earlier.question)
    data = _data_folder(identity, out / "data")
    with work_folder(out / ".preparing", identity) as work, released():
        sources, treated = make_texts(
            found,
            preparation.preprocessings,
            config,
            work,
            data,
            threshold=preparation.threshold,
            workers=preparation.workers or usable_cores(),
        )
    study = DataStudy(
        question=question or f"{', '.join(texts)} x {', '.join(preparation.preprocessings)}, {settings.budget} each",
        settings=settings,
        preprocessings=list(preparation.preprocessings),
        order=preparation.order if SORTED in preparation.preprocessings else "",
        sources=sources,
        tokenizer=open_shards(out / "data" / treated[0].folder).manifest.tokenizer,
        identity=identity,
        seeds=seeds,
        finished=False,
        texts=treated,
        cells=[],
        comparisons=[],
    )
    write_json(out / DATA_STUDY_FILE, study)
    return study


def _data_folder(identity: str, data: Path) -> Path:
    """Return the folder for prepared data, cleared if it was made from other text or settings.

    Raises:
        UserError: it contains files that are not from a study.
    """
    made_for = make_folder(data) / "identity.json"
    if not made_for.exists():
        if any(not path.name.startswith(".") for path in data.iterdir()):
            raise UserError(
                f"'{data}' contains other files, but a study needs its own folder.", "Choose another --out."
            )
        write_json(made_for, identity)
    elif read_json(made_for) != identity:
        new = make_folder(data.with_name(f".{data.name}.new"))
        write_json(new / made_for.name, identity)
        replace_folder(new, data)  # atomic, so that an interruption leaves no folder without its identity
    return data


def _against_raw(study: DataStudy, cells: Sequence[StudyCell], budget: str) -> list[LossComparison]:
    """Compare every preprocessing of each source with its raw text, on the source's held-out text."""
    from daybreak.studies.paired_losses import compare

    found = []
    for source in study.sources:
        raw = {cell.seed: cell for cell in cells if cell.variant == data_variant(source.name, RAW)}
        for preprocessing in study.preprocessings[1:]:
            name = data_variant(source.name, preprocessing)
            other = {cell.seed: cell for cell in cells if cell.variant == name}
            seeds = sorted(raw.keys() & other.keys())
            if seeds:
                a, b = ([side[seed] for seed in seeds] for side in (raw, other))
                found.append(compare(a, b, Budget.parse(budget).unit))
    return found


class _Evaluator:
    """Evaluates the models of finished cells on the held-out text of every source, each once."""

    def __init__(self, study: DataStudy, recipes: Mapping[str, Recipe], out: Path):
        self._recipes, self._out = recipes, out
        # The held-out split of a source is the same under every preprocessing.
        self._data = {text.source: out / "data" / text.folder for text in reversed(study.texts)}
        self._known = {cell.folder: cell.others for cell in study.cells}

    def with_losses(self, cell: StudyCell) -> StudyCell:
        """Return the cell with its held-out losses by source."""
        from daybreak.models.importing import load_pretrained
        from daybreak.pretraining.setup import heldout_validation
        from daybreak.training.hardware import probe

        if cell.folder not in self._known:
            device = probe.choose_device()
            model = load_pretrained(RunFolder(self._out / cell.folder).model).model.to(device)
            recipe = self._recipes[cell.variant]
            self._known[cell.folder] = {
                source: heldout_validation(recipe, open_shards(data), data, device).evaluate(model).loss
                for source, data in self._data.items()
            }
        return replace(cell, others=self._known[cell.folder])
