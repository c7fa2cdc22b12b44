"""Prefetching: a thread reads the next sequences while the device computes, so that a GPU does not wait for the CPU.

Sequences are a function of (position, count, view of progress), so results do not depend on prefetching: a prefetched
batch is used only if its key matches the request, otherwise the batch is loaded on request. A replay needs no record
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from daybreak.core.batch import Batch

Make = Callable[[], Batch]


class Prefetch:
    """Holds at most one batch loaded ahead of time, in pinned memory for a GPU."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._key: Hashable = None
        self._pending: Future[Batch] | None = None

    def take(self, key: Hashable, make: Make) -> Batch:
        """Return the prefetched batch if its key is ``key``, else the result of ``make``.

        Damaged data in prefetched sequences that are not requested raise no error.
        """
        pending, self._pending = self._pending, None
        if pending is not None and self._key == key:
            return pending.result()
        return make()

    def start(self, key: Hashable, make: Make) -> None:
        """Start loading the batch that is probably requested next."""
        self._key, self._pending = key, self._thread.submit(make)
