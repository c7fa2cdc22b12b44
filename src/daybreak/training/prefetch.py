"""The next rows, read by a thread while the device works, so that a GPU need not wait for the processor.

Rows are a function of (position, count, view of progress), so nothing depends on whether they were read ahead: a
prefetched batch is used only where it was made for exactly what is asked, and otherwise it is made when it is asked
for. A replay therefore needs no record of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from daybreak.core.batch import Batch

Make = Callable[[], Batch]


class Prefetch:
    """Holds at most one batch that was made ahead of time, in pinned memory where its device copies from such."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._key: Hashable = None
        self._made: Future[Batch] | None = None
        self.hits = self.misses = 0
        """How often a batch was there, and how often it had to be made."""

    def take(self, key: Hashable, make: Make) -> Batch:
        """Return what was made ahead for ``key``, else what ``make`` returns.

        Raises:
            UserError: the data are damaged; in the rows that are asked for, never in those read ahead for nothing.
        """
        made, self._made = self._made, None
        if made is not None and self._key == key:
            self.hits += 1
            return made.result()
        self.misses += 1
        return make()

    def begin(self, key: Hashable, make: Make) -> None:
        """Let the thread make the batch that will probably be asked for next."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._key, self._made = key, self._thread.submit(make)
