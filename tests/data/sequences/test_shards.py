from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.serialization import to_dict
from daybreak.data.sequences.shards import BlockWriter, Shards, ShardWriter, TokenStream, open_shards
from daybreak.data.tokenizers.tokenizer import SEP, WordPiece, save_tokenizer, tokenizer_fingerprint
from daybreak.schemas.run import BLOCK_BYTES, SHARD_FORMAT, Manifest

DOCUMENTS = 400


def random_documents(seed: int, vocabulary: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9000, DOCUMENTS)
    return [np.append(rng.integers(5, vocabulary, size), SEP).astype(np.uint32) for size in sizes]


def write_split(folder: Path, name: str, documents: list[np.ndarray], token_bytes: int = 2, file_bytes: int = 1 << 28):  # type: ignore[no-untyped-def]
    writer = ShardWriter(folder, name, token_bytes, file_bytes=file_bytes)
    for start in range(0, len(documents), 7):
        some = documents[start : start + 7]
        writer.write(np.concatenate(some), np.cumsum([len(document) for document in some]))
    return writer.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with about 3.6 MB of training tokens."""
    tokenizer = WordPiece(vocabulary=300).train(["some words to learn from", "more words to learn from"])
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    train = write_split(tmp_path, "train", random_documents(1, 60_000))
    heldout = write_split(tmp_path, "heldout", random_documents(2, 60_000)[:9])
    counts = BlockWriter(tmp_path / "unigram.bin")
    counts.write(np.arange(300, dtype="<u8"))
    manifest = Manifest(
        format=SHARD_FORMAT, tokenizer=tokenizer_fingerprint(tmp_path / "tokenizer"), tokenizer_kind="WordPiece",
        vocabulary=300, token_bytes=2, document_rule="line", train=train, heldout=heldout,
        unigram_counts=counts.close(), sources=[], duplicates=0, skipped={}, characters=1, seconds=0.0,
        inputs_fingerprint="x",
    )  # fmt: skip
    write_json(tmp_path / "manifest.json", manifest)
    return tmp_path


def test_what_was_written_is_read(data: Path) -> None:
    shards = open_shards(data)
    assert isinstance(shards, Shards)
    documents = random_documents(1, 60_000)
    stream = np.concatenate(documents)
    assert len(shards.train) == len(stream)
    assert shards.train.read(0, len(stream)).dtype == np.uint16
    np.testing.assert_array_equal(shards.train.read(0, len(stream)), stream)
    np.testing.assert_array_equal(shards.train.document_ends(), np.cumsum([len(document) for document in documents]))
    assert (stream[shards.train.document_ends() - 1] == SEP).all()
    assert shards.train.sentence_ends() is None
    np.testing.assert_array_equal(shards.unigram_counts, np.arange(300))


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_a_stream_over_several_files_reads_like_one(tmp_path: Path, token_bytes: int) -> None:
    documents = random_documents(3, 60_000 if token_bytes == 2 else 200_000)
    split = write_split(tmp_path, "train", documents, token_bytes, file_bytes=BLOCK_BYTES)
    assert len(split.token_files) > 3
    assert {file.bytes for file in split.token_files[:-1]} == {BLOCK_BYTES}
    stream, whole = TokenStream(tmp_path, split, token_bytes), np.concatenate(documents)

    @settings(max_examples=50)
    @given(st.integers(0, len(whole)), st.integers(0, len(whole)))
    def same(a: int, b: int) -> None:
        np.testing.assert_array_equal(stream.read(min(a, b), max(a, b)), whole[min(a, b) : max(a, b)])

    same()
    border = BLOCK_BYTES // token_bytes
    np.testing.assert_array_equal(stream.read(border - 1, border + 1), whole[border - 1 : border + 1])
    with pytest.raises(IndexError):
        stream.read(0, len(whole) + 1)

    @settings(max_examples=50)
    @given(st.lists(st.integers(0, len(whole) - 100), max_size=20), st.integers(1, 100))
    def same_windows(starts: list[int], width: int) -> None:
        found = stream.windows(np.array([*starts, border - 50], np.int64), width)
        expected = [whole[start : start + width] for start in (*starts, border - 50)]
        np.testing.assert_array_equal(found, np.stack(expected))
        assert found.dtype == stream.read(0, 1).dtype

    same_windows()
    for start in (-1, len(whole) - 9):
        with pytest.raises(IndexError):
            stream.windows(np.array([0, start]), 10)
    assert stream.windows(np.zeros(0, np.int64), 10).shape == (0, 10)


def test_a_flipped_bit_is_found_when_its_block_is_read_and_only_then(data: Path) -> None:
    path = data / "train-00000.tokens.bin"
    raw = bytearray(path.read_bytes())
    raw[2 * BLOCK_BYTES + 77] ^= 1
    path.write_bytes(raw)
    stream = open_shards(data).train
    block = BLOCK_BYTES // 2
    stream.read(0, 2 * block)
    for _ in range(2):  # not only the first time
        with pytest.raises(
            UserError, match=r"train-00000.tokens.bin' was changed.*Delete .* and prepare the data again"
        ):
            stream.read(2 * block - 1, 2 * block + 1)
    with pytest.raises(UserError, match="block 2 does not match"):
        whole = open_shards(data).train
        whole.read(0, len(whole))  # several blocks at a time
    fresh = open_shards(data).train
    assert fresh.windows(np.array([0, 2 * block - 10]), 10).shape == (2, 10)
    with pytest.raises(UserError, match="was changed"):
        fresh.windows(np.array([0, 2 * block - 9]), 10)


@pytest.mark.parametrize(
    "name", ["train-00000.tokens.bin", "train.documents.bin", "heldout-00000.tokens.bin", "unigram.bin"]
)
def test_a_file_of_another_size_or_none_is_refused(data: Path, name: str) -> None:
    (data / name).write_bytes((data / name).read_bytes()[:-2])
    with pytest.raises(
        UserError, match=rf"{name}' has \d+ bytes where the manifest says \d+. Restore .*, or prepare the same text"
    ):
        open_shards(data)
    (data / name).unlink()
    with pytest.raises(UserError, match=f"{name}' is missing. Restore"):
        open_shards(data)


def test_another_tokenizer_is_refused(data: Path) -> None:
    save_tokenizer(WordPiece(vocabulary=300, cased=True).train(["Other words", "other Words"]), data / "tokenizer")
    with pytest.raises(UserError, match=r"does not match the one that encoded its shards. Delete"):
        open_shards(data)


def test_another_format_or_no_manifest_is_refused(data: Path) -> None:
    plain = to_dict(open_shards(data).manifest) | {"format": SHARD_FORMAT + 1, "unheard_of": 1}
    (data / "manifest.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match=f"prepared in format {SHARD_FORMAT + 1}; this version reads format"):
        open_shards(data)
    with pytest.raises(UserError, match="contains no prepared data"):
        open_shards(data / "tokenizer")


def test_documents_must_close_their_tokens(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", 2)
    with pytest.raises(ValueError):
        writer.write(np.arange(5), np.array([3]))
