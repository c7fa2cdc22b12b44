"""Types of the files of prepared data and of runs.

Units: seconds, tokens, bytes, watts, degrees Celsius; losses in nats per token; fractions and accuracies in [0, 1].
``elapsed`` is the time charged to the budget: it counts from the start of the pretraining process, continues after a
resume, and includes lost work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

SHARD_FORMAT = 1
ATTENDS = 0.4
"""A model attends across segments if a noisy copy of the text reduces the loss by at least this fraction."""
PLATEAU_MARGIN = 0.15
"""Nats below the unigram baseline at which a model counts as having left the unigram plateau."""
BLOCK_BYTES = 1 << 20
"""Shard files have one hash for each block of this size, checked when the block is first read."""


# ---------------------------------------------------------------- prepared data: DATA/manifest.json


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Ids of the special tokens; the defaults are those of every tokenizer that Daybreak trains."""

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
    """One split: a flat token stream over one or more files, with a separator token after each document."""

    documents: int
    tokens: int
    token_files: list[BlockFile]
    """Little-endian unsigned integers of ``Manifest.token_bytes`` each; the stream is their concatenation."""
    document_ends: BlockFile
    """uint64: for each document the stream position just past its separator."""
    sentence_ends: BlockFile | None = None
    """uint64: for each sentence the stream position just past it and its separator; None without sentences."""


@dataclass(frozen=True, kw_only=True)
class Source:
    path: str
    documents: int
    characters: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of DATA/manifest.json, written by ``daybreak prepare`` and checked by pretraining."""

    format: int
    tokenizer: str
    """Fingerprint: blake2b (8 bytes, hex) of tokenizer/tokenizer.json."""
    tokenizer_kind: str
    vocabulary: int
    token_bytes: int
    document_rule: str
    """Unit of a document: record, page or article; for plain text file, line or blank-line. Several are joined by
    'and'. Folders of version 0.1 may say document, for files of token ids."""
    train: Split
    heldout: Split
    unigram_counts: BlockFile
    """uint64[vocabulary]: occurrences of each id in the train split."""
    sources: list[Source]
    duplicates: int
    skipped: dict[str, int]
    """Skipped documents or lines, by reason."""
    characters: int
    seconds: float
    inputs_fingerprint: str = ""
    """Identifies the input files (path, size, modification time) and the settings."""
    settings_fingerprint: str = ""
    """Identifies the settings, and the order, forms and sizes of the input files, without their paths and times."""
    content_fingerprint: str = ""
    """Identifies the bytes of the local input files; empty, as the one above, in folders of earlier versions."""
    special: SpecialIds = SpecialIds()
    overlap: float | None = None
    """Fraction of this vocabulary's tokens that the compared tokenizer has as well; None without a comparison."""
    tokenizer_settings: dict[str, Any] = field(default_factory=dict)
    """The recipe's field ``tokenizer`` with which the text was prepared; empty for a
    tokenizer that was not trained here, and in folders of version 0.1."""

    @property
    def left_out(self) -> str:
        """``skipped`` in words: ``311 too short, 4 broken UTF-8``; empty if nothing was skipped."""
        return ", ".join(f"{number:,} {reason}" for reason, number in self.skipped.items() if number)


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
class Change:
    """A change of settings during a run: an entry of ``Decisions.changes``, valid until the next entry."""

    step: int
    """First step with these settings."""
    why: str
    """Reason, in words."""
    microbatch: int
    """Sequences that one device processes at a time in the first phase."""
    world_size: int
    threads: int
    rate: float = 1.0
    """Factor of the peak learning rate."""
    compiled: bool = False
    """Whether the blocks run through torch.compile."""
    skip_to: int | None = None
    """Sequence at which reading continues at ``step`` if sequences were skipped; None otherwise."""
    machine: str | None = None
    """Processor or accelerator, if it is no longer that of environment.json."""
    torch: str | None = None
    """Version of torch, if it is no longer that of environment.json."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Measured choices of a run; made once and reused on resume and replay."""

    device: str
    threads: int
    precision: str
    """Precision of training: float32, bfloat16 or float16. Validation and export use float32."""
    microbatch: int
    """Sequences that one device processes at a time."""
    world_size: int
    reserve_seconds: float
    """Reserved from a time budget for the last validation and the export."""
    validation_rows: int
    """Sequences of an interim validation; the final one uses all."""
    validation_marks: int
    """Number of interim validations at equal distances of progress; those in a causal stage are skipped."""
    matmul_gflops: dict[str, float]
    """Measured speed of a square matrix product, by precision."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Measured time of an optimizer step at the end of the run, by precision that was tried."""
    course_seconds: list[float] = field(default_factory=list)
    """Measured time of a step at the start, middle and end of the run, in the chosen precision."""
    batch: int = 0
    """Sequences of an optimizer step over all devices."""
    rate_factor: float = 1.0
    """Factor of the learning rate by the recipe's rule for several devices."""
    before: dict[str, float] = field(default_factory=dict)
    """Held-out losses of a continued model before training, on the run's own text and on general text."""
    compiled: bool = False
    """Whether the blocks run through torch.compile."""
    first_heldout: bool = True
    """Whether the held-out loss is measured on the first held-out sequences, as until 2026-11-23. Newer runs take
    sequences at equal distances over the held-out text."""
    changes: list[Change] = field(default_factory=list)
    """Changes during the run, in order of steps."""


@dataclass(frozen=True, kw_only=True)
class TraceRecord:
    """One optimizer step of the run; ``elapsed`` and ``progress`` are the values before the step."""

    step: int
    elapsed: float
    progress: float


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A line of metrics.jsonl with ``type`` = step: means over the steps since the previous line."""

    step: int
    elapsed: float
    progress: float
    tokens: int
    """Tokens read since the start of the run."""
    stage: str
    """causal or masked; an objective of the user may name others."""
    loss: float
    targets: int
    """Predicted positions since the start of the run."""
    learning_rate: float
    gradient_norm: float
    """Norm at the last of these steps, before clipping."""
    tokens_per_second: float
    dropped: int = 0
    """Steps since the start whose update was skipped because it was not finite or exploded."""
    contrastive: float | None = None
    """Mean contrastive loss of the embedding finish, nats; None before it."""


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """A line of metrics.jsonl with ``type`` = validation: fixed held-out sequences, 15 % of the tokens masked."""

    step: int
    elapsed: float
    progress: float
    tokens: int
    loss: float
    accuracy: float
    positions: int
    distinct: int
    """Distinct tokens among the predictions."""
    unigram_loss: float
    """Loss of the unigram baseline (add-one smoothing) on the same positions."""
    most_frequent_fraction: float
    """Fraction of the positions whose answer is the most frequent token: the accuracy of always guessing it."""
    final: bool
    seconds: float
    own_loss: float | None = None
    """Masked loss on held-out sequences built and masked as the recipe trains, nats; None if they are the same."""
    own_accuracy: float | None = None
    """Accuracy on those sequences."""
    next_loss: float | None = None
    """Loss of the next-sentence prediction, nats per pair; None for a model without it."""
    next_accuracy: float | None = None
    """Accuracy of the next-sentence prediction; at least half of the pairs are random, so guessing gives about 0.5."""
    interim_loss: float | None = None
    """In a final validation, the loss on the sequences of the interim ones, to compare with them; None without interim
    validations and in runs of earlier versions."""
    interim_accuracy: float | None = None
    """The accuracy on those sequences."""

    @property
    def on_plateau(self) -> bool:
        """Whether the model is no better than the unigram baseline, within PLATEAU_MARGIN."""
        return not self.loss < self.unigram_loss - PLATEAU_MARGIN


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Result of loading the exported folder in a separate process with only transformers."""

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
    """Held-out losses before and after continued pretraining, nats per masked token."""

    own_before: float
    """Loss of the continued model on the run's own held-out text."""
    own_after: float
    general_before: float | None = None
    """Loss on general text; None without general text."""
    general_after: float | None = None

    @property
    def texts(self) -> list[tuple[str, float, float]]:
        """(text, loss before, loss after); general text only if it was evaluated."""
        texts = [("Own text", self.own_before, self.own_after)]
        if self.general_before is not None and self.general_after is not None:
            texts.append(("General text", self.general_before, self.general_after))
        return texts

    @property
    def verdict(self) -> str:
        """The changes in one sentence."""
        parts = [
            f"{text.lower()} {abs(after - before):.2f} nats {'better' if after < before else 'worse'}"
            for text, before, after in self.texts
        ]
        return f"After continuing, {', '.join(parts)}."


@dataclass(frozen=True, kw_only=True)
class VisibleContext:
    """Loss on masked tokens with few visible tokens."""

    tokens: int
    """Number of nearest visible tokens, half of them on each side."""
    loss: float
    """Nats per masked token."""


@dataclass(frozen=True, kw_only=True)
class ContextUse:
    """Use of context: loss, in nats, and accuracy on masked tokens of held-out text."""

    alone: float
    """Loss in a span of text alone."""
    copy: float
    """Loss in the same span beside a verbatim copy of it."""
    noisy_copy: float
    """Loss beside a copy that lacks a fifth of the other tokens."""
    alone_accuracy: float
    copy_accuracy: float
    noisy_copy_accuracy: float
    visible: list[VisibleContext]
    """By visible context, the whole span last."""
    positions: int
    """Masked tokens in each of the three conditions."""
    seconds: float

    @property
    def attends_across_segments(self) -> bool:
        """Whether a noisy copy reduces the loss by at least ATTENDS."""
        return self.noisy_copy <= self.alone * (1 - ATTENDS)


RANKERS = ("bm25", "dense", "hybrid")


@dataclass(frozen=True, kw_only=True)
class RankerScore:
    """Retrieval metrics of one ranker for the passage next to a query, in [0, 1]."""

    ranker: str
    """bm25, dense (cosine of embeddings) or hybrid (both, standardized for each query and added, with the
    weight of dense that ranks best for other queries)."""
    scores: dict[str, float]
    """mrr, the mean reciprocal rank; recall_1 and recall_10, the fraction of queries whose passage is that high."""
    intervals: dict[str, list[float]]
    """By metric, the ends of the 95 % interval over queries."""
    above_bm25: dict[str, list[float]]
    """By metric, the ends of the 95 % interval of the difference from BM25 on the same queries; empty for BM25."""

    def __post_init__(self) -> None:
        if self.ranker not in RANKERS or not set(self.intervals) <= set(self.scores):
            raise ValueError("an unknown ranker or an interval without its score")
        if any(len(ends) != 2 for ends in (*self.intervals.values(), *self.above_bm25.values())):
            raise ValueError("an interval has two ends")

    def beats_bm25(self, metric: str) -> bool:
        """Whether the difference from BM25 is above zero over its whole interval."""
        return metric in self.above_bm25 and self.above_bm25[metric][0] > 0


@dataclass(frozen=True, kw_only=True)
class RetrievalExample:
    """A query from held-out text, its own passage, and the passage that the hybrid ranker puts first."""

    query: str
    passage: str
    rank: int
    """Rank of its own passage by the hybrid ranker, from 1."""
    first: str


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Search in held-out documents without labels, see ``evaluation.probes.retrieval``."""

    text: str = ""
    """Name of the text, without paths; empty for the held-out split of the run's own data."""
    passages: int
    dense_weight: float = 1.0
    """Weight of the dense scores beside those of BM25 that ranks best over all queries."""
    rankers: list[RankerScore]
    """bm25, dense, hybrid."""
    seconds: float
    examples: list[RetrievalExample] = field(default_factory=list)
    """Held-out text; kept in RUN/retrieval.json, never in probes.json, a record or a card."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """State of one accelerator at one moment."""

    name: str
    utilisation: float
    """Fraction of about the last second in which it was busy."""
    memory: int
    memory_total: int
    temperature: float | None = None
    watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """A line of metrics.jsonl with ``type`` = machine: state of the first process' machine about every half minute."""

    step: int
    elapsed: float
    processor: float
    """Fraction of all cores in use by any process."""
    load: float
    """Load average over one minute."""
    memory: int
    """Memory of this process."""
    memory_free: int
    disk_free: int
    """On the disk of the run folder."""
    devices: list[DeviceUse] = field(default_factory=list)
    kilowatt_hours: float | None = None
    """Energy of the accelerators since the start of this process; None if they do not report power."""


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """Machine utilization over all processes of a run: part of Summary."""

    processor: float
    """Mean fraction of all cores in use."""
    load: float
    """Mean load average."""
    memory: int
    """Peak memory of the first process."""
    utilisation: float | None = None
    """Mean over the accelerators; None without any."""
    device_memory: int | None = None
    """Peak memory of one accelerator."""
    temperature: float | None = None
    """Highest temperature of an accelerator."""
    kilowatt_hours: float | None = None
    cost: float | None = None
    """Cost of the charged hours at the given price."""

    @staticmethod
    def of(records: Iterable[MachineRecord], cost: float | None = None) -> MachineUse | None:
        """Summarize the records of a run; None without records. Values that are not finite are ignored.

        Each process counts its kilowatt hours from zero, so in order of time a value below the previous one is the
        first of a new process.

        Args:
            records: of all processes, including lines that a resume removed, because that work used the machine too.
        """
        ordered = sorted(records, key=lambda record: record.elapsed)
        if not ordered:
            return None
        devices = [device for record in ordered for device in record.devices]
        counts = _numbers(record.kilowatt_hours for record in ordered)
        ends = [count for count, following in zip(counts, [*counts[1:], -math.inf]) if following < count]
        busy = _numbers(device.utilisation for device in devices)
        return MachineUse(
            processor=fmean(_numbers(record.processor for record in ordered) or [0.0]),
            load=fmean(_numbers(record.load for record in ordered) or [0.0]),
            memory=max(record.memory for record in ordered),
            utilisation=fmean(busy) if busy else None,
            device_memory=max((device.memory for device in devices), default=None),
            temperature=max(_numbers(device.temperature for device in devices), default=None),
            kilowatt_hours=sum(ends) if counts else None,
            cost=cost,
        )


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """RUN/summary.json, written when pretraining ends."""

    budget: str
    elapsed: float
    """Time charged to the budget."""
    wall: float
    """Time from the first start to the end, including the time between a stop and a resume."""
    time_by_category: dict[str, float]
    """Time by category: start, data, train, communicate, clock, monitor, validate, checkpoint, export, lost."""
    steps: int
    tokens: int
    epochs: float
    parameters: int
    resumes: int
    tokens_per_second: float
    rows: int = 0
    """Sequences read over all devices."""
    steps_per_second: float = 0.0
    """Optimizer steps per second of training, independent of the number of devices."""
    rows_per_second: float = 0.0
    validation: ValidationRecord
    parity: Parity | None = None
    parity_seconds: float = 0.0
    parent: str = ""
    """Hub name or folder name of the continued model; empty for random weights."""
    forgetting: Forgetting | None = None
    """None for a run from random weights."""
    dropped: int = 0
    """Skipped steps, see ``StepRecord.dropped``."""
    changes: list[Change] = field(default_factory=list)
    """See ``Decisions.changes``."""
    machine: MachineUse | None = None
    """None if it was not measured."""
    context_use: ContextUse | None = None
    """None if no held-out document is long enough, and in runs of earlier versions."""

    @property
    def is_refused(self) -> bool:
        """Whether the exported model failed its parity check: it has no result and should not be used."""
        return self.parity is not None and not self.parity.passed


@dataclass(frozen=True, kw_only=True)
class FillMask:
    """One held-out sentence with one masked word; RUN/examples.json holds a list of them."""

    text: str
    """The sentence with [MASK] instead of the word."""
    answer: str
    guesses: list[str]
    probabilities: list[float]
