"""Sequences of several views of one short window of text, which teach a small model to compare segments.

In minutes or hours, a model of a few million parameters does not learn to compare two segments from plain text: the
loss on masked tokens is the same with a verbatim copy beside them as without. Repetition in context makes such
attention emerge early (arXiv 2505.17863). In the first part of a run, most sequences therefore have the form
[CLS] view [SEP] view [SEP] ..., where each view is a shifted copy of the same window with dropped tokens.

Shapes: B sequences, L positions, V views per sequence, S tokens of the longest view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError, check_option
from daybreak.data.sequences.sampler import GOLDEN, RowSampler, SequencesConfig, TokenIds, draws, hashed, splitmix
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds


@dataclass(frozen=True, kw_only=True)
class ViewRows(SequencesConfig):
    """Ordinary sequences of the text, some of them replaced by views: shifted copies of one window of the text.

    In the first part of a run a sequence is replaced with probability ``fraction``, in the rest with probability
    ``later_fraction``. The first part ends at progress ``until``, or after ``most`` sequences. The choice depends only
    on seed and position, so a replay and any number of devices read the same sequences.
    """

    fraction: float = 0.7
    """Probability that a sequence consists of views, in the first part of the run."""
    until: float = 0.25
    """End of the first part, as a fraction of the run."""
    most: int = 2_000_000
    """Largest number of sequences in the first part."""
    later_fraction: float = 0.1
    """Probability that a sequence consists of views, in the rest of the run."""
    shortest: int = 12
    """Minimum tokens of a view, before some are dropped."""
    longest: int = 40
    """Maximum tokens of a view."""
    drop: float = 0.1
    """Probability with which each token of a view is dropped."""

    def __post_init__(self) -> None:
        for name in ("fraction", "until", "later_fraction"):
            value = getattr(self, name)
            check_option(f"--rows.{name.replace('_', '-')}", value, 0 <= value <= 1, "in [0, 1]")
        check_option("--rows.drop", self.drop, 0 <= self.drop < 1, "in [0, 1)")
        check_option("--rows.most", self.most, self.most >= 0, "of at least 0")
        if not 2 <= self.shortest <= self.longest:
            raise UserError(
                f"Views cannot have {self.shortest} to {self.longest} tokens.",
                "Give --rows.shortest of at least 2 and a --rows.longest that is not smaller.",
            )

    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
    ) -> ViewSampler:
        return ViewSampler(stream, length, seed, special, self)


class ViewSampler(RowSampler):
    """Returns the sequences of ``StreamRows``, some of them replaced by views, whose draws ``seed`` determines too."""

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds, config: ViewRows):
        super().__init__(stream, length, seed, special)
        self._config, self._key = config, hashed(f"views {seed}")

    def view(self, progress: float) -> bool:
        return progress < self._config.until

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        batch = super().take(position, rows, progress)
        config, places = self._config, np.arange(position, position + rows, dtype=np.uint64)
        early = (places < config.most) & (progress < config.until)
        keys = splitmix(self._key + places * GOLDEN)[:, None]
        fraction = np.where(early, config.fraction, config.later_fraction)
        chosen = np.flatnonzero(draws(keys, np.arange(1))[:, 0] < fraction)
        if len(chosen):
            batch.input_ids[chosen, 1:] = self._views(keys[chosen])
        return batch

    def _views(self, keys: np.ndarray) -> np.ndarray:
        """Return int64 [B, L - 1]: views, each followed by [SEP], repeated until the sequence is full.

        Args:
            keys: uint64 [B, 1], the start of the draws of each sequence; the first one is used already.
        """
        config, room, sep = self._config, self._length - 1, self._special.sep
        sequences, longest = len(keys), config.longest
        views = max(2, -(-room // config.shortest))
        reach = min(2 * longest, len(self._stream))
        drawn = draws(keys, np.arange(1, 3 + views + views * longest))
        size_draw, place, shifts, drops = np.split(drawn, [1, 2, 2 + views], axis=1)
        starts = (place[:, 0] * (len(self._stream) - reach + 1)).astype(np.int64)
        text = self._stream.windows(starts, reach).astype(np.int64)

        size = (config.shortest + size_draw * (longest - config.shortest + 1)).astype(np.int64)  # [B, 1]
        shift = (shifts * (size // 3 + 1)).astype(np.int64)  # [B, V]
        inside = np.arange(longest)
        source = np.minimum(shift[:, :, None] + inside, reach - 1)
        tokens = np.take_along_axis(text[:, None], source, axis=2)  # [B, V, S]
        kept = (inside < size[:, :, None]) & (drops.reshape(sequences, views, longest) >= config.drop) & (tokens != sep)

        ends = np.ones((sequences, views, 1), bool)
        tokens = np.concatenate([tokens, np.full((sequences, views, 1), sep)], axis=2).reshape(sequences, -1)
        kept = np.concatenate([kept, ends], axis=2).reshape(sequences, -1)
        # A stable argsort of booleans moves the kept tokens to the front; they repeat until the sequence is full.
        order = np.argsort(~kept, axis=1, kind="stable")
        place = np.arange(room) % kept.sum(axis=1, keepdims=True)
        filled: np.ndarray = np.take_along_axis(tokens, np.take_along_axis(order, place, axis=1), axis=1)
        return filled
