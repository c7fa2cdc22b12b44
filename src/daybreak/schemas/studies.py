"""What a study leaves on disk: OUT/study.json of ``daybreak study``, OUT/study-data.json of ``daybreak study-data``.

Units: seconds, tokens; losses in nats per token on the fixed held-out positions of the held-out evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daybreak.schemas.run import Environment

STUDY_FILE, DATA_STUDY_FILE = "study.json", "study-data.json"


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One validation of a cell. The interim ones read fewer held-out rows than the last."""

    elapsed: float
    step: int
    tokens: int
    loss: float
    positions: int


@dataclass(frozen=True, kw_only=True)
class MachineLoad:
    """The load of the machine during one process of a cell. A cell that was killed and resumed has several."""

    before: list[float]
    """Load averages over 1, 5 and 15 minutes at the start."""
    most: float
    """Highest one-minute load average during the process."""
    mean: float
    after: list[float] = field(default_factory=list)
    """Load averages at the end; empty if the process was killed."""
    seconds: float | None = None
    """Duration of the process, the parity gate included."""
    others: float | None = None
    """Mean number of cores that other processes used; None if the system does not report it."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """What a cell's model reached on a task, after fine-tuning outside of its budget."""

    task: str
    metric: str
    """Name of the headline metric, see ``TaskResult.metric``."""
    score: float
    """Mean over the seeds of the fine-tuning; a fraction in [0, 1] or a correlation in [-1, 1]."""
    spread: float
    """Standard deviation over these seeds (n - 1); 0 for a single seed."""
    seeds: int
    baseline: float
    """Score of a constant answer."""


@dataclass(frozen=True, kw_only=True)
class StudyTasks:
    """The tasks on which the models of a study are fine-tuned."""

    tasks: list[str]
    protocol: str
    seeds: int | None
    """Fine-tunings of each task and model; None for as many as the protocol has."""


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One pretraining: a variant and a seed."""

    variant: str
    seed: int
    attempt: int = 0
    """1 for the repetition of a cell that was void."""
    folder: str
    """Its run folder, from the folder of the study."""
    recipe: str
    """Fingerprint of its recipe."""
    loss: float
    """On all held-out positions, at the end."""
    accuracy: float
    unigram_loss: float
    """Of word frequencies alone on the same positions."""
    positions: int
    steps: int
    tokens: int
    epochs: float
    tokens_per_second: float
    elapsed: float
    """Charged to the budget."""
    resumes: int
    threads: int
    precision: str
    curve: list[CurvePoint]
    loads: list[MachineLoad]
    void: str = ""
    """Why it counts for nothing; empty where it counts."""
    others: dict[str, float] = field(default_factory=dict)
    """Of a data study: its loss on the held-out text of each source."""
    tasks: list[TaskScore] = field(default_factory=list)
    """Empty where the study has no tasks, and until the model is fine-tuned on all of them."""
    task_seconds: float = 0.0
    """Of the last process that fine-tuned; not charged to the budget."""


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """How much of A's time B took to the same held-out loss."""

    level: str
    """A's final loss, B's final loss, or a loss in nats."""
    ratios: list[float | None]
    """Of each common seed; None where one of the two was not seen to reach it."""
    ratio: float | None
    """Their geometric mean; None where one is missing."""


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Variant B against variant A on the seeds that both have."""

    a: str
    b: str
    seeds: list[int]
    difference: float
    """Mean of B's loss less A's: below zero where B is ahead."""
    low: float | None
    """Of its 95 % interval, Student's t over the differences of each seed; None with a single seed."""
    high: float | None
    spread: float
    """Standard deviation over seeds (n - 1), the larger of the two sides."""
    verdict: str
    times: list[TimeRatio]


@dataclass(frozen=True, kw_only=True)
class ScoreComparison:
    """Variant B against variant A on a task, on the pretraining seeds that both have."""

    task: str
    """Name of a task, or ``mean of N tasks``."""
    metric: str
    """Empty for a mean over tasks."""
    a: str
    b: str
    seeds: list[int]
    difference: float
    """Mean of B's score less A's: above zero where B is ahead."""
    low: float | None
    """Of its 95 % interval, Student's t over the differences of each seed; None with a single seed."""
    high: float | None
    spread: float
    """Standard deviation over pretraining seeds (n - 1), the larger of the two sides."""
    verdict: str


@dataclass(frozen=True, kw_only=True)
class StudyVariant:
    name: str
    words: str
    """As the user typed it, without paths; empty where it came as a recipe from Python."""
    recipe: str
    """Fingerprint of its recipe at the study's budget and seed 0."""


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What every cell of a study has in common. A study is gone on with under the same settings only."""

    budget: str
    equal_clock: bool
    """Whether the budget is a time: steps and tokens say nothing about speed."""
    threads: int
    cores: int
    machine: Environment
    variants: list[StudyVariant]

    def differs(self, other: StudySettings) -> str:
        """What these settings have that ``other`` has not, in words; empty if they are the same."""
        if self.budget != other.budget:
            return "another budget"
        if self.threads != other.threads:
            return "another number of threads"
        if self.variants != other.variants:
            return "other variants"
        return "" if self == other else "another machine or other versions"


@dataclass(frozen=True, kw_only=True)
class Study:
    """OUT/study.json, renewed after every cell."""

    question: str
    settings: StudySettings
    data: str
    """Name of the data folder."""
    tokenizer: str
    """Fingerprint."""
    train_tokens: int
    seeds: int
    finished: bool
    cells: list[StudyCell]
    comparisons: list[LossComparison]
    tasks: StudyTasks | None = None
    """None where the variants are compared by their losses alone."""
    task_comparisons: list[ScoreComparison] = field(default_factory=list)


# ---------------------------------------------------------------- daybreak study-data


@dataclass(frozen=True, kw_only=True)
class StudySource:
    name: str
    documents: int
    """Read, copies included."""
    heldout_documents: int
    """Set aside before any preprocessing."""


@dataclass(frozen=True, kw_only=True)
class PreprocessedText:
    """What a preprocessing made of the training text of a source."""

    source: str
    preprocessing: str
    folder: str
    """Name of its prepared data; rows in another order are of the same."""
    documents: int
    tokens: int
    kept: float
    """Tokens as a share of those of the untreated text."""


@dataclass(frozen=True, kw_only=True)
class DataStudy:
    """OUT/study-data.json, renewed after every cell. A variant is called SOURCE, TREATMENT."""

    question: str
    settings: StudySettings
    preprocessings: list[str]
    """In their order; each stands on those before it."""
    order: str
    """Of the rows, where they are sorted."""
    sources: list[StudySource]
    tokenizer: str
    """Fingerprint of the one that all sources share."""
    identity: str
    """Tells the texts and the settings of the preparation from others."""
    seeds: int
    finished: bool
    texts: list[PreprocessedText]
    cells: list[StudyCell]
    comparisons: list[LossComparison]
