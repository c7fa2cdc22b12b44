"""Sentence embeddings without training: does the cosine of two mean-pooled sentences follow what people said?"""

from __future__ import annotations

import numpy as np

from daybreak.evaluation.probes.frozen import FrozenModel, Show, pooled_states
from daybreak.evaluation.scoring.metrics import regression_scores
from daybreak.evaluation.tasks.task import Task, TaskRows
from daybreak.schemas.probes import SimilarityProbe, SimilarityScore

DIGITS = 9
"""Decimals of a cosine that count."""


def rates_pairs(task: Task) -> bool:
    """Whether the task gives each pair of texts a number, as STS-B does."""
    return task.kind == "regression" and len(task.text) == 2


def probe_similarity(frozen: FrozenModel, data: TaskRows, length: int, show: Show) -> SimilarityProbe:
    """Compare cosine similarities with the dev file's numbers, layer by layer; nothing is learned.

    Args:
        data: a task for which ``rates_pairs`` holds.
        length: tokens a sentence at most; it loses its end.
    """
    sentences = list(dict.fromkeys(text for texts in data.dev.texts for text in texts))
    place = {sentence: index for index, sentence in enumerate(sentences)}
    pairs = np.array([[place[text] for text in texts] for texts in data.dev.texts])
    layers = []
    for layer, states in enumerate(pooled_states(frozen, sentences, length, show).astype(np.float64)):
        scores = [
            regression_scores(data.dev.targets, cosines(each[pairs[:, 0]], each[pairs[:, 1]]).tolist())["spearman"]
            for each in (states, states - states.mean(axis=0))
        ]
        layers.append(SimilarityScore(layer=layer, spearman=scores[0], centred=scores[1]))
    return SimilarityProbe(task=data.task.name, pairs=len(pairs), layers=layers)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """float64[N]: the cosine between row i of ``one`` and of ``other``, both [N, D]; 0 where either is all zeros."""
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = (one * other).sum(axis=1)
    # Rounded, so that equal sentences are equally near however the last bits fall: ranks count ties as ties.
    return np.divide(products, sizes, out=np.zeros(len(one)), where=sizes > 0).round(DIGITS)
