from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from daybreak.core.errors import UserError
from daybreak.data.filters import near_duplicates as module
from daybreak.data.filters.near_duplicates import BUCKETS, HASHES, match_bucket, near_duplicates, write_signatures

pytest.importorskip("datatrove")
pytest.importorskip("xxhash")

WORDS = [f"{a}{b}" for a in "ba ke mi no tu ra li se fo".split() for b in "lon sat net dim mul tap".split()]


def prose(rng: random.Random, words: int) -> list[str]:
    return [rng.choice(WORDS) + rng.choice(WORDS) for _ in range(words)]


def changed(rng: random.Random, words: list[str], fraction: float) -> list[str]:
    return ["changed" if rng.random() < fraction else word for word in words]


def grams(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + 5]) for place in range(len(words) - 4)}


def find(texts: list[str], folder: Path, parts: int = 3) -> list[int]:
    size = -(-len(texts) // parts)
    for part in reversed(range(parts)):  # in whatever order
        numbered = list(enumerate(texts))[part * size : (part + 1) * size]
        write_signatures(numbered, folder, part)
    found: list[int] = near_duplicates(folder).tolist()
    return found


@pytest.fixture(scope="module")
def corpus() -> list[list[str]]:
    """100 documents, of which 60 have a copy with 1, 3 or 5 % of its words changed; shuffled."""
    rng = random.Random(1)
    documents = [prose(rng, rng.randrange(100, 300)) for _ in range(100)]
    fractions = [0.01, 0.03, 0.05] * 20
    documents += [changed(rng, words, fraction) for words, fraction in zip(documents, fractions)]
    rng.shuffle(documents)
    return documents


def test_planted_near_duplicates_are_found(
    corpus: list[list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = find([" ".join(words) for words in corpus], tmp_path)
    assert capfd.readouterr() == ("", "")  # no log and no progress bar of datatrove
    sets = list(map(grams, corpus))
    likes = {  # Jaccard's, exactly
        (one, other): len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        for one, other in itertools.combinations(range(160), 2)
    }
    alike = [pair for pair, value in likes.items() if value >= 0.8]
    unlike = set(range(160)).difference(*(pair for pair, value in likes.items() if value >= 0.3))
    assert len(alike) > 20 and len(unlike) == 40
    recall = sum(second in found for _, second in alike) / len(alike)
    assert recall >= 0.92 - 0.05  # of pairs that share 80 % or more, FineWeb's settings find 92 % at the least
    assert not unlike.intersection(found)
    # Nothing goes but the later one of two that are alike.
    assert all(any(likes[first, second] > 0.5 for first in range(second)) for second in found)


def test_the_smallest_number_of_a_cluster_stays(tmp_path: Path) -> None:
    rng = random.Random(2)
    texts = [" ".join(prose(rng, 50)) for _ in range(6)]
    order = [0, 1, 2, 1, 3, 1, 0, 4, 1, 5]
    assert find([texts[number] for number in order], tmp_path) == [3, 5, 6, 8]


def test_marks_and_capitals_make_no_difference_and_short_documents_stay(tmp_path: Path) -> None:
    rng = random.Random(3)
    words = prose(rng, 40)
    texts = [" ".join(words), ", ".join(words).title(), "\n".join(words) + "!", "one two", "one two"]
    # The words of Chinese are its characters.
    han, other = ("".join(chr(rng.randrange(0x4E00, 0x5000)) for _ in range(300)) for _ in range(2))
    assert find([*texts, han, han[:150] + "\u3002" + han[150:], other], tmp_path) == [1, 2, 6]


def test_parts_and_their_order_make_no_difference(
    corpus: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(words) for words in corpus[:80]]
    whole = find(texts, tmp_path / "one", 1)
    assert find(texts, tmp_path / "three", 3) == whole
    monkeypatch.setattr(module, "MERGED", 30)  # several sorted files
    monkeypatch.setattr(module, "SHINGLES", 16)
    assert find(texts, tmp_path / "groups", 5) == whole


def test_signatures_are_those_of_datatrove(corpus: list[list[str]], tmp_path: Path) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    from daybreak.data.filters.quality_filters import datatrove_words

    texts = [" ".join(words) for words in corpus] + [" ".join(prose(random.Random(5), 9000))]
    write_signatures(enumerate(texts), tmp_path / "ours", 0)
    config = MinhashConfig(n_grams=5, num_buckets=BUCKETS, hashes_per_bucket=HASHES)
    theirs = MinhashDedupSignature(str(tmp_path / "theirs"), config=config, language=datatrove_words())
    theirs.run(Document(text=text, id="") for text in texts)
    for bucket in range(BUCKETS):
        name = f"bucket_{bucket:03d}/00000.minhash.sig"
        assert (tmp_path / "ours/signatures" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_what_is_done_is_not_done_again(corpus: list[list[str]], tmp_path: Path) -> None:
    texts = [" ".join(words) for words in corpus[:80]]
    first = find(texts, tmp_path)
    asked: list[int] = []

    def never() -> object:
        asked.append(1)
        yield 0, ""

    write_signatures(never(), tmp_path, 0)  # type: ignore[arg-type]
    assert asked == []
    # Killed between a part's signatures and its numbers, and in the midst of a bucket.
    (tmp_path / "numbers" / "00001.npy").unlink()
    (tmp_path / "signatures" / "bucket_003" / "00001.minhash.sig").write_bytes(b"half")
    (tmp_path / "pairs" / "00003_00.dups").unlink()
    (tmp_path / "matching-003").mkdir()
    (tmp_path / "matching-003" / "rest").touch()
    assert find(texts, tmp_path) == first
    assert near_duplicates(tmp_path).tolist() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clusters", "numbers", "pairs", "signatures"]
    match_bucket(tmp_path, 3)


def test_empty_parts_and_numbers_with_gaps(tmp_path: Path) -> None:
    text = " ".join(prose(random.Random(6), 30))
    write_signatures([], tmp_path, 0)
    write_signatures([(10**12, text), (5, "too short")], tmp_path, 1)
    write_signatures([(7, text)], tmp_path, 4)
    found = near_duplicates(tmp_path)
    assert found.dtype == np.uint64 and found.tolist() == [10**12]
    write_signatures([], tmp_path / "none", 0)
    assert near_duplicates(tmp_path / "none").tolist() == []


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="There are no signatures"):
        near_duplicates(tmp_path)
    monkeypatch.setitem(sys.modules, "datatrove.pipeline.dedup.minhash", None)
    with pytest.raises(UserError, match=r"needs datatrove with xxhash, which is not installed"):
        write_signatures([(0, "a b c d e f")], tmp_path, 0)
