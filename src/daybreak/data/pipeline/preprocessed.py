"""Prepare text sources under several preprocessings, with one tokenizer and the same held-out text, for studies.

The names follow Cramming (Geiping and Goldstein 2022, section 4.4), which compares raw, filtered, filtered and sorted,
and also deduplicated text: preprocessings are cumulative, in the order of the options. The held-out text is chosen
before any preprocessing, which applies to training text only.

WORK/NAME/survey  filter  near  assignments-PREPROCESSING  encoded-PREPROCESSING
DATA/NAME-PREPROCESSING      prepared data as of ``daybreak prepare``, without the corpus report
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, replace_folder, write_array, write_json
from daybreak.core.serialization import check_choice
from daybreak.core.terminal import say, working
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.filters.deduplication import DROPPED, HELDOUT, TRAIN
from daybreak.data.filters.filter import missing_extra
from daybreak.data.filters.near_duplicates import near_duplicates, write_signatures
from daybreak.data.pipeline import encoding, first_pass
from daybreak.data.pipeline.corpus import Corpus, bundle_files
from daybreak.data.pipeline.corpus_facts import quality_on
from daybreak.data.pipeline.first_pass import ROW, FirstPass, decide
from daybreak.data.pipeline.resuming import fill_once, identity_of, part_folder, refuse_changed
from daybreak.data.pipeline.tokenizer_quality import folding_warning, unknown_warning
from daybreak.data.pipeline.workers import map_parts
from daybreak.data.readers.documents import Skips, choose_rule
from daybreak.data.readers.inputs import ByteCounter, addresses, find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, load_tokenizer
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.schemas.run import Source
from daybreak.schemas.studies import PreprocessedText, StudySource

LEFT_OUT = "copies of held-out text, or left out by a preprocessing"
RAW, FILTERED, SORTED, DEDUPLICATED = "raw", "filtered", "sorted", "deduplicated"
PREPROCESSINGS = (RAW, FILTERED, SORTED, DEDUPLICATED)


def check_preprocessings(preprocessings: Sequence[str]) -> None:
    """Raise UserError if one is unknown or given twice, if raw is missing, or if a library is not installed."""
    for one in preprocessings:
        check_choice("--preprocessings", one, PREPROCESSINGS)
    if len(set(preprocessings)) < len(preprocessings) or len(preprocessings) < 2 or preprocessings[0] != RAW:
        raise UserError(
            "The preprocessings are compared with the raw text, and each adds to those before it.",
            "Write raw first and then others, such as --preprocessings raw,filtered.",
        )
    if DEDUPLICATED in preprocessings and not (find_spec("datatrove") and find_spec("xxhash")):
        raise missing_extra("Finding near duplicates", "datatrove with xxhash")


@dataclass(frozen=True, kw_only=True)
class Text:
    name: str
    corpus: Corpus
    identity: str
    """Fingerprint of the files and of the settings with which they are read."""


def find_text(
    name: str,
    inputs: Sequence[str],
    *,
    document: str,
    text_field: str,
    split_sentences: bool = False,
    chunk_characters: int = 0,
) -> Text:
    """Find the files of a source."""
    try:
        given = addresses(inputs)
        files = find_files(given)
        rule = choose_rule(files, document)
        parts = bundle_files(files, rule, together=True)
        corpus = Corpus(parts, rule, text_field, split_sentences, chunk_characters)
    except UserError as error:
        raise UserError(f"The source '{name}': {error.sentence}", error.remedy) from None
    settings = dict(document=document, text_field=text_field, split=split_sentences, chunk=chunk_characters)
    return Text(name=name, corpus=corpus, identity=identity_of(files, given, **settings))


def make_texts(
    texts: Sequence[Text],
    preprocessings: Sequence[str],
    config: TokenizerConfig,
    work: Path,
    data: Path,
    *,
    threshold: float,
    workers: int,
) -> tuple[list[StudySource], list[PreprocessedText]]:
    """Write the data folder of each source and preprocessing; SORTED shares the folder of the preprocessing before it.

    Args:
        config: the tokenizer, trained on the training text of all sources or imported.
        work: contains the files of an earlier, interrupted call.
        threshold: tokens per character above which FILTERED removes a document.
    """
    places = make_folder(work / "texts")  # a source may have any name, such as tokenizer
    readers = [SourceReader(text.name, text.corpus, places / text.name, workers) for text in texts]
    found = [reader.first_pass() for reader in readers]
    held = np.concatenate([held_keys(one) for one in found])
    with working("Making the tokenizer"):
        tokenizer = fill_once(
            work / "tokenizer", lambda to: config.make([text for one in found for text in one.sample], to)
        )
    made, imported = load_tokenizer(tokenizer), not isinstance(config, TrainedTokenizer)
    for text, one in zip(texts, found):
        quality = quality_on(one, made)
        warnings = [
            folding_warning(made, one.letters, one.sample, imported=imported),
            unknown_warning(quality, imported=imported) if quality else "",
        ]
        for warning in filter(None, warnings):
            say(f"Warning for the source '{text.name}': {warning}")
    step = Compressibility(tokenizer=str(tokenizer), threshold=threshold)
    prepared: list[PreprocessedText] = []
    for reader, one in zip(readers, found):
        whole = 0
        for place, preprocessing in enumerate(preprocessings):
            if preprocessing == SORTED:
                prepared.append(replace(prepared[-1], preprocessing=preprocessing))
                continue
            final = data / f"{reader.name}-{preprocessing}"
            if not (final / "manifest.json").exists():
                assignments = reader.assignments(one, preprocessings[: place + 1], step, held)
                reader.encode(one, assignments, tokenizer, config, final)
            train = open_shards(final).manifest.train
            whole = whole or train.tokens
            prepared.append(
                PreprocessedText(
                    source=reader.name,
                    preprocessing=preprocessing,
                    folder=final.name,
                    documents=train.documents,
                    tokens=train.tokens,
                    kept=train.tokens / whole,
                )
            )
            say(f"{reader.name}, {preprocessing}: {train.documents:,} documents, {train.tokens:,} training tokens.")
    sources = [
        StudySource(name=reader.name, documents=one.offsets[-1], heldout_documents=one.splits.heldout)
        for reader, one in zip(readers, found)
    ]
    return sources, prepared


@dataclass(frozen=True)
class SourceReader:
    """Reads one source, once for the first pass and again for each preprocessing."""

    name: str
    corpus: Corpus
    place: Path
    """Folder with the results so far."""
    workers: int

    def _map_parts(self, task: Callable[[int], int]) -> Iterable[int]:
        return map_parts(task, range(len(self.corpus.parts)), self.workers)

    def _scan(self, what: str, folder: Path, *filters: Compressibility) -> None:
        """Read all parts and store the decision of ``filters`` on each document."""
        job = first_pass.FirstPassJob(corpus=self.corpus, filters=filters)
        task = partial(first_pass.first_pass_part, job, folder, ByteCounter())
        with working(f"{what} {self.name}"):
            first_pass.keep_tidy(folder, self._map_parts(task))

    def first_pass(self) -> FirstPass:
        """Read the source without preprocessing; decides held-out documents and duplicates."""
        folder = make_folder(self.place) / "survey"
        try:
            self._scan("Reading", folder)
            return decide(folder, len(self.corpus.parts), least=2 if self.corpus.sentences else 1)
        except UserError as error:
            raise type(error)(f"The source '{self.name}': {error.sentence}", error.remedy) from None

    def assignments(self, found: FirstPass, until: Sequence[str], step: Compressibility, held: np.ndarray) -> Path:
        """Write uint8[documents], DROPPED, TRAIN or HELDOUT, under the preprocessings ``until``; return the file.

        Args:
            held: ``held_keys`` of all sources.
        """
        assignments = unprocessed(found, held)
        if FILTERED in until:
            folder = self.place / "filter"
            self._scan("Filtering", folder, step)
            refuse_changed(self.corpus.files)
            parts = [part_folder(folder, number) / "documents.bin" for number in range(len(self.corpus.parts))]
            reasons = np.concatenate([np.fromfile(part, ROW)["reason"] for part in parts])
            assignments[(reasons != 0) & (assignments == TRAIN)] = DROPPED
        if DEDUPLICATED in until:
            assignments[(np.asarray(found.splits.assignments) == DROPPED) & (assignments == TRAIN)] = DROPPED
            write_array(exact := self.place / "assignments-exact", assignments)
            with working(f"Looking for near duplicates in {self.name}"):
                task = partial(sign_part, self.corpus, exact, found.offsets, self.place / "near")
                deque(self._map_parts(task), maxlen=0)
                assignments[near_duplicates(self.place / "near").astype(np.int64)] = DROPPED
        if not (assignments == TRAIN).any():
            raise UserError(
                f"The source '{self.name}' has no text left when {until[-1]}.", "Leave that preprocessing out."
            )
        write_array(path := self.place / f"assignments-{until[-1]}", assignments)
        return path

    def encode(
        self, found: FirstPass, assignments: Path, tokenizer: Path, config: TokenizerConfig, final: Path
    ) -> None:
        """Write the data folder ``final`` atomically."""
        epochs = [1.0] * len(self.corpus.parts)
        job = encoding.EncodingJob.after(found, self.corpus, tokenizer, assignments=assignments, epochs=epochs)
        folder, new = self.place / f"encoded-{final.name}", self.place / f"data-{final.name}"
        with working(f"Encoding {final.name}"):
            deque(self._map_parts(partial(encoding.encode_part, job, folder, ByteCounter())), maxlen=0)
        manifest, _ = encoding.write_shards(
            job, folder, new, config,
            sources=[Source(path=self.name, documents=found.offsets[-1], characters=found.characters)],
            duplicates=0, skipped=found.skips.counts, characters=found.characters, seconds=0.0,
        )  # fmt: skip
        left_out = found.offsets[-1] - manifest.train.documents - manifest.heldout.documents
        write_json(new / "manifest.json", replace(manifest, skipped={**manifest.skipped, LEFT_OUT: left_out}))
        make_folder(final.parent)
        replace_folder(new, final)
        shutil.rmtree(folder, ignore_errors=True)


def held_keys(found: FirstPass) -> np.ndarray:
    """Return the keys of the held-out texts of a source."""
    held = [rows["key"][own == HELDOUT] for part in range(len(found.folders)) for rows, own in found.documents(part)]
    return np.concatenate(held)


def unprocessed(found: FirstPass, held: np.ndarray) -> np.ndarray:
    """Return uint8[documents]: duplicates of training text are kept, duplicates of held-out text are removed.

    Args:
        held: the keys of the held-out texts of all sources.
    """
    assignments = np.array(found.splits.assignments)
    start = 0
    for part in range(len(found.folders)):
        for rows, own in found.documents(part):
            foreign = np.isin(rows["key"], held)
            now = assignments[start : start + len(rows)]
            now[(own == DROPPED) & ~foreign] = TRAIN
            now[(own == TRAIN) & foreign] = DROPPED
            start += len(rows)
    return assignments


def sign_part(corpus: Corpus, assignments: Path, offsets: Sequence[int], folder: Path, number: int) -> int:
    """Write near-duplicate signatures for the training documents of one part; return the number of the part."""
    first, stop = offsets[number : number + 2]
    own = np.fromfile(assignments, np.uint8, stop - first, offset=first)
    documents = zip(range(first, stop), own, corpus.documents(number, Skips(), ByteCounter()))
    write_signatures(((place, one.text) for place, assignment, one in documents if assignment == TRAIN), folder, number)
    return number
