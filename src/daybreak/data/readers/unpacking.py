"""Decompress .gz, .zst and .bz2 files as streams, all frames to the end of the file, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
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
    return io.BufferedReader(_ZstdFile(packed) if compression == ".zst" else _Bz2File(packed), CHUNK)


class _ZstdFile(io.RawIOBase):
    """Decompresses all frames. The reader of zstandard does not detect a truncated file."""

    def __init__(self, packed: IO[bytes]):
        try:
            import zstandard  # imported here, so that all other files need no zstandard
        except ImportError:
            raise UserError("A .zst file needs the package zstandard.", "pip install zstandard") from None
        self._packed = packed
        self._damaged = zstandard.ZstdError
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: Any = None
        self._input = self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while not self._output:
            self._input = self._input or memoryview(self._packed.read(ZSTD_FEED))
            if not self._input:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._library.decompressobj()
            try:
                self._output = memoryview(self._frame.decompress(self._input))
            except self._damaged:
                raise EOFError from None
            self._input = memoryview(self._frame.unused_data if self._frame.eof else b"")
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count


class _Bz2File(io.RawIOBase):
    """Decompresses all streams. bz2.BZ2File treats a damaged later stream as the end of the file."""

    def __init__(self, packed: IO[bytes]):
        self._packed = packed
        self._stream: bz2.BZ2Decompressor | None = None
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while True:
            fed = b""
            if self._stream is None or self._stream.needs_input:
                fed = self._left or self._packed.read(CHUNK)
                self._left = b""
                if not fed:
                    if self._stream is not None:
                        raise EOFError
                    return 0
                self._stream = self._stream or bz2.BZ2Decompressor()
            data = self._stream.decompress(fed, len(buffer))
            if self._stream.eof:
                self._left, self._stream = self._stream.unused_data, None
            if data:
                buffer[: len(data)] = data
                return len(data)
