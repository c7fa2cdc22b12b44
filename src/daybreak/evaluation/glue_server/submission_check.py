"""Whether files for the GLUE server are what it takes, whoever made them: every fault, its line and its remedy."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.evaluation.glue_server.submission import ARCHIVE, FILES, HEADER, LEAST, MOST, AnswerFile

LARGEST = 2**26
"""Bytes; the longest honest file, QQP's, has some 4 million."""
STRANGERS = 10
"""So many files that do not belong there are named, the others counted."""
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

Read = Callable[[], "bytes | str"]
"""Returns the content, or the fault that keeps it from being read."""


def check(path: Path) -> list[str]:
    """Return the faults of a submission, a folder or a zip: each a sentence with file, line and remedy.

    No fault means that the server can read it, not that its answers are good.

    Raises:
        UserError: there is nothing at ``path``, or it cannot be read.
    """
    try:
        found = _folder(path) if path.is_dir() else _archive(path)
        return [found] if isinstance(found, str) else _faults(found)
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.", "Check the path.") from None


def _faults(found: Sequence[tuple[str, Read]]) -> list[str]:
    """Of files by their places, with forward slashes."""
    faults, strange, judged = [], [], set()
    for place, read in found:
        name = place.rpartition("/")[2].removesuffix(".tsv")
        if name not in FILES or not place.endswith(".tsv"):
            meant = nearest(place, [f"{name}.tsv" for name in FILES])
            strange.append(f"'{_shown(place)}' is none of the 11 files.{meant} Rename it or take it out.")
        elif name in judged:
            faults.append(f"{name}.tsv is there twice. Take one of them out.")
        else:
            judged.add(name)
            if "/" in place:
                faults.append(f"'{_shown(place)}' lies in a folder. Put {name}.tsv at the root of the zip.")
            content = read()
            faults += [content] if isinstance(content, str) else file_faults(name, content)
    more = len(strange) - STRANGERS
    strange[STRANGERS:] = [f"{more} more files are none of the 11. Take them out."] if more > 0 else []
    missing = [name for name in FILES if name not in judged]
    return [
        *strange,
        *faults,
        *(f"{name}.tsv is missing. Add it; a task that was not run needs filler." for name in missing),
    ]


def _folder(path: Path) -> list[tuple[str, Read]]:
    """The files of a folder and of the folders in it; not the zip that ``write_submission`` puts beside them."""
    below = [child for child in sorted(path.iterdir()) if child.is_dir()]
    files = [file for folder in (path, *below) for file in sorted(folder.iterdir()) if file.is_file()]
    places = [(file.relative_to(path).as_posix(), file) for file in files]
    return [(place, partial(_content, file, place)) for place, file in places if place != ARCHIVE]


def _content(file: Path, place: str) -> bytes | str:
    return _too_large(place) if file.stat().st_size > LARGEST else file.read_bytes()


def _archive(path: Path) -> list[tuple[str, Read]] | str:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        except Exception as error:  # a damaged archive can fail in any of a dozen ways
            return f"'{path.name}' is no zip that can be read ({reason(error)}). Zip the 11 files again."
    return [(entry.filename, partial(_unpacked, path, entry)) for entry in entries]


def _unpacked(path: Path, entry: zipfile.ZipInfo) -> bytes | str:
    place = _shown(entry.filename)
    if entry.file_size > LARGEST:
        return _too_large(place)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(entry)
    except Exception as error:  # as above, and a password
        return f"'{place}' cannot be unpacked ({reason(error)}). Zip the 11 files again, without a password."


def _too_large(place: str) -> str:
    return f"'{place}' has more than {LARGEST // 2**20} MB. Write index and prediction only."


def file_faults(name: str, content: bytes) -> list[str]:
    """The faults of one file; those that many lines share are told once, with the first line."""
    file = FILES[name]
    if not content.strip():
        return [f"{name}.tsv is empty. Write '{_shown(HEADER)}' and {file.rows:,} rows."]
    if content.startswith(b"\xef\xbb\xbf"):
        return [f"{name}.tsv begins with a byte order mark, line 1. Save it as UTF-8 without one."]
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return [f"{name}.tsv, line {line}, is not UTF-8. Save it as UTF-8 without a byte order mark."]
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    told: dict[str, list[str]] = {}
    faults = []
    rows = lines[1:]
    if lines[0] != HEADER:
        wrong = f"{name}.tsv, line 1: the header is '{_shown(lines[0])}'. Write '{_shown(HEADER)}'"
        faults.append(f"{wrong}, with a tab.")
        rows = lines if lines[0].partition("\t")[0] == "0" else rows
    first = len(lines) - len(rows) + 1
    for kind, number, sentence in _row_faults(file, rows, first):
        told.setdefault(kind, []).append(f"{name}.tsv, line {number}: {sentence}")
    for sentences in told.values():
        more = f" So it is in {len(sentences) - 1:,} more lines." if len(sentences) > 1 else ""
        faults.append(sentences[0] + more)
    if len(rows) != file.rows:
        faults.append(
            f"{name}.tsv, line {len(lines)}, is its last: {len(rows):,} row{'' if len(rows) == 1 else 's'}. "
            f"Write {file.rows:,}, one for each row of the test file."
        )
    return faults


def _row_faults(file: AnswerFile, rows: Sequence[str], first: int) -> Iterator[tuple[str, int, str]]:
    """(kind of fault, line, sentence); ``first`` is the line of the first row."""
    seen: dict[str, int] = {}
    for row, line in enumerate(rows):
        number = row + first
        cells = line.split("\t")
        if len(cells) != 2:
            comma = "a comma" if "," in line and len(cells) == 1 else f"{len(cells) - 1} tabs"
            yield "columns", number, f"'{_shown(line)}' has {comma}. Put one tab between index and prediction."
            continue
        index, value = cells
        if index in seen:
            yield "twice", number, f"index '{_shown(index)}' stood in line {seen[index]} already. Give each row one."
        elif index != str(row):
            wanted = f"Number the rows 0 to {file.rows - 1} in the order of the test file"
            yield "order", number, f"the index is '{_shown(index)}' where {row} is due. {wanted}."
        seen.setdefault(index, number)
        if fault := _value_fault(file, value):
            yield fault[0], number, fault[1]


def _value_fault(file: AnswerFile, value: str) -> tuple[str, str] | None:
    """(kind of fault, sentence) about a prediction."""
    shown = _shown(value)
    if not file.values:
        if not NUMBER.fullmatch(value):
            return "number", f"'{shown}' is no number. Write one between {LEAST:g} and {MOST:g}, such as 3.250."
        if not LEAST <= float(value) <= MOST:
            return "range", f"{shown} is outside of {LEAST:g} to {MOST:g}. Clip it: the server refuses the file."
        return None
    allowed = [answer for _, answer in file.values]
    if value in allowed:
        return None
    told = dict(file.values)
    if value in told:
        mapped = " and ".join(f"{answer} for {name}" for name, answer in file.values)
        return "name", f"'{shown}' is the name of a label. Write {mapped}."
    return "label", f"'{shown}' is no answer of this task. Write {' or '.join(allowed)}."


def _shown(text: str) -> str:
    """Short enough for a sentence, tabs and control characters written out."""
    text = text if len(text) <= 40 else text[:37] + "..."
    return text.encode("unicode_escape").decode("ascii")
