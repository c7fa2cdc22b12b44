"""Shards: prepared text on disk as one flat stream of token ids per split, with checks on reading.

    DATA/manifest.json  tokenizer/  unigram.bin
         train-00000.tokens.bin ...   train.documents.bin   [train.sentences.bin]     and the same for heldout

Each document in the stream ends with the tokenizer's [SEP]; there is no [CLS]. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.process import usable_cores
from daybreak.data.tokenizers.tokenizer import tokenizer_fingerprint
from daybreak.schemas.run import BLOCK_BYTES, SHARD_FORMAT, BlockFile, Manifest, Split

TOKEN_FILE_BYTES = 256 << 20
"""Maximum size of a token file, a multiple of BLOCK_BYTES."""
BUFFER_BYTES = 1 << 16
MOST_CHECKS = 8
"""Blocks that are checked at a time."""


def token_type(token_bytes: int) -> np.dtype:
    return np.dtype(f"<u{token_bytes}")


def block_hash(data: bytes | memoryview | np.ndarray = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=8)  # type: ignore[arg-type]


# ---------------------------------------------------------------- writing


class BlockWriter:
    """Writes one binary file and computes a hash of each block."""

    def __init__(self, path: Path):
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._name = path.name
        self._hash = block_hash()
        self._hashes: list[str] = []
        self.bytes = 0

    def write(self, values: np.ndarray) -> None:
        data = memoryview(values.tobytes())
        self._file.write(data)
        while data:
            room = BLOCK_BYTES - self.bytes % BLOCK_BYTES
            part, data = data[:room], data[room:]
            self._hash.update(part)
            self.bytes += len(part)
            if self.bytes % BLOCK_BYTES == 0:
                self._hashes.append(self._hash.hexdigest())
                self._hash = block_hash()

    def close(self) -> BlockFile:
        self._file.close()
        last = [self._hash.hexdigest()] if self.bytes % BLOCK_BYTES else []
        return BlockFile(name=self._name, bytes=self.bytes, hashes=self._hashes + last)


class ShardWriter:
    """Writes one split. Memory does not grow with the split.

    Args:
        folder: an existing folder, which no other process writes.
        name: ``train`` or ``heldout``.
        token_bytes: 2 or 4.
        sentences: whether sentence ends are written.
    """

    def __init__(
        self, folder: Path, name: str, token_bytes: int, *, sentences: bool = False, file_bytes: int = TOKEN_FILE_BYTES
    ):
        self._folder, self._name = folder, name
        self._type = token_type(token_bytes)
        self._file_tokens = file_bytes // token_bytes
        self._closed: list[BlockFile] = []
        self._tokens_file = self._next_file()
        self._documents_file = BlockWriter(folder / f"{name}.documents.bin")
        self._sentences_file = BlockWriter(folder / f"{name}.sentences.bin") if sentences else None
        self.tokens = self.documents = 0

    def write(self, ids: np.ndarray, document_ends: np.ndarray, sentence_ends: np.ndarray | None = None) -> None:
        """Append documents.

        Args:
            ids: the tokens of all documents, separators included.
            document_ends: for each, the offset in ``ids`` just past its separator.
            sentence_ends: offsets in ``ids`` just past each sentence; the last of a document equals the document's.
        """
        if len(document_ends) == 0 or document_ends[-1] != len(ids):
            raise ValueError("document_ends must close exactly the tokens given")
        self._documents_file.write((document_ends + self.tokens).astype("<u8"))
        if self._sentences_file is not None:
            if sentence_ends is None:
                raise ValueError("this split records sentence ends")
            self._sentences_file.write((sentence_ends + self.tokens).astype("<u8"))
        self.tokens += len(ids)
        self.documents += len(document_ends)
        ids = ids.astype(self._type)
        while len(ids):
            room = self._file_tokens - self._tokens_file.bytes // self._type.itemsize
            self._tokens_file.write(ids[:room])
            ids = ids[room:]
            if len(ids):
                self._closed.append(self._tokens_file.close())
                self._tokens_file = self._next_file()

    def _next_file(self) -> BlockWriter:
        return BlockWriter(self._folder / f"{self._name}-{len(self._closed):05d}.tokens.bin")

    def close(self) -> Split:
        return Split(
            documents=self.documents,
            tokens=self.tokens,
            token_files=[*self._closed, self._tokens_file.close()],
            document_ends=self._documents_file.close(),
            sentence_ends=self._sentences_file.close() if self._sentences_file else None,
        )


# ---------------------------------------------------------------- reading


class BlockReader:
    """One memory-mapped file; a block is compared with its hash when it is first read."""

    def __init__(self, folder: Path, file: BlockFile, kind: np.dtype):
        self._path, self._file = folder / file.name, file
        size = self._path.stat().st_size if self._path.is_file() else -1
        if size != file.bytes or len(file.hashes) != -(-file.bytes // BLOCK_BYTES):
            state = "is missing" if size < 0 else f"has {size} bytes where the manifest says {file.bytes}"
            remedy = f"Restore '{folder}', or prepare the same text again; then repeat the command."
            raise UserError(f"'{self._path}' {state}.", remedy)
        # An empty file cannot be mapped.
        self._bytes = np.memmap(self._path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        self._values = self._bytes.view(kind)
        self._checked = np.zeros(len(file.hashes), bool)

    def __len__(self) -> int:
        return len(self._values)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the values [start, stop), a view without a copy.

        Raises:
            UserError: a block that contains them does not match its hash.
        """
        width = self._values.itemsize
        first, last = start * width // BLOCK_BYTES, -(-stop * width // BLOCK_BYTES)
        if stop > start and not self._checked[first:last].all():
            self._check_all(first + np.flatnonzero(~self._checked[first:last]))
        return self._values[start:stop]

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the values [start, start + width) for each of ``starts`` (int64 [N]): a copy [N, width].

        Raises:
            UserError: a block that contains them does not match its hash.
        """
        if not self._checked.all():
            size = self._values.itemsize
            first, last = starts * size // BLOCK_BYTES, -(-(starts + width) * size // BLOCK_BYTES)
            held = np.zeros(len(self._checked) + 1, np.int64)  # how many windows begin in a block, less those that end
            np.add.at(held, first, 1)
            np.add.at(held, last, -1)
            self._check_all(np.flatnonzero((np.cumsum(held)[:-1] > 0) & ~self._checked))
        return np.lib.stride_tricks.sliding_window_view(self._values, width)[starts]

    def _check_all(self, blocks: np.ndarray) -> None:
        """Check several blocks at a time: the first batches of a run touch hundreds, and hashing releases the GIL."""
        if len(blocks) < 2:
            for block in blocks.tolist():
                self._check(block)
            return
        with ThreadPoolExecutor(min(MOST_CHECKS, usable_cores())) as pool:
            list(pool.map(self._check, blocks.tolist()))

    def _check(self, block: int) -> None:
        data = self._bytes[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        if block_hash(data).hexdigest() != self._file.hashes[block]:
            raise UserError(
                f"'{self._path}' was changed or damaged after it was prepared (block {block} does not match its hash).",
                f"Delete '{self._path.parent}' and prepare the data again.",
            )
        self._checked[block] = True


class TokenStream:
    """One split as a flat array of ids over its files, which are checked as by BlockReader."""

    def __init__(self, folder: Path, split: Split, token_bytes: int):
        self._type = token_type(token_bytes)
        self._files = [BlockReader(folder, file, self._type) for file in split.token_files]
        self._starts = np.cumsum([0, *map(len, self._files)])
        self._documents = BlockReader(folder, split.document_ends, np.dtype("<u8"))
        self._sentences = BlockReader(folder, split.sentence_ends, np.dtype("<u8")) if split.sentence_ends else None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the ids [start, stop) of the stream: uint16 or uint32, read-only."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"[{start}, {stop}) is outside a stream of {len(self)} tokens")
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            end = min(stop, int(self._starts[index + 1]))
            origin = int(self._starts[index])
            parts.append(self._files[index].read(start - origin, end - origin))
            start, index = end, index + 1
        if not parts:
            return np.zeros(0, self._type)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the ids [start, start + width) for each of ``starts`` (int64 [N]): uint16 or uint32 [N, width]."""
        if len(starts) and not 0 <= starts.min() <= starts.max() + width <= len(self):
            raise IndexError(f"windows of {width} from {starts.min()} to {starts.max()} in a stream of {len(self)}")
        found = np.empty((len(starts), width), self._type)
        files = np.searchsorted(self._starts, starts, side="right") - 1
        whole = starts + width <= self._starts[files + 1]
        for file in np.unique(files[whole]):
            chosen = whole & (files == file)
            found[chosen] = self._files[file].windows(starts[chosen] - self._starts[file], width)
        for place in np.flatnonzero(~whole):  # over the border of two files
            found[place] = self.read(int(starts[place]), int(starts[place]) + width)
        return found

    def document_ends(self) -> np.ndarray:
        """Return uint64[documents]: the position just past each document's separator."""
        return self._documents.read(0, len(self._documents))

    def sentence_ends(self) -> np.ndarray | None:
        """Return uint64[sentences]: the position just past each sentence and its separator, or None."""
        return self._sentences.read(0, len(self._sentences)) if self._sentences else None


@dataclass(frozen=True)
class Shards:
    """Opened prepared data."""

    manifest: Manifest
    train: TokenStream
    heldout: TokenStream
    unigram_counts: np.ndarray
    """uint64[vocabulary]: occurrences of each id in the train split."""


def open_shards(data: Path) -> Shards:
    """Open the folder ``data`` written by ``daybreak prepare`` and check its format, tokenizer and file sizes."""
    if not (data / "manifest.json").is_file():
        raise UserError(
            f"'{data}' contains no prepared data.",
            "Run daybreak prepare, or check the path. A run whose data were deleted resumes once the same text is "
            "prepared again.",
        )
    plain = read_json(data / "manifest.json")
    found = plain.get("format") if isinstance(plain, dict) else None
    if found != SHARD_FORMAT:
        raise UserError(
            f"'{data}' was prepared in format {found}; this version reads format {SHARD_FORMAT}.",
            f"Delete '{data}' and prepare the data again.",
        )
    manifest: Manifest = read_json(data / "manifest.json", Manifest)
    if tokenizer_fingerprint(data / "tokenizer") != manifest.tokenizer:
        raise UserError(
            f"The tokenizer in '{data}' does not match the one that encoded its shards.",
            f"Delete '{data}' and prepare the data again.",
        )
    counts = BlockReader(data, manifest.unigram_counts, np.dtype("<u8"))
    return Shards(
        manifest=manifest,
        train=TokenStream(data, manifest.train, manifest.token_bytes),
        heldout=TokenStream(data, manifest.heldout, manifest.token_bytes),
        unigram_counts=counts.read(0, len(counts)),
    )
