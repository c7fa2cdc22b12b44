from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.data.sequences.chunks import ChunkRows
from daybreak.data.sequences.shards import ShardWriter, TokenStream
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds(pad=7, unk=8, cls=9, sep=10, mask=11)


def write(folder: Path, sizes: list[int]) -> tuple[TokenStream, list[list[int]]]:
    """Documents of these sizes; every token of the stream is another one."""
    writer = ShardWriter(folder, "train", 4)
    documents = []
    start = 100
    for size in sizes:
        documents.append(list(range(start, start + size)))
        writer.write(np.array([*documents[-1], SPECIAL.sep]), np.array([size + 1]))
        start += size
    return TokenStream(folder, writer.close(), 4), documents


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30), length=st.integers(3, 24))
def test_every_document_is_a_row_once_an_epoch(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int
) -> None:
    stream, documents = write(tmp_path_factory.mktemp("stream"), sizes)
    sampler = ChunkRows().build(stream, length, 3, SPECIAL)
    wanted = []
    for document in documents:
        row = [SPECIAL.cls, *document[: length - 2], SPECIAL.sep]
        wanted.append(row + [SPECIAL.pad] * (length - len(row)))
    assert sampler.rows_per_epoch == len(sizes)
    assert sampler.at(np.arange(len(sizes))).ids.tolist() == wanted
    for epoch in (0, 2):
        batch = sampler.take(epoch * len(sizes), len(sizes))
        assert sorted(batch.ids.tolist()) == sorted(wanted)
        assert np.array_equal(batch.attend, batch.ids != SPECIAL.pad)
    whole = sampler.take(5, 12)
    parts = [sampler.take(5, 7), sampler.take(12, 5)]
    assert np.array_equal(np.concatenate([part.ids for part in parts]), whole.ids)
    assert np.array_equal(np.concatenate([part.attend for part in parts]), whole.attend)


def test_the_original_attends_to_padding(tmp_path: Path) -> None:
    stream, _ = write(tmp_path, [3, 5])
    faithful = ChunkRows(mask_padding=False).build(stream, 8, 3, SPECIAL).take(0, 2)
    masked = ChunkRows().build(stream, 8, 3, SPECIAL).take(0, 2)
    assert faithful.attend is None and masked.attend is not None
    assert np.array_equal(faithful.ids, masked.ids)
