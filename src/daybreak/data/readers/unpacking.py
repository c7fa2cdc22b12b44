"""Decompress .gz, .zst and .bz2 files as streams, all frames to the end of the file, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Callable
from typing import IO, Any

from daybreak.core.errors import UserError

CHUNK = 1 << 17
ZSTD_FEED = 512
"""Bytes given to zstd at a time. 4 bytes can expand to 128 KiB, so larger chunks could fill the memory."""
COMPRESSIONS = (".gz", ".zst", ".bz2")


def unpack(raw: io.RawIOBase, compression: str) -> io.BufferedReader:
    """Return a stream of the decompressed content of ``raw``.

    Memory: at most 32 MiB of decompressed data and the window of zstd, which is at most 2 GiB and usually 8 MiB.

    Args:
        compression: an item of COMPRESSIONS, or empty.

    Raises:
        EOFError, OSError without errno, zlib.error: while reading, if the data is truncated or damaged.
        UserError: a .zst file, but zstandard is not installed.
    """
    packed: io.BufferedReader = io.BufferedReader(raw, CHUNK)
    if not compression:
        return packed
    # GzipFile buffers little, in Python; a BufferedReader on top makes readline fast.
    if compression == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=packed), CHUNK)
    if compression == ".bz2":
        return io.BufferedReader(_Frames(packed, bz2.BZ2Decompressor, CHUNK, (CHUNK,), EOFError), CHUNK)
    try:
        import zstandard  # imported here, so that all other files need no zstandard
    except ImportError:
        raise UserError("A .zst file needs the package zstandard.", "Run: pip install zstandard.") from None
    library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return io.BufferedReader(_Frames(packed, library.decompressobj, ZSTD_FEED, (), zstandard.ZstdError), CHUNK)


class _Frames(io.RawIOBase):
    """Decompresses all frames.

    bz2.BZ2File treats a damaged later frame as the end of the file, and the reader of zstandard does not detect a
    truncated file.

    Args:
        new_frame: returns a decompressor of one frame.
        feed: bytes given to it at a time.
        limit: its second argument, the maximum number of bytes that it returns; empty if it takes none.
        damaged: what it raises on damaged data.
    """

    def __init__(
        self,
        packed: IO[bytes],
        new_frame: Callable[[], Any],
        feed: int,
        limit: tuple[int, ...],
        damaged: type[Exception],
    ):
        self._packed, self._new_frame, self._feed, self._limit = packed, new_frame, feed, limit
        self._damaged = damaged
        self._frame: Any = None
        self._input, self._output = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while not self._output:
            if self._frame is None or getattr(self._frame, "needs_input", True):
                self._input = self._input or self._packed.read(self._feed)
                if not self._input:
                    if self._frame is not None:
                        raise EOFError
                    return 0
                self._frame = self._frame or self._new_frame()
            try:
                self._output = memoryview(self._frame.decompress(self._input, *self._limit))
            except self._damaged:
                raise EOFError from None
            self._input = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count
