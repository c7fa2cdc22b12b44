"""What a run is expected to reach, as it reaches disk: the runs behind the law, the law, and forecasts.

Losses are nats per masked token on the fixed held-out positions. A share is a loss over that of word frequencies alone
on the same positions (``ValidationRecord.unigram_loss``), which makes texts and vocabularies comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MARKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of a run at which its training loss is compared with what is usual."""


@dataclass(frozen=True, kw_only=True)
class LawRun:
    """A finished run as the fit of the law sees it."""

    name: str
    inner: int
    """Parameters outside of the embedding."""
    tokens: int
    """Read in training."""
    unique: int
    """Tokens of the training text: fewer than ``tokens`` where it was read more than once."""
    unigram_loss: float
    pairs: float
    """How foretellable the text is, see ``forecasting.difficulty``."""
    loss: float
    """On all held-out rows, at the end."""
    course: list[float | None]
    """Mean training loss just before each of MARKS, whatever is predicted there; None where nothing was written."""
    optimizer: str = "AdamW"
    """The kind of it; the flagship's was AdamW when records did not name one."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How far the law is from one of its own runs."""

    name: str
    loss: float
    fitted: float


@dataclass(frozen=True, kw_only=True)
class UsualLoss:
    """The usual training loss at a mark, and what a run's own loss there tells about its end.

    With z the logarithm of the share that the law gives the end, the logarithm of the usual share at the mark is
    ``offset + slope * z``; what a run lies above it, times ``pull``, is added to z.
    """

    at: float
    offset: float
    slope: float
    spread: float
    """Standard deviation of runs around the usual logarithm."""
    pull: float
    left: float
    """Standard deviation of the end's logarithm that is left when the mark is known."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """share = (L + (1 - L) (1 + D / D0)^-beta)^(p^-gamma), where L = floor + A / N^alpha, fitted in logarithms.

    The form of Hoffmann et al. (arXiv 2203.15556), but that at no text it is the loss of word frequencies, and falls
    the faster the more foretellable the text is. N: parameters outside of the embedding; D: tokens, those of repeated
    text counting less and less; p: the loss of a model of pairs of words over that of frequencies.
    """

    coefficients: list[float]
    """log floor, log A, alpha, log D0, beta, gamma, with N, D and p counted from ``forecasting.law.CENTRE``."""
    covariance: list[list[float]]
    """Of the coefficients."""
    others: list[float]
    """What log A and beta are higher by for the runs behind it with another optimizer than the flagship's, which tell
    of text, and of what the two have in common."""
    spread: float
    """Standard deviation of the logarithm of a run around the law."""
    freedom: int
    """Degrees of freedom behind ``spread``."""
    inner: tuple[int, int]
    """Least and most parameters that were measured, with either optimizer."""
    tokens: tuple[int, int]
    epochs: float
    """Most readings of a text that were measured."""
    usual: list[UsualLoss]
    residuals: list[Residual] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A loss that is expected, with its 90 % interval."""

    made_at: float
    """Share of the run that was behind it; 0 at its start."""
    tokens: float
    """That the run will have read."""
    loss: float
    low: float
    high: float
    beyond: str = ""
    """What lies outside of what the law was measured on, in words; empty if nothing does."""

    @property
    def words(self) -> str:
        return f"{self.loss:.2f} ({self.interval})"

    @property
    def interval(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True, kw_only=True)
class ForecastLog:
    """RUN/forecast.json: what a run was expected to reach, and what its training loss is usually on the way."""

    forecasts: list[Forecast]
    """Of the held-out loss at the end, made at the start of the run and at each mark that it passed."""
    usual: list[Forecast]
    """The training loss that is usual just before each mark (``made_at``)."""
    pairs: float
    """How foretellable the text is, see ``forecasting.difficulty``."""


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A finished and evaluated run as the fit of task forecasts sees it."""

    name: str
    gap: float
    """The unigram baseline less the final held-out loss, nats."""
    noisy_copy: float | None
    """Loss on masked tokens beside a noisy copy of their text, as a fraction of that alone (``ContextUse``); None where
    it was not measured."""
    scores: dict[str, float]
    """By task, the mean over fine-tunings of the headline metric."""


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    """A task's score as a linear function of the loss gap: ``score + slope * (gap - centre)``."""

    task: str
    compares_segments: bool
    """Of which kind the models behind it are."""
    runs: list[str]
    """Names of the runs behind it."""
    gaps: tuple[float, float]
    """Least and largest gap that was measured; there is no forecast outside."""
    centre: float
    """Mean gap."""
    squares: float
    """Sum of the squared distances of the gaps from it."""
    score: float
    """Mean score."""
    slope: float
    """Score a nat."""
    spread: float
    """Standard deviation of runs around the line (n - 2)."""


@dataclass(frozen=True, kw_only=True)
class TaskTable:
    """The lines behind forecasts of task scores."""

    protocol: str
    """How the runs behind it were fine-tuned."""
    lines: list[TaskLine]


@dataclass(frozen=True, kw_only=True)
class TaskForecast:
    """A task's score that is expected after fine-tuning, with its 90 % interval."""

    task: str
    score: float | None = None
    """None where nothing was measured."""
    low: float | None = None
    high: float | None = None
    runs: int = 0
    """Behind the line."""
    beyond: str = ""
    """What was measured instead, in words; empty where there is a score."""

    @property
    def words(self) -> str:
        """In points of 100."""
        if self.score is None or self.low is None or self.high is None:
            return f"{self.task} not measured there"
        return f"{self.task} {100 * self.score:.0f} ({100 * self.low:.0f} to {100 * self.high:.0f})"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe that a budget could be spent on, as timed on this machine."""

    recipe: str
    parameters: int
    inner: int
    """Of them outside of the embedding."""
    flops_per_token: int
    """Of training."""
    tokens_per_second: float
    """While it trains."""
    training_seconds: float
    """Of the budget; the rest goes to the start, validations and the export."""
    memory: int
    """Bytes, of the process or of the accelerator; 0 where it was not measured."""
    measured: bool
    """False where the speed follows from the arithmetic of a smaller candidate."""
    forecast: Forecast | None = None
    tasks: list[TaskForecast] = field(default_factory=list)
    """What its model will score after fine-tuning; empty where there is no forecast of its loss."""
    trouble: str = ""
    """Why it cannot be chosen, in words; empty if it can."""

    @property
    def tokens(self) -> float:
        return self.tokens_per_second * self.training_seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a budget would buy on this machine and text."""

    budget: str
    device: str
    unigram_loss: float
    pairs: float
    """How foretellable the text is, see ``forecasting.difficulty``."""
    text_tokens: int
    candidates: list[Candidate]
    chosen: str
    """Name of a candidate."""
