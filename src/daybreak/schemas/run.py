"""Types that reach disk, so that stages can speak through files: prepared data and runs. Others are in ``*_records``.

Units: seconds, tokens, bytes; losses in nats per token; shares and accuracies in [0, 1]. ``elapsed`` is the clock of
the budget: it counts from the start of the pretraining process, survives resumes, and charges lost work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daybreak.schemas.changes import Change, MachineUse

SHARD_FORMAT = 1
ATTENDS = 0.4
"""A model attends across segments where a noisy copy of the text takes away this fraction of the loss or more."""
PLATEAU_MARGIN = 0.15
"""Nats below the unigram loss that a model must have come before it counts as having left the plateau."""
BLOCK_BYTES = 1 << 20
"""Shard files carry one hash per block of this size, checked when the block is first read."""


# ---------------------------------------------------------------- prepared data: DATA/manifest.json


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of the special tokens: these in every tokenizer that Daybreak trains, others in one taken over."""

    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4


@dataclass(frozen=True, kw_only=True)
class BlockFile:
    """A binary file with one hash (blake2b, 8 bytes, hex) for each block of BLOCK_BYTES; the last may be shorter."""

    name: str
    """Path relative to the data folder."""
    bytes: int
    hashes: list[str]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split: a flat token stream over one or more files, each document closed by the separator token."""

    documents: int
    tokens: int
    token_files: list[BlockFile]
    """Little-endian unsigned integers of ``Manifest.token_bytes`` each; the stream is their concatenation."""
    document_ends: BlockFile
    """uint64: for each document the stream position just past its separator."""
    sentence_ends: BlockFile | None = None
    """uint64: likewise of sentences (lines of the input; a document's last holds its separator); None without any."""


@dataclass(frozen=True, kw_only=True)
class Source:
    path: str
    documents: int
    characters: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What ``daybreak prepare`` made, and what pretraining checks before its first step."""

    format: int
    tokenizer: str
    """Fingerprint: blake2b (8 bytes, hex) of tokenizer/tokenizer.json."""
    tokenizer_kind: str
    vocabulary: int
    token_bytes: int
    document_rule: str
    """What documents are, in words joined by 'and': record, page, article, document (of tokens); of plain text file,
    line or blank-line."""
    train: Split
    heldout: Split
    unigram_counts: BlockFile
    """uint64[vocabulary]: occurrences of each id in the train split."""
    sources: list[Source]
    duplicates: int
    skipped: dict[str, int]
    """Documents or lines left out, by reason."""
    characters: int
    seconds: float
    inputs_fingerprint: str = ""
    """Identifies the input files (path, size, time of change) and settings that this was made from."""
    special: SpecialIds = SpecialIds()
    overlap: float | None = None
    """Share of this vocabulary's pieces that the tokenizer it was compared with has too; None if with none."""


# ---------------------------------------------------------------- a run: RUN/*.json, *.jsonl


@dataclass(frozen=True, kw_only=True)
class Environment:
    daybreak: str
    python: str
    torch: str
    platform: str
    device: str
    """Processor or accelerator name."""
    cores: int
    memory_gib: float
    started: float
    """Unix time at which the run first started."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Choices that came from measuring; made once, obeyed at resume and replay."""

    device: str
    threads: int
    precision: str
    """float32, bfloat16 or float16, of training; validation and export are float32."""
    microbatch: int
    """Rows that one device handles at a time."""
    world_size: int
    reserve_seconds: float
    """Kept back from a time budget for the last validation and the export."""
    validation_rows: int
    """Rows of the interim validations; the final one takes all."""
    validation_marks: int
    """Interim validations, at equal distances of progress; those in a causal stage are left out."""
    matmul_gflops: dict[str, float]
    """Measured rate of a square product by precision."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Measured time of an optimizer step at the end of the run, by precision, of those that were worth trying."""
    course_seconds: list[float] = field(default_factory=list)
    """The same at its start, in its middle and at its end, in the precision that was chosen."""
    batch: int = 0
    """Rows of an optimizer step over all devices."""
    rate_factor: float = 1.0
    """What the recipe's rule for several devices made of the learning rate."""
    before: dict[str, float] = field(default_factory=dict)
    """Held-out losses of a model that is continued, as it came: on the run's own text, and on general text."""
    compiled: bool = False
    """Whether the blocks run through torch.compile."""
    changes: list[Change] = field(default_factory=list)
    """What was decided anew in mid-course, in order of steps."""


@dataclass(frozen=True, kw_only=True)
class TraceRecord:
    """One optimizer step that is part of the run. ``elapsed`` and ``progress`` as they stood before the step."""

    step: int
    elapsed: float
    progress: float


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A line of metrics.jsonl with ``type`` = step: means over the steps since the line before."""

    step: int
    elapsed: float
    progress: float
    tokens: int
    """Tokens read since the start of the run."""
    stage: str
    """causal or masked."""
    loss: float
    targets: int
    """Predicted positions since the start of the run."""
    learning_rate: float
    gradient_norm: float
    """Of the last of these steps, before clipping."""
    tokens_per_second: float
    dropped: int = 0
    """Steps since the start whose update was left out, because something in it was not finite or exploded."""
    contrastive: float | None = None
    """Mean contrastive loss of the embedding finish, nats; None before it."""


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """A line of metrics.jsonl with ``type`` = validation: fixed held-out positions, 15 % of them masked."""

    step: int
    elapsed: float
    progress: float
    tokens: int
    loss: float
    accuracy: float
    positions: int
    distinct: int
    """Different tokens among the predictions."""
    unigram_loss: float
    """Loss of the training corpus' unigram distribution (add-one) on the same positions: the plateau."""
    most_frequent_fraction: float
    """Share of the positions whose answer is the corpus' most frequent token: the accuracy of always guessing it."""
    final: bool
    seconds: float
    own_loss: float | None = None
    """Masked loss on held-out rows as the recipe itself makes and masks them, nats; None where nothing differs."""
    own_accuracy: float | None = None
    """Accuracy on those."""
    next_loss: float | None = None
    """Loss of the next-sentence prediction, nats per pair; None for a model without it."""
    next_accuracy: float | None = None
    """Its accuracy; half the pairs or more are random, so guessing gives about 0.5."""
    interim_loss: float | None = None
    """Of a final validation: the loss on the rows of the interim ones, which alone is comparable with theirs; None
    where there were no interim validations, and in runs of earlier versions."""

    @property
    def on_plateau(self) -> bool:
        """Whether the model does no better than token frequencies do (within PLATEAU_MARGIN)."""
        return not self.loss < self.unigram_loss - PLATEAU_MARGIN


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What a clean process that knows only transformers found in the exported folder."""

    passed: bool
    checks: dict[str, bool]
    largest_logit_difference: float
    tolerance: float
    masked_accuracy: float
    transformers: str
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """Held-out losses around continued pretraining, nats per masked token: what was won, and what it cost."""

    own_before: float
    """On the run's own held-out text, of the model that was continued."""
    own_after: float
    general_before: float | None = None
    """On general text, likewise; None where none was given."""
    general_after: float | None = None

    @property
    def texts(self) -> list[tuple[str, float, float]]:
        """(which text, loss before, loss after), general text only where it was judged."""
        found = [("Own text", self.own_before, self.own_after)]
        if self.general_before is not None and self.general_after is not None:
            found.append(("General text", self.general_before, self.general_after))
        return found

    @property
    def verdict(self) -> str:
        """The exchange in one sentence."""
        told = [
            f"{text.lower()} {abs(after - before):.2f} nats {'better' if after < before else 'worse'}"
            for text, before, after in self.texts
        ]
        return f"After continuing, {', '.join(told)}."


@dataclass(frozen=True, kw_only=True)
class VisibleContext:
    """The loss on masked tokens with few others visible."""

    tokens: int
    """Nearest tokens that are visible, half of them on each side."""
    loss: float
    """Nats per masked token."""


@dataclass(frozen=True, kw_only=True)
class ContextUse:
    """How much of its context a model uses: the loss on masked tokens of held-out text, nats, and the accuracy."""

    alone: float
    """In a piece of text by itself."""
    copy: float
    """In the same piece, beside a verbatim copy of it."""
    noisy_copy: float
    """Beside a copy that lacks a fifth of the other tokens."""
    alone_accuracy: float
    copy_accuracy: float
    noisy_copy_accuracy: float
    visible: list[VisibleContext]
    """By visible context, with all of the piece last."""
    positions: int
    """Masked tokens in each of the three."""
    seconds: float

    @property
    def attends_across_segments(self) -> bool:
        """Whether a noisy copy takes away at least ATTENDS of the loss."""
        return self.noisy_copy <= self.alone * (1 - ATTENDS)


@dataclass(frozen=True, kw_only=True)
class RankerScore:
    """How well one way of ranking finds the passage that a query stood next to, in [0, 1]."""

    ranker: str
    """bm25, dense (cosine of embeddings) or hybrid (both, standardised for each query and added)."""
    scores: dict[str, float]
    """mrr, the mean reciprocal rank; recall_1 and recall_10, the fraction of queries whose passage is that high."""
    intervals: dict[str, list[float]]
    """By metric, the ends of the 95 % interval over queries."""
    above_bm25: dict[str, list[float]]
    """By metric, the ends of the 95 % interval of the difference from BM25 on the same queries; empty for BM25."""

    def beats_bm25(self, metric: str) -> bool:
        """Whether the difference from BM25 is above zero over its whole interval."""
        return metric in self.above_bm25 and self.above_bm25[metric][0] > 0


@dataclass(frozen=True, kw_only=True)
class RetrievalExample:
    """A query from held-out text, its own passage, and the passage that the hybrid ranker puts first."""

    query: str
    passage: str
    rank: int
    """Of its own passage, by the hybrid ranker, from 1."""
    first: str


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Search in held-out documents without labels, see ``evaluation.probes.retrieval``."""

    passages: int
    rankers: list[RankerScore]
    """bm25, dense, hybrid."""
    seconds: float
    examples: list[RetrievalExample] = field(default_factory=list)
    """Held-out text; kept in RUN/retrieval.json, never in a record or a card."""

    def of(self, ranker: str) -> RankerScore:
        return next(each for each in self.rankers if each.ranker == ranker)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """RUN/summary.json, written when pretraining ends."""

    budget: str
    elapsed: float
    """Seconds charged to the budget."""
    wall: float
    """Seconds from the first start to the end, the time between a stop and a resume included."""
    time_by_category: dict[str, float]
    """Seconds by use: start, data, train, communicate, clock, monitor, validate, checkpoint, export, lost."""
    steps: int
    tokens: int
    epochs: float
    parameters: int
    resumes: int
    tokens_per_second: float
    rows: int = 0
    """Rows, that is samples, read over all devices."""
    steps_per_second: float = 0.0
    """Optimizer steps a second of training, one however many devices share it."""
    rows_per_second: float = 0.0
    validation: ValidationRecord
    parity: Parity | None = None
    parity_seconds: float = 0.0
    parent: str = ""
    """Hub name, or folder name without its path, of the model that was continued; empty from random weights."""
    forgetting: Forgetting | None = None
    """None from random weights."""
    dropped: int = 0
    """Steps whose update was left out, see ``StepRecord.dropped``."""
    changes: list[Change] = field(default_factory=list)
    """See ``Decisions.changes``."""
    machine: MachineUse | None = None
    """None where nothing was measured."""
    context_use: ContextUse | None = None
    """None where no held-out document is long enough, and in runs of earlier versions."""


@dataclass(frozen=True, kw_only=True)
class FillMask:
    """One held-out sentence with one word hidden: RUN/examples.json holds a list of them."""

    text: str
    """The sentence with [MASK] in place of the word."""
    answer: str
    guesses: list[str]
    probabilities: list[float]
