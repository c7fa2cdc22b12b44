"""From what the user typed to lines of bytes: files, folders and globs, plain, .gz and .zst; and data sets by name."""

from __future__ import annotations

import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from daybreak.base.errors import UserError
from daybreak.data import hub

TEXT, RECORDS, DATA_SET = "text", "records", "data set"
FORMS = {".txt": TEXT, ".md": TEXT, ".jsonl": RECORDS}
COMPRESSIONS = (".gz", ".zst")
KNOWN = ".txt, .md and .jsonl, plain or with .gz or .zst"
LONGEST_LINE = {TEXT: 1 << 20, RECORDS: 256 << 20}
"""Bytes. A longer line of text is cut at a space, so that a file without line breaks does not fill the memory."""
CHUNK = 1 << 17


@dataclass(frozen=True)
class InputFile:
    path: Path
    given: str
    """The input as the user typed it: the file itself, its folder, or a glob."""
    form: str
    """TEXT, RECORDS or DATA_SET; the last is no file, but a name for many (see ``hub``)."""
    compression: str
    """An item of COMPRESSIONS, or empty."""
    bytes: int
    modified: int
    """Time of change in nanoseconds."""
    revision: str = ""
    """Commit of a data set."""

    @property
    def name(self) -> str:
        return self.given if self.form == DATA_SET else str(self.path)


class Meter:
    """Counts the bytes that were read from disk, compressed as they are."""

    def __init__(self) -> None:
        self.bytes = 0


def find_files(inputs: Sequence[str | Path]) -> list[InputFile]:
    """Resolve files, folders (recursive), globs and data sets (``hf://``); sorted within each input, each file once.

    Raises:
        UserError: no inputs, a path that does not exist, a pattern or folder without usable files, or a file that
            was named itself but is of an unknown kind.
    """
    if not inputs:
        raise UserError("No text was given.", "Name files, folders or patterns.")
    found: dict[Path, InputFile] = {}
    for given in map(str, inputs):
        path = Path(given).expanduser()
        if given.startswith(hub.PREFIX):
            state = hub.inspect(hub.parse(given))
            files: list[InputFile | None] = [
                InputFile(path, given, DATA_SET, "", state.bytes, state.modified, state.revision)
            ]
        elif path.is_file():
            files = [_describe(path, given)]
            if files[0] is None:
                raise UserError(f"'{given}' is of an unknown kind.", f"Give {KNOWN}.")
        elif path.is_dir():
            files = [_describe(file, given) for file in _walk(path)]
        elif glob.has_magic(given):
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            if not matches:
                raise UserError(f"The pattern '{given}' matches nothing.", "Check it, and quote it for the shell.")
            inside = [file for match in matches for file in (_walk(match) if match.is_dir() else [match])]
            files = [_describe(file, given) for file in inside]
        else:
            raise UserError(f"There is no '{given}'.", "Check the path.")
        usable = [file for file in files if file is not None]
        if not usable:
            raise UserError(f"'{given}' holds no text files.", f"Give {KNOWN}.")
        for file in usable:
            found.setdefault(file.path.resolve(), file)
    return list(found.values())


def _walk(folder: Path) -> list[Path]:
    return sorted(
        Path(root) / name
        for root, folders, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and not any(part.startswith(".") for part in Path(root).relative_to(folder).parts)
    )


def _describe(path: Path, given: str) -> InputFile | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    form = FORMS.get(suffixes[-1]) if suffixes else None
    if form is None:
        return None
    try:
        facts = path.stat()
    except OSError:  # a dangling link
        return None
    return InputFile(path, given, form, compression, facts.st_size, facts.st_mtime_ns)


def read_lines(file: InputFile, meter: Meter | None = None) -> Iterator[bytes]:
    """Yield the lines of ``file``, decompressed, with their line breaks.

    Raises:
        UserError: the file cannot be opened, or its compressed data is damaged or cut short.
    """
    limit = LONGEST_LINE[file.form]
    damaged = UserError(
        f"'{file.path}' is damaged or cut short: it cannot be decompressed to its end.",
        "Fetch or compress it again, or leave it out.",
    )
    try:
        with _MeteredFile(file.path, meter or Meter()) as raw, _decompress(raw, file.compression) as stream:
            rest = b""
            while line := rest + stream.readline(limit - len(rest)):
                rest = b""
                if len(line) >= limit and not line.endswith(b"\n"):
                    cut = line.rfind(b" ") + 1 or limit
                    line, rest = line[:cut], line[cut:]
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError):
        raise damaged from None
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"'{file.path}' cannot be read: {reason}.", "Mend that, or leave the file out.") from None


def _decompress(raw: io.RawIOBase, compression: str) -> io.BufferedIOBase:
    if compression == ".zst":
        return io.BufferedReader(_ZstdFile(io.BufferedReader(raw, CHUNK)), CHUNK)
    buffered = io.BufferedReader(raw, CHUNK)
    # gzip's own buffer is small and in Python; ours on top of it makes readline fast.
    return io.BufferedReader(gzip.GzipFile(fileobj=buffered), CHUNK) if compression == ".gz" else buffered


class _MeteredFile(io.FileIO):
    def __init__(self, path: Path, meter: Meter):
        super().__init__(path, "r")
        self._meter = meter

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        count = super().readinto(buffer) or 0
        self._meter.bytes += count
        return count


class _ZstdFile(io.RawIOBase):
    """Decompresses frame after frame. The library's own reader takes a truncated file for a complete one."""

    def __init__(self, raw: io.BufferedReader):
        self._raw = raw
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        while not self._ready:
            self._compressed = self._compressed or self._raw.read(CHUNK) or b""
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._library.decompressobj()
            self._ready = self._frame.decompress(self._compressed)
            self._compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
