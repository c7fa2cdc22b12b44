"""Read token ids written by datatrove's DocumentTokenizer and DocumentTokenizerMerger.

    NAME.ds            ids of all documents, uint16 or uint32, little-endian
    NAME.ds.index      uint64 per document: the position just past its last token
    NAME.ds.metadata   "TOKENIZER|BYTES" and the number of tokens; optional
    NAME.ds.loss       ignored, because the recipe decides which tokens are predicted

The ids are used unchanged; filters, deduplication and the held-out split use the decoded text. The name in the metadata
can be any name from another machine, so the user must name the tokenizer.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.special_tokens import special_ids
from daybreak.core.terminal import say
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.documents import Document
from daybreak.data.readers.file_range import FileRange
from daybreak.data.readers.inputs import TOKENS, InputFile, open_file
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, vocabulary_size
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.schemas.run import SpecialIds

END = np.dtype("<u8")
LARGEST_TOKENS = 1 << 20
"""Longer documents are split, which bounds memory."""
BATCH_TOKENS = 1 << 20
"""Tokens decoded at a time."""
INDEX_BLOCK = 1 << 16
"""Document ends read at a time."""
FIRST_DOCUMENTS, EDGE_FRACTION = 256, 0.1
"""A special id that begins or ends this fraction of a file's first documents was added by the tokenizer."""
LAST_TOKENS = 1 << 16
"""Tokens at the end of a document that are searched for its last token before the padding."""
SHOWN_TOKENS, SHOWN_INPUTS = 60, 3


@dataclass(frozen=True)
class TokenFile:
    """A .ds file with its index and metadata."""

    ids: np.ndarray
    """uint16 or uint32 [tokens], on disk."""
    ends: np.ndarray
    """uint64[documents], on disk; ``pieces`` checks that it ascends."""
    made_with: str
    """The tokenizer named in the metadata; empty without."""


@dataclass(frozen=True)
class Decoder:
    """A tokenizer with the properties needed to read ids."""

    tokenizer: Tokenizer
    folder: str
    special: SpecialIds
    vocabulary: int

    def edges(self) -> set[int]:
        """Return the special ids that may surround a document."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        named = {self.special.cls, self.special.sep, *(id for id, token in added if token.special)}
        return named - {self.special.pad, self.special.unk, self.special.mask}


def tokenizer_folder(files: Sequence[InputFile], tokenizer: TokenizerConfig, cut: bool) -> str:
    """Return the folder of the tokenizer of token files; empty if ``files`` has none.

    Args:
        tokenizer: the tokenizer of the preparation.
        cut: whether documents are split into sentences or chunks, which is not possible for ids.
    """
    name = next((file.name for file in files if file.form == TOKENS), None)
    if name is None:
        return ""
    if not isinstance(tokenizer, Existing):
        raise UserError(
            f"'{name}' contains token ids, so their tokenizer must be named.",
            "Name the folder of their tokenizer with --tokenizer-from.",
        )
    if cut:
        raise UserError(f"'{name}' contains token ids, which cannot be split.", "Give text, or do not split it.")
    return os.path.abspath(Path(os.path.expanduser(tokenizer.folder)))


def open_decoder(folder: str) -> Decoder:
    """Load a tokenizer for decoding; cached while its files are unchanged."""
    changed = [path.stat().st_mtime_ns for path in sorted(Path(folder).glob("*.json"))]
    return _decoder(folder, tuple(changed))


@functools.lru_cache(maxsize=1)
def _decoder(folder: str, changed: tuple[int, ...]) -> Decoder:
    tokenizer = Existing(folder=folder).load()
    return Decoder(tokenizer, folder, special_ids(tokenizer, Path(folder)), vocabulary_size(tokenizer))


def open_tokens(file: InputFile) -> TokenFile:
    """Open a .ds file, memory-mapped, and check that file and index match."""
    index, metadata = (Path(f"{file.path}.{what}") for what in ("index", "metadata"))
    if not index.is_file():
        raise UserError(
            f"'{file.name}' has no index ('{index.name}'), which marks its documents.",
            "Write it with save_index, or leave the file out.",
        )
    if index.stat().st_size % END.itemsize:
        raise _damaged(file.name, "its index is truncated")
    ends = _map(index, END)
    tokens = int(ends[-1]) if len(ends) else 0
    made_with, width = _metadata(metadata)
    size = file.path.stat().st_size
    if not width:
        width = 4 if size == 4 * tokens else 2
    if width not in (2, 4):
        raise UserError(f"'{file.name}' has tokens of {width} bytes.", "Give files with tokens of 2 or 4 bytes.")
    if size != width * tokens:
        raise _damaged(file.name, f"its size is {size:,} bytes, but its index has {tokens:,} tokens of {width} bytes")
    return TokenFile(_map(file.path, np.dtype(f"<u{width}")), ends, made_with)


def _damaged(name: str, why: str) -> UserError:
    return UserError(f"'{name}' is damaged: {why}.", "Copy it again with its index, or leave it out.")


def _map(path: Path, kind: np.dtype) -> np.ndarray:
    return np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)  # an empty file cannot be mapped


def _metadata(path: Path) -> tuple[str, int]:
    """Return the name of the tokenizer and the bytes per token; empty and 0 if unknown."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            name, _, width = file.readline(4096).strip().rpartition("|")
    except OSError:
        return "", 0
    return (name, int(width)) if width.isascii() and width.isdigit() else ("", 0)


def split_documents(file: InputFile, part_bytes: int) -> list[int]:
    """Return the documents at which parts of about ``part_bytes`` bytes end, without the last part."""
    found = open_tokens(file)
    steps = np.arange(part_bytes, file.bytes, part_bytes) // found.ids.itemsize
    ends = (np.searchsorted(found.ends, steps.astype(END)) + 1).tolist()
    return [end for end in dict.fromkeys(ends) if end < len(found.ends)]


def read_tokens(part: FileRange, folder: str) -> Iterator[Document]:
    """Yield the documents of a file, or of a part of it, with their ids and their decoded text.

    Special tokens around each document (see ``edges``) and padding are removed. A document of more than LARGEST_TOKENS
    is split. Documents without text are skipped and counted.

    Raises:
        UserError: the file is damaged, or contains an id that the tokenizer does not have.
    """
    file, decoder = open_tokens(part.file), open_decoder(folder)
    batch: list[tuple[int, np.ndarray]] = []
    held = 0
    for number, ids in pieces(file, decoder, part):
        batch.append((number, ids))
        held += len(ids)
        if held >= BATCH_TOKENS:
            yield from _documents(batch, decoder, part)
            batch, held = [], 0
    yield from _documents(batch, decoder, part)


def _documents(batch: list[tuple[int, np.ndarray]], decoder: Decoder, part: FileRange) -> Iterator[Document]:
    texts = decoder.tokenizer.decode_batch([ids.tolist() for _, ids in batch], skip_special_tokens=True)
    for (number, ids), text in zip(batch, map(clean, texts), strict=True):
        if text:
            yield Document(text, part.file.given, ids=ids)
        else:
            part.skips.add("documents without text", part.file.name, "document", number)


def pieces(file: TokenFile, decoder: Decoder, part: FileRange) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (1-based number, ids) of each document, split at LARGEST_TOKENS."""
    begins, closes = edges(file, decoder)
    stop = len(file.ends) if part.stop is None else part.stop
    place = int(file.ends[part.start - 1]) if part.start else 0
    with open_file(part.file, part.byte_counter) as stream:
        stream.seek(place * file.ids.itemsize)
        for low in range(part.start, stop, INDEX_BLOCK):
            ends = file.ends[low : min(stop, low + INDEX_BLOCK)].astype(np.int64)
            if (np.diff(ends, prepend=place) < 0).any() or ends[-1] > len(file.ids):
                raise _damaged(part.file.name, "its index does not ascend")
            for number, end in enumerate(ends.tolist(), low + 1):
                if (first := place) == end:
                    yield number, file.ids[:0]
                while place < end:
                    size = min(end - place, LARGEST_TOKENS)
                    ids = np.frombuffer(stream.read(size * file.ids.itemsize), file.ids.dtype)
                    _check(ids, size, part.file.name, decoder)
                    if place == first and len(ids) and int(ids[0]) in begins:
                        ids = ids[1:]
                    place += size
                    yield number, (_closed(ids, closes, decoder.special.pad) if place == end else ids)


def _check(ids: np.ndarray, size: int, name: str, decoder: Decoder) -> None:
    if len(ids) != size:
        raise _damaged(name, "it is truncated")
    if len(ids) and (largest := int(ids.max())) >= decoder.vocabulary:
        raise UserError(
            f"'{name}' has the id {largest:,}, but the tokenizer in '{decoder.folder}' has {decoder.vocabulary:,}.",
            "Name the tokenizer that made the file with --tokenizer-from.",
        )


def _closed(ids: np.ndarray, closes: set[int], pad: int) -> np.ndarray:
    """Return ``ids`` without trailing padding and without one id of ``closes`` at the end."""
    filled = np.flatnonzero(ids != pad)
    ids = ids[: filled[-1] + 1] if len(filled) else ids[:0]
    return ids[:-1] if len(ids) and int(ids[-1]) in closes else ids


def edges(file: TokenFile, decoder: Decoder) -> tuple[set[int], set[int]]:
    """Return the special ids that begin and that end documents in the first documents of the file."""
    begins: Counter[int] = Counter()
    closes: Counter[int] = Counter()
    start = 0
    ends = file.ends[:FIRST_DOCUMENTS].tolist()
    for end in ends:
        ids = _closed(file.ids[max(start, end - LAST_TOKENS) : end], set(), decoder.special.pad)
        if len(ids):
            begins[int(file.ids[start])] += 1
            closes[int(ids[-1])] += 1
        start = end
    least = EDGE_FRACTION * len(ends)
    first, last = ({id for id in decoder.edges() if seen[id] and seen[id] >= least} for seen in (begins, closes))
    return first, last


def show_beginning(files: Sequence[InputFile], folder: str) -> None:
    """Print the first tokens of each input as decoded, so that a wrong tokenizer is visible."""
    firsts = {file.given: file for file in reversed(files) if file.form == TOKENS}
    for file in list(firsts.values())[::-1][:SHOWN_INPUTS]:
        found, decoder = open_tokens(file), open_decoder(folder)
        ids = found.ids[: min(SHOWN_TOKENS, int(found.ends[0])) if len(found.ends) else 0]
        _check(ids, len(ids), file.name, decoder)
        named = f"; the metadata names '{clean(found.made_with)}'" if found.made_with else ""
        say(f"Tokens: '{file.name}', read with the tokenizer in '{folder}'{named}. The first document begins:")
        say(f"    {' '.join(clean(decoder.tokenizer.decode(ids.tolist(), skip_special_tokens=False)).split())}")
        around = sorted({str(decoder.tokenizer.id_to_token(id)) for edge in edges(found, decoder) for id in edge})
        if around:
            say(f"    {' and '.join(around)} around documents are removed, because sequences get their own.")
