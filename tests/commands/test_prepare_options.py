"""Sentences, chunks, tokenizers taken over, and data sets by name: what ``prepare`` does only when asked."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from language_texts import language_texts

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.readers.cleaning import clean
from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, WordPiece, load_tokenizer
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.schemas.run import SpecialIds

SMALL = WordPiece(vocabulary=600)
WORDS = "the a of river stone valley walks sings under over quiet bright morning and then because it's 7".split()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """300 records of prose, 20 of them copies."""
    rng = random.Random(5)

    def sentence() -> str:
        return " ".join(rng.choices(WORDS[:-1], k=rng.randrange(4, 12))).capitalize() + "."

    texts = ["  ".join(sentence() for _ in range(rng.randrange(1, 30))) for _ in range(280)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts + texts[:20]))
    return path


def test_prose_is_split_into_sentences_when_asked(corpus: Path, tmp_path: Path) -> None:
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL, split_sentences=True)
    texts = {clean(json.loads(line)["text"]) for line in corpus.read_text().splitlines()}
    shards = open_shards(tmp_path / "data")
    ends = [split.sentence_ends() for split in (shards.train, shards.heldout)]
    assert sum(len(found) for found in ends if found is not None) == sum(text.count(".") for text in texts)
    assert manifest.heldout.documents >= 2
    batch = SentencePairs().build(shards.train, 48, 0, manifest.special).take(0, 200)
    assert 0.4 < batch.follows.mean() < 0.8
    with pytest.raises(UserError, match="with other settings"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL)


def test_a_sentence_of_which_no_token_is_left_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(["One here.\n\u200b\u200b\nTwo there.\n\u200b"] + ["More.\nText."] * 3))
    prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL, document="blank-line")
    shards = open_shards(tmp_path / "data")
    for split in (shards.train, shards.heldout):
        ends = split.sentence_ends()
        assert ends is not None and len(ends) == 2 * len(split.document_ends())
        assert np.diff(ends.astype(int), prepend=0).min() > 1
        assert ends[-1] == len(split)


def test_documents_are_cut_into_chunks_when_asked(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL, chunk_characters=120)
    assert "(one document per record, in chunks of about 120 characters)" in capsys.readouterr().out
    assert manifest.train.documents + manifest.heldout.documents > 1000
    assert set(manifest.skipped) == {"chunks under 29 characters"}
    with pytest.raises(UserError, match="A chunk cannot have -1 characters"):
        prepare([corpus], tmp_path / "more", tokenizer=SMALL, chunk_characters=-1)


def test_a_tokenizer_is_taken_over_and_compared(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    words = "the a of river stone valley walks sings . on".split()
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[MASK]", *words, "[SEP]"]
    (theirs / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    taken = Existing(folder=str(theirs))
    manifest = prepare([corpus], tmp_path / "data", tokenizer=taken)
    assert manifest.special == SpecialIds(pad=0, unk=2, cls=3, sep=15, mask=4)
    assert (manifest.tokenizer_kind, manifest.vocabulary, manifest.overlap) == ("Existing", 16, None)
    train = open_shards(tmp_path / "data").train
    ids = train.read(0, len(train))
    assert np.array_equal(np.flatnonzero(ids == 15) + 1, train.document_ends())
    assert prepare([corpus], tmp_path / "data", tokenizer=taken) == manifest  # it is kept
    capsys.readouterr()
    own = prepare([corpus], tmp_path / "own", tokenizer=SMALL, compare=str(tmp_path / "data/tokenizer"))
    vocabulary = load_tokenizer(tmp_path / "own/tokenizer").get_vocab()
    assert own.overlap is not None and 0 < own.overlap <= 10 / (len(vocabulary) - 5)
    assert f"Tokenizer: {own.overlap:.1%} of its tokens are also in" in capsys.readouterr().out
    assert own.special == SpecialIds()


def test_a_data_set_is_read_twice_and_known_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    corpus.rename(tmp_path / "set/train.jsonl")
    given = f"hf://{tmp_path / 'set'}"
    manifest = prepare([given], tmp_path / "data", tokenizer=SMALL)
    assert (manifest.document_rule, manifest.duplicates) == ("record", 20)
    assert [(source.path, source.documents) for source in manifest.sources] == [(given, 300)]
    assert prepare([given], tmp_path / "data", tokenizer=SMALL) == manifest
    os.utime(tmp_path / "set/train.jsonl", ns=(1, 1))
    with pytest.raises(UserError, match="from other text"):
        prepare([given], tmp_path / "data", tokenizer=SMALL)


@pytest.mark.parametrize(
    ("language", "tokenizer", "wanted"),
    [
        ("hindi", SMALL, "deletes vowels or splits syllables in Devanagari. Add --tokenizer.cased, or choose"),
        ("thai", SMALL, "deletes vowels or splits syllables in Thai. Add --tokenizer.cased, or choose"),
        ("hindi", WordPiece(vocabulary=600, cased=True), ""),
        ("hindi", ByteBPE(vocabulary=600, cased=False), ""),
        ("german", SMALL, "have accents, which this tokenizer removes. Add --tokenizer.cased to keep accents"),
        ("arabic", SMALL, ""),
    ],
)
def test_folding_that_damages_the_text_is_said_with_its_remedy(
    tmp_path: Path, language: str, tokenizer: TokenizerConfig, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(language_texts(language, 30, sentences=4)), "utf-8")
    prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=tokenizer, document="line")
    said = [line for line in capsys.readouterr().out.splitlines() if "this tokenizer removes" in line]
    assert len(said) == bool(wanted) and (not wanted or wanted in said[0])


def test_a_folding_tokenizer_that_is_taken_over_is_warned_of_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(language_texts("thai", 30, sentences=4)), "utf-8")
    prepare([tmp_path / "t.txt"], tmp_path / "first", tokenizer=SMALL, document="line")
    capsys.readouterr()
    taken = Existing(folder=str(tmp_path / "first" / "tokenizer"))
    prepare([tmp_path / "t.txt"], tmp_path / "second", tokenizer=taken, document="line")
    assert "splits syllables in Thai" in capsys.readouterr().out
