"""How ``--size`` scales a recipe of the literature: vocabulary, batch, peak learning rate and initial weights.

The published recipes are for a base model, hundreds to thousands of sequences a step and a day or more. Below base the
batch is divided by a fixed number, so that a short run still has about a thousand steps. Unless ``--faithful`` is
given, the peak learning rate and the initial standard deviation grow as the hidden size shrinks, and the trunks of BERT
and Cramming start from other weights: with the published values a narrow model stays on the unigram plateau for its
whole budget (docs/log.md).
"""

from __future__ import annotations

import math
from typing import Any

from daybreak.data.sequences.word_vectors import WordVectors

BASE_HIDDEN_SIZE = 768
VOCABULARY = {"tiny": 8_192, "mini": 8_192, "small": 16_384}
"""Vocabulary below base; base and large have the paper's."""
BATCH_DIVISOR = {"tiny": 512, "mini": 512, "small": 64, "base": 1, "large": 1}
SMALLEST_BATCH = 16


def vocabulary(size: str, paper: int) -> int:
    return VOCABULARY.get(size, paper)


def batch(size: str, paper: int) -> int:
    """Sequences of a step: the paper's number, divided by BATCH_DIVISOR but at least SMALLEST_BATCH below base."""
    return max(min(SMALLEST_BATCH, paper), paper // BATCH_DIVISOR[size])


def rate(paper: float, hidden_size: int, faithful: bool) -> float:
    """Peak learning rate: times sqrt(768 / hidden_size) below base, rounded to two digits."""
    if not is_narrow(hidden_size, faithful):
        return paper
    return float(f"{paper * math.sqrt(BASE_HIDDEN_SIZE / hidden_size):.2g}")


def is_narrow(hidden_size: int, faithful: bool) -> bool:
    """Whether the model is below base and may deviate from its paper."""
    return not faithful and hidden_size < BASE_HIDDEN_SIZE


def init_std(hidden_size: int, faithful: bool) -> float:
    """Standard deviation of the initial weights: 1 / sqrt(hidden_size) below base, 0.02 from base on."""
    return round(1 / math.sqrt(hidden_size), 4) if is_narrow(hidden_size, faithful) else 0.02


def bert_rate(paper: float, hidden_size: int, faithful: bool) -> float:
    """Peak learning rate of BERT's Adam: 2e-3 at hidden size 128, falling with its square root, below base."""
    return float(f"{2e-3 * math.sqrt(128 / hidden_size):.2g}") if is_narrow(hidden_size, faithful) else paper


def bert_beta2(hidden_size: int, faithful: bool) -> float:
    """Decay of the second moment in BERT's Adam: 0.98 below base, where 0.999 averages over too many steps."""
    return 0.98 if is_narrow(hidden_size, faithful) else 0.999


def l2_decay(paper: float, hidden_size: int, faithful: bool) -> float:
    """Weight decay of an Adam that adds it to the gradient: none below base.

    With Cramming's 0.01 a narrow model stays on the unigram plateau, probably because the penalty is larger than the
    gradients of the loss (docs/log.md).
    """
    return 0.0 if is_narrow(hidden_size, faithful) else paper


def bert_warmup(paper: float, hidden_size: int, faithful: bool) -> float:
    """Fraction of the budget in which the rate of BERT's Adam rises: a fifth at hidden size 128, else half below base.

    With the paper's 0.2 to 3 % a short run reaches its peak rate within some ten steps, and the trunk, which normalizes
    after each block, stays on the unigram plateau for thousands of steps.
    """
    if not is_narrow(hidden_size, faithful):
        return paper
    return 0.2 if hidden_size <= 128 else 0.5


def next_sentence_weight(hidden_size: int, faithful: bool) -> float:
    """Factor of the next-sentence loss: 0.1 below base.

    With a factor of 1, as in the paper, ``mini`` stays on the unigram plateau of the masked loss for thousands of steps
    (docs/log.md).
    """
    return 0.1 if is_narrow(hidden_size, faithful) else 1.0


def dropout(hidden_size: int, faithful: bool) -> float:
    """Dropout of a recipe with 0.1 in its paper: none below base."""
    return 0.0 if is_narrow(hidden_size, faithful) else 0.1


def correlations(hidden_size: int, faithful: bool) -> dict[str, Any]:
    """Mimetic initialization of attention (arXiv 2305.09828) below base, as fields of an encoder."""
    narrow = is_narrow(hidden_size, faithful)
    return {"query_key_correlation": 0.7, "value_output_correlation": 0.5} if narrow else {}


def word_vectors(hidden_size: int, faithful: bool) -> WordVectors:
    """Initial embeddings from the text below base."""
    return WordVectors(weight=0.8 if is_narrow(hidden_size, faithful) else 0.0)
