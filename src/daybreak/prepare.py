"""Verb: any text -> tokenizer + token shards.

Two passes over the text, neither of which keeps it: the first cleans, spots duplicates, decides what is held out and
samples text for the tokenizer; the second encodes. All is written to a folder beside ``out`` and renamed at the end.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import make_folder, read_json, replace_folder, write_json
from daybreak.base.plain import fingerprint
from daybreak.base.records import SHARD_FORMAT, Manifest, Source
from daybreak.base.terminal import Work, duration, say, working
from daybreak.data.deduplication import Ledger, Verdict, document_key
from daybreak.data.documents import Document, DocumentRule, Skips, choose_rule, cut_documents, read_documents
from daybreak.data.encoding import Encoder
from daybreak.data.inputs import DATA_SET, RECORDS, TEXT, InputFile, Meter, find_files
from daybreak.data.sample import SampleSpool, SampleTexts
from daybreak.data.sentences import with_sentences
from daybreak.data.shards import open_shards
from daybreak.data.tokenizer import (
    TokenizerConfig,
    load_tokenizer,
    overlap,
    special_ids,
    tokenizer_fingerprint,
)

SHOW_EVERY = 256
"""Documents between two updates of the progress line."""


@dataclass(frozen=True)
class _Reading:
    """What is read and how: the same in both passes."""

    files: list[InputFile]
    rule: DocumentRule
    text_field: str
    split_sentences: bool
    chunk_characters: int

    @property
    def sentences(self) -> bool:
        """Whether every document has its sentences."""
        told = self.rule.sentences and not self.chunk_characters and all(file.form == TEXT for file in self.files)
        return self.split_sentences or told

    @property
    def rule_name(self) -> str:
        forms = {file.form for file in self.files}
        record = ["record"] if forms & {RECORDS, DATA_SET} else []
        return " and ".join(record + ([self.rule.kind] if TEXT in forms else []))

    def _read(self, skips: Skips, meter: Meter) -> Iterator[Document]:
        found = read_documents(self.files, self.rule, self.text_field, skips, meter)
        if self.chunk_characters:
            found = cut_documents(found, self.chunk_characters, skips)
        return with_sentences(found) if self.split_sentences else found

    def documents(self, skips: Skips, work: Work) -> Iterator[Document]:
        meter, total, started = Meter(), max(1, sum(file.bytes for file in self.files)), time.monotonic()
        for number, document in enumerate(self._read(skips, meter)):
            if number % SHOW_EVERY == SHOW_EVERY - 1:
                share = min(1.0, meter.bytes / total)
                passed = time.monotonic() - started
                left = f", {duration(passed / share - passed)} left" if share > 0 and passed > 1 else ""
                work.show(share, f"{number + 1:,} documents{left}")
            yield document


@dataclass(frozen=True)
class _Survey:
    """What the first pass found."""

    verdict: Verdict
    sample: SampleTexts
    characters: int
    sources: list[Source]
    skips: Skips


def prepare(
    inputs: Sequence[str | Path],
    out: Path,
    *,
    tokenizer: TokenizerConfig,
    document: str = "auto",
    text_field: str = "text",
    split_sentences: bool = False,
    chunk_characters: int = 0,
    compare: str = "",
) -> Manifest:
    """Make the data folder ``out`` from text; one that was made from the same files and settings is kept.

    Args:
        inputs: files (.txt, .md, .jsonl; plain, .gz, .zst), folders, globs, or data sets
            (hf://owner/name[@revision][:config/split]).
        out: the data folder; absent, empty, or made by an earlier call with the same arguments.
        tokenizer: what to train on the text, or to take over.
        document: what one document of plain text is: auto, file, line or blank-line.
        text_field: the field of a record that holds its text.
        split_sentences: cut prose into sentences, so that their ends are recorded (see ``data/sentences``).
        chunk_characters: cut documents at spaces into documents of about this length; 0 leaves them whole.
        compare: a tokenizer folder; how many pieces the two vocabularies share is said and recorded.

    Raises:
        UserError: the inputs cannot be used, or ``out`` cannot be written or holds something else. Nothing is left.
    """
    started = time.monotonic()
    out = Path(out)
    files = find_files(inputs)
    if chunk_characters < 0:
        raise UserError(f"A chunk of {chunk_characters} characters holds no text.", "Give a number above 0.")
    rule = choose_rule(files, document)
    reading = _Reading(files, rule, text_field, split_sentences, chunk_characters)
    identity = _identity(reading, tokenizer, document, compare)
    if (manifest := _earlier(out, identity)) is not None:
        say(f"Data: {out} is ready ({_figures(manifest)}).")
        return manifest
    final = Path(os.path.abspath(out))  # "." has no name to put beside
    make_folder(final.parent)
    work_folder = final.with_name(f".{final.name}.preparing")
    shutil.rmtree(work_folder, ignore_errors=True)
    try:
        make_folder(work_folder)
        manifest = _make(reading, work_folder, tokenizer, identity, started, compare)
        replace_folder(work_folder, final)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk of '{out}' is full.", "Free some space, or choose another folder with --out."
        ) from None
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    say(f"Data: {_figures(manifest)}, {manifest.seconds:.1f} s.")
    return manifest


def _identity(reading: _Reading, tokenizer: TokenizerConfig, document: str, compare: str) -> str:
    return fingerprint(
        {
            "format": SHARD_FORMAT,
            "files": [
                [file.given if file.form == DATA_SET else str(file.path.resolve()), file.bytes, file.modified]
                + ([file.revision] if file.revision else [])
                for file in reading.files
            ],
            "tokenizer": tokenizer.identity(),
            "document": document,
            "text_field": reading.text_field,
            "split_sentences": reading.split_sentences,
            "chunk_characters": reading.chunk_characters,
            "compare": tokenizer_fingerprint(Path(compare)) if compare else "",
        }
    )


def _earlier(out: Path, identity: str) -> Manifest | None:
    """The manifest of a complete ``out`` of the same origin; None where there is nothing yet."""
    try:
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return None
        if not out.is_dir():
            raise UserError(f"'{out}' is a file, not a folder.", "Choose another folder with --out.")
        if not (out / "manifest.json").is_file():
            raise UserError(f"'{out}' holds something else than prepared data.", "Choose another folder with --out.")
    except PermissionError:
        raise UserError(f"'{out}' cannot be read: permission denied.", "Choose another folder with --out.") from None
    found = read_json(out / "manifest.json")
    if not isinstance(found, dict) or found.get("inputs_fingerprint") != identity:
        raise UserError(
            f"'{out}' was prepared from other text or with other settings.",
            "Choose another folder with --out, or delete it.",
        )
    return open_shards(out).manifest


def _figures(manifest: Manifest) -> str:
    documents = manifest.train.documents + manifest.heldout.documents
    return (
        f"{documents:,} documents, {manifest.heldout.documents:,} of them held out; "
        f"{manifest.duplicates:,} duplicates left out; {manifest.train.tokens:,} training tokens"
    )


def _make(
    reading: _Reading, folder: Path, config: TokenizerConfig, identity: str, started: float, compare: str
) -> Manifest:
    spool = folder / "spool"
    spool.mkdir()
    survey = _survey(reading, spool)
    _report(reading, survey)
    with working("Making the tokenizer"):
        tokenizer = config.make(survey.sample, folder / "tokenizer")
    shared = overlap(tokenizer, load_tokenizer(Path(compare))) if compare else None
    if shared is not None:
        say(f"Tokenizer: {shared:.1%} of its pieces are in '{compare}' too.")
    special = special_ids(tokenizer, folder / "tokenizer")
    encoder = Encoder(folder, tokenizer, special, sentences=reading.sentences)
    with working("Encoding") as work:
        encoder.run(reading.documents(Skips(), work), survey.verdict)
    shutil.rmtree(spool)
    manifest = Manifest(
        format=SHARD_FORMAT,
        tokenizer=tokenizer_fingerprint(folder / "tokenizer"),
        tokenizer_kind=type(config).__name__,
        vocabulary=encoder.vocabulary,
        token_bytes=encoder.token_bytes,
        document_rule=reading.rule_name,
        train=encoder.train.close(),
        heldout=encoder.heldout.close(),
        unigram_counts=encoder.write_counts(),
        sources=survey.sources,
        duplicates=survey.verdict.duplicates,
        skipped=dict(survey.skips.counts),
        characters=survey.characters,
        seconds=round(time.monotonic() - started, 3),
        inputs_fingerprint=identity,
        special=special,
        overlap=shared,
    )
    write_json(folder / "manifest.json", manifest)
    return manifest


def _survey(reading: _Reading, spool: Path) -> _Survey:
    """The first pass."""
    # Pairs of sentences need a second document to draw a random one from, also among the held-out ones.
    ledger = Ledger(spool / "keys", least=2 if reading.sentences else 1)
    sample, skips = SampleSpool(spool / "sample"), Skips()
    documents: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    with working("Reading") as work:
        for number, document in enumerate(reading.documents(skips, work)):
            key = document_key(document.text)
            ledger.add(key, len(document.text))
            sample.add(number, key, document.text)
            documents[document.source] += 1
            characters[document.source] += len(document.text)
    if ledger.documents == 0:
        raise UserError("The corpus is empty: no document holds any text.", "Give files with text in them.")
    verdict = ledger.decide()
    if verdict.train == 0:
        raise UserError(
            "The corpus is a single document, so that none can be held out to measure with.",
            "Give more text, or part it with --document line or --document blank-line.",
        )
    sources = [Source(path=path, documents=documents[path], characters=characters[path]) for path in documents]
    return _Survey(verdict, sample.texts(verdict), ledger.characters, sources, skips)


def _report(reading: _Reading, survey: _Survey) -> None:
    meaning = {
        "file": "one document a file",
        "line": "one document a line",
        "blank-line": "documents parted by blank lines",
        "record": "one document a record",
    }
    rules = " and ".join(meaning[name] for name in reading.rule_name.split(" and "))
    cut = f", in chunks of about {reading.chunk_characters:,} characters" if reading.chunk_characters else ""
    say(f"Text: {len(survey.verdict.fates):,} documents ({rules}{cut}), {survey.characters:,} characters.")
    for reason, count in survey.skips.counts.items():
        say(f"Left out: {count:,} {reason}, the first in {survey.skips.first[reason]}.")
