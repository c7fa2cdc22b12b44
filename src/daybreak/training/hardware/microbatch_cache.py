"""What was the fastest microbatch here before: measured once for a device, a model and a length, and remembered.

One small JSON file in the user's cache folder (XDG_CACHE_HOME, else ~/.cache). It may be deleted at any time; where it
cannot be read or written, everything is measured again. A microbatch that no longer fits is halved by the loop.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.serialization import fingerprint


def cache_file() -> Path:
    """Where the measurements are remembered."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "daybreak" / "microbatch.json"


def recall(facts: Any) -> int | None:
    """The rows at a time that were the fastest under the same ``facts`` (plain values or a dataclass), or None."""
    rows = _read().get(fingerprint(facts))
    return rows if isinstance(rows, int) and rows > 0 else None


def remember(facts: Any, rows: int) -> None:
    """Keep ``rows`` for the next run under the same ``facts``."""
    with contextlib.suppress(OSError, RuntimeError, UserError):  # no home, no right to write: measured again next time
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**_read(), fingerprint(facts): rows})


def _read() -> dict[str, Any]:
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}
