"""Prepare text sources under several preprocessings, with one tokenizer and the same held-out text.

WORK/NAME/survey  filter  near  assignments-PREPROCESSING  encoded-PREPROCESSING
DATA/NAME-PREPROCESSING      prepared data as of ``daybreak prepare``, without the corpus report
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, replace_folder, write_json
from daybreak.core.special_tokens import special_ids
from daybreak.core.terminal import say, working
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.pipeline import encoding
from daybreak.data.pipeline.corpus import Corpus, bundled
from daybreak.data.pipeline.first_pass import FirstPass
from daybreak.data.pipeline.resuming import identity_of, made_once
from daybreak.data.pipeline.split_assignment import SORTED, SourceReader, assignments_under, held_keys, run_first_pass
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import ByteCounter, find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, load_tokenizer, tokenizer_fingerprint, vocabulary_size
from daybreak.schemas.run import SHARD_FORMAT, Manifest, Source
from daybreak.schemas.studies import PreprocessedText, StudySource

LEFT_OUT = "copies of held-out text, or left out by a preprocessing"


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text source."""

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
    """Find the files of a source.

    Raises:
        UserError: see ``find_files`` and ``choose_rule``; the message names the source.
    """
    try:
        files = find_files(inputs)
        rule = choose_rule(files, document)
        corpus = Corpus(
            parts=bundled(files, rule, together=True),
            rule=rule,
            text_field=text_field,
            split_sentences=split_sentences,
            chunk_characters=chunk_characters,
        )
        if corpus.is_tokens:
            raise UserError("It contains token ids, but preprocessings need text.", "Give the text itself.")
    except UserError as error:
        raise UserError(f"The source '{name}': {error.sentence}", error.remedy) from None
    given = [str(one) for one in inputs]
    settings = dict(document=document, text_field=text_field, split=split_sentences, chunk=chunk_characters)
    return Text(name=name, corpus=corpus, identity=identity_of(files, given, **settings))


class _Samples(Iterable[str]):
    """The samples of all sources in order; can be iterated several times."""

    def __init__(self, samples: Sequence[Iterable[str]]):
        self._samples = samples

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._samples)


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

    Raises:
        UserError: a source cannot be read, or a preprocessing removes all of it.
    """
    readers = [SourceReader(text.name, text.corpus, work / text.name, workers) for text in texts]
    found = [run_first_pass(reader) for reader in readers]
    held = np.concatenate([held_keys(one) for one in found])
    samples = _Samples([one.sample for one in found])
    with working("Making the tokenizer"):
        tokenizer = made_once(work / "tokenizer", lambda to: config.make(samples, to))
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
                assignments = assignments_under(reader, one, preprocessings[: place + 1], step, held)
                _encode(reader, one, assignments, tokenizer, config, final)
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
        StudySource(name=text.name, documents=one.offsets[-1], heldout_documents=one.splits.heldout)
        for text, one in zip(texts, found)
    ]
    return sources, prepared


def _encode(
    reader: SourceReader, found: FirstPass, assignments: Path, tokenizer: Path, config: TokenizerConfig, final: Path
) -> None:
    """Write the data folder ``final`` atomically."""
    corpus, parts = reader.corpus, len(reader.corpus.parts)
    made = load_tokenizer(tokenizer)
    special, vocabulary = special_ids(made, tokenizer), vocabulary_size(made)
    job = encoding.EncodingJob(
        corpus=corpus,
        tokenizer=tokenizer,
        special=special,
        assignments=assignments,
        offsets=found.offsets,
        epochs=(1.0,) * parts,
        fast=found.characters >= encoding.FAST_CHARACTERS,
    )
    folder, new = reader.place / f"encoded-{final.name}", reader.place / f"data-{final.name}"
    with working(f"Encoding {final.name}"):
        deque(reader.over(partial(encoding.encode_part, job, folder, ByteCounter())), maxlen=0)
    reader.refuse_changed()
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(tokenizer, new / "tokenizer")
    train, heldout, counts, _ = encoding.join(folder, parts, new, vocabulary=vocabulary, sentences=corpus.sentences)
    left_out = found.offsets[-1] - train.documents - heldout.documents
    manifest = Manifest(
        format=SHARD_FORMAT,
        tokenizer=tokenizer_fingerprint(tokenizer),
        tokenizer_kind=type(config).__name__,
        vocabulary=vocabulary,
        token_bytes=encoding.token_bytes(vocabulary),
        document_rule=corpus.rule_name,
        train=train,
        heldout=heldout,
        unigram_counts=counts,
        sources=[Source(path=reader.name, documents=found.offsets[-1], characters=found.characters)],
        duplicates=0,
        skipped={**found.skips.counts, LEFT_OUT: left_out},
        characters=found.characters,
        seconds=0.0,
        special=special,
        tokenizer_settings=config.training_settings(),
    )
    write_json(new / "manifest.json", manifest)
    make_folder(final.parent)
    replace_folder(new, final)
    shutil.rmtree(folder, ignore_errors=True)
