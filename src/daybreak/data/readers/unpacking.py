"""Packed files as streams: frame after frame to the end of the file, in bounded memory whatever they unpack to."""

from __future__ import annotations

import bz2
import gzip
import io
from typing import IO, Any

from daybreak.core.errors import UserError

CHUNK = 1 << 17
ZSTD_FEED = 512
"""Bytes given to zstd at a time: 4 of them can stand for 128 KiB, so that more would let a bomb fill the memory."""
COMPRESSIONS = (".gz", ".zst", ".bz2")


def unpack(raw: io.RawIOBase, compression: str) -> io.BufferedReader:
    """A stream of what ``raw`` holds; ``compression`` is an item of COMPRESSIONS, or empty.

    Memory: at most 32 MiB of unpacked data and the window of zstd, which is at most 2 GiB and in most files 8 MiB.

    Raises:
        EOFError, OSError without a number, zlib.error: while reading, where the data is cut short or damaged.
        UserError: a .zst file, and zstandard is not installed.
    """
    packed: io.BufferedReader = io.BufferedReader(raw, CHUNK)
    if not compression:
        return packed
    # gzip's own buffer is small and in Python; ours on top of it makes readline fast.
    if compression == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=packed), CHUNK)
    return io.BufferedReader(_ZstdFile(packed) if compression == ".zst" else _Bz2File(packed), CHUNK)


class _ZstdFile(io.RawIOBase):
    """Decompresses frame after frame. The library's own reader takes a truncated file for a complete one."""

    def __init__(self, packed: IO[bytes]):
        try:
            import zstandard  # here, so that a machine without it prepares every other file
        except ImportError:
            raise UserError("A .zst file needs the package zstandard.", "pip install zstandard") from None
        self._packed = packed
        self._damaged = zstandard.ZstdError
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: Any = None
        self._fed = self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while not self._ready:
            self._fed = self._fed or memoryview(self._packed.read(ZSTD_FEED))
            if not self._fed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._library.decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(self._fed))
            except self._damaged:
                raise EOFError from None
            self._fed = memoryview(self._frame.unused_data if self._frame.eof else b"")
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


class _Bz2File(io.RawIOBase):
    """Decompresses stream after stream. The library's own reader takes a damaged later stream for the end."""

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
