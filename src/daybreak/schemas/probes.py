"""What probing leaves on disk: probes.json. Nothing in it was fine-tuned. Shares, accuracies and intervals in [0, 1],
correlations in [-1, 1], losses in nats per hidden token, seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LayerScore:
    """A probe on one layer's frozen states, mean-pooled."""

    layer: int
    """0 is the embeddings; the largest is what the encoder gives, after its last norm."""
    score: float
    """The task's headline metric on the whole dev file."""


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """One task, read off each layer by a linear model (Alain and Bengio 2016, arXiv:1610.01644). Of a pair it sees
    how the two texts, each pooled alone, differ and agree."""

    task: str
    kind: str
    """classification (logistic regression) or regression (ridge)."""
    metric: str
    constant: float
    """The same metric of the constant answer that suits the training rows best."""
    train_rows: int
    """Rows that the linear models were fitted on."""
    dev_rows: int
    layers: list[LayerScore]
    """In order, from 0."""

    @property
    def best(self) -> LayerScore:
        """The layer that tells most; of equals the lowest."""
        return max(self.layers, key=lambda found: found.score)


@dataclass(frozen=True, kw_only=True)
class SimilarityScore:
    """How well the cosine between two mean-pooled sentences follows the similarity that people gave."""

    layer: int
    """As in LayerScore."""
    spearman: float
    centred: float
    """The same after the mean vector of all sentences was taken from each: without what all have in common."""


@dataclass(frozen=True, kw_only=True)
class SimilarityProbe:
    """A task of rated pairs, such as STS-B, without any training: the dev file alone."""

    task: str
    pairs: int
    layers: list[SimilarityScore]
    """In order, from 0."""


@dataclass(frozen=True, kw_only=True)
class BucketScore:
    """Hidden tokens whose rank, or whose position, lies in a range."""

    first: int
    last: int | None
    """The range with both ends; None where it has no upper end."""
    count: int
    """Hidden tokens in it, at least 1; a range without any is left out."""
    accuracy: float
    low: float
    """Of the accuracy's 95 % interval (Wilson 1927)."""
    high: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Hidden tokens of which the model was about as sure."""

    low: float
    """Confidence of the best guess, above this and up to ``high``."""
    high: float
    count: int
    """At least 1; a bin without any token is left out."""
    confidence: float
    """Mean in the bin."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class RowLength:
    """The text cut into rows of one length. The same tokens are hidden at every length."""

    length: int
    """Tokens a row, with the special one that opens it; the last row may be shorter."""
    times_trained: int
    """``length`` over the trained length; 1, or more for lengths that the model has never seen."""
    count: int
    """Hidden tokens."""
    accuracy: float
    low: float
    high: float
    loss: float
    positions: list[BucketScore]
    """By position in the row; the token that opens it has position 0."""


@dataclass(frozen=True, kw_only=True)
class MaskedWords:
    """Held-out text with 15 % of its tokens hidden, each by the mask token, and what the model guessed."""

    text: str
    """Where the text came from, without paths."""
    tokens: int
    """Tokens of the text that were read."""
    trained_length: int
    """Longest row that the model's own files speak of."""
    ranks_from: str
    """What a token's rank was counted in: 'training text' or 'this text'. Rank 1 is the most frequent token."""
    constant: float
    """Accuracy of always guessing the token of rank 1."""
    lengths: list[RowLength]
    """In rising order; the first is the one that ``frequency`` and ``calibration`` were counted at."""
    frequency: list[BucketScore]
    """By rank of the hidden token."""
    calibration: list[CalibrationBin]
    """15 bins of equal width at most."""
    calibration_error: float
    """Expected calibration error over these bins (Guo et al. 2017, arXiv:1706.04599)."""


@dataclass(frozen=True, kw_only=True)
class Probes:
    """``probes.json``: all that was asked about one model, each part only where there was something to ask with."""

    model_name: str
    """Name of the run's or the model's folder."""
    layer_count: int
    """Blocks of the encoder; each list over layers has one entry more, for the embeddings."""
    layer_probes: list[LayerProbe] = field(default_factory=list)
    similarity: list[SimilarityProbe] = field(default_factory=list)
    masked_words: MaskedWords | None = None
    seconds: float
