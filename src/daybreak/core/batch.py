"""What the data wing hands to training: rows of ids, and what must be known about their positions.

B rows, L positions. The arrays are numpy's where they are made and torch's where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from daybreak.schemas.run import SpecialIds


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows as a model reads them, before anything is masked."""

    ids: Any
    """int64 [B, L]."""
    attend: Any = None
    """bool [B, L], False for padding that nobody may look at; None when all positions are seen."""
    types: Any = None
    """int64 [B, L], 0 for the first segment and 1 for the second; None when rows have no segments."""
    follows: Any = None
    """int64 [B], the next-sentence label of BERT: 0 when the second segment follows the first in its text, 1 when it
    was drawn from another; None when rows have no segments."""
    continues: Any = None
    """bool [B, L], True for a piece that goes on a word (``##``); None unless whole words are masked."""
    documents: Any = None
    """int64 [B], the number of the passage that a sequence is a span of; None unless sequences are pairs of spans."""
    special: SpecialIds = SpecialIds()
    """What the special ids are in these rows."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> Batch:
        """Rows [start, stop)."""
        return self._each(lambda array: array[start:stop])

    def on(self, device: Any) -> Batch:
        """The same with torch tensors on ``device``; a GPU copies them when its queue comes to it."""
        return self.ready_for(device)._each(lambda tensor: tensor.to(device, non_blocking=True))

    def ready_for(self, device: Any) -> Batch:
        """The same with torch tensors in the processor's memory, pinned where ``device`` is a GPU."""
        import torch  # here, so that preparing data never loads it

        def ready(array: Any) -> Any:
            tensor = torch.as_tensor(array)
            return tensor.pin_memory() if torch.device(device).type == "cuda" and not tensor.is_pinned() else tensor

        return self._each(ready)

    def _each(self, change: Any) -> Batch:
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "special"}
        return replace(self, **{name: change(array) for name, array in arrays.items() if array is not None})
