"""Find complete or interrupted preparations, and hold their work folders."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TextIO

import psutil

from daybreak import __version__
from daybreak.core.errors import ReadFailed, UserError, WriteFailed, reason
from daybreak.core.files import is_empty, make_folder, read_json, refuse_not_utf8
from daybreak.core.locks import locked
from daybreak.core.process import usable_cores
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import say, working_through
from daybreak.data.pipeline.corpus import PART_BYTES
from daybreak.data.pipeline.workers import WorkerLost
from daybreak.data.readers import hub
from daybreak.data.readers.inputs import DATA_SET, TABLE, ByteCounter, InputFile, open_file, suffixes
from daybreak.data.sequences.shards import open_shards
from daybreak.schemas.run import SHARD_FORMAT, Manifest

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def work_folder(folder: Path, identity: str) -> Iterator[Path]:
    """Lock ``folder`` and yield the subfolder of this preparation, with the files of an interrupted one.

    The name of the subfolder contains ``identity``, so that a worker left over from another preparation does not write
    into it. ``folder`` is removed at the end and if the input or a setting is refused. After anything else (a killed
    worker, full memory, an error of a disk or a connection, a closed output, a signal) the preparation can be resumed.
    """
    with _open_lock(folder) as lock:
        if not locked(lock.fileno()):
            raise UserError(
                "Another preparation is writing the same folder.", "Wait for it, or choose another folder with --out."
            )
        place = folder / f"{identity}-{__version__}-{PART_BYTES}"  # the parts depend on their size
        for path in folder.iterdir():
            if path.is_dir() and path != place:
                shutil.rmtree(path, ignore_errors=True)
        if place.is_dir():
            say("Resuming the interrupted preparation.")
            for unfinished in place.glob("*/.[0-9]*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        place.mkdir(exist_ok=True)
        try:
            yield place
        except (WorkerLost, ReadFailed, WriteFailed):
            raise
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _open_lock(folder: Path) -> TextIO:
    """Open the lock file of a work folder, which another preparation may remove at its end."""
    while True:
        with suppress(FileNotFoundError):
            return (make_folder(folder) / "lock").open("a")


def remove_finished(folder: Path) -> None:
    """Remove the work folder of a preparation that was killed when its data were complete, unless it is in use."""
    if folder.is_dir():
        with suppress(OSError), (folder / "lock").open("a") as lock:  # it may belong to another user
            if locked(lock.fileno()):
                shutil.rmtree(folder, ignore_errors=True)


def earlier(out: Path, identity: str, settings: Callable[[], str], files: Sequence[InputFile]) -> Manifest | None:
    """Return the manifest of a complete ``out`` of the same text and settings; None if there is none.

    Args:
        identity: ``identity_of`` the files.
        settings: returns ``settings_of`` them; called only if ``identity`` differs, as after a copy of the text.

    Raises:
        UserError: ``out`` contains other files, or data of other text or settings.
    """
    try:
        if not out.exists() or (out.is_dir() and is_empty(out)):
            return None
        if not out.is_dir():
            raise UserError(f"'{out}' is a file, not a folder.", "Choose another folder with --out.")
        if not (out / "manifest.json").is_file():
            raise UserError(f"'{out}' is not empty and contains no prepared data.", "Choose another folder with --out.")
    except OSError as error:  # no permission, or a name that is too long
        raise UserError(f"'{out}' cannot be read: {reason(error)}.", "Choose another folder with --out.") from None
    found = read_json(out / "manifest.json")
    known = found if isinstance(found, dict) else {}
    if known.get("inputs_fingerprint") != identity:
        content = known.get("content_fingerprint")  # of a folder of this version
        if not content or known.get("settings_fingerprint") != settings() or content != content_of(files):
            raise UserError(
                f"'{out}' was prepared from other text or with other settings.",
                "Choose another folder with --out, or delete it; daybreak run --overwrite deletes the run as well. A "
                "run whose text was moved continues with daybreak pretrain RUN --data RUN/data --out RUN.",
            )
        say(f"The text of '{out}' was moved or written again, but its content is the same.")
    return open_shards(out).manifest


@contextmanager
def final_place(out: Path) -> Iterator[Path]:
    """Yield the resolved path of ``out``, whose parent folder is created; remove the created folders if left empty.

    Raises:
        UserError: its path is not UTF-8, or it is a mount point, which a finished folder cannot replace.
    """
    refuse_not_utf8(out)
    final = Path(os.path.realpath(out))
    if os.path.ismount(final):
        raise UserError(f"'{out}' is a mount point, which cannot be replaced.", "Name a folder in it with --out.")
    new = [folder for folder in final.parents if not folder.exists()]
    make_folder(final.parent)
    try:
        yield final
    finally:
        for folder in new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def folder_beside(final: Path, what: str, stack: ExitStack) -> Path:
    """Create a temporary folder beside ``final``, removed when ``stack`` closes."""
    folder = final.with_name(f".{final.name}.{what}-{os.getpid()}")
    prefix = f".{final.name}.{what}-"
    for left in final.parent.iterdir():  # not glob, because the name may contain * or [
        number = left.name.removeprefix(prefix)
        if left.name.startswith(prefix) and number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)  # of a killed process
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return make_folder(folder)


def fill_once(final: Path, fill: Callable[[Path], object]) -> Path:
    """Create the folder ``final`` atomically with ``fill`` unless it exists; return it."""
    if not final.exists():
        work = final.with_name(f".{final.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        fill(work)
        try:
            os.replace(work, final)
        except OSError:
            if not final.exists():
                raise
            shutil.rmtree(work)  # an orphan process of a killed preparation was first
    return final


def part_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def identity_of(files: list[InputFile], given: list[str], **settings: object) -> str:
    """Return a fingerprint of the state of the files, the input of each, and the settings."""
    places = _places(given)
    read = [
        [
            places[file.given],
            file.given if file.form == DATA_SET or file.revision else str(file.path.resolve()),
            file.bytes,
            file.modified,
        ]
        + ([file.revision] if file.revision else [])
        for file in files
    ]
    return fingerprint({"format": SHARD_FORMAT, "files": read, **settings})


def _places(given: list[str]) -> dict[str, int]:
    """Return the number of each input, that of the first one if it was given several times."""
    return {one: place for place, one in reversed(list(enumerate(given)))}


def settings_of(files: Sequence[InputFile], given: list[str], **settings: object) -> str:
    """Return a fingerprint of the settings, and of all that the data depend on of the files but their content.

    Data sets and standard input have no other content than what identifies them here.
    """
    places = _places(given)
    # The ending of a table says how its cells are separated.
    read = [
        [
            places[file.given],
            suffixes(file.path.name)[0] if file.form == TABLE else file.form,
            file.compression,
            file.bytes,
        ]
        + ([] if _is_local(file) else [file.given, file.modified, file.revision])
        for file in files
    ]
    return fingerprint({"format": SHARD_FORMAT, "files": read, **settings})


def content_of(files: Sequence[InputFile]) -> str:
    """Return a digest of the bytes of the local files, in order."""
    local, meter = [file for file in files if _is_local(file)], ByteCounter()

    def digest(file: InputFile) -> bytes:
        with open_file(replace(file, compression=""), meter) as stream:
            return hashlib.file_digest(stream, "blake2b").digest()

    total = sum(file.bytes for file in local)
    with working_through("Hashing", total, lambda: meter.bytes), ThreadPool(usable_cores()) as pool:
        return hashlib.blake2b(b"".join(pool.imap(digest, local)), digest_size=16).hexdigest()


def _is_local(file: InputFile) -> bool:
    return file.form != DATA_SET and not file.revision


def refuse_changed(files: Iterable[InputFile]) -> None:
    """Raise UserError if a file changed since it was found, so that decisions may be on other documents."""
    for file in dict.fromkeys(files):
        if file.revision:
            continue
        try:
            if file.form == DATA_SET:  # a local folder
                now = hub.inspect(hub.parse(file.given))[:2]
            else:
                state = file.path.stat()
                now = (state.st_size, state.st_mtime_ns)
            same = now == (file.bytes, file.modified)
        except OSError:
            same = False
        if not same:
            raise UserError(f"'{file.name}' changed while it was read.", "Start again when no process writes to it.")
