"""Types of OUT/study.json of ``daybreak study`` and OUT/study-data.json of ``daybreak study-data``.

Units: seconds, tokens; losses in nats per token on the fixed positions of the held-out evaluation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from daybreak.schemas.run import Environment

STUDY_FILE, DATA_STUDY_FILE = "study.json", "study-data.json"

REFUSED = "its export was refused by the parity check"
NOT_A_NUMBER = "its held-out loss is not a number"
NO_RESULT = (REFUSED, NOT_A_NUMBER)
"""Reasons why a cell is void that leave it without a result."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One validation of a cell. All use the held-out sequences of the interim ones, if the run had any, so that the
    points of a curve compare; in studies of version 0.1, the last uses all sequences."""

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
    """Duration of the process, the parity check included."""
    others: float | None = None
    """Mean number of cores that other processes used; None if the system does not report it."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """Score of a cell's model on a task after fine-tuning, which is not charged to its budget."""

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
    """Tasks on which the models of a study are fine-tuned."""

    tasks: list[str]
    protocol: str
    seeds: int | None
    """Fine-tunings of each task and model; None for the protocol's number."""


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One pretraining: a variant and a seed."""

    variant: str
    seed: int
    attempt: int = 0
    """1 for the repetition of a void cell."""
    folder: str
    """Run folder, relative to the folder of the study."""
    recipe: str
    """Fingerprint of the recipe."""
    loss: float
    """Final loss on all held-out positions."""
    accuracy: float
    unigram_loss: float
    """Loss of the unigram baseline on the same positions."""
    positions: int
    steps: int
    tokens: int
    epochs: float
    tokens_per_second: float
    elapsed: float
    """Time charged to the budget."""
    resumes: int
    threads: int
    precision: str
    curve: list[CurvePoint]
    loads: list[MachineLoad]
    void: str = ""
    """Why the cell is void, one of NO_RESULT or another reason; empty if it is not."""
    others: dict[str, float] = field(default_factory=dict)
    """In a data study, the loss on the held-out text of each source."""
    tasks: list[TaskScore] = field(default_factory=list)
    """Empty if the study has no tasks, and until the model is fine-tuned on all of them."""
    task_seconds: float = 0.0
    """Duration of the last fine-tuning process; not charged to the budget."""

    @property
    def has_result(self) -> bool:
        """Whether its loss counts in means and comparisons."""
        return self.void not in NO_RESULT


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """Time of B to a held-out loss, as a fraction of A's time to the same loss."""

    level: str
    """A's final loss, B's final loss, or a loss in nats."""
    ratios: list[float | None]
    """Ratio of each common seed; None if one of the two did not reach the loss."""
    ratio: float | None
    """Geometric mean of the ratios; None if one is missing."""


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Variant B against variant A on the pretraining seeds that both have."""

    a: str
    b: str
    seeds: list[int]
    difference: float
    """Mean of B's loss or score minus A's."""
    low: float | None
    """Lower end of the 95 % interval, Student's t over the differences of each seed; None with a single seed."""
    high: float | None
    spread: float
    """Standard deviation over pretraining seeds (n - 1), the larger of the two sides."""
    verdict: str


@dataclass(frozen=True, kw_only=True)
class LossComparison(PairedComparison):
    """A comparison of held-out losses: the difference is negative if B is better."""

    times: list[TimeRatio]


@dataclass(frozen=True, kw_only=True)
class ScoreComparison(PairedComparison):
    """A comparison on a task: the difference is positive if B is better."""

    task: str
    """Name of a task, or ``mean of N tasks``."""
    metric: str
    """Empty for a mean over tasks."""


@dataclass(frozen=True, kw_only=True)
class StudyVariant:
    name: str
    words: str
    """As the user typed it, with current names of options and without paths; empty for a recipe given in Python."""
    recipe: str
    """Fingerprint of its recipe at the study's budget and seed 0, and of the file of its own classes if it has any."""


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Settings common to all cells of a study. A study can only be resumed with the same settings, or without some of
    its variants, for example one that diverges."""

    budget: str
    equal_clock: bool
    """Whether the budget is a time; budgets in steps or tokens do not compare speed."""
    threads: int
    cores: int
    machine: Environment
    variants: list[StudyVariant]
    left_out: list[StudyVariant] = field(default_factory=list)
    """Variants of earlier commands that the last one left out; a later command may name them again."""

    def differs(self, other: StudySettings) -> str:
        """The first difference of a later command's settings, in words; empty if their cells compare with these."""
        if self.budget != other.budget:
            return "another budget"
        if self.threads != other.threads:
            return "another number of threads"
        if any(variant not in self.variants + self.left_out for variant in other.variants):
            return "other variants"
        before, now = (asdict(one.machine) | {"cores": one.cores} for one in (self, other))
        return ", ".join(f"{name} {was} (now {now[name]})" for name, was in before.items() if was != now[name])


@dataclass(frozen=True, kw_only=True)
class Study:
    """Content of OUT/study.json, rewritten after every cell."""

    question: str
    settings: StudySettings
    data: str
    """Name of the data folder."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    train_tokens: int
    seeds: int
    finished: bool
    cells: list[StudyCell]
    comparisons: list[LossComparison]
    tasks: StudyTasks | None = None
    """None if the variants are compared only by their losses."""
    task_comparisons: list[ScoreComparison] = field(default_factory=list)


# ---------------------------------------------------------------- daybreak study-data


@dataclass(frozen=True, kw_only=True)
class StudySource:
    name: str
    documents: int
    """Documents read, copies included."""
    heldout_documents: int
    """Documents held out before any preprocessing."""


@dataclass(frozen=True, kw_only=True)
class PreprocessedText:
    """Training text of a source after a preprocessing."""

    source: str
    preprocessing: str
    folder: str
    """Name of its prepared data; preprocessings that only reorder sequences share one folder."""
    documents: int
    tokens: int
    kept: float
    """Tokens as a fraction of those of the original text."""


@dataclass(frozen=True, kw_only=True)
class DataStudy:
    """Content of OUT/study-data.json, rewritten after every cell. A variant is called SOURCE, PREPROCESSING."""

    question: str
    settings: StudySettings
    preprocessings: list[str]
    """In order; each builds on those before it."""
    order: str
    """Order of the sequences in the preprocessing that sorts them."""
    sources: list[StudySource]
    tokenizer: str
    """Fingerprint of the tokenizer that all sources share."""
    identity: str
    """Identifies the texts and the settings of the preparation."""
    seeds: int
    finished: bool
    texts: list[PreprocessedText]
    cells: list[StudyCell]
    comparisons: list[LossComparison]
