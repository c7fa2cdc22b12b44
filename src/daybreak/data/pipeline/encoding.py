"""The second pass over the text: encode each part, then join the parts to shards.

Each part writes its tokens to a folder, which is renamed when it is complete. The shards hold the tokens of the parts
in order, independent of which process encoded them. Repeated documents follow after all parts: two copies of a document
in one sequence would reveal the masked tokens.

    ENCODED/00007/train.tokens train.documents [train.sentences]  heldout...  times  counts  density
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from daybreak.core.errors import UserError
from daybreak.data.filters.deduplication import DROPPED, HELDOUT, document_key
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.first_pass import fill_part, kept_documents, part_folder
from daybreak.data.readers.documents import Document, Skips
from daybreak.data.readers.inputs import ByteCounter
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.sequences.shards import BlockWriter, ShardWriter, token_type
from daybreak.data.tokenizers.fast_encoding import Encode, TextEncoder, fast_encoder, plain_encoder
from daybreak.data.tokenizers.tokenizer import load_tokenizer, tokenizer_fingerprint, vocabulary_size
from daybreak.schemas.run import BlockFile, SpecialIds, Split

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
    tokenizer: Path
    """Tokenizer folder. Special tokens in a text are encoded as ordinary text; only Daybreak inserts separators."""
    special: SpecialIds
    assignments: Path
    """File with uint8[documents] of the whole corpus, see ``SplitAssignments``."""
    offsets: tuple[int, ...]
    """Number of the first document of each part, then the total number of documents."""
    epochs: tuple[float, ...]
    """Copies of each part's documents in the training split; a fraction repeats that fraction of the documents."""
    first_pass: Path | None = None
    """Folder of the first pass, which may contain the texts of the parts."""
    fast: bool = False
    """Use the fast encoder; worthwhile if the text is long enough to make up for its check."""


class OutputDocument(NamedTuple):
    """A document to write."""

    document: Document
    held: bool
    times: int
    """Number of copies in its split."""


class _Flat:
    """Collects the ids of documents in one array, with the ends of documents and sentences."""

    def __init__(self, separator: int) -> None:
        self._separator = np.array([separator], np.uint32)
        self._ids: list[np.ndarray] = []
        self._size = 0
        self.documents: list[int] = []
        self.sentences: list[int] = []

    def add(self, sentences: list[np.ndarray]) -> None:
        """Add a document, given as the ids of its sentences or as a single array."""
        # Sentences without tokens are dropped; the separator belongs to the last sentence.
        for sentence in [sentence for sentence in sentences if len(sentence)] or [self._separator[:0]]:
            self._ids.append(sentence)
            self._size += len(sentence)
            self.sentences.append(self._size)
        self._ids.append(self._separator)
        self._size += 1
        self.sentences[-1] = self._size
        self.documents.append(self._size)

    def ids(self) -> np.ndarray:
        return np.concatenate(self._ids) if self._ids else np.zeros(0, np.uint32)


class _PartWriter:
    """Writes the tokens of a part for one split, and the ends of documents and sentences relative to the part."""

    def __init__(self, folder: Path, name: str, kind: np.dtype, sentences: bool):
        self._kind, self._tokens = kind, 0
        self._ids = (folder / f"{name}.tokens").open("wb")
        self._documents = (folder / f"{name}.documents").open("wb")
        self._sentences = (folder / f"{name}.sentences").open("wb") if sentences else None

    def write(self, flat: _Flat) -> np.ndarray:
        ids = flat.ids()
        self._ids.write(ids.astype(self._kind).tobytes())
        self._documents.write((np.array(flat.documents, END) + np.uint64(self._tokens)).tobytes())
        if self._sentences:
            self._sentences.write((np.array(flat.sentences, END) + np.uint64(self._tokens)).tobytes())
        self._tokens += len(ids)
        return ids

    def close(self) -> None:
        for file in filter(None, (self._ids, self._documents, self._sentences)):
            file.close()


def token_bytes(vocabulary: int) -> int:
    return 2 if vocabulary <= 1 << 16 else 4


def encode_part(job: EncodingJob, folder: Path, byte_counter: ByteCounter, number: int) -> int:
    """Encode one part into ``folder/NUMBER`` unless it exists; return the number.

    Raises:
        UserError: the number of documents differs from the first pass.
    """
    return fill_part(folder, number, lambda work: _encode(job, work, byte_counter, number))


@functools.lru_cache(maxsize=1)
def opened(folder: Path, fingerprint: str, fast: bool) -> tuple[int, TextEncoder]:
    """Return the vocabulary size and the encoder of a tokenizer; cached, because the check of the fast one is slow.

    Args:
        fingerprint: invalidates the cache if the tokenizer in ``folder`` changes.
    """
    tokenizer = load_tokenizer(folder)
    return vocabulary_size(tokenizer), (fast_encoder if fast else plain_encoder)(tokenizer)


def _encode(job: EncodingJob, work: Path, byte_counter: ByteCounter, number: int) -> None:
    vocabulary, encode = opened(job.tokenizer, tokenizer_fingerprint(job.tokenizer), job.fast)
    sentences, checked = job.corpus.sentences, not job.fast
    kind = token_type(token_bytes(vocabulary))
    writers = {name: _PartWriter(work, name, kind, sentences) for name in SPLITS}
    counts = np.zeros(vocabulary, np.uint64)
    density = np.zeros(len(DENSITIES) - 1, np.int64)
    all_times = [np.zeros(0, TIMES)]
    for batch in _batches(job, byte_counter, number):
        if not checked:
            checked = True
            if not encode.identical([document.text[:CHECKED_CHARACTERS] for document, *_ in batch[:CHECKED]]):
                encode = plain_encoder(load_tokenizer(job.tokenizer))
        flats = {name: _Flat(job.special.sep) for name in SPLITS}
        for (document, held, _), ids in zip(batch, _ids(batch, encode), strict=True):
            flats["heldout" if held else "train"].add(ids)
            fraction = sum(map(len, ids)) / len(document.text)
            density[min(len(density) - 1, int(fraction * len(density)))] += 1
        writers["heldout"].write(flats["heldout"])
        train = writers["train"].write(flats["train"])
        times = np.array([output.times for output in batch if not output.held], TIMES)
        all_times.append(times)
        counts += np.bincount(train, minlength=vocabulary).astype(np.uint64)
        for often in np.unique(times[times > 1]):
            own = train[np.repeat(times == often, np.diff(flats["train"].documents, prepend=0))]
            counts += np.uint64(often - 1) * np.bincount(own, minlength=vocabulary).astype(np.uint64)
    for writer in writers.values():
        writer.close()
    np.concatenate(all_times).tofile(work / "times")
    counts.tofile(work / "counts")
    density.tofile(work / "density")


def _batches(job: EncodingJob, byte_counter: ByteCounter, number: int) -> Iterator[list[OutputDocument]]:
    """Yield the kept documents of a part in batches of a few megabytes."""
    first, stop = job.offsets[number : number + 2]
    assignments = np.memmap(job.assignments, np.uint8, "r")[first:stop] if stop > first else np.zeros(0, np.uint8)
    batch: list[OutputDocument] = []
    size = read = 0
    kept = kept_documents(part_folder(job.first_pass, number)) if job.first_pass else None
    for read, document in enumerate(kept or job.corpus.documents(number, Skips(), byte_counter), 1):
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


def _ids(batch: list[OutputDocument], encode: Encode) -> Iterator[list[np.ndarray]]:
    """Yield the ids of each document by sentence, or as one array; inputs that hold tokens are used unchanged."""
    encoded = _encoded([document for document, *_ in batch if document.ids is None], encode)
    for document, *_ in batch:
        yield next(encoded) if document.ids is None else [document.ids]


def _encoded(documents: list[Document], encode: Encode) -> Iterator[list[np.ndarray]]:
    parts = [list(document.sentences or (document.text,)) for document in documents]
    # Long texts are encoded in chunks, which uses all cores and bounds memory.
    pieces = [list(cut_at_whitespace(part)) for part in itertools.chain.from_iterable(parts)]
    ids, lengths = encode(list(itertools.chain.from_iterable(pieces)))
    ends = np.cumsum(lengths)[np.cumsum([len(piece) for piece in pieces]) - 1]
    of_parts = iter(np.split(ids, ends[:-1]))
    for own in parts:
        yield [next(of_parts) for _ in own]


def join(
    parts: Path, number: int, folder: Path, *, vocabulary: int, sentences: bool
) -> tuple[Split, Split, BlockFile, np.ndarray]:
    """Write the shards in ``folder`` from the ``number`` parts in ``parts``, which are kept in case of interruption.

    Returns:
        The train split, the held-out split, the file of unigram counts (uint64[vocabulary]), and the histogram of
        documents by tokens per character (DENSITIES).
    """
    width = token_bytes(vocabulary)
    writers = {name: ShardWriter(folder, name, width, sentences=sentences) for name in SPLITS}
    counts, density = np.zeros(vocabulary, np.uint64), np.zeros(len(DENSITIES) - 1, np.int64)
    places = [part_folder(parts, place) for place in range(number)]
    most = []
    for part in places:
        _append(part, "heldout", writers["heldout"], token_type(width), sentences)
        counts += np.fromfile(part / "counts", np.uint64)
        density += np.fromfile(part / "density", np.int64)
        most.append(int(np.fromfile(part / "times", TIMES).max(initial=0)))
    for turn in range(1, max(most, default=0) + 1):
        for part in (part for part, often in zip(places, most, strict=True) if often >= turn):
            _append(part, "train", writers["train"], token_type(width), sentences, turn)
    file = BlockWriter(folder / "unigram.bin")
    file.write(counts.astype("<u8"))
    return writers["train"].close(), writers["heldout"].close(), file.close(), density


def _append(part: Path, name: str, writer: ShardWriter, kind: np.dtype, sentences: bool, turn: int = 0) -> None:
    """Append the documents of a part; with ``turn``, only those with at least that many copies."""
    if not (part / f"{name}.tokens").stat().st_size:
        return  # an empty file cannot be memory-mapped
    ends = np.memmap(part / f"{name}.documents", END, "r").view(np.int64)
    of_sentences = np.memmap(part / f"{name}.sentences", END, "r").view(np.int64) if sentences else None
    times = np.fromfile(part / "times", TIMES) if turn else np.ones(len(ends), TIMES)
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
