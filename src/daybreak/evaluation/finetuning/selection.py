"""Which of several settings counts: decided on dev, over all seeds, and written down with what was tried."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from daybreak.evaluation.protocols.protocol import Setting
from daybreak.schemas.tasks import SettingTried


@dataclass(frozen=True)
class Tried:
    """A setting and what its models scored."""

    setting: Setting
    scores: dict[str, list[float]]
    """By metric, one value a seed."""

    def record(self, metric: str) -> SettingTried:
        """How it did on dev by ``metric``."""
        dev = self.scores[metric]
        return SettingTried(
            epochs=self.setting.epochs,
            learning_rate=self.setting.rate,
            dev=dev,
            mean=statistics.fmean(dev),
            spread=spread(dev),
        )


def spread(values: Sequence[float]) -> float:
    """Standard deviation (n - 1); 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def choose(tried: Sequence[Tried], metric: str, rule: str) -> Tried:
    """The setting that counts, by the means over seeds on dev; of equal ones the first in the order of ``tried``.

    Args:
        rule: ``best``, or ``shortest``, which is SciBERT's: of the settings within one standard deviation of the best
            (its own), one with the fewest epochs, and of several such the one with the highest mean.
    """
    records = [each.record(metric) for each in tried]
    best = max(records, key=lambda record: record.mean)
    if rule == "best":
        return tried[records.index(best)]
    near = [place for place, record in enumerate(records) if record.mean >= best.mean - best.spread]
    return tried[min(near, key=lambda place: (records[place].epochs, -records[place].mean))]


def sentence(chosen: Setting, tried: int, seeds: int, rule: str) -> str:
    """How the reported numbers were selected, in words."""
    last = "after the last epoch"
    if tried == 1:
        return last
    over = f"the mean of {seeds} seeds" if seeds > 1 else "one seed"
    which = "the best on dev" if rule == "best" else "the fewest epochs within one deviation of the best on dev"
    return f"{chosen}: of {tried} settings {which}, {over}; {last}"
