"""Cache of the fastest microbatch for a device, a model and a length.

One small JSON file in the user's cache folder (XDG_CACHE_HOME, else ~/.cache). It can be deleted at any time. If it
cannot be read or written, the microbatch is measured again. A microbatch that no longer fits is halved, here as well.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.files import cache_folder, parse_json, write_json
from daybreak.core.serialization import fingerprint


def cache_file() -> Path:
    return cache_folder() / "microbatch.json"


def recall(facts: Any) -> int | None:
    """The fastest microbatch measured under the same ``facts`` (plain values or a dataclass), or None."""
    rows = _read().get(fingerprint(facts))
    return rows if isinstance(rows, int) and rows > 0 else None


def remember(facts: Any, rows: int) -> None:
    """Store ``rows`` for the next run under the same ``facts``."""
    with contextlib.suppress(
        OSError, RuntimeError, UserError
    ):  # no home folder or no permission: the next run measures again
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**_read(), fingerprint(facts): rows})


def lower(facts: Any, rows: int) -> None:
    """Replace the number stored under ``facts`` by ``rows`` if it is larger: it did not fit after all."""
    known = recall(facts)
    if known and rows < known:
        remember(facts, rows)


def _read() -> dict[str, Any]:
    try:
        content = parse_json(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return content if isinstance(content, dict) else {}
