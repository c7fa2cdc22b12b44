"""Batches of token ids, passed from the data folder to training with what training needs about their positions.

B sequences, L positions. The arrays are numpy arrays where they are created and torch tensors where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from daybreak.schemas.run import SpecialIds


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences as a model reads them, before masking."""

    input_ids: Any
    """int64 [B, L]."""
    attention_mask: Any = None
    """bool [B, L], False for padding outside the attention mask; None if all positions are attended."""
    token_type_ids: Any = None
    """int64 [B, L], 0 for the first segment and 1 for the second; None without segments."""
    next_sentence_label: Any = None
    """int64 [B], the next-sentence label of BERT: 0 if the second segment follows the first in its text, 1 if it was
    drawn from another; None without segments."""
    is_continuation: Any = None
    """bool [B, L], True for a token that continues a word (``##``); None unless whole words are masked."""
    passage_ids: Any = None
    """int64 [B], the number of the passage of which a sequence is a span; None unless sequences are pairs of spans."""
    special: SpecialIds = SpecialIds()
    """The special ids in these sequences."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, rows: slice) -> Batch:
        """The sequences ``rows``."""
        return self._each(lambda array: array[rows])

    def to(self, device: Any) -> Batch:
        """The batch as torch tensors on ``device``; a GPU copies them asynchronously."""
        return self.pinned_for(device)._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned_for(self, device: Any) -> Batch:
        """The batch as torch tensors in CPU memory, pinned if ``device`` is a GPU."""
        import torch  # local import, so that data preparation never loads torch

        def ready(array: Any) -> Any:
            tensor = torch.as_tensor(array)
            return tensor.pin_memory() if torch.device(device).type == "cuda" and not tensor.is_pinned() else tensor

        return self._each(ready)

    def _each(self, change: Any) -> Batch:
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "special"}
        return replace(self, **{name: change(array) for name, array in arrays.items() if array is not None})
