"""What there is already of a preparation: all of it, or what a kill left."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from daybreak import __version__
from daybreak.core.errors import UserError, reason
from daybreak.core.files import make_folder, read_json
from daybreak.core.locks import locked
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import say
from daybreak.data.pipeline.parts import PART_BYTES
from daybreak.data.pipeline.workers import WorkerLost, is_alive
from daybreak.data.readers import hub
from daybreak.data.readers.inputs import DATA_SET, InputFile
from daybreak.data.sequences.shards import open_shards
from daybreak.schemas.run import SHARD_FORMAT, Manifest

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def work_folder(folder: Path, identity: str) -> Iterator[Path]:
    """Hold ``folder`` alone; yield the place in it for this preparation, with what an earlier try left of it.

    The place has the name of the preparation, so that an orphan of another one cannot write into it. All is removed at
    the end and at every exception; but a killed worker, a full memory or disk and Ctrl-C leave it as a kill does.

    Raises:
        UserError: another process holds it.
    """
    make_folder(folder)
    with (folder / "lock").open("a") as lock:
        if not locked(lock.fileno()):
            raise UserError(
                "Another preparation is writing the same folder.", "Wait for it, or choose another folder with --out."
            )
        place = folder / f"{identity}-{__version__}-{PART_BYTES}"  # parts of another size are others
        for path in folder.iterdir():
            if path.is_dir() and path != place:
                shutil.rmtree(path, ignore_errors=True)
        if place.is_dir():
            say("Going on with the preparation that was stopped.")
            for begun in place.glob("*/.[0-9]*"):  # parts that were not finished
                shutil.rmtree(begun, ignore_errors=True)
        place.mkdir(exist_ok=True)
        try:
            yield place
        except (WorkerLost, MemoryError):
            raise
        except Exception as error:
            if not (isinstance(error, OSError) and error.errno in NO_ROOM):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def earlier(out: Path, identity: str) -> Manifest | None:
    """Return the manifest of a complete ``out`` of the same origin; None where there is nothing yet.

    Raises:
        UserError: there is something else, or it was made of other text.
    """
    try:
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return None
        if not out.is_dir():
            raise UserError(f"'{out}' is a file, not a folder.", "Choose another folder with --out.")
        if not (out / "manifest.json").is_file():
            raise UserError(f"'{out}' holds something else than prepared data.", "Choose another folder with --out.")
    except OSError as error:  # no permission, or a name that is too long
        raise UserError(f"'{out}' cannot be read: {reason(error)}.", "Choose another folder with --out.") from None
    found = read_json(out / "manifest.json")
    if not isinstance(found, dict) or found.get("inputs_fingerprint") != identity:
        raise UserError(
            f"'{out}' was prepared from other text or with other settings.",
            "Choose another folder with --out, or delete it; daybreak run does so with --overwrite.",
        )
    return open_shards(out).manifest


@contextmanager
def final_place(out: Path) -> Iterator[Path]:
    """Yield where ``out`` really is, in a folder that we may write in: a link leads to where the room is.

    Folders that were made for it are gone again where nothing came of it.

    Raises:
        UserError: it is a whole disk, which a finished folder cannot be put in the place of.
    """
    final = Path(os.path.realpath(out))
    if os.path.ismount(final):
        raise UserError(f"'{out}' is a whole disk, which cannot be replaced.", "Name a folder in it with --out.")
    new = [folder for folder in final.parents if not folder.exists()]
    make_folder(final.parent)
    try:
        yield final
    finally:
        for folder in new:
            with suppress(OSError):  # something is in it
                folder.rmdir()


def folder_beside(final: Path, what: str, stack: ExitStack) -> Path:
    """A folder beside ``final`` that is there until ``stack`` is left."""
    folder = final.with_name(f".{final.name}.{what}-{os.getpid()}")
    for left in final.parent.glob(f".{final.name}.{what}-*"):
        if not is_alive(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left, ignore_errors=True)  # of one that was killed
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return make_folder(folder)


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """``folder`` as ``make`` fills it: whole, or from an earlier try."""
    if not folder.exists():
        work = folder.with_name(f".{folder.name}")
        shutil.rmtree(work, ignore_errors=True)
        make(work)
        os.replace(work, folder)
    return folder


def identity_of(files: list[InputFile], given: list[str], **settings: object) -> str:
    """What tells this preparation from others: the files as they are, the input that each belongs to, the settings."""
    places = {one: place for place, one in reversed(list(enumerate(given)))}
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


def refuse_changed(files: Iterable[InputFile]) -> None:
    """
    Raises:
        UserError: a file is not what it was when it was found: what was decided of its documents may be of others now.
    """
    for file in dict.fromkeys(files):
        if file.revision:
            continue
        try:
            if file.form == DATA_SET:  # a local folder of one: the files in it
                found = hub.inspect(hub.parse(file.given))
                now = (found.bytes, found.modified)
            else:
                state = file.path.stat()
                now = (state.st_size, state.st_mtime_ns)
            same = now == (file.bytes, file.modified)
        except OSError:
            same = False
        if not same:
            raise UserError(f"'{file.name}' changed while it was read.", "Start again when nothing writes to it.")
