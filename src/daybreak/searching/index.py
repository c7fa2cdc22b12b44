"""The search index of a run: built in parts, so that a killed build resumes, and read from disk.

    SEARCH/index.json     what it was made of, and how much of it is there (``SearchIndex``)
           passages.npy   int64 [N, 4]: split, document, first and last token of each passage
           vectors.npy    float16 [N, D] of unit length
           bm25/          the files of bm25s

N passages, D hidden size.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.extras import install_hint
from daybreak.core.files import (
    digest_of,
    disk_errors,
    make_folder,
    read_json,
    replace_folder,
    reserve,
    write_json,
    write_npy,
)
from daybreak.core.locks import PATIENCE, alone_in
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say, working
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.tokenizer import load_tokenizer, tokenizer_fingerprint
from daybreak.evaluation.probes.bm25 import bm25_index, import_bm25s
from daybreak.schemas.run import Manifest
from daybreak.schemas.search import SearchIndex
from daybreak.searching.passages import MOST_TOKENS, SPLITS, PassageReader, cut_passages

if TYPE_CHECKING:
    from daybreak.core.encoder import Encoder

FORMAT = 3
PART = 16_384
"""Passages that are embedded before the index is saved."""
STATE, PASSAGES, VECTORS, BM25 = "index.json", "passages.npy", "vectors.npy", "bm25"
FILES = (STATE, PASSAGES, VECTORS, BM25)


@dataclass(frozen=True)
class SearchSource:
    """What an index is made of."""

    model: Path
    """Exported model."""
    data: Path
    shards: Shards
    tokenizer: Tokenizer
    longest: int
    """Maximum number of tokens that the model takes, special tokens included."""


@dataclass(frozen=True)
class OpenIndex:
    """An index on disk, memory-mapped."""

    state: SearchIndex
    source: SearchSource
    reader: PassageReader
    vectors: np.ndarray
    """float16 [N, D]."""
    bm25: Any
    """``bm25s.BM25``; None if it was not requested."""


def open_index(
    run: Path, *, data: Path | None = None, folder: Path | None = None, words: bool = True, rebuild: bool = False
) -> OpenIndex:
    """Open the index of a run, after building what is missing.

    The index is built anew if the model or the data changed, or if its files have another version.

    Args:
        data: the prepared data. Defaults to ``run/data``. An index that was made of other data keeps them if it is in
            ``folder``, or if ``run/data`` is missing.
        folder: the folder of the index. Defaults to ``run/search``.
        words: whether the BM25 index is needed.
        rebuild: build a new index, also if the existing one is up to date.
    """
    if words:
        require_bm25s()
    own, folder = folder is not None, folder or RunFolder(run).search
    state = _saved_state(folder)
    source = find_source(run, _data_folder(run, data, state, own))
    if rebuild or not _is_ready(state, source, words):
        try:
            make_folder(folder)
        except UserError as error:
            raise UserError(error.sentence, "Choose another folder with --index.") from None
        with alone_in(folder, PATIENCE):
            _refuse_strangers(folder, own)
            state = _complete(folder, source, _in_run(run, source.data), rebuild)
    assert state is not None
    try:
        opened = _opened(folder, state, source, words)
    except UserError:
        if _is_same(_saved_state(folder), state):
            raise
    if not _is_same(_saved_state(folder), state):  # another process began to build it again: its vectors may be empty
        return open_index(run, data=data, folder=folder if own else None, words=words)
    place, stamp = _in_run(run, source.data), _stamp(source.model)
    if (state.data_folder, state.model_stamp) != (place, stamp):  # the same data and model, which moved
        opened = replace(opened, state=with_change(folder, state, data_folder=place, model_stamp=stamp))
    return opened


def _is_same(now: SearchIndex | None, state: SearchIndex) -> bool:
    """Whether the state on disk is ``state``, but for what other processes may add to it."""
    same = {name: getattr(state, name) for name in ("dense_weight", "data_folder", "model_stamp")}
    return now is not None and replace(now, **same) == state


def with_change(folder: Path, state: SearchIndex, **changes: Any) -> SearchIndex:
    """Return the state with these fields changed, and write it, unless the index is read only or another one by now.

    Another process may build the index again, which would then count as complete.
    """
    changed = replace(state, **changes)
    with contextlib.suppress(OSError, UserError), alone_in(folder):
        if read_json(folder / STATE, SearchIndex) == state:
            write_json(folder / STATE, changed)
    return changed


def require_bm25s() -> None:
    """Raise UserError where bm25s is not installed."""
    if importlib.util.find_spec("bm25s") is None:
        raise UserError(
            "BM25 and hybrid search need the package bm25s.",
            "Install it with pip install 'bm25s>=0.3,<0.4', or search with --method dense.",
        )


def find_source(run: Path, data: Path) -> SearchSource:
    """Find the exported model of a run and open its data."""
    model = RunFolder(run).model
    if not RunFolder(run).recipe.is_file():
        raise UserError(f"'{run}' is not a run folder.", "Name one that daybreak run or daybreak pretrain made.")
    if not (model / "config.json").is_file():
        raise UserError(f"The run in '{run}' has no exported model yet.", "Let the run end, or give its command again.")
    if not (data / "manifest.json").is_file():
        raise UserError(f"The prepared data of '{run}' are not in '{data}'.", "Name their folder with --data.")
    shards = open_shards(data)
    if shards.manifest.tokenizer != tokenizer_fingerprint(model):
        raise UserError(
            f"The data in '{data}' were made with another tokenizer than that of '{model}'.",
            "Name the data of the run with --data, or prepare the text with --tokenizer-from.",
        )
    config, settings = read_json(model / "config.json"), read_json(model / "tokenizer_config.json")
    longest = min(config["max_position_embeddings"], settings["model_max_length"])
    tokenizer = load_tokenizer(model)
    tokenizer.encode_special_tokens = True  # as in the text, so that a query such as [MASK] is words
    return SearchSource(model.absolute(), data, shards, tokenizer, longest)


def _data_folder(run: Path, data: Path | None, state: SearchIndex | None, own: bool) -> Path:
    """Return ``data``, or the prepared data of an index; ``own`` if the index has a folder of its own."""
    inside = run / "data"
    if data is not None:
        return data
    if state and state.data_folder and (own or not (inside / "manifest.json").is_file()):
        return Path(state.data_folder)
    return inside


def _in_run(run: Path, data: Path) -> str:
    """What ``SearchIndex.data_folder`` says of the folder ``data``."""
    return "" if data.resolve() == (run / "data").resolve() else str(data.resolve())


# ---------------------------------------------------------------- what an index was made of


def _saved_state(folder: Path) -> SearchIndex | None:
    """None where there is no index, one that cannot be read, or one that has no passages yet."""
    try:
        state: SearchIndex = read_json(folder / STATE, SearchIndex)
    except UserError:
        return None
    return state if state.passages else None


def _is_ready(state: SearchIndex | None, source: SearchSource, words: bool) -> bool:
    if state is None or state.embedded != state.passages or (words and not state.has_bm25):
        return False
    return not _change(state, source)


def _change(state: SearchIndex, source: SearchSource) -> str:
    """What differs between an index and its source, in words; empty where nothing does."""
    if state.format != FORMAT or state.most_tokens != _most_tokens(source):
        return "The search index is of another version"
    if state.data != data_fingerprint(source.shards.manifest):
        return "The data changed since the search index was made"
    if state.model_stamp != _stamp(source.model) and state.model != model_fingerprint(source.model):
        return "The model changed since the search index was made"
    return ""


def model_fingerprint(model: Path) -> str:
    """Return blake2b (8 bytes, hex) of the weights, config and tokenizer of an exported model."""
    found = hashlib.blake2b(digest_size=8)
    for path in [*sorted(model.glob("*.safetensors")), model / "config.json", model / "tokenizer.json"]:
        found.update(digest_of(path, lambda: hashlib.blake2b(digest_size=8)))
    return found.hexdigest()


def data_fingerprint(manifest: Manifest) -> str:
    """Return blake2b (8 bytes, hex) of what the manifest says of tokens and documents."""
    files = [file for split in (manifest.train, manifest.heldout) for file in (*split.token_files, split.document_ends)]
    hashes = [manifest.tokenizer, *(digest for file in files for digest in (str(file.bytes), *file.hashes))]
    return hashlib.blake2b(" ".join(hashes).encode(), digest_size=8).hexdigest()


def _stamp(model: Path) -> str:
    stats = [path.stat() for path in sorted(model.glob("*.safetensors")) if path.is_file()]
    return " ".join(f"{stat.st_size}-{stat.st_mtime_ns}" for stat in stats)


def _most_tokens(source: SearchSource) -> int:
    return min(MOST_TOKENS, source.longest - 2)


# ---------------------------------------------------------------- making it


def _complete(folder: Path, source: SearchSource, data_folder: str, rebuild: bool) -> SearchIndex:
    """Make what is missing, with the folder locked.

    A model that cannot be read leaves the index as it is.
    """
    from daybreak.models.importing import load_pretrained

    saved = _saved_state(folder)
    change = _change(saved, source) if saved is not None and not rebuild else ""
    kept = None if rebuild or change else saved
    model = load_pretrained(source.model).model if kept is None or kept.embedded < kept.passages else None
    if change:
        say(f"{change}: it is built again.")
    if kept is not None and 0 < kept.embedded < kept.passages:
        say(f"Resuming the search index at passage {kept.embedded:,} of {kept.passages:,}.")
    state = kept or _begin(folder, source, data_folder)
    with _named_damage(folder):
        passages, _ = _arrays(folder, state)
    reader = PassageReader(source.shards, source.tokenizer, passages)
    if model is not None:
        state = _embed_passages(folder, model, reader, state)
    if not state.has_bm25 and importlib.util.find_spec("bm25s") is not None:
        temporary = folder / f".{BM25}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        with working("Reading words for BM25") as work:
            index = bm25_index(reader.all_texts(work.show))
        with disk_errors(temporary):  # bm25s writes with numpy
            index.save(temporary, show_progress=False)
        replace_folder(temporary, folder / BM25)
        state = replace(state, has_bm25=True)
        write_json(folder / STATE, state)
    return state


def _refuse_strangers(folder: Path, named: bool) -> None:
    """Raise UserError where the folder holds anything but an index; in a ``named`` one, its files may be the user's."""
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    strange = [name for name in there if name not in FILES]
    if named and not _has_state(folder):
        strange = there
    if strange:
        raise UserError(f"'{folder}' holds '{strange[0]}' and is not a search index.", "Choose another with --index.")


def _has_state(folder: Path) -> bool:
    """Whether the folder has the index.json of an index, of whatever version."""
    try:
        state = read_json(folder / STATE)
    except UserError:
        return False
    return isinstance(state, dict) and {"passages", "embedded"} <= state.keys()


def _begin(folder: Path, source: SearchSource, data_folder: str) -> SearchIndex:
    """Remove what is there and write the passages and the file of the vectors, still empty.

    Files are removed rather than overwritten, so that a process that reads them keeps what it reads. A state without
    passages comes first: if the process is killed, it shows that the folder holds an index.
    """
    from daybreak.training.hardware.probe import choose_device, faster_precision

    begun = SearchIndex(
        format=FORMAT,
        model=model_fingerprint(source.model),
        model_stamp=_stamp(source.model),
        data=data_fingerprint(source.shards.manifest),
        data_folder=data_folder,
        most_tokens=_most_tokens(source),
        precision=faster_precision(choose_device()),
        passages=0,
        hidden_size=int(read_json(source.model / "config.json")["hidden_size"]),
    )
    write_json(folder / STATE, begun)
    for name in (PASSAGES, VECTORS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / BM25, ignore_errors=True)
    passages = cut_passages(source.shards, source.tokenizer, _most_tokens(source))
    write_npy(folder / PASSAGES, passages)
    np.lib.format.open_memmap(folder / VECTORS, "w+", np.float16, (len(passages), begun.hidden_size)).flush()
    reserve(folder / VECTORS)
    state = replace(begun, passages=len(passages))
    write_json(folder / STATE, state)
    return state


def _embed_passages(folder: Path, model: Encoder, reader: PassageReader, state: SearchIndex) -> SearchIndex:
    """Embed the passages that are missing, part after part."""
    import torch

    from daybreak.evaluation.probes.retrieval import embed_ids
    from daybreak.training.hardware.probe import choose_device

    model = model.to(choose_device(), getattr(torch, state.precision))
    vectors = np.lib.format.open_memmap(folder / VECTORS, "r+")
    with working("Embedding passages") as work:

        def show(texts: int) -> None:
            embedded = state.embedded + texts
            work.show(embedded / state.passages, f"{embedded:,} of {state.passages:,}")

        while state.embedded < state.passages:
            past = min(state.embedded + PART, state.passages)
            ids = [reader.ids(number).tolist() for number in range(state.embedded, past)]
            vectors[state.embedded : past] = embed_ids(model, ids, special=reader.shards.manifest.special, show=show)
            vectors.flush()
            state = replace(state, embedded=past)
            write_json(folder / STATE, state)
    return state


def _opened(folder: Path, state: SearchIndex, source: SearchSource, words: bool) -> OpenIndex:
    with _named_damage(folder):
        passages, vectors = _arrays(folder, state)
        bm25 = import_bm25s().BM25.load(folder / BM25, mmap=True) if words else None
    return OpenIndex(state, source, PassageReader(source.shards, source.tokenizer, passages), vectors, bm25)


def _arrays(folder: Path, state: SearchIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return the passages and the vectors, memory-mapped."""
    passages = np.load(folder / PASSAGES, mmap_mode="r")
    # Mapped for writing in memory only: torch warns of arrays that are read-only.
    vectors = np.load(folder / VECTORS, mmap_mode="c")
    if len(passages) != state.passages or vectors.shape != (state.passages, state.hidden_size):
        raise ValueError("files of different lengths")
    return passages, vectors


@contextlib.contextmanager
def _named_damage(folder: Path) -> Iterator[None]:
    """Raise UserError for what numpy and bm25s raise of damaged files."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise UserError(
            f"The search index in '{folder}' is damaged ({error}).", "Build it again with --rebuild."
        ) from None


# ---------------------------------------------------------------- for a vector database


def export_parquet(index: OpenIndex, path: Path, show: Callable[[float], None] = lambda share: None) -> None:
    """Write all passages to a Parquet file with the columns id, split, document, text and vector (float32)."""
    require_pyarrow()
    import pyarrow
    from pyarrow import parquet

    columns = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("split", pyarrow.string()),
            ("document", pyarrow.int64()),
            ("text", pyarrow.string()),
            ("vector", pyarrow.list_(pyarrow.float32(), index.state.hidden_size)),
        ]
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(temporary, columns) as writer:
            for first in range(0, index.state.passages, PART):
                past = min(first + PART, index.state.passages)
                split, document = np.asarray(index.reader.passages[first:past, :2]).T
                flat = np.asarray(index.vectors[first:past], np.float32).ravel()
                values = [
                    pyarrow.array(np.arange(first, past)),
                    pyarrow.array([SPLITS[number] for number in split]),
                    pyarrow.array(document),
                    pyarrow.array(index.reader.texts(first, past)),
                    pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), index.state.hidden_size),
                ]
                writer.write_table(pyarrow.table(values, schema=columns))
                show(past / index.state.passages)
        os.replace(temporary, path)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"'{path}' cannot be written ({why}).", "Choose another file with --export.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_pyarrow() -> None:
    """Raise UserError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("Writing Parquet needs the package pyarrow.", install_hint("hub", "pyarrow"))
