"""The second pass over the text: encode each part, then join the parts to shards.

Each part writes its tokens to a folder, which is renamed when it is complete. The shards hold the tokens of the parts
in order, independent of which process encoded them. Repeated documents follow after all parts: two copies of a document
in one sequence would reveal the masked tokens. ``write_shards`` makes the data folder with its manifest.

    ENCODED/00007/train.tokens train.documents [train.sentences]  heldout...  times  counts  density
"""

from __future__ import annotations

import functools
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import copy_files, write_array
from daybreak.core.special_tokens import special_ids
from daybreak.data.filters.deduplication import DROPPED, HELDOUT, document_key
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.first_pass import FirstPass, kept_documents
from daybreak.data.pipeline.resuming import fill_once, part_folder, refuse_changed
from daybreak.data.readers.documents import Document, Skips
from daybreak.data.readers.inputs import ByteCounter
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.sequences.shards import BlockWriter, ShardWriter, token_type
from daybreak.data.tokenizers.fast_encoding import TextEncoder, fast_encoder
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, load_tokenizer, tokenizer_fingerprint, vocabulary_size
from daybreak.schemas.run import SHARD_FORMAT, BlockFile, Manifest, SpecialIds, Split

FAST_CHARACTERS = 4_000_000
"""Corpus size from which the fast encoder is used; its check takes as long as encoding half of this directly."""
BATCH_CHARACTERS = 2 << 20
CHECKED, CHECKED_CHARACTERS = 50, 2000
"""Documents of each part, and characters of each, on which the fast encoder is compared with tokenizers again."""
JOINED_TOKENS = 1 << 20
"""Tokens in memory while parts are joined, or one longer document."""
DENSITIES = np.linspace(0.0, 1.0, 41)
"""Edges of the histogram of tokens per character."""
SPLITS = ("train", "heldout")
END = np.dtype("<u8")
TIMES = np.dtype("<u2")
"""Copies of a document in the training split; at most ``preprocessing.MOST_EPOCHS``."""


@dataclass(frozen=True, kw_only=True)
class EncodingJob:
    """Settings of the second pass, the same for every part."""

    corpus: Corpus
    sentences: bool
    """Whether the ends of sentences are recorded."""
    tokenizer: Path
    """Tokenizer folder. Special tokens in a text are encoded as ordinary text; only Daybreak inserts separators."""
    vocabulary: int
    special: SpecialIds
    assignments: Path
    """File with uint8[documents] of the whole corpus, see ``SplitAssignments``."""
    offsets: tuple[int, ...]
    """Number of the first document of each part, then the total number of documents."""
    epochs: tuple[float, ...]
    """Copies of each part's documents in the training split; a fraction repeats that fraction of the documents."""
    first_pass: tuple[Path, ...]
    """Folders of the parts in the first pass, which may contain their texts."""
    fast: bool
    """Use the fast encoder; worthwhile if the text is long enough to make up for its check."""

    @classmethod
    def after(
        cls, found: FirstPass, corpus: Corpus, tokenizer: Path, *, assignments: Path, epochs: Sequence[float]
    ) -> EncodingJob:
        """Return the settings that follow from the first pass and the tokenizer."""
        made = load_tokenizer(tokenizer)
        return cls(
            corpus=corpus,
            sentences=corpus.sentences,
            tokenizer=tokenizer,
            vocabulary=vocabulary_size(made),
            special=special_ids(made, tokenizer),
            assignments=assignments,
            offsets=found.offsets,
            epochs=tuple(epochs),
            first_pass=found.folders,
            fast=found.characters >= FAST_CHARACTERS,
        )

    @property
    def token_bytes(self) -> int:
        return 2 if self.vocabulary <= 1 << 16 else 4


class OutputDocument(NamedTuple):
    document: Document
    held: bool
    times: int
    """Number of copies in its split."""


class _PartWriter:
    """Writes the tokens of a part for one split, and the ends of documents and sentences relative to the part."""

    def __init__(self, folder: Path, name: str, job: EncodingJob):
        names = ("tokens", "documents", "sentences") if job.sentences else ("tokens", "documents")
        self._files = [(folder / f"{name}.{what}").open("wb") for what in names]
        self._type, self._separator = token_type(job.token_bytes), np.array([job.special.sep], np.uint32)
        self._ids = [self._separator[:0]]
        self._documents: list[int] = []
        self._sentences: list[int] = []
        self._size = 0

    def add(self, sentences: list[np.ndarray]) -> None:
        """Add a document, given as the ids of its sentences or as a single array."""
        # Sentences without tokens are dropped; the separator belongs to the last sentence.
        for sentence in [sentence for sentence in sentences if len(sentence)] or [self._separator[:0]]:
            self._ids.append(sentence)
            self._size += len(sentence)
            self._sentences.append(self._size)
        self._ids.append(self._separator)
        self._size += 1
        self._sentences[-1] = self._size
        self._documents.append(self._size)

    def flush(self) -> tuple[np.ndarray, np.ndarray]:
        """Write what was added since the last call; return its ids, and the sizes of its documents."""
        ids, documents = np.concatenate(self._ids), np.array(self._documents, np.int64)
        sizes = np.diff(documents, prepend=self._size - len(ids))
        columns = ids.astype(self._type), documents.astype(END), np.array(self._sentences, END)
        for file, values in zip(self._files, columns):  # the last file only if sentences are recorded
            file.write(values.tobytes())
        self._ids, self._documents, self._sentences = self._ids[:1], [], []
        return ids, sizes

    def close(self) -> None:
        for file in self._files:
            file.close()


def encode_part(job: EncodingJob, folder: Path, byte_counter: ByteCounter, number: int) -> int:
    """Encode one part into ``folder/NUMBER`` unless it exists; return the number."""
    fill_once(part_folder(folder, number), lambda work: _encode(job, work, byte_counter, number))
    return number


@functools.lru_cache(maxsize=1)
def opened(folder: Path, fingerprint: str, fast: bool) -> TextEncoder:
    """Return the encoder of a tokenizer; cached, because the check of the fast one is slow.

    Args:
        fingerprint: invalidates the cache if the tokenizer in ``folder`` changes.
    """
    return (fast_encoder if fast else TextEncoder)(load_tokenizer(folder))


def _encode(job: EncodingJob, work: Path, byte_counter: ByteCounter, number: int) -> None:
    encode, checked = opened(job.tokenizer, tokenizer_fingerprint(job.tokenizer), job.fast), not job.fast
    train, heldout = (_PartWriter(work, name, job) for name in SPLITS)
    counts = np.zeros(job.vocabulary, np.uint64)
    density = np.zeros(len(DENSITIES) - 1, np.int64)
    all_times = [np.zeros(0, TIMES)]
    for batch in _batches(job, byte_counter, number):
        if not checked:
            checked = True
            if not encode.identical([document.text[:CHECKED_CHARACTERS] for document, *_ in batch[:CHECKED]]):
                encode = TextEncoder(load_tokenizer(job.tokenizer))
        for (document, held, _), ids in zip(batch, _ids(batch, encode), strict=True):
            (heldout if held else train).add(ids)
            fraction = sum(map(len, ids)) / len(document.text)
            density[min(len(density) - 1, int(fraction * len(density)))] += 1
        heldout.flush()
        written, sizes = train.flush()
        times = np.array([output.times for output in batch if not output.held], TIMES)
        all_times.append(times)
        of_token = np.repeat(times, sizes)
        for often in np.unique(times):
            own = np.bincount(written[of_token == often], minlength=job.vocabulary)
            counts += np.uint64(often) * own.astype(np.uint64)
    train.close()
    heldout.close()
    write_array(work / "times", np.concatenate(all_times))
    write_array(work / "counts", counts)
    write_array(work / "density", density)


def _batches(job: EncodingJob, byte_counter: ByteCounter, number: int) -> Iterator[list[OutputDocument]]:
    """Yield the kept documents of a part in batches of a few megabytes."""
    first, stop = job.offsets[number : number + 2]
    assignments = np.fromfile(job.assignments, np.uint8, stop - first, offset=first)
    batch: list[OutputDocument] = []
    size = read = 0
    documents = kept_documents(job.first_pass[number]) or job.corpus.documents(number, Skips(), byte_counter)
    for read, document in enumerate(documents, 1):
        assignment = assignments[read - 1] if read <= len(assignments) else DROPPED
        times = 1 if assignment == HELDOUT else _times(document.text, job.epochs[number])
        if assignment == DROPPED or not times:
            continue
        batch.append(OutputDocument(document, bool(assignment == HELDOUT), times))
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if read != len(assignments):
        raise UserError("The input changed while it was read.", "Start again when no process writes to it.")
    if batch:
        yield batch


def _times(text: str, epochs: float) -> int:
    """Return the number of copies of a document: ``epochs`` on average, a function of its text."""
    whole = math.floor(epochs)
    # The leading bits of the key decide the held-out split, so the lowest bits are used here.
    return whole + (epochs > whole and (document_key(text) & 0xFFFFFFFF) < (epochs - whole) * 2**32)


def _ids(batch: list[OutputDocument], encode: TextEncoder) -> Iterator[list[np.ndarray]]:
    """Yield the ids of each document by sentence, or as one array."""
    parts = [list(document.sentences or (document.text,)) for document, *_ in batch]
    # Long texts are encoded in chunks, which uses all cores and bounds memory.
    pieces = [list(cut_at_whitespace(part)) for part in itertools.chain.from_iterable(parts)]
    ids, lengths = encode(list(itertools.chain.from_iterable(pieces)))
    ends = np.cumsum(lengths)[np.cumsum([len(piece) for piece in pieces]) - 1]
    of_parts = iter(np.split(ids, ends[:-1]))
    for own in parts:
        yield [next(of_parts) for _ in own]


def write_shards(
    job: EncodingJob, parts: Path, data: Path, config: TokenizerConfig, **origin: Any
) -> tuple[Manifest, np.ndarray]:
    """Write the tokenizer and the shards into ``data``; the encoded parts are kept in case of interruption.

    Args:
        parts: the folder of the encoded parts.
        config: the configuration of the tokenizer.
        origin: the fields of the manifest that tell where the text comes from.

    Returns:
        The manifest, which the caller writes last, and the histogram of documents by tokens per character (DENSITIES).

    Raises:
        UserError: a file changed since it was found.
    """
    refuse_changed(job.corpus.files)
    shutil.rmtree(data, ignore_errors=True)
    copy_files(job.tokenizer, data / "tokenizer")
    train, heldout, counts, density = join(job, parts, data)
    manifest = Manifest(
        format=SHARD_FORMAT,
        tokenizer=tokenizer_fingerprint(job.tokenizer),
        tokenizer_kind=type(config).__name__,
        tokenizer_settings=config.training_settings(),
        vocabulary=job.vocabulary,
        token_bytes=job.token_bytes,
        special=job.special,
        document_rule=job.corpus.rule_name,
        train=train,
        heldout=heldout,
        unigram_counts=counts,
        **origin,
    )
    return manifest, density


def training_tokens(job: EncodingJob, parts: Path) -> dict[str, int]:
    """Return the training tokens that come from each input, repetitions included."""
    found: Counter[str] = Counter()
    for number in range(len(job.corpus.parts)):
        part, given = part_folder(parts, number), job.corpus.sources(number)[0]
        lengths = np.diff(np.fromfile(part / "train.documents", END).view(np.int64), prepend=0)
        found[given] += int(lengths @ np.fromfile(part / "times", TIMES).astype(np.int64))
    return dict(found)


def join(job: EncodingJob, parts: Path, data: Path) -> tuple[Split, Split, BlockFile, np.ndarray]:
    """Write the shards; return both splits, the file of unigram counts (uint64[vocabulary]), and the histogram."""
    train, heldout = (ShardWriter(data, name, job.token_bytes, sentences=job.sentences) for name in SPLITS)
    counts, density = np.zeros(job.vocabulary, np.uint64), np.zeros(len(DENSITIES) - 1, np.int64)
    places = [part_folder(parts, place) for place in range(len(job.corpus.parts))]
    most = []
    for part in places:
        _append(job, part, "heldout", heldout)
        counts += np.fromfile(part / "counts", np.uint64)
        density += np.fromfile(part / "density", np.int64)
        most.append(int(np.fromfile(part / "times", TIMES).max(initial=0)))
    for turn in range(1, max(most, default=0) + 1):
        for part in (part for part, often in zip(places, most, strict=True) if often >= turn):
            _append(job, part, "train", train, turn)
    file = BlockWriter(data / "unigram.bin")
    file.write(counts.astype("<u8"))
    return train.close(), heldout.close(), file.close(), density


def _append(job: EncodingJob, part: Path, name: str, writer: ShardWriter, turn: int = 0) -> None:
    """Append the documents of a part; with ``turn``, only those with at least that many copies."""
    if not (part / f"{name}.tokens").stat().st_size:
        return  # an empty file cannot be memory-mapped
    ends = np.memmap(part / f"{name}.documents", END, "r").view(np.int64)
    of_sentences = np.memmap(part / f"{name}.sentences", END, "r").view(np.int64) if job.sentences else None
    times = np.fromfile(part / "times", TIMES) if turn else np.ones(len(ends), TIMES)
    kind = token_type(job.token_bytes)
    first = start = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, start + JOINED_TOKENS, side="right")))
        stop = int(ends[last - 1])
        own = None
        if of_sentences is not None:
            low, high = np.searchsorted(of_sentences, [start, stop], side="right")
            own = of_sentences[low:high] - start
        ids = np.fromfile(part / f"{name}.tokens", kind, stop - start, offset=start * kind.itemsize)
        kept = _only(times[first:last] >= turn, ids, ends[first:last] - start, own)
        if len(kept[0]):
            writer.write(*kept)
        first, start = last, stop


def _only(
    chosen: np.ndarray, ids: np.ndarray, ends: np.ndarray, sentences: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the ids and ends of the documents selected by ``chosen``, bool[documents]."""
    if chosen.all():
        return ids, ends, sentences
    lengths = np.diff(ends, prepend=0)
    left = np.cumsum(lengths * chosen)
    if sentences is not None:
        owner = np.searchsorted(ends, sentences)  # index of the document that contains the end of the sentence
        sentences = (sentences - (ends - left)[owner])[chosen[owner]]
    return ids[np.repeat(chosen, lengths)], left[chosen], sentences
