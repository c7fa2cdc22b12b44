"""Verb: texts x what is done with them, at equal clock: what a filter, an order or deduplication is worth.

The data experiment of Cramming (Geiping and Goldstein 2022, section 4.4) on one's own text. A cell is a source under a
preprocessing, with a seed; each model is judged on the held-out text of every source.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daybreak.commands.report import report
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, replace_folder, write_json, write_text
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import say
from daybreak.data.pipeline.preprocessed import find_text, make_texts
from daybreak.data.pipeline.resuming import work_folder
from daybreak.data.pipeline.split_assignment import RAW, SORTED, TREATMENTS, check_preprocessings
from daybreak.data.pipeline.workers import released
from daybreak.data.sequences.sampler import PackedRows, StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.data.sequences.views import ViewRows
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.models.importing import FAMILIES, load_pretrained
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import Recipe
from daybreak.reporting.study_log import check_log, put_on_top
from daybreak.reporting.study_table import data_log_entry, data_study_text, data_variant
from daybreak.schemas.studies import DATA_STUDY_FILE, DataStudy, LossComparison, StudyCell, StudySettings
from daybreak.studies.cell_runner import StudyFolder, held, slug
from daybreak.studies.experiment import Variant, agreed, cells_of, forecast, heldout_sets, play, refuse_others, settled
from daybreak.studies.paired_losses import compare
from daybreak.training.clock import Budget
from daybreak.training.hardware import probe

__all__ = ["Preparation", "study_data"]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How the texts are read and treated, beside what the recipe says of them."""

    preprocessings: tuple[str, ...] = TREATMENTS
    """raw first, then filtered, sorted, deduplicated or some of them; each stands on those before it."""
    order: str = "full-stops"
    """Of the rows where they are sorted: an order of ``PackedRows``."""
    threshold: float = 0.25
    """Of the filter: documents with so many tokens a character or more are left out; Cramming's value."""
    tokenizer: TokenizerConfig | None = None
    """In the recipe's place; trained on the training text of all sources, or taken over."""
    document: str = "auto"
    """What one document of plain text is: auto, file, line or blank-line."""
    text_field: str = "text"
    """The field of a record, or the column of a table, that holds its text."""
    workers: int = 0
    """Processes that read side by side; 0 for as many as there are cores."""


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
    """Pretrain ``recipe`` on every source under every preprocessing, in turns; compare on the same held-out text.

    The held-out documents of a source are set aside before any preprocessing. All share one tokenizer. Where rows are
    sorted, the others are cut in the same way (``PackedRows``) and shuffled, so that only the order differs. The same
    call again keeps what is done.

    Args:
        texts: name of a source -> its files, folders or globs, see ``prepare``.
        recipe: what is trained in every cell.
        out: folder for study-data.json, study-data.md, report.html, data/ and cells/.
        budget, seeds, threads, repeat_void, question, log: see ``study.study``.
        code: of a recipe that holds classes of the user's, the Python file that defines them.

    Raises:
        UserError: a text, the recipe, a preprocessing, the budget or ``out`` cannot be used.
        Interrupted: a signal came; the same call goes on.
    """
    check_preprocessings(preparation.preprocessings)
    check_log(log)
    _check_names(texts)
    variants = _variants(texts, recipe, preparation, code)
    settings = settled(variants, budget, seeds, threads)
    with held(out) as lock:
        begun = _prepared(texts, recipe, out, preparation, settings, question, seeds)
        data = {data_variant(text.source, text.preprocessing): out / "data" / text.folder for text in begun.texts}
        for one in variants:
            heldout_sets([one], data[one.name])
        place = StudyFolder(out=out, budget=budget, threads=settings.threads)
        cells = cells_of(variants, place, seeds, lambda one: data[one.name])
        forecast(cells, place)
        evaluate = _Judge(begun, {one.name: agreed(one, budget) for one in variants}, out)

        def written(done: Sequence[StudyCell], finished: bool = False) -> DataStudy:
            judged = [evaluate.everywhere(cell) for cell in done]
            now = replace(begun, cells=judged, comparisons=_against_raw(begun, judged, budget), finished=finished)
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
        raise UserError("No text was named.", "Write each as NAME=TEXT: daybreak study-data wiki=wiki/ --out OUT.")
    for name in texts:
        if slug(name) != name:
            raise UserError(f"'{name}' cannot be the name of a source.", "Use letters, digits, dots and dashes.")


def _variants(
    texts: Mapping[str, Sequence[str]], recipe: Recipe, preparation: Preparation, code: str = ""
) -> list[Variant]:
    """Each source under each preprocessing; rows are cut in one way in all of them."""
    preprocessings = preparation.preprocessings
    if recipe.model.to_hugging_face(1, 1).get("model_type") not in FAMILIES:
        raise UserError(
            f"The model {type(recipe.model).__name__}, once exported, cannot be read back to be judged on every text.",
            "Compare the texts with a model that ships.",
        )
    ordered = PackedRows(order=preparation.order)
    if ordered.order == PackedRows().order:
        raise UserError(f"Rows in the order '{ordered.order}' are not sorted.", "Give another --order.")
    if SORTED in preprocessings and not isinstance(recipe.rows, StreamRows | PackedRows | ViewRows):
        raise UserError(
            f"Rows of the kind {type(recipe.rows).__name__} cannot be sorted.", "Leave sorted out of --treatments."
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
    """The study before its first cell; what was prepared earlier from the same texts is kept."""
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
        before: DataStudy = read_json(out / DATA_STUDY_FILE, DataStudy)
        if before.identity != identity:
            raise UserError(f"The study in '{out}' was begun on other text.", "Name its own, or choose another --out.")
        refuse_others(out, before.settings, settings)
        return replace(before, seeds=seeds, question=question or before.question)
    data = _place_for(identity, out / "data")
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


def _place_for(identity: str, data: Path) -> Path:
    """The folder of the prepared data, without what a try with other text or settings left in it.

    Raises:
        UserError: it holds what no study put there.
    """
    made_for = make_folder(data) / "identity.json"
    if not made_for.exists():
        if any(not path.name.startswith(".") for path in data.iterdir()):
            raise UserError(
                f"'{data}' holds other files, and a study needs a folder of its own.", "Choose another --out."
            )
        write_json(made_for, identity)
    elif read_json(made_for) != identity:
        new = make_folder(data.with_name(f".{data.name}.new"))
        write_json(new / made_for.name, identity)
        replace_folder(new, data)  # in one step: what a kill left without its name would look like another's
    return data


def _against_raw(study: DataStudy, cells: Sequence[StudyCell], budget: str) -> list[LossComparison]:
    """Of each source every preprocessing against the raw text, on the source's own held-out text."""
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


class _Judge:
    """Judges the models of finished cells on the held-out text of every source, each once."""

    def __init__(self, study: DataStudy, recipes: Mapping[str, Recipe], out: Path):
        self._recipes, self._out = recipes, out
        # The held-out split of a source is the same under every preprocessing.
        self._data = {text.source: out / "data" / text.folder for text in reversed(study.texts)}
        self._known = {cell.folder: cell.others for cell in study.cells}

    def everywhere(self, cell: StudyCell) -> StudyCell:
        """The cell with its losses by source."""
        if cell.folder not in self._known:
            device = probe.choose_device()
            model = load_pretrained(RunFolder(self._out / cell.folder).model).model.to(device)
            recipe = self._recipes[cell.variant]
            self._known[cell.folder] = {
                source: heldout_validation(recipe, open_shards(data), data, device).evaluate(model).loss
                for source, data in self._data.items()
            }
        return replace(cell, others=self._known[cell.folder])
