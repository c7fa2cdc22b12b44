from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bm25s
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

from daybreak.evaluation.probes import retrieval as module
from daybreak.evaluation.probes.bm25 import bm25_scores, standardize
from daybreak.evaluation.probes.retrieval import (
    document_texts,
    embed_texts,
    measure_retrieval,
    passages_and_queries,
    rank_passages,
    ranker_score,
    ranks_of_partners,
)
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds()
WORDS = [f"w{number}" for number in range(500)]


def texts(count: int, words: int = 120, seed: int = 0) -> list[str]:
    """Each text has words of its own, so that its spans are told from those of others."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{number}" for number in rng.choice(rng.choice(500, 30), words)) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def heldout(tokenizer: Tokenizer, written: list[str]) -> tuple[np.ndarray, np.ndarray]:
    ids = [[*tokenizer.encode(text, add_special_tokens=False).ids, SPECIAL.sep] for text in written]
    return np.concatenate(ids).astype(np.uint16), np.cumsum([len(each) for each in ids]).astype(np.uint64)


def encoder() -> tuple[ModernEncoder, torch.nn.Module]:
    shape = ModernEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=48, init_std=0.2)
    torch.manual_seed(0)
    return shape, shape.build(505)


def test_a_query_stands_after_its_passage_and_shares_no_place_with_it() -> None:
    written = [" ".join(f"t{text}p{place}" for place in range(85 + 7 * text)) for text in range(9)]
    pairs = passages_and_queries([*written, "too short"])
    assert len(pairs) == 9 and pairs == passages_and_queries([*written, "too short"])
    for passage, query in pairs:
        places = [int(word.rpartition("p")[2]) for word in [*passage.split(), *query.split()]]
        gap = module.GAP_WORDS
        start = places[0]
        assert places[:60] == list(range(start, start + 60))
        assert places[60:] == list(range(start + 60 + gap, start + 80 + gap))
        assert passage.split()[0].rpartition("p")[0] == query.split()[0].rpartition("p")[0]


def test_few_long_texts_give_as_many_pairs_as_they_can() -> None:
    long, short = (" ".join(f"{name}{place}" for place in range(count)) for name, count in (("a", 900), ("b", 90)))
    pairs = passages_and_queries([long, short])
    assert len(pairs) == 900 // 85 + 1
    places = [int(word[1:]) for passage, query in pairs[:-1] for word in [*passage.split(), *query.split()]]
    assert places == sorted(places) and len(set(places)) == len(places), "no two overlap"
    assert pairs[-1][0].startswith("b") and len(passages_and_queries([long] * 100)) == module.PASSAGES


def test_the_hybrid_ranking_weighs_what_knows_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rankers, one that is right and one that guesses, the sum has to be about as good as the right one."""
    written = texts(200, seed=5)
    pairs = passages_and_queries(written)
    numbers = {text: number for number, pair in enumerate(pairs) for text in pair}
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(len(pairs), len(pairs))))[0]

    def knows(asked: list[str]) -> np.ndarray:
        return axes[[numbers[text] for text in asked]]

    def guesses(asked: list[str]) -> np.ndarray:
        return rng.normal(size=(len(asked), 8))

    found = rank_passages(guesses, written)  # type: ignore[arg-type]
    assert found is not None and found.dense_weight <= 0.25
    words, _, hybrid = (each.scores["mrr"] for each in found.rankers)
    assert hybrid > words - 0.02
    monkeypatch.setattr(module, "bm25_scores", lambda passages, queries: rng.random((len(queries), len(passages))))
    found = rank_passages(knows, written)  # type: ignore[arg-type]
    assert found is not None and found.dense_weight >= 0.5 and found.rankers[2].scores["recall_1"] > 0.95


def test_an_example_shows_the_passage_that_its_own_weight_ranks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words know the passages of one half of the queries and vectors those of the other, so the halves differ."""
    written = texts(200, seed=5)
    pairs, rng = passages_and_queries(written), np.random.default_rng(0)
    axes, odd = np.linalg.qr(rng.normal(size=(len(pairs), len(pairs))))[0], np.arange(len(pairs)) % 2 == 1

    def embed(asked: list[str]) -> np.ndarray:
        return np.concatenate([axes, np.where(odd[:, None], axes, rng.normal(size=axes.shape))])

    words = rng.random(axes.shape) + np.diag(np.where(odd, 0.0, 0.5))
    monkeypatch.setattr(module, "bm25_scores", lambda passages, queries: words)
    monkeypatch.setattr(module, "EXAMPLES", len(pairs))
    found = rank_passages(embed, written)  # type: ignore[arg-type]
    assert found is not None and {True, False} == {each.rank == 1 for each in found.examples}
    assert all((each.rank == 1) == (each.first == each.passage) for each in found.examples)


def test_ranks_by_hand() -> None:
    scores = np.array([[3.0, 1, 2], [5, 4, 9], [1, 1, 1]])
    assert ranks_of_partners(scores).tolist() == [1.0, 3.0, 2.0]
    found = ranker_score("dense", np.array([1.0, 2, 20, 10]), np.array([1.0, 1, 1, 1]))
    assert found.scores == pytest.approx({"mrr": (1 + 0.5 + 0.05 + 0.1) / 4, "recall_1": 0.25, "recall_10": 0.75})
    low, high = found.intervals["recall_10"]
    assert 0 <= low < 0.75 < high <= 1
    assert not found.beats_bm25("mrr") and found.above_bm25["recall_1"][1] <= 0


def test_intervals_cover_and_a_better_ranker_is_seen() -> None:
    rng = np.random.default_rng(1)
    worse = rng.integers(1, 40, 600).astype(float)
    better = np.maximum(1, worse - rng.integers(0, 15, 600))
    found = ranker_score("hybrid", better, worse)
    assert all(found.beats_bm25(metric) for metric in ("mrr", "recall_1", "recall_10"))
    assert not ranker_score("hybrid", worse, worse).beats_bm25("mrr")


def test_bm25_is_that_of_the_library() -> None:
    written = texts(30)
    index = bm25s.BM25(k1=1.5, b=0.75)
    index.index([text.split() for text in written], show_progress=False)
    queries = ["w1 w2 w3 w4 w5", "nothing known", " ".join(written[3].split()[:6])]
    scores = bm25_scores(written, queries)
    assert scores[0] == pytest.approx(index.get_scores([w for w in queries[0].split() if w in index.vocab_dict]))
    assert not scores[1].any()
    assert ranks_of_partners(scores[[2] * 4][:, [3, 0, 1, 2]][:, [0, 1, 2, 3]])[0] == 1.0
    assert standardize(scores)[1].tolist() == [0.0] * 30


def test_embeddings_are_the_means_of_stock_transformers(tokenizer: Tokenizer) -> None:
    shape, model = encoder()
    stock = ModernBertModel(ModernBertConfig(**shape.to_hugging_face(505, 128), attn_implementation="eager")).eval()
    weights = {name.removeprefix("model."): tensor for name, tensor in shape.export_weights(model).items()}
    assert not stock.load_state_dict(weights, strict=False).missing_keys
    written = ["w1 w2 w3", "w4", " ".join(WORDS[:200])]
    found = embed_texts(model, tokenizer, written, length=64)  # type: ignore[arg-type]
    for vector, text in zip(found, written, strict=True):
        ids = [SPECIAL.cls, *tokenizer.encode(text, add_special_tokens=False).ids[:62], SPECIAL.sep]
        with torch.inference_mode():
            mean = stock(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        assert vector == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)


def test_what_words_in_common_tell_is_found(tokenizer: Tokenizer) -> None:
    _, model = encoder()
    stream, ends = heldout(tokenizer, texts(60))
    found = measure_retrieval(model, tokenizer, stream, ends)  # type: ignore[arg-type]
    assert found is not None and found.passages == 60 and not model.training
    assert [each.ranker for each in found.rankers] == ["bm25", "dense", "hybrid"]
    scores = {each.ranker: each.scores for each in found.rankers}
    assert scores["bm25"]["recall_1"] > 0.9
    assert scores["dense"]["recall_10"] > 2 * 10 / 60  # random weights still tell words apart
    assert len(found.examples) == module.EXAMPLES
    again = measure_retrieval(model, tokenizer, stream, ends)  # type: ignore[arg-type]
    assert again is not None and again.rankers == found.rankers


def test_unknown_tokens_are_no_words_of_a_document(tokenizer: Tokenizer) -> None:
    """Whichever library decodes it."""
    marked = Tokenizer.from_str(tokenizer.to_str())
    marked.add_special_tokens(["[UNK]"])
    stock = PreTrainedTokenizerFast(tokenizer_object=marked, unk_token="[UNK]")
    words = " ".join(WORDS[:100])
    for each in (marked, stock):
        assert document_texts(each, *heldout(tokenizer, [f"{words} unheardof"])) == [words]


def test_too_little_text_gives_nothing(tokenizer: Tokenizer) -> None:
    _, model = encoder()
    assert measure_retrieval(model, tokenizer, *heldout(tokenizer, texts(49))) is None  # type: ignore[arg-type]
    assert measure_retrieval(model, tokenizer, *heldout(tokenizer, texts(60, words=40))) is None  # type: ignore[arg-type]


def test_without_the_library_nothing_is_measured(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    _, model = encoder()
    assert measure_retrieval(model, tokenizer, *heldout(tokenizer, texts(60))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", ["", "cuda"])
def test_jax_stays_off_the_gpu_unless_the_user_chose_it(chosen: str, tmp_path: Path) -> None:
    """bm25s computes with JAX while it is imported, and JAX would reserve three quarters of the GPU's memory."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("import os\nasked = os.environ.get('JAX_PLATFORMS')\n")
    (tmp_path / "jax/lax.py").write_text("def top_k(scores, k): return scores[:k], list(range(k))\n")
    code = (
        "import os; from daybreak.evaluation.probes.bm25 import import_bm25s; import_bm25s(); import jax\n"
        "print(jax.asked, os.environ.get('JAX_PLATFORMS'))"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, **({"JAX_PLATFORMS": chosen} if chosen else {})}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["cuda", "cuda"] if chosen else ["cpu", "None"])
