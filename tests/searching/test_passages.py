from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from daybreak.commands.prepare import prepare
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import WordPiece, continuation_table, load_tokenizer
from daybreak.searching.passages import SHIFT, PassageReader, cut_passages


@pytest.fixture(scope="module")
def shards(data: Path) -> Shards:
    return open_shards(data)


@pytest.mark.parametrize("most", [16, 30, 96])
def test_passages_are_all_tokens_of_all_documents_once(shards: Shards, data: Path, most: int) -> None:
    passages = cut_passages(shards, load_tokenizer(data / "tokenizer"), most)
    assert (passages[:, 3] - passages[:, 2]).max() <= most
    for split, stream in enumerate((shards.train, shards.heldout)):
        own = passages[passages[:, 0] == split]
        ends = stream.document_ends().astype(int)
        starts = np.concatenate([[0], ends[:-1]])
        assert sorted(set(own[:, 1])) == list(range(len(ends)))
        for document, (start, end) in enumerate(zip(starts, ends)):
            parts = own[own[:, 1] == document, 2:]
            assert parts[0, 0] == start and parts[-1, 1] == end - 1  # without the separator
            assert (parts[1:, 0] == parts[:-1, 1]).all() and (parts[:, 1] > parts[:, 0]).all()


def test_copies_of_a_document_have_no_passages(tmp_path: Path) -> None:
    """``--epochs`` and ``--weights`` write them into the training split, and each would be found again."""
    rng = np.random.default_rng(0)
    for name in ("often", "once"):
        texts = [" ".join(map(str, rng.integers(0, 99, 90))) for _ in range(40)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
    mixed = Preprocessing(epochs=(3, 1))
    inputs = [tmp_path / "often.txt", tmp_path / "once.txt"]
    tokenizer = WordPiece(vocabulary=300)
    prepare(inputs, tmp_path / "data", tokenizer=tokenizer, preprocessing=mixed, document="blank-line")
    shards = open_shards(tmp_path / "data")
    passages = cut_passages(shards, load_tokenizer(tmp_path / "data" / "tokenizer"), 96)
    found = list(PassageReader(shards, load_tokenizer(tmp_path / "data" / "tokenizer"), passages).all_texts())
    assert len(set(found)) == len(found)
    assert len({(split, document) for split, document, *_ in passages.tolist()}) == 80
    assert shards.manifest.train.documents == 158


def test_passages_begin_at_a_word_where_one_is_near(tmp_path: Path) -> None:
    rng, most = np.random.default_rng(0), 24
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(1, 7))) for _ in range(4000)]
    texts = [" ".join(rng.choice(words, 150)) for _ in range(60)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    prepare([tmp_path / "text.txt"], tmp_path / "data", tokenizer=WordPiece(vocabulary=300))
    shards, tokenizer = open_shards(tmp_path / "data"), load_tokenizer(tmp_path / "data" / "tokenizer")
    continues = continuation_table(tokenizer)
    passages = cut_passages(shards, tokenizer, most)
    ids, firsts = shards.train.read(0, len(shards.train)), passages[passages[:, 0] == 0, 2]
    assert continues[ids].mean() > 0.4  # so that cuts at random places would part words
    inside = [first for first in firsts if continues[ids[first]]]
    assert all(continues[ids[first - most // SHIFT : first + 1]].all() for first in inside)
    assert len(inside) < 0.5 * len(firsts) * continues[ids].mean()


def test_passages_of_a_script_without_spaces_begin_at_a_character(tmp_path: Path) -> None:
    """Rare characters are three tokens of a byte-level vocabulary, and no word is near."""
    rng, most = np.random.default_rng(0), 96
    texts = ["".join(map(chr, rng.integers(0x4E00, 0x9F00, 400).tolist())) for _ in range(20)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    prepare([tmp_path / "text.txt"], tmp_path / "data", tokenizer=ByteBPE(vocabulary=300))
    shards, tokenizer = open_shards(tmp_path / "data"), load_tokenizer(tmp_path / "data" / "tokenizer")
    passages = cut_passages(shards, tokenizer, most)
    found = list(PassageReader(shards, tokenizer, passages).all_texts())
    assert len(found) > 100 and (passages[:, 3] - passages[:, 2]).max() <= most
    assert not any("\ufffd" in text for text in found)
    assert sorted("".join(found)) == sorted("".join(texts))


def test_the_text_of_a_passage_is_its_decoded_tokens(shards: Shards, data: Path) -> None:
    tokenizer = load_tokenizer(data / "tokenizer")
    reader = PassageReader(shards, tokenizer, cut_passages(shards, tokenizer, 30))
    texts = list(reader.all_texts())
    assert texts == reader.texts(0, len(reader.passages)) and all(texts)
    first = reader.passages[reader.passages[:, 0] == 1][0]
    number = int((reader.passages[:, 0] == 0).sum())
    ids = shards.heldout.read(int(first[2]), int(first[3])).tolist()
    assert reader.ids(number).tolist() == ids and texts[number] == tokenizer.decode(ids)
