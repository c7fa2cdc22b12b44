"""File access that is safe against kills, full disks and concurrent readers: no file is visible half written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.core.errors import UserError, WriteFailed, reason
from daybreak.core.serialization import from_dict, to_dict

if TYPE_CHECKING:
    import numpy as np

FINDER = ".DS_Store"
"""Name of a file of macOS, which its Finder does not show."""


def cache_folder() -> Path:
    """Return the user's cache folder of Daybreak, which may not exist.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "daybreak"


def make_folder(path: Path) -> Path:
    """Create ``path`` with its parents and check that it is writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"'{path}' is not a folder.", "Choose another folder.") from None
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO).lower()
        raise WriteFailed(
            f"Cannot write in '{path}': {why}.", "Choose another folder, or correct its permissions."
        ) from None
    return path


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but the file that macOS leaves in folders that were looked at."""
    return all(path.name == FINDER for path in folder.iterdir())


def refuse_link_out(folder: Path, path: Path) -> None:
    """Check that ``path`` lies in ``folder`` also after all links are resolved.

    Files that Daybreak writes or publishes stay in the folder that the user named, also if the folder comes from
    elsewhere. Files that are only read may be links: the cache of the Hugging Face hub consists of them.
    """
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UserError(
            f"'{path}' is a link that leads out of '{folder}'.", "Replace it with the file or folder itself."
        )


def check_output_file(out: Path, example: str) -> None:
    """Check that an output file is new or an ordinary file, because it is replaced: no folder and no device.

    Args:
        example: the option with a file name, for the remedy.
    """
    if out.exists() and not out.is_file():
        raise UserError(
            f"'{out}' is {'a folder' if out.is_dir() else 'not an ordinary file'}.", f"Name a file, as in `{example}`."
        )


def refuse_not_utf8(folder: Path) -> None:
    """Check that the path of an output folder is UTF-8: tokenizers and safetensors open no other files."""
    path = os.path.realpath(folder)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"The path '{path}' is not UTF-8.", "Choose another folder with --out.") from None


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically: readers see the old file or the new one, never a part.

    A file name in it that is not UTF-8 has surrogates, which are written as in JSON: ``\\udce9``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise WriteFailed(
            f"'{path}' cannot be written ({reason(error)}).", "Free disk space or correct the permissions."
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass or plain value as indented JSON, atomically."""
    write_text(path, json.dumps(to_dict(value), indent=2, ensure_ascii=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of a file that may be damaged; what is not UTF-8, not JSON or nested too deeply is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None


def read_json(path: Path, cls: Any = None) -> Any:
    """Read JSON; with ``cls``, rebuild that dataclass."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no '{path.name}' in '{path.parent}'.", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"'{path}' cannot be read as JSON: {reason(error)}.", "Restore the file, or start again."
        ) from None
    if cls is None:
        return value
    try:
        return from_dict(cls, value)
    except UserError as error:
        raise type(error)(f"'{path}': {error.sentence}", error.remedy) from None


def read_json_lines(path: Path, *, skip_damaged: bool = False) -> Iterator[Any]:
    """Yield each complete line of a .jsonl file, nothing if there is no file; an incomplete last line is skipped.

    Args:
        skip_damaged: skip lines that are not JSON objects, for records that nothing else depends on.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = parse_json(line)
            except ValueError as error:
                if skip_damaged:
                    continue
                raise damaged(path, number, error) from None
            if not skip_damaged or isinstance(value, dict):
                yield value


def damaged(path: Path, number: int, error: ValueError) -> UserError:
    """Return the refusal of a .jsonl file whose line ``number``, from 1, is no JSON."""
    return UserError(
        f"'{path}' is damaged in line {number}: {reason(error)}.", "Restore the file, or start the run again."
    )


def digest_of(path: Path, algorithm: str | Callable[[], Any]) -> bytes:
    """Return the digest of a file's content; ``algorithm`` is as for ``hashlib.file_digest``.

    Raises:
        UserError: the file cannot be read, such as a link that leads nowhere.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).digest()
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.", "Restore the file.") from None


def write_array(path: Path, values: np.ndarray) -> None:
    """Write the bytes of ``values``.

    ``tofile`` loses up to 4 KiB on a full disk without an error, and its errors have no number.
    """
    path.write_bytes(values.tobytes())


def write_npy(path: Path, values: np.ndarray) -> None:
    """Write a .npy file; ``np.save`` loses data on a full disk as ``tofile`` does."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, values)
    path.write_bytes(buffer.getbuffer())


def copy_files(source: Path, folder: Path) -> None:
    """Copy the files of a folder into another; errors have the number of the system, unlike those of ``copytree``."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise WriteFailed for errors of libraries that write to ``path`` and do not say the number of the error."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise WriteFailed(f"'{path}' cannot be written ({reason(error)}).", "Free disk space.") from None


def reserve(path: Path) -> None:
    """Give a new file, which may be sparse, all blocks of its size before it is mapped into memory.

    A write to the map of a sparse file on a full disk ends the process without a message.

    Raises:
        OSError: the disk is full.
    """
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except AttributeError:  # not on this system
            return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # others: not on this file system
                raise


@contextlib.contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yield the name of a new folder, which replaces ``final`` at the end; after an error nothing of it remains."""
    new = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    try:
        yield new
        replace_folder(new, final)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def replace_folder(new: Path, final: Path) -> None:
    """Move the finished folder ``new`` to ``final`` by renames; an older ``final`` is removed."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    os.replace(new, final)
    shutil.rmtree(old, ignore_errors=True)
