"""Types of forecasts: the scaling law, the lines of tasks, and forecasts of losses and scores.

Losses are nats per masked token on the fixed held-out positions. A relative loss is a loss divided by that of the
unigram baseline on the same positions (``ValidationRecord.unigram_loss``), which makes texts and vocabularies
comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Deviation of the law from one of the runs it was fitted to."""

    name: str
    loss: float
    fitted: float


@dataclass(frozen=True, kw_only=True)
class UsualLoss:
    """Typical training loss at a mark.

    Let z be the logarithm of the relative final loss by the law. The logarithm of the typical relative loss at the mark
    is ``offset + slope * z``.
    """

    at: float
    offset: float
    slope: float
    spread: float
    """Standard deviation of runs around the typical logarithm."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """By how much the logarithm of the relative held-out loss still falls between a point of a run and its end.

    For a run of D tokens, this is ``mean + slope * log(D / forecasting.law.CENTRE[1])``.
    """

    at: float
    mean: float
    slope: float
    spread: float
    """Standard deviation of runs around it."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the losses of runs fall from their start to their end."""

    usual: list[UsualLoss]
    drops: list[Drop]
    tokens: tuple[int, int]
    """Fewest and most tokens of the runs that ``drops`` are fitted to."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """Scaling law: (L + (1 - L) (1 + D / D0)^-beta)^exp(-gamma d) with L = floor + A / N^alpha, fitted in logarithms.

    It gives the relative loss. The form is that of Hoffmann et al. (arXiv 2203.15556), modified so that the loss equals
    the unigram baseline at zero tokens and falls faster for more predictable text. N: parameters outside the embedding;
    D: tokens, where repeated text counts less and less; d: the difficulty of the text, see ``forecasting.difficulty``.
    Copy heads lower D0.
    """

    coefficients: list[float]
    """log floor, log A, alpha, log D0, beta, gamma, and by how much copy heads lower log D0, with N, D and d counted
    from ``forecasting.law.CENTRE``."""
    covariance: list[list[float]]
    """Covariance of the coefficients."""
    spread: float
    """Standard deviation of the logarithm of runs around the law, for a text that it was not fitted to."""
    freedom: int
    """Number of runs minus the coefficients that they determine."""
    inner: tuple[int, int]
    """Smallest and largest number of parameters that was measured."""
    tokens: tuple[int, int]
    epochs: float
    """Largest number of epochs that was measured."""
    difficulty: tuple[float, float]
    """Of the easiest and of the hardest text that was measured."""
    course: Course
    """Of runs without copy heads."""
    copy_heads_course: Course
    noise: float
    """Standard deviation of the logarithm of a held-out loss on one masked position."""
    residuals: list[Residual] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast of a loss with its 90 % interval."""

    made_at: float
    """Progress of the run when the forecast was made; 0 at its start."""
    tokens: float
    """Training tokens at the end of the run."""
    loss: float
    low: float
    high: float
    beyond: str = ""
    """Values outside the range that the law was fitted to, in words; empty if there are none."""

    @property
    def words(self) -> str:
        return f"{self.loss:.2f} ({self.interval})"

    @property
    def words_with_reason(self) -> str:
        """The forecast, with the reason if it is rough."""
        rough = f"; rough, because of {self.beyond}" if self.beyond else ""
        return f"{self.loss:.2f} ({self.interval}{rough})"

    @property
    def interval(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True, kw_only=True)
class ForecastLog:
    """Content of RUN/forecast.json: forecasts of the final loss, and the typical training loss along the run."""

    forecasts: list[Forecast]
    """Forecasts of the final held-out loss: at the start, at the first mark and after each interim validation."""
    usual: list[Forecast]
    """Typical training loss just before each mark (``made_at``)."""
    difficulty: float | None = None
    """Of the text, see ``forecasting.difficulty``; None in a file of a version that measured it differently."""


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    """A task's score as a linear function of the loss gap: ``score + slope * (gap - centre)``."""

    task: str
    runs: list[str]
    """Names of the fitted runs."""
    gaps: tuple[float, float]
    """Smallest and largest measured gap; there is no forecast outside."""
    centre: float
    """Mean gap."""
    squares: float
    """Sum of squared deviations of the gaps from ``centre``."""
    score: float
    """Mean score."""
    slope: float
    """Score per nat."""
    spread: float
    """Standard deviation of runs around the line (n - 2)."""


@dataclass(frozen=True, kw_only=True)
class TaskTable:
    """Lines for the forecasts of task scores."""

    protocol: str
    """Protocol with which the fitted runs were fine-tuned."""
    lines: list[TaskLine]


@dataclass(frozen=True, kw_only=True)
class TaskForecast:
    """Forecast of a task's score after fine-tuning, with its 90 % interval."""

    task: str
    score: float | None = None
    """None if there is no forecast."""
    low: float | None = None
    high: float | None = None
    runs: int = 0
    """Number of fitted runs."""
    beyond: str = ""
    """What was measured instead, in words; empty if there is a score."""

    @property
    def words(self) -> str:
        """The score and its interval in percent."""
        if self.score is None or self.low is None or self.high is None:
            return f"{self.task} not measured there"
        return f"{self.task} {100 * self.score:.0f} ({100 * self.low:.0f} to {100 * self.high:.0f})"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe considered for a budget, with its speed on this machine."""

    recipe: str
    parameters: int
    inner: int
    """Parameters outside the embedding."""
    copy_heads: bool
    """Whether a new model starts with copy heads."""
    flops_per_token: int
    """Floating-point operations of training per token."""
    tokens_per_second: float
    """Speed during training."""
    training_seconds: float
    """Part of the budget spent on training; the rest is start, validation and export."""
    memory: int
    """Peak memory of the process or of the accelerator, bytes; 0 if not measured."""
    measured: bool
    """False if the speed is estimated from the operations of a step."""
    forecast: Forecast | None = None
    tasks: list[TaskForecast] = field(default_factory=list)
    """Forecasts of its scores after fine-tuning; empty without a forecast of its loss."""
    trouble: str = ""
    """Why it cannot be chosen, in words; empty if it can be."""

    @property
    def tokens(self) -> float:
        return self.tokens_per_second * self.training_seconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Comparison of candidates for a budget on this machine and text."""

    budget: str
    device: str
    unigram_loss: float
    difficulty: float
    """Of the text, see ``forecasting.difficulty``."""
    text_tokens: int
    candidates: list[Candidate]
    chosen: str
    """Name of the chosen candidate."""
