"""Resolve inputs (files, folders, globs, standard input, data sets) and read their lines, compressed or not."""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import gzip
import hashlib
import io
import itertools
import json
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from daybreak.core.errors import ReadFailed, UserError
from daybreak.core.terminal import say
from daybreak.data.readers import hub
from daybreak.data.readers.unpacking import CHUNK, COMPRESSIONS, unpack

TEXT, RECORDS, TABLE, PARQUET = "text", "records", "table", "parquet"
PAGE, DUMP, DATA_SET = "page", "dump", "data set"
FORMS = {
    ".txt": TEXT,
    ".md": TEXT,
    ".jsonl": RECORDS,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".parquet": PARQUET,
    ".html": PAGE,
    ".htm": PAGE,
    ".xml": DUMP,
}
UNITS = {PAGE: "page", DUMP: "article"}
UNITS |= dict.fromkeys((RECORDS, TABLE, PARQUET, DATA_SET), "record")
"""What one document is, for every form but TEXT, for which a rule decides."""
KNOWN = (
    ".txt, .md, .jsonl, .csv, .tsv, .html and Wikipedia's .xml, plain or with .gz, .zst or .bz2; .parquet; "
    "or - for standard input"
)
LONGEST_LINE = {TEXT: 1 << 20, RECORDS: 64 << 20, TABLE: 16 << 20}
"""Bytes. A longer line of text is cut at a space, which bounds memory for files without line breaks. In other forms
a longer line is replaced by TOO_LONG."""
TOO_LONG = b""
"""Replaces a record or row above the limit."""
STDIN = "-"
DUMP_HEAD = 1 << 10
"""Bytes in which an .xml file must identify itself as a MediaWiki dump; others in a folder are ignored."""
_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks. Longer ones come first, because some are prefixes of others."""


@dataclass(frozen=True)
class InputFile:
    path: Path
    given: str
    """The input as the user typed it: the file itself, its folder, a glob, or ``-``; of a known corpus, the address."""
    form: str
    """A value of FORMS, or DATA_SET for a data set that consists of several files (see ``hub``)."""
    compression: str
    """An item of COMPRESSIONS, or empty."""
    bytes: int
    modified: int
    """Time of change in nanoseconds; 0 for standard input."""
    revision: str = ""
    """Commit of a data set or hash of standard input, which identify the content in place of path and ``modified``."""

    @property
    def name(self) -> str:
        if self.given == STDIN:
            return "standard input"
        return self.given if self.form == DATA_SET else str(self.path)


class ByteCounter:
    """Counts bytes read from disk, before decompression; bytes at the border of two parts count twice."""

    def __init__(self) -> None:
        self.bytes = 0


def addresses(inputs: Iterable[str | Path]) -> list[str]:
    """Return the inputs as strings, with the address of each known corpus in place of its name.

    The size and license of a known corpus are printed.

    Raises:
        UserError: a corpus that nobody publishes under a license.
    """
    found = []
    for given in map(str, inputs):
        if not given:
            raise UserError("An input is an empty text.", "Name files, folders or patterns.")
        if corpus := hub.find_corpus(given):
            say(f"Corpus '{given}': {corpus.title}; {corpus.size}. License: {corpus.license}.")
            given = corpus.address
        found.append(given)
    return found


def find_files(inputs: Sequence[str | Path], stdin: Path | None = None) -> list[InputFile]:
    """Resolve files, folders (recursive), globs, data sets (``hf://``), known corpora and ``-``.

    The files are sorted within each input, and each file counts once. The size and license of a known corpus are
    printed before it is fetched. ``InputFile.given`` is its address: to look up files by input, call ``addresses``
    first.

    Args:
        inputs: as the user typed them, or their ``addresses``.
        stdin: the file written by ``spool_stdin``, used for ``-``.

    Raises:
        UserError: no inputs, a path that does not exist or cannot be read, a pattern or folder without usable files,
            or an explicitly named file of unknown type.
    """
    if not inputs:
        raise UserError("No text was given.", "Name files, folders or patterns.")
    found: dict[object, InputFile] = {}
    for given in addresses(inputs):
        if given == STDIN:
            file = _spooled(stdin)
            found.setdefault((STDIN, file.revision), file)
            continue
        if given.startswith(hub.PREFIX):
            found.setdefault(given, InputFile(Path(given), given, DATA_SET, "", *hub.inspect(hub.parse(given))))
            continue
        try:
            usable = _resolve(given)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise UserError(f"'{error.filename or given}' cannot be read: {reason}.", "Check the path.") from None
        if not usable:
            raise UserError(f"'{given}' holds no text files.", f"Give {KNOWN}.")
        for identity, file in usable:
            found.setdefault(identity, file)
    return list(found.values())


_Found = tuple[tuple[int, int], InputFile]
"""(Device, inode), which identify a file under any of its names, and the file."""


def _resolve(given: str) -> list[_Found]:
    path = Path(os.path.expanduser(given))
    if path.is_file():
        if (found := _describe(str(path), given, named=True)) is None:
            raise UserError(f"'{given}' is of an unknown type.", f"Give {KNOWN}.")
        return [found]
    if path.is_dir():
        inside = files_inside(str(path))
    elif glob.has_magic(given):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise UserError(f"The pattern '{given}' matches nothing.", "Check it, and quote it for the shell.")
        found_by = [files_inside(match) if os.path.isdir(match) else [match] for match in matches]
        inside = list(dict.fromkeys(itertools.chain.from_iterable(found_by)))  # '**' matches folders and their files
    elif path.exists():
        raise UserError(
            f"'{given}' is a pipe or a device, which can be read only once.",
            "Give the text on standard input, as in: daybreak prepare - < TEXT; or write it to a file.",
        )
    else:
        raise UserError(f"There is no '{given}'.", "Check the path.")
    described = [(file, _describe(file, given)) for file in inside]
    usable = [found for _, found in described if found is not None]
    if usable:
        say_left_out(given, [file for file, found in described if found is None])
    return usable


def suffixes(path: str) -> tuple[str, str]:
    """Return the suffix in lower case that tells the form of a file, and the one of its compression or ""."""
    stem, suffix = os.path.splitext(path.lower())
    return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSIONS else (suffix, "")


def _describe(path: str, given: str, named: bool = False) -> _Found | None:
    suffix, compression = suffixes(path)
    form = FORMS.get(suffix)
    if form is None or (form == PARQUET and compression):
        return None
    try:
        facts = os.stat(path)
    except OSError:  # a dangling or circular link
        return None
    if not stat.S_ISREG(facts.st_mode):  # reading a pipe would block
        return None
    file = InputFile(Path(path), given, form, compression, facts.st_size, facts.st_mtime_ns)
    if form == DUMP and not named:
        with open_file(file) as stream:
            if b"<mediawiki" not in stream.read(DUMP_HEAD):
                return None
    return (facts.st_dev, facts.st_ino), file


def _spooled(path: Path | None) -> InputFile:
    if path is None:
        raise UserError(f"Standard input ('{STDIN}') cannot be read here.", "Write the text to a file, and name that.")
    return InputFile(path, STDIN, FORMS[path.suffix], "", path.stat().st_size, 0, path.stem.partition("-")[2])


def read_lines(file: InputFile, byte_counter: ByteCounter | None = None) -> Iterator[bytes]:
    """Yield the lines of ``file``, decompressed, with their line breaks; TOO_LONG for a record or row that is.

    Raises:
        UserError: the file cannot be opened, is in UTF-16 or UTF-32, or its compressed data is damaged or cut short.
    """
    return (line for _, line in read_positions(file, byte_counter))


def read_positions(
    file: InputFile, byte_counter: ByteCounter | None = None, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of ``file`` that begin at byte ``start`` or later, each with the byte at which it begins.

    All chunks of a line that was cut have the position of the line. Reading continues beyond ``stop``, unless no line
    begins between ``start`` and ``stop``. Memory: one line of at most LONGEST_LINE.
    """
    limit = LONGEST_LINE[file.form]
    with open_file(file, byte_counter) as stream:
        _refuse_wide(file, stream)
        position = 0
        if start:  # the first line that begins at ``start`` or later, if one begins before ``stop``
            position = stream.seek(start - 1) + _skip_line(stream, None if stop is None else stop - start + 1)
        if stop is not None and position >= stop:
            return
        rest, size = b"", 0  # of the line that is being read, what was not yielded, and what was
        while line := rest + stream.readline(limit - len(rest)):
            rest, ended = b"", line.endswith(b"\n")
            if not ended and len(line) >= limit:
                if file.form != TEXT:
                    yield position, TOO_LONG
                    position += len(line) + _skip_line(stream)
                    continue
                cut = line.rfind(b" ") + 1 or _character_border(line)
                line, rest = line[:cut], line[cut:]
            yield position, line
            size += len(line)
            if ended:
                position, size = position + size, 0


def _skip_line(stream: io.BufferedReader, most: int | None = None) -> int:
    """Read to the end of the line, or until ``most`` bytes are read; return the number of bytes read."""
    size = 0
    while (most is None or size < most) and (piece := stream.readline(CHUNK)):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def _character_border(line: bytes) -> int:
    """Return where the last UTF-8 character begins, so that no character is cut in two."""
    for back in range(1, min(5, len(line))):
        if line[-back] < 0x80:
            break
        if line[-back] >= 0xC0:
            return len(line) - back
    return len(line)


def _refuse_wide(file: InputFile, stream: io.BufferedReader) -> None:
    head = stream.peek(4)[:4]
    for mark, name in _WIDE.items():
        if head.startswith(mark):
            raise UserError(
                f"'{file.name}' is {name} text, not UTF-8.", f"Convert it (iconv -f {name} -t UTF-8), or leave it out."
            )


@contextlib.contextmanager
def open_file(file: InputFile, byte_counter: ByteCounter | None = None) -> Iterator[io.BufferedReader]:
    """Open ``file`` for reading, decompressed as it is read.

    Raises:
        ReadFailed: the file cannot be opened or read.
        UserError: its compressed data is damaged or truncated. Both are also raised while reading.
    """
    damaged = UserError(
        f"'{file.name}' is damaged or cut short: it cannot be decompressed to its end.",
        "Fetch or compress it again, or leave it out.",
    )
    try:
        with _CountedFile(file.path, byte_counter or ByteCounter()) as raw, unpack(raw, file.compression) as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise damaged from None
    except OSError as error:
        if error.errno is None:  # bz2's
            raise damaged from None
        reason = os.strerror(error.errno).lower()
        raise ReadFailed(f"'{file.name}' cannot be read: {reason}.", "Fix that, or leave the file out.") from None


class _CountedFile(io.FileIO):
    def __init__(self, path: Path, byte_counter: ByteCounter):
        super().__init__(path, "r")
        self._byte_counter = byte_counter

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        count = super().readinto(buffer) or 0
        self._byte_counter.bytes += count
        return count


KINDS_SHOWN = 5
OWN_FOLDERS = ({"recipe.json", "environment.json"}, {"manifest.json", "unigram.bin", "tokenizer"})
"""Names by which a run and prepared data are known: of a corpus that holds them, they are no text."""


def files_inside(folder: str) -> list[str]:
    """Return the files that are not hidden, sorted by path, without those of Daybreak's own folders.

    Links to folders are not followed.
    """

    def refuse(error: OSError) -> None:
        raise error

    found: list[str] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        if any(marks <= {*folders, *names} for marks in OWN_FOLDERS):
            say(f"Not read in '{folder}': '{root}' was made by Daybreak.")
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(root, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda name: name.split(os.sep))


def say_left_out(given: str, files: Iterable[str]) -> None:
    """Print how many files of ``given`` are not read, by file extension; print nothing if all are read."""
    kinds = Counter(
        (os.path.splitext(file)[1].lower() or "no ending") if os.path.exists(file) else "broken link" for file in files
    )
    if kinds:
        shown = [f"{kind} {count:,}" for kind, count in kinds.most_common(KINDS_SHOWN)]
        more = ["..."] if len(kinds) > KINDS_SHOWN else []
        say(f"Not read in '{given}': {kinds.total():,} files ({', '.join(shown + more)}).")


COPIED = 1 << 20
"""Bytes copied at a time; the first block decides between records and text."""


def spool_stdin(folder: Path, stream: IO[bytes] | None = None) -> Path:
    """Copy standard input to a file in ``folder`` and return its path, for ``find_files``.

    The text is read at least twice, and a pipe can be read only once. If the first line is a JSON object the file is
    named .jsonl, otherwise .txt. The name contains a hash of the content, which identifies the same text later.

    Args:
        folder: exists.
        stream: read instead of standard input.
    """
    source: IO[bytes] | None = stream or (sys.stdin.buffer if sys.stdin else None)
    if source is None:
        raise UserError("There is no standard input.", "Pipe text into the program, or name files.")
    digest = hashlib.blake2b(digest_size=16)
    temporary = folder / f".stdin.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            head = data = source.read(COPIED)
            while data:
                digest.update(data)
                file.write(data)
                data = source.read(COPIED)
        final = folder / f"stdin-{digest.hexdigest()}{'.jsonl' if _holds_records(head) else '.txt'}"
        os.replace(temporary, final)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk of '{folder}' is full: standard input does not fit on it.",
            "Free some space, or choose another folder with --out.",
        ) from None
    return final


def _holds_records(head: bytes) -> bool:
    """Return whether the first line that is not blank is a JSON object, or the start of one longer than ``head``."""
    lines = head.removeprefix(b"\xef\xbb\xbf").lstrip().splitlines(keepends=True)
    if not lines or not lines[0].startswith(b"{"):
        return False
    if len(lines) == 1 and not lines[0].endswith(b"\n") and len(head) >= COPIED:
        return lines[0][1:].lstrip().startswith(b'"')
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return False
