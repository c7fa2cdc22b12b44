"""Token streams of given ids, for the tests of samplers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from daybreak.data.sequences.shards import ShardWriter, TokenStream

MakeStream = Callable[..., TokenStream]


@pytest.fixture(scope="session")
def make_stream(tmp_path_factory: pytest.TempPathFactory) -> MakeStream:
    """Return ``make_stream(ids, ends, sentences)``: these ids as one document, or as documents that end at ``ends``."""

    def make(ids: np.ndarray, ends: np.ndarray | None = None, sentences: np.ndarray | None = None) -> TokenStream:
        folder = tmp_path_factory.mktemp("stream")
        writer = ShardWriter(folder, "train", 4, sentences=sentences is not None)
        writer.write(ids, np.array([len(ids)]) if ends is None else ends, sentences)
        return TokenStream(folder, writer.close(), 4)

    return make
