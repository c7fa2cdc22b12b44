"""benchmarks/preparation.py, copies.py and hostile.py: what they plant and count. Nothing here is timed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from benchmark_scripts import beside, script

from daybreak.data.sequences.sampler import StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import load_tokenizer

__all__ = ["beside"]  # a fixture


def test_text_is_repeated_with_changes_until_there_is_enough(corpus: Path, tmp_path: Path) -> None:
    preparation = script("preparation")
    whole = sum(len(json.loads(line)["text"]) for line in corpus.read_text().splitlines())
    facts = preparation.write_text(corpus, 2.5 * whole / 1e6, tmp_path / "t.jsonl")
    texts = [json.loads(line)["text"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert facts["repeats"] == 2 and facts["documents"] == len(texts) == len(set(texts))
    assert sum(map(len, texts)) == pytest.approx(2.5 * whole, rel=0.01)
    again = preparation.write_text(corpus, 2.5 * whole / 1e6, tmp_path / "again.jsonl")
    assert again == facts and (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
    assert preparation.write_text(corpus, 0.5 * whole / 1e6, tmp_path / "half.jsonl")["repeats"] == 0


def test_about_the_share_of_words_is_changed() -> None:
    text = " ".join(["word"] * 10_000)
    found = script("preparation").changed(text, 0.1, random.Random(0), ["other"]).split()
    assert len(found) == 10_000 and 800 < found.count("other") < 1200
    assert script("preparation").changed(text, 0.0, random.Random(0), ["other"]) == text


def test_the_sum_of_ids_is_that_of_the_documents_one_by_one(corpus: Path, data: Path) -> None:
    """What our shards hold and what a plain tokenizer gives are told equal, and told apart when a token differs."""
    preparation, room = script("preparation"), {}
    exec(preparation.DIGEST, room)
    tokenizer = load_tokenizer(data / "tokenizer")
    texts = dict.fromkeys(json.loads(line)["text"] for line in corpus.read_text().splitlines())
    ids = [np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.uint32) for text in texts]
    assert preparation.ids_of(data) == room["digest"](one.tobytes() for one in ids)
    ids[3][0] += 1
    assert preparation.ids_of(data) != room["digest"](one.tobytes() for one in ids)


def test_a_sparse_corpus_opens_and_gives_rows(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation = script("preparation")
    monkeypatch.setattr(preparation.toy, "toy_data", lambda work: __import__("shutil").copytree(data, work / "toy"))
    shards = open_shards(preparation.sparse_data(0.6, tmp_path))
    assert len(shards.train) == 0.6e9 // (1 << 20) * (1 << 20) / 2
    sampler = StreamRows().build(shards.train, 128, 0, shards.manifest.special)
    batch = sampler.take(sampler.rows_per_epoch - 3, 6)
    assert (batch.ids[:, 1:] == 0).all() and len(batch.ids) == 6


def test_resemblance_is_that_of_word_5_grams() -> None:
    resemblance = script("copies").resemblance
    assert resemblance("a b c d e f", "a b c d e f") == 1.0
    assert resemblance("a b c d e f", "a b c d e g") == pytest.approx(1 / 3)
    assert resemblance("a b", "a b") == 0.0


def test_planted_copies_and_items_are_counted(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("datatrove", reason="needs the extra corpus")
    copies = script("copies")
    chosen = copies.argparse.Namespace(corpus=corpus, megabytes=0.1, rates=[0.0, 0.9], planted=10)
    found = copies.copies(chosen, tmp_path)
    exact, other = found["near_duplicates"]["rates"]
    assert (exact["recall"], exact["mean_resemblance"]) == (1.0, 1.0) and other["recall"] == 0.0
    assert found["contamination"]["recall"] == found["contamination"]["precision"] == 1.0
