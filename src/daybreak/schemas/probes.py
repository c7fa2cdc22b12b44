"""Types of probes.json: measurements on a model without fine-tuning.

Units: fractions, accuracies and intervals in [0, 1], correlations in [-1, 1], losses in nats per masked token, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daybreak.schemas.run import Retrieval


@dataclass(frozen=True, kw_only=True)
class LayerScore:
    """A probe on one layer's frozen states, mean-pooled."""

    layer: int
    """0 is the embeddings; the largest is the output of the encoder after its last norm."""
    score: float
    """The task's headline metric on the whole dev file."""


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """Linear probes of each layer on one task (Alain and Bengio 2016, arXiv:1610.01644).

    The features of a pair are the differences and products of the two texts, each pooled alone.
    """

    task: str
    kind: str
    """classification (logistic regression) or regression (ridge)."""
    metric: str
    constant: float
    """The same metric for the best constant answer on the training rows."""
    train_rows: int
    """Training rows of the linear models."""
    dev_rows: int
    layers: list[LayerScore]
    """In order, from 0."""

    @property
    def best(self) -> LayerScore:
        """The layer with the highest score; of equal ones the lowest."""
        return max(self.layers, key=lambda layer: layer.score)


@dataclass(frozen=True, kw_only=True)
class SimilarityScore:
    """Correlation of the cosine of two mean-pooled sentences with human similarity ratings."""

    layer: int
    """Layer, as in LayerScore."""
    spearman: float
    centred: float
    """The same after subtracting the mean vector of all sentences."""


@dataclass(frozen=True, kw_only=True)
class SimilarityProbe:
    """A task of rated pairs, such as STS-B, evaluated on its dev file without training."""

    task: str
    pairs: int
    layers: list[SimilarityScore]
    """In order, from 0."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracy and loss on masked tokens."""

    count: int
    """Masked tokens, at least 1."""
    accuracy: float
    low: float
    """Lower end of the 95 % interval of the accuracy (Wilson 1927)."""
    high: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class BucketScore(Accuracy):
    """Masked tokens whose rank or position lies in a range; empty ranges are omitted."""

    first: int
    last: int | None
    """Last value of the range, included; None without an upper end."""


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Masked tokens with a similar confidence of the model."""

    low: float
    """The confidence of the best guess is above this and at most ``high``."""
    high: float
    count: int
    """At least 1; empty bins are omitted."""
    confidence: float
    """Mean confidence in the bin."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class RowLength(Accuracy):
    """Results for the text cut into sequences of one length. The same tokens are masked at every length."""

    length: int
    """Tokens of a sequence, including the first special token; the last sequence may be shorter."""
    times_trained: int
    """``length`` over the trained length; above 1 for lengths beyond training."""
    positions: list[BucketScore]
    """By position in the sequence, from 0 for its first special token."""


@dataclass(frozen=True, kw_only=True)
class MaskedWords:
    """Predictions of a model for held-out text in which 15 % of the tokens are replaced by the mask token."""

    text: str
    """Source of the text, without paths."""
    tokens: int
    """Tokens of the text that were read."""
    trained_length: int
    """Longest sequence according to the model's files."""
    ranks_from: str
    """Text that ranks are counted in: 'training text' or 'this text'. Rank 1 is the most frequent token."""
    constant: float
    """Accuracy of always guessing the token of rank 1."""
    lengths: list[RowLength]
    """Ascending; ``frequency`` and ``calibration`` are computed at the first."""
    frequency: list[BucketScore]
    """By rank of the masked token."""
    calibration: list[CalibrationBin]
    """At most 15 bins of equal width."""
    calibration_error: float
    """Expected calibration error over these bins (Guo et al. 2017, arXiv:1706.04599)."""


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Content of probes.json: the probes of one model that were requested."""

    model_name: str
    """Name of the run's or the model's folder."""
    layer_count: int
    """Blocks of the encoder; each list over layers has one entry more, for the embeddings."""
    layer_probes: list[LayerProbe] = field(default_factory=list)
    similarity: list[SimilarityProbe] = field(default_factory=list)
    masked_words: MaskedWords | None = None
    search: list[Retrieval] = field(default_factory=list)
    """One for each text that has enough documents, without examples."""
    seconds: float
