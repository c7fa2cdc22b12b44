"""What fine-tuning leaves on disk: results.json. Units as in ``records``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SettingTried:
    """One of the settings that a protocol chooses from, by its headline metric on dev."""

    epochs: int
    learning_rate: float
    dev: list[float]
    """One value a seed, in the order of ``TaskResult.seeds``."""
    mean: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One task under one protocol; ``results.json`` holds a list of these."""

    protocol: str
    task: str
    model: str
    """What was fine-tuned: 'pretrained', or 'untrained' for the same shape with random weights."""
    model_name: str = ""
    """Name of the run's or the model's folder."""
    kind: str
    metric: str
    """Name of the headline metric, a key of ``scores``; it begins with ``test_`` where test is reported, not dev."""
    scores: dict[str, list[float]]
    """Every metric, one value a seed, in the order of ``seeds``; shares in [0, 1], correlations in [-1, 1]. Those of
    the labelled test file, where there is one, begin with ``test_``."""
    seeds: list[int]
    mean: float
    spread: float
    """Standard deviation of the headline metric over seeds (n - 1); 0 for a single seed."""
    selection: str
    train_rows: int
    dev_rows: int
    test_rows: int = 0
    baseline: float
    """Headline metric of a constant answer: the most frequent label (for f1 the positive one), or the training mean."""
    settings: dict[str, float]
    """learning_rate, epochs, batch, length and so on; the chosen ones where the protocol chooses."""
    settings_tried: list[SettingTried] = field(default_factory=list)
    """What was chosen from; empty where there was one setting."""
    labels: list[str] = field(default_factory=list)
    seconds: float

    @property
    def reported(self) -> str:
        """The part behind the headline metric: dev or test."""
        return "test" if self.metric.startswith("test_") else "dev"

    @property
    def judged_rows(self) -> int:
        """Rows of that part."""
        return self.test_rows if self.reported == "test" else self.dev_rows
