"""Queries against references: numpy over all vectors, sentence-transformers, and bm25s in memory."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from needs import needs

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.schemas.search import SearchIndex
from daybreak.searching import query
from daybreak.searching.query import METHODS, Searcher, dense_weight, open_search, products

WORDS = "the old sailor hides near the river"

needs_sentences = needs("the extra serve: sentence-transformers", "sentence_transformers")


@pytest.fixture(scope="module")
def searcher(finished: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Over the run's own index, embedded in float32. Read only."""
    run = tmp_path_factory.mktemp("searched") / "run"
    shutil.copytree(finished, run)
    shutil.copytree(data, run / "data")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("daybreak.training.hardware.probe.faster_precision", lambda device: "float32")
        return open_search(run)


@needs_sentences
def test_dense_search_is_brute_force_over_sentence_transformers(searcher: Searcher) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(searcher.index.source.model), device="cpu")
    assert searcher.embed(WORDS) == pytest.approx(model.encode(WORDS), abs=1e-5)
    theirs = model.encode(list(searcher.index.reader.all_texts())) @ model.encode(WORDS)
    assert searcher.scores(WORDS, "dense") == pytest.approx(theirs, abs=2e-3)
    found = searcher.search(WORDS, top=20, method="dense")
    scores = theirs[[result.id for result in found]]
    assert (np.diff(scores) < 4e-3).all()  # in order, but for the rounding to float16
    assert np.sort(scores) == pytest.approx(np.sort(theirs)[-20:], abs=4e-3)


def test_a_query_is_answered_after_a_change_of_the_folder(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = searcher.index.source.model.parent
    monkeypatch.chdir(run.parent)
    opened = open_search(run.name)
    monkeypatch.chdir(tmp_path)
    assert opened.search(WORDS) == searcher.search(WORDS)


@given(
    arrays(np.float16, st.tuples(st.integers(0, 9), st.just(5)), elements=st.floats(-60_000, 60_000, width=16)),
    arrays(np.float32, 5, elements=st.floats(-1, 1, width=32)),
)
def test_products_of_half_precision_are_exact(vectors: np.ndarray, vector: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "CHUNK", 4)
        found = products(vectors, vector)
    assert found.dtype == np.float32
    assert found == pytest.approx(vectors.astype(float) @ vector.astype(float), rel=1e-5, abs=1e-2)


@pytest.mark.parametrize("top", [1, 7, 100_000])
def test_dense_search_is_brute_force_over_the_vectors(searcher: Searcher, top: int) -> None:
    scores = np.asarray(searcher.index.vectors, np.float32) @ searcher.embed(WORDS)
    found = searcher.search(WORDS, top=top, method="dense")
    assert [result.rank for result in found] == list(range(1, len(found) + 1))
    assert len(found) == min(top, len(scores))
    assert [result.score for result in found] == pytest.approx(np.sort(scores)[::-1][:top], abs=1e-6)
    assert len({result.id for result in found}) == len(found)


def test_a_query_takes_the_method_that_the_index_was_opened_for(searcher: Searcher) -> None:
    run = searcher.index.source.model.parent
    dense, words = open_search(run, method="dense"), open_search(run, method="bm25")
    assert dense.search("the river") == dense.search("the river", method="dense")
    assert words.search("the river") == words.search("the river", method="bm25")
    with pytest.raises(UserError, match="opened without BM25, which 'hybrid' needs"):
        dense.search("the river", method="hybrid")


def test_bm25_is_that_of_the_library(searcher: Searcher) -> None:
    library = bm25s.BM25(k1=1.5, b=0.75)
    library.index([re.findall(r"\w+", text) for text in searcher.index.reader.all_texts()], show_progress=False)
    scores = library.get_scores([word for word in dict.fromkeys(WORDS.split()) if word in library.vocab_dict])
    assert searcher.scores(WORDS, "bm25") == pytest.approx(scores, abs=1e-5)
    found = searcher.search(WORDS.upper() + " unheardof", method="bm25")
    assert [result.score for result in found] == pytest.approx(np.sort(scores)[::-1][:10], abs=1e-5)


def test_a_query_is_tokenized_as_the_passages_were(searcher: Searcher) -> None:
    """They are decoded from tokens, without accents, and with spaces around punctuation."""
    found = searcher.search("s\u00e0ilor_River", method="bm25")
    assert found and found == searcher.search("sailor river", method="bm25")


def test_a_query_is_normalized_as_the_text_was(searcher: Searcher) -> None:
    """A composed and a decomposed accent are one letter; the names of special tokens are words."""
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(searcher, "scores", lambda words, method: asked.append(words) or np.zeros(1))
        searcher.search("Sta\u0308dte\tam Fluss", top=1, method="dense")
    assert asked == ["St\u00e4dte am Fluss"]
    tokenizer = searcher.index.source.tokenizer
    assert not set(tokenizer.encode("[MASK]", add_special_tokens=False).ids) & {4}


def test_hybrid_adds_both_on_one_scale(searcher: Searcher) -> None:
    sparse, dense = (searcher.scores(WORDS, method) for method in ("bm25", "dense"))
    weight = searcher.index.state.dense_weight
    assert weight is not None
    both = (sparse - sparse.mean()) / sparse.std() + weight * (dense - dense.mean()) / dense.std()
    scores = searcher.scores(WORDS, "hybrid")
    assert scores == pytest.approx(both, abs=1e-4)
    best = np.argsort(-scores, kind="stable")[:5]  # equal ones in order
    assert [result.id for result in searcher.search(WORDS, top=5)] == best.tolist()


class Neighbours:
    """An index of 60 documents of three passages; one method finds the passage before a query, the other guesses.

    Args:
        knowing: the method that finds it; ``both`` if both do, but not always.
        own: score by BM25 of the passage that holds the query.
    """

    def __init__(self, knowing: str, documents: int = 60, own: float = 9.0):
        self.knowing, self.own, self.rng = knowing, own, np.random.default_rng(0)
        self.passages = np.array([[0, document, 0, 0] for document in range(documents) for _ in range(3)])
        self.index = SimpleNamespace(reader=self, state=SimpleNamespace(passages=len(self.passages)))

    def texts(self, first: int, past: int) -> list[str]:
        return [" ".join([f"passage{number}"] * 40) for number in range(first, past)]

    def scores(self, query: str, method: str) -> np.ndarray:
        holder = int(query.split()[0].removeprefix("passage"))
        found = self.rng.random(len(self.passages))
        if self.knowing == "both":
            found[holder - 1] += 0.5
        elif method == self.knowing:
            found[holder - 1] = 1.5
        found[holder] = self.own if method == "bm25" else 9.0  # must not count
        return found


def test_the_weight_of_the_vectors_is_that_of_the_better_ranking() -> None:
    assert dense_weight(Neighbours("bm25")) == 0.0  # type: ignore[arg-type]
    assert dense_weight(Neighbours("dense")) >= 1.5  # type: ignore[arg-type]
    assert dense_weight(Neighbours("dense", documents=20)) == 1.0  # type: ignore[arg-type]


def test_the_passage_that_holds_a_query_does_not_change_the_weight() -> None:
    weights = [dense_weight(Neighbours("both", own=own)) for own in (0.5, 9.0, 90.0)]  # type: ignore[arg-type]
    assert weights == [1.0] * 3


def test_the_weight_is_measured_once_and_kept(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    run = searcher.index.source.data.parent
    state = read_json(run / "search" / "index.json", SearchIndex)
    assert state.dense_weight == searcher.index.state.dense_weight
    monkeypatch.setattr("daybreak.searching.query.dense_weight", lambda searcher: pytest.fail("measured again"))
    assert open_search(run).index.state == searcher.index.state
    assert open_search(run, method="bm25").index.state.dense_weight == state.dense_weight


def test_the_weight_is_not_written_over_an_index_that_is_built_again(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that index would count as complete, with vectors of zeros if its build was killed."""
    run = Path(shutil.copytree(searcher.index.source.data.parent, tmp_path / "run"))
    file, unweighed = run / "search" / "index.json", replace(searcher.index.state, dense_weight=None)
    write_json(file, unweighed)
    begun = replace(unweighed, embedded=0)

    def weigh(_: Searcher) -> float:
        write_json(file, begun)  # by another process
        return 1.0

    monkeypatch.setattr("daybreak.searching.query.dense_weight", weigh)
    assert open_search(run).index.state.dense_weight == 1.0
    assert read_json(file, SearchIndex) == begun


def test_a_result_says_where_it_stands(searcher: Searcher) -> None:
    for result in searcher.search(WORDS, top=30, method="dense"):
        reader = searcher.index.reader
        split, document, start, end = reader.passages[result.id].tolist()
        stream = (reader.shards.train, reader.shards.heldout)[split]
        assert (result.split, result.document) == (("train", "heldout")[split], document)
        ends = stream.document_ends().astype(int)
        assert (ends <= start).sum() == document and end < ends[document]
        assert result.text == reader.tokenizer.decode(stream.read(start, end).tolist())


def test_words_that_no_passage_holds(searcher: Searcher) -> None:
    assert searcher.search("xylophone", method="bm25") == []
    ids = [[result.id for result in searcher.search("xylophone", method=method)] for method in ("dense", "hybrid")]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("words", ["xylophone", "sailor"])
def test_vectors_without_weight_still_rank_what_words_do_not(searcher: Searcher, words: str) -> None:
    state = replace(searcher.index.state, dense_weight=0.0)
    found = Searcher(replace(searcher.index, state=state)).search(words, top=state.passages)
    sparse, dense = (searcher.scores(words, method) for method in ("bm25", "dense"))
    holding = int((sparse > 0).sum())
    assert holding < state.passages and (holding > 0) == (words == "sailor")
    ids = [result.id for result in found]
    assert ids[holding:] == [id for id in np.argsort(-dense, kind="stable").tolist() if sparse[id] == 0]
    assert sparse[ids] == pytest.approx(np.sort(sparse)[::-1], abs=1e-3)
    assert found[0].score > 0.1


def test_what_is_equally_good_comes_in_order(searcher: Searcher) -> None:
    found = searcher.search("the", top=50, method="bm25")
    keys = [(-result.score, result.id) for result in found]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("words", "top", "method", "message"),
    [
        (" \n", 10, "hybrid", "The query is empty"),
        ("river", 0, "hybrid", "0 results are too few"),
        ("river", 1.5, "hybrid", "1.5 is no number of results"),
        ("\ud800\x00", 10, "dense", "The query is empty."),
        ("river", 10, "bm52", "--method cannot be 'bm52'. Did you mean 'bm25'?"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    searcher: Searcher, words: str, top: Any, method: str, message: str
) -> None:
    assert METHODS == ("hybrid", "dense", "bm25")
    with pytest.raises(UserError) as error:
        searcher.search(words, top=top, method=method)
    assert message in str(error.value)
