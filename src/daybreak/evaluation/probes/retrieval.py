"""Search in held-out documents without labels: does the encoder find the passage that a span stood next to?

A query is a span that stands shortly after its passage in the same document, with no word in common by position. BM25
(Robertson and Zaragoza 2009) is the baseline that needs no network. The pairs are those of the inverse cloze task
(Lee et al., arXiv 1906.00300) with a gap between the two spans.

N passages and queries, D hidden size.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer

from daybreak.core.encoder import Encoder
from daybreak.evaluation.probes.bm25 import bm25_scores, standardised
from daybreak.schemas.run import RankerScore, Retrieval, RetrievalExample, SpecialIds
from daybreak.training.objectives.finish import embed

PASSAGE_WORDS, GAP_WORDS, QUERY_WORDS = 60, 5, 20
PASSAGES = 600
FEWEST = 50
"""Passages below which a recall says nothing."""
EXAMPLES = 3
BATCH = 50
MOST_TOKENS = 128
RESAMPLES = 1_000
SEED = 60_000_001


def measure_retrieval(
    model: Encoder,
    tokenizer: Tokenizer,
    stream: np.ndarray,
    document_ends: np.ndarray,
    *,
    special: SpecialIds = SpecialIds(),
    longest: int | None = None,
) -> Retrieval | None:
    """Rank the passages of held-out documents for spans that stand near them: BM25, dense, and both together.

    The passages are the same for every model on the same data. The model is put into eval mode.

    Args:
        stream: held-out token ids.
        document_ends: for each document, the position in ``stream`` just past its separator; those past its end are
            left out.
        special: the special ids of the tokenizer.
        longest: most positions of a sequence; None for no limit.

    Returns:
        None where fewer than FEWEST documents are long enough, or the package bm25s is missing.
    """
    if importlib.util.find_spec("bm25s") is None:
        return None
    begun = time.monotonic()
    pairs = passages_and_queries(_texts(tokenizer, stream, document_ends, special))
    if len(pairs) < FEWEST:
        return None
    passages, queries = [passage for passage, _ in pairs], [query for _, query in pairs]
    length = min(MOST_TOKENS, longest or MOST_TOKENS)
    found = embed_texts(model, tokenizer, [*passages, *queries], special=special, length=length)
    dense = (found[len(pairs) :] @ found[: len(pairs)].T).astype(np.float64)
    sparse = bm25_scores(passages, queries)
    scores = {"bm25": sparse, "dense": dense, "hybrid": standardised(sparse) + standardised(dense)}
    ranks = {name: ranks_of_partners(each) for name, each in scores.items()}
    best = {name: each.argmax(axis=1) for name, each in scores.items()}
    shown = np.linspace(0, len(pairs) - 1, EXAMPLES).astype(int)
    return Retrieval(
        passages=len(pairs),
        rankers=[ranker_score(name, ranks[name], ranks["bm25"]) for name in scores],
        examples=[
            RetrievalExample(
                query=queries[i], passage=passages[i], rank=int(ranks["hybrid"][i]), first=passages[best["hybrid"][i]]
            )
            for i in shown
        ],
        seconds=time.monotonic() - begun,
    )


def passages_and_queries(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Draw one passage of PASSAGE_WORDS and the QUERY_WORDS that stand GAP_WORDS after it from each text long enough.

    At most PASSAGES of them, from texts spread evenly; a function of the texts alone.
    """
    whole = PASSAGE_WORDS + GAP_WORDS + QUERY_WORDS
    split = [words for words in (text.split() for text in texts) if len(words) >= whole]
    rng = np.random.default_rng(SEED)
    chosen = np.linspace(0, len(split) - 1, min(PASSAGES, len(split))).astype(int)
    pairs = []
    for words in (split[i] for i in chosen):
        start = int(rng.integers(0, len(words) - whole + 1))
        after = start + PASSAGE_WORDS + GAP_WORDS
        pairs.append((" ".join(words[start : start + PASSAGE_WORDS]), " ".join(words[after : after + QUERY_WORDS])))
    return pairs


def _texts(tokenizer: Tokenizer, stream: np.ndarray, document_ends: np.ndarray, special: SpecialIds) -> list[str]:
    ends = document_ends[document_ends <= len(stream)].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    fewest = PASSAGE_WORDS + GAP_WORDS + QUERY_WORDS  # a word has a token or more
    return [
        tokenizer.decode([int(i) for i in stream[start:end] if i not in (special.cls, special.sep)])
        for start, end in zip(starts, ends, strict=True)
        if end - start > fewest
    ]


def embed_texts(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], *, special: SpecialIds = SpecialIds(), length: int
) -> np.ndarray:
    """Return float32 [N, D] of unit length: what the SentenceTransformer of the export computes, in float32.

    Args:
        length: most positions of a sequence, [CLS] and [SEP] included.
    """
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return embed_ids(model, [encoding.ids[: length - 2] for encoding in encodings], special=special)


def embed_ids(model: Encoder, texts: Sequence[Sequence[int]], *, special: SpecialIds = SpecialIds()) -> np.ndarray:
    """Return float32 [N, D] of unit length: the embeddings of texts that are token ids already.

    The model is put into eval mode and computes in the precision of its weights. Texts of similar length share a
    batch; the result depends on the texts and their order alone.

    Args:
        texts: ids without special tokens; [CLS] and [SEP] are added, and nothing is cut off.
    """
    model.eval()
    device = model.decoder.weight.device
    rows = [[special.cls, *ids, special.sep] for ids in texts]
    vectors = np.empty((len(rows), model.hidden_size), np.float32)
    order = np.argsort([len(row) for row in rows], kind="stable")
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for start in range(0, len(rows), BATCH):
            places = order[start : start + BATCH]
            sizes = np.array([len(rows[i]) for i in places])
            ids = np.full((len(places), int(sizes.max())), special.pad, np.int64)
            for row, i in zip(ids, places, strict=True):
                row[: len(rows[i])] = rows[i]
            attend = torch.from_numpy(np.arange(ids.shape[1]) < sizes[:, None]).to(device)
            states = model.states(torch.from_numpy(ids).to(device), attend=attend)
            vectors[places] = embed(states, attend).cpu().numpy()
    return vectors


def ranks_of_partners(scores: np.ndarray) -> np.ndarray:
    """Float64 [N]: where passage i stands for query i, from 1; of passages with equal scores, the middle."""
    own = np.diag(scores)[:, None]
    return 1.0 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2


def ranker_score(name: str, ranks: np.ndarray, baseline: np.ndarray) -> RankerScore:
    """Mean reciprocal rank and recall, each with a 95 % bootstrap interval over queries; against the baseline's too."""
    metrics = {"mrr": lambda of: 1 / of, "recall_1": lambda of: of <= 1, "recall_10": lambda of: of <= 10}
    drawn = np.random.default_rng(SEED).integers(0, len(ranks), (RESAMPLES, len(ranks)))

    def interval(values: np.ndarray) -> list[float]:
        low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
        return [float(low), float(high)]

    values = {metric: np.asarray(of(ranks), float) for metric, of in metrics.items()}
    differences = {metric: values[metric] - np.asarray(of(baseline), float) for metric, of in metrics.items()}
    return RankerScore(
        ranker=name,
        scores={metric: float(each.mean()) for metric, each in values.items()},
        intervals={metric: interval(each) for metric, each in values.items()},
        above_bm25={metric: interval(each) for metric, each in differences.items()} if name != "bm25" else {},
    )
