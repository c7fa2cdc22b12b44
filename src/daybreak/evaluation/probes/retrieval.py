"""Zero-shot retrieval on held-out documents: find the passage that preceded a query in its document.

A query is a span that stands shortly after its passage. The pairs are those of the inverse cloze task (Lee et al.,
arXiv:1906.00300) with a gap between the two spans. The baseline is BM25 (Robertson and Zaragoza 2009).

N passages and queries, D hidden size.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from daybreak.core.encoder import Encoder
from daybreak.evaluation.probes.bm25 import DENSE_WEIGHTS, best_weight, bm25_scores, ranks_of, standardize
from daybreak.evaluation.probes.context_use import document_bounds, padded_batch
from daybreak.schemas.run import RankerScore, Retrieval, RetrievalExample, SpecialIds
from daybreak.training.objectives.finish import embed

PASSAGE_WORDS, GAP_WORDS, QUERY_WORDS = 60, 5, 20
PAIR_WORDS = PASSAGE_WORDS + GAP_WORDS + QUERY_WORDS
"""Fewest words of a text that gives a passage and its query."""
PASSAGES = 600
FEWEST = 50
"""Fewest passages for which a recall is reported."""
EXAMPLES = 3
BATCH = 50
MOST_TOKENS = 128
RESAMPLES = 1_000
SEED = 60_000_001
HELD_OUT_TOKENS = 4_000_000
"""Most tokens of held-out text that are read for its passages, and for the spans of ``context_use``."""

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts -> unit vectors float32[N, D]."""


def measure_retrieval(
    model: Encoder,
    tokenizer: Tokenizer,
    stream: np.ndarray,
    document_ends: np.ndarray,
    *,
    special: SpecialIds = SpecialIds(),
    longest: int | None = None,
) -> Retrieval | None:
    """Rank the passages for each query with BM25, with the encoder, and with both together.

    The passages are the same for every model on the same data. The model is put into eval mode. The arguments are as in
    ``context_use.measure_context_use``.

    Returns:
        As ``rank_passages``.
    """
    length = min(MOST_TOKENS, longest or MOST_TOKENS)
    return rank_passages(
        lambda texts: embed_texts(model, tokenizer, texts, special=special, length=length),
        document_texts(tokenizer, stream, document_ends, special),
    )


def rank_passages(embed: Embed, texts: Sequence[str], name: str = "") -> Retrieval | None:
    """Rank the passages of ``texts`` for each query with BM25, with the embeddings, and with both together.

    Both together is the sum of the standardized scores. The weight of the embeddings is the one that ranks best for the
    queries of the other half, so a query does not select its own.

    Args:
        name: name of the texts in the result.

    Returns:
        None if the texts have fewer than FEWEST passages, or the package bm25s is missing.
    """
    if importlib.util.find_spec("bm25s") is None:
        return None
    started = time.monotonic()
    pairs = passages_and_queries(texts)
    if len(pairs) < FEWEST:
        return None
    passages, queries = [passage for passage, _ in pairs], [query for _, query in pairs]
    found = embed([*passages, *queries])
    dense = (found[len(pairs) :] @ found[: len(pairs)].T).astype(np.float64)
    sparse = bm25_scores(passages, queries)
    words, vectors = standardize(sparse), standardize(dense)
    tried = np.stack([ranks_of_partners(words + weight * vectors) for weight in DENSE_WEIGHTS])
    halves = [best_weight(tried[:, 1::2]), best_weight(tried[:, ::2])]
    chosen = np.resize(halves, len(pairs))  # the even queries, then the odd ones, in turn
    hybrid = tried[chosen, np.arange(len(pairs))]
    weight = DENSE_WEIGHTS[best_weight(tried)]
    ranks = {"bm25": ranks_of_partners(sparse), "dense": ranks_of_partners(dense), "hybrid": hybrid}
    first = (words + np.take(DENSE_WEIGHTS, chosen)[:, None] * vectors).argmax(axis=1)
    shown = np.linspace(0, len(pairs) - 1, EXAMPLES).astype(int)
    return Retrieval(
        text=name,
        passages=len(pairs),
        dense_weight=weight,
        rankers=[ranker_score(name, each, ranks["bm25"]) for name, each in ranks.items()],
        examples=[
            RetrievalExample(
                query=queries[i], passage=passages[i], rank=int(ranks["hybrid"][i]), first=passages[first[i]]
            )
            for i in shown
        ],
        seconds=time.monotonic() - started,
    )


def passages_and_queries(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return (passage, query) from each text that is long enough: a query starts GAP_WORDS after its passage.

    At most PASSAGES pairs, from evenly spread texts. Fewer texts are cut into equal parts, as many as give PASSAGES
    pairs if they are long enough. The result depends only on the texts.
    """
    split = [words for words in (text.split() for text in texts) if len(words) >= PAIR_WORDS]
    most = -(-PASSAGES // max(1, len(split)))
    split = [
        words[len(words) * part // parts : len(words) * (part + 1) // parts]
        for words in split
        for parts in [min(most, len(words) // PAIR_WORDS)]
        for part in range(parts)
    ]
    rng = np.random.default_rng(SEED)
    chosen = np.linspace(0, len(split) - 1, min(PASSAGES, len(split))).astype(int)
    pairs = []
    for words in (split[i] for i in chosen):
        start = int(rng.integers(0, len(words) - PAIR_WORDS + 1))
        after = start + PASSAGE_WORDS + GAP_WORDS
        pairs.append((" ".join(words[start : start + PASSAGE_WORDS]), " ".join(words[after : after + QUERY_WORDS])))
    return pairs


def document_texts(
    tokenizer: Any, stream: np.ndarray, document_ends: np.ndarray, special: SpecialIds = SpecialIds()
) -> list[str]:
    """Return the text of each document in ``stream`` that is long enough for a passage and a query.

    Unknown characters are left out. ``tokenizer`` is one of ``tokenizers`` or of transformers.
    """
    starts, ends = document_bounds(stream, document_ends)
    return [
        tokenizer.decode(
            [int(i) for i in stream[start:end] if i not in (special.cls, special.sep)], skip_special_tokens=True
        )
        for start, end in zip(starts, ends, strict=True)
        if end - start > PAIR_WORDS  # a word has a token or more
    ]


def embed_texts(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], *, special: SpecialIds = SpecialIds(), length: int
) -> np.ndarray:
    """Return unit vectors float32[N, D]: what the SentenceTransformer of the export computes, in float32.

    A text has at most ``length`` tokens, [CLS] and [SEP] included.
    """
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return embed_ids(model, [encoding.ids[: length - 2] for encoding in encodings], special=special)


def retrieval_line(found: Retrieval) -> str:
    """One line with the recall of search, for the model and for BM25."""
    recalls = ", ".join(f"{each.ranker} {each.scores['recall_10']:.1%}" for each in found.rankers)
    return f"Search in {found.text or 'held-out text'}, recall at 10 among {found.passages} passages: {recalls}."


def embed_ids(
    model: Encoder,
    texts: Sequence[Sequence[int]],
    *,
    special: SpecialIds = SpecialIds(),
    show: Callable[[int], None] = lambda texts: None,
) -> np.ndarray:
    """Return float32 [N, D] of unit length: the embeddings of texts that are token ids already.

    The model is put into eval mode and computes in the precision of its weights. Texts of similar length share a
    batch; the result depends on the texts and their order alone.

    Args:
        texts: ids without special tokens; [CLS] and [SEP] are added, and nothing is cut off.
        show: called after every batch with the number of texts that are embedded.
    """
    model.eval()
    device = model.decoder.weight.device
    rows = [[special.cls, *ids, special.sep] for ids in texts]
    vectors = np.empty((len(rows), model.hidden_size), np.float32)
    order = np.argsort([len(row) for row in rows], kind="stable")
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for start in range(0, len(rows), BATCH):
            batch = order[start : start + BATCH]
            ids, attention_mask = padded_batch([rows[i] for i in batch], special.pad, device)
            states = model.states(ids, attention_mask=attention_mask)
            vectors[batch] = embed(states, attention_mask).cpu().numpy()
            show(start + len(batch))
    return vectors


def ranks_of_partners(scores: np.ndarray) -> np.ndarray:
    """Return float64[N]: the rank of passage i for query i, as ``ranks_of``."""
    return ranks_of(scores, np.arange(len(scores)))


def ranker_score(name: str, ranks: np.ndarray, baseline: np.ndarray) -> RankerScore:
    """Return mean reciprocal rank and recall with 95 % bootstrap intervals over queries, also of the gain over BM25."""
    values, others = (
        {"mrr": 1 / of, "recall_1": (of <= 1).astype(float), "recall_10": (of <= 10).astype(float)}
        for of in (ranks, baseline)
    )
    drawn = np.random.default_rng(SEED).integers(0, len(ranks), (RESAMPLES, len(ranks)))

    def interval(values: np.ndarray) -> list[float]:
        low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
        return [float(low), float(high)]

    gains = {metric: each - others[metric] for metric, each in values.items()}
    return RankerScore(
        ranker=name,
        scores={metric: float(each.mean()) for metric, each in values.items()},
        intervals={metric: interval(each) for metric, each in values.items()},
        above_bm25={metric: interval(each) for metric, each in gains.items()} if name != "bm25" else {},
    )
