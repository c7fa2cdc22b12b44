"""What there is already of a preparation: all of it, or what a kill left."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daybreak import __version__
from daybreak.base.errors import UserError
from daybreak.base.files import make_folder, read_json, write_text
from daybreak.base.records import Manifest
from daybreak.base.terminal import say
from daybreak.data.shards import open_shards


@contextmanager
def work_folder(folder: Path, identity: str) -> Iterator[None]:
    """Make ``folder``, or find what a preparation of the same text by the same Daybreak left there; hold it alone.

    It is removed at the end, and at every exception but Ctrl-C, which leaves it as a kill does.

    Raises:
        UserError: another process holds it.
    """
    make_folder(folder)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "Another preparation is writing the same folder.", "Wait for it, or choose another folder with --out."
            ) from None
        except OSError:  # a file system without locks
            pass
        mark, wanted = folder / "identity", f"{identity} {__version__}\n"
        if mark.is_file() and mark.read_text(errors="replace") == wanted:
            say("Going on with the preparation that was stopped.")
        else:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            write_text(mark, wanted)
        try:
            yield
        except Exception:
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
    except PermissionError:
        raise UserError(f"'{out}' cannot be read: permission denied.", "Choose another folder with --out.") from None
    found = read_json(out / "manifest.json")
    if not isinstance(found, dict) or found.get("inputs_fingerprint") != identity:
        raise UserError(
            f"'{out}' was prepared from other text or with other settings.",
            "Choose another folder with --out, or delete it.",
        )
    return open_shards(out).manifest
