"""Command ``study-data``: compare sources of text and their preprocessing at equal training time.

This is the data experiment of Cramming (Geiping and Goldstein 2022, section 4.4) on your own text. A cell is a source
with a preprocessing and a seed; each model is evaluated on the held-out text of every source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, Suppress, arg

from daybreak.commands.options import DEFAULT_RECIPE, CommaSeparated, given_flags, keywords, listed, parse, value_of
from daybreak.commands.study import ComparisonOptions, StudyRunner, conclude, read_variant
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, replace_folder, write_json
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.pipeline.preprocessed import (
    FILTERED,
    PREPROCESSINGS,
    RAW,
    SORTED,
    check_preprocessings,
    find_text,
    make_texts,
)
from daybreak.data.pipeline.resuming import remove_finished, work_folder
from daybreak.data.pipeline.workers import workers_ended
from daybreak.data.sequences.sampler import PackedRows, StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.data.sequences.views import ViewRows
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.reporting.studies import data_study_text, data_variant
from daybreak.schemas.studies import DATA_STUDY_FILE, DataStudy, StudyCell, StudySettings
from daybreak.studies.cell_runner import StudyFolder, lock_study, slug

if TYPE_CHECKING:
    from daybreak.recipe import Recipe
    from daybreak.studies.experiment import Variant

BESIDE_THE_RECIPE = ("--fill-memory", "--price", "--track")
"""Options of ``pretrain`` that are no part of a recipe."""


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
    document: str = ""
    """What one document of a text file is: file, line, blank-line or auto. Defaults to the recipe's."""
    text_field: str = "text"
    """Field of a record, or column of a table, that contains the text."""
    chunk_characters: int = 0
    """Split documents at spaces into chunks of about this many characters. Defaults to the recipe's, else 0: whole."""
    workers: int = 0
    """Processes that read text in parallel; 0 for one per core. The result does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class StudyDataOptions(ComparisonOptions):
    texts: Annotated[Positional[tuple[str, ...]], arg(metavar="TEXT [TEXT ...]")]
    """NAME=TEXT: the name of a source and a file, folder or glob of its text. Repeat a name to add text to it."""
    recipe: str = DEFAULT_RECIPE
    """Recipe to train, in quotes with options of daybreak pretrain: "tiny --batch 8"."""
    tokenizer_from: str = ""
    """Use the tokenizer of this folder (a model, prepared text or a run) instead of training one on all sources."""
    preparation: Annotated[Preparation, arg(name="")] = Preparation()


def main(arguments: Sequence[str]) -> None:
    options = parse(StudyDataOptions, "study-data", arguments)
    texts = _named_texts(options.texts)
    trained = read_variant(options.recipe, Path("data"))
    if ignored := sorted(given_flags(trained.words) & set(BESIDE_THE_RECIPE)):
        raise UserError(f"{ignored[0]} is no part of a recipe, and study-data would ignore it.", "Leave it out.")
    code = value_of("--recipe", trained.words) or (trained.words[0] if trained.words[0].endswith(".py") else "")
    preparation = options.preparation
    if options.tokenizer_from:
        from daybreak.exporting.hub import local_folder

        preparation = replace(preparation, tokenizer=Existing(folder=str(local_folder(options.tokenizer_from))))
    study_data(texts, recipe=trained.recipe, code=code, preparation=preparation, **keywords(options, ComparisonOptions))


def _named_texts(texts: Sequence[str]) -> dict[str, list[str]]:
    """Group ``wiki=a.txt wiki=b.txt books=books/`` by name."""
    found: dict[str, list[str]] = {}
    for word in texts:
        name, mark, text = word.partition("=")
        if not mark or not name or not text:
            raise UserError(f"'{word}' is not NAME=TEXT.", "Give every text a name, as in wiki=wiki.jsonl.")
        found.setdefault(name, []).append(text)
    return found


def study_data(
    texts: Mapping[str, Sequence[Path | str] | Path | str],
    *,
    recipe: Recipe,
    out: Path | str,
    budget: str,
    preparation: Preparation = Preparation(),
    seeds: int = 2,
    threads: int = 0,
    repeat_void: bool = False,
    question: str = "",
    code: str = "",
) -> DataStudy:
    """Pretrain ``recipe`` on every source with every preprocessing and compare on the same held-out text.

    The held-out documents of a source are set aside before any preprocessing. All cells share one tokenizer. If one
    preprocessing sorts sequences, the others pack them in the same way (``PackedRows``) and shuffle them, so that only
    the order differs. The same call resumes.

    The keywords are the options of ``daybreak study-data``.

    Args:
        texts: name of a source -> its files, folders or globs, see ``prepare``.
        recipe: the recipe of every cell.
        out: folder for study-data.json, study-data.md, report.html, data/ and cells/.
        code: the Python file that defines the recipe's classes, if it uses your own.

    Raises:
        UserError: a text, the recipe, a preprocessing, the budget or ``out`` cannot be used.
        Interrupted: a signal was received; the same call resumes.
    """
    from daybreak.studies.experiment import cells_of, checked_recipe, heldout_sets, study_settings
    from daybreak.studies.paired_losses import compare_all

    out, named = Path(out), {name: [str(text) for text in listed(given)] for name, given in texts.items()}
    _check_preparation(preparation)
    _check_names(named)
    variants = _variants(named, recipe, preparation, code)
    settings = study_settings(variants, budget, seeds, threads)
    with lock_study(out, DATA_STUDY_FILE) as lock:
        started = _prepared(named, recipe, out, preparation, settings, question, seeds)
        data = {data_variant(text.source, text.preprocessing): out / "data" / text.folder for text in started.texts}
        for one in variants:
            heldout_sets([one], data[one.name])
        with_losses = _evaluator(started, {one.name: checked_recipe(one, budget) for one in variants}, out)

        def with_cells(cells: Sequence[StudyCell]) -> DataStudy:
            """Return the study with these cells; every preprocessing is compared with the raw text of its source."""
            compared = []
            for name in named:
                names = [data_variant(name, one) for one in started.preprocessings]
                pairs = compare_all(cells, names, Budget.parse(budget).unit)
                compared += [pair for pair in pairs if pair.a == data_variant(name, RAW)]
            return replace(started, cells=list(map(with_losses, cells)), comparisons=compared)

        place = StudyFolder(out=out, budget=budget, threads=settings.threads)
        runner = StudyRunner(file=DATA_STUDY_FILE, place=place, lock=lock, with_cells=with_cells, text=data_study_text)
        cells = cells_of(variants, place, seeds, lambda one: data[one.name])
        ended: DataStudy = runner.play(cells, repeat_void=repeat_void)
    conclude(out, ended.cells, data_study_text(ended), ended)
    return ended


def _check_preparation(preparation: Preparation) -> None:
    """Refuse settings that cannot be used, before any text is read."""
    check_preprocessings(preparation.preprocessings)
    Compressibility(threshold=preparation.threshold)
    if SORTED not in preparation.preprocessings and preparation.order != Preparation().order:
        raise UserError(
            f"No preprocessing reads the sequences in the order '{preparation.order}'.",
            "Add sorted to --preprocessings, or leave --order out.",
        )
    if FILTERED not in preparation.preprocessings and preparation.threshold != Preparation().threshold:
        raise UserError(
            "No preprocessing filters with a threshold.", "Add filtered to --preprocessings, or leave --threshold out."
        )


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
    from daybreak.studies.experiment import refuse_others, say_fewer_seeds

    found = [
        find_text(
            name,
            inputs,
            document=preparation.document or recipe.texts.document,
            text_field=preparation.text_field,
            split_sentences=recipe.texts.split_sentences,
            chunk_characters=preparation.chunk_characters or recipe.texts.chunk_characters,
        )
        for name, inputs in texts.items()
    ]
    config = preparation.tokenizer or recipe.tokenizer
    config.check()
    how = [preparation.preprocessings, preparation.threshold, config.identity()]
    identity = fingerprint([[text.name, text.identity] for text in found] + how)
    if (out / DATA_STUDY_FILE).exists():
        earlier: DataStudy = read_json(out / DATA_STUDY_FILE, DataStudy)
        if earlier.identity != identity:
            raise UserError(
                f"The study in '{out}' was started on other text, or with other preprocessings or another tokenizer.",
                "Give the command that started it, or another --out.",
            )
        refuse_others(out, earlier.settings, settings)
        say_fewer_seeds(earlier.seeds, seeds)
        remove_finished(out / ".preparing")
        return replace(earlier, seeds=seeds, question=question or earlier.question)
    data = out / "data"
    made_for = data / "identity.json"
    if data.exists() and not made_for.exists() and any(not path.name.startswith(".") for path in data.iterdir()):
        raise UserError(f"'{data}' contains other files, but a study needs its own folder.", "Choose another --out.")
    with work_folder(out / ".preparing", identity) as work, workers_ended():
        new = make_folder(work / "data")
        sources, treated = make_texts(
            found,
            preparation.preprocessings,
            config,
            work / "sources",
            new,
            threshold=preparation.threshold,
            workers=preparation.workers or usable_cores(),
        )
        write_json(new / made_for.name, identity)
        replace_folder(new, data)
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


def _evaluator(study: DataStudy, recipes: Mapping[str, Recipe], out: Path) -> Callable[[StudyCell], StudyCell]:
    """Return a function that adds the losses on the held-out text of every source to a cell, evaluated once."""
    from daybreak.models.importing import load_pretrained
    from daybreak.pretraining.setup import heldout_validation
    from daybreak.training.hardware import probe

    # The held-out split of a source is the same under every preprocessing.
    data = {text.source: out / "data" / text.folder for text in reversed(study.texts)}
    # A cell that was deleted and trained again has another loss; its time may be the same.
    known = {(cell.folder, cell.loss, cell.elapsed): cell.others for cell in study.cells}

    def with_losses(cell: StudyCell) -> StudyCell:
        key = cell.folder, cell.loss, cell.elapsed
        if key not in known:
            device, recipe = probe.choose_device(), recipes[cell.variant]
            model = load_pretrained(RunFolder(out / cell.folder).model).model.to(device)
            known[key] = {
                source: heldout_validation(recipe, open_shards(folder), folder, device).evaluate(model).loss
                for source, folder in data.items()
            }
        return replace(cell, others=known[key])

    return with_losses
