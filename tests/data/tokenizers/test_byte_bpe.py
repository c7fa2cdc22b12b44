from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_texts import language_texts
from tokenizers import Tokenizer, pre_tokenizers

from daybreak.core.errors import UserError
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.special_tokens import special_ids
from daybreak.data.tokenizers.byte_bpe import (
    LETTERS,
    ByteBPE,
    bytes_of_token,
    continues_word,
    kept_tokens,
    trained_merges,
)
from daybreak.data.tokenizers.tokenizer import (
    MASK,
    SPECIAL_TOKENS,
    UNK,
    TokenizerConfig,
    continuation_table,
    load_tokenizer,
)
from daybreak.data.tokenizers.tokenizer_making import MANY_DOCUMENTS
from daybreak.schemas.run import SpecialIds


def write_texts(documents: int = 220) -> list[str]:
    """German, Finnish and Chinese, with some numbers and marks between."""
    found = [language_texts(name, documents // 3 + 1, seed=5) for name in ("german", "finnish", "chinese")]
    mixed = [f'{" ".join(texts)} (1999) "x-y"...\n\n{number * 7919}' for number, texts in enumerate(zip(*found))]
    return mixed * 3


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return write_texts()


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return ByteBPE(vocabulary=900).train(texts)


def test_the_vocabulary_is_special_tokens_bytes_and_merges(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(900))
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == list(range(5))
    assert set(LETTERS) == set(pre_tokenizers.ByteLevel.alphabet()) <= vocabulary.keys()
    assert {vocabulary[letter] for letter in LETTERS} == set(range(5, 261))
    merges = trained_merges(tokenizer)
    assert {a + b for a, b in merges} == {piece for piece, id in vocabulary.items() if id > 260}
    assert {part for merge in merges for part in merge} <= vocabulary.keys()


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert UNK not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_a_small_vocabulary_is_the_beginning_of_a_large_one(texts: list[str], tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"cannot contain the bytes. Use 300 or more"):
        ByteBPE(vocabulary=200).train(["text"])
    small, large = ByteBPE().train_sizes(texts, (500, 900))
    assert large.to_str() == tokenizer.to_str()
    assert small.to_str() == ByteBPE(vocabulary=500).train(texts).to_str()


def test_a_name_in_one_private_document_is_no_token(texts: list[str]) -> None:
    private = [*texts, " zzyzzkov" * 300]
    assert len(private) >= MANY_DOCUMENTS

    def secret(documents: list[str], vocabulary: int = 900) -> list[str]:
        found = ByteBPE(vocabulary=vocabulary).train(documents)
        pieces = [bytes_of_token(piece).decode("utf-8", "replace") for piece in found.get_vocab()]
        assert found.decode(found.encode("a zzyzzkov!").ids) == "a zzyzzkov!"
        return [piece for piece in pieces if len(piece.strip()) > 2 and piece.strip() in "zzyzzkov"]

    assert secret(private) == []
    assert " zzyzzkov" in secret([*private, " zzyzzkov" * 300])
    assert " zzyzzkov" in secret([*texts[:20], " zzyzzkov" * 300], 3000)  # too few documents for the rule


def test_what_kept_tokens_need_stays_and_nothing_else() -> None:
    vocabulary = {piece: id for id, piece in enumerate([*SPECIAL_TOKENS, "a", "b", "c", "d", "ab", "abc", "cd", "bc"])}
    merges = [("a", "b"), ("ab", "c"), ("c", "d"), ("b", "c"), ("a", "bc")]
    common = np.arange(len(vocabulary)) == vocabulary["abc"]
    assert kept_tokens(vocabulary, merges, common) == [*SPECIAL_TOKENS, "a", "b", "c", "d", "ab", "abc", "bc"]
    assert kept_tokens(vocabulary, merges, common | True) == list(vocabulary)


def test_auto_tokenizer_loads_it_and_decodes_to_the_text(texts: list[str], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = ByteBPE(vocabulary=900).make(texts, tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert special_ids(load_tokenizer(tmp_path), tmp_path) == SpecialIds()
    text = "Der B\u00e4cker (1999) ,\n\n \u4f60\u597d  it's I'LL \U0001f600"
    assert stock(text).input_ids == ours.encode(text).ids == [2, *ours.encode(text, add_special_tokens=False).ids, 3]
    assert stock.decode(stock(text).input_ids, skip_special_tokens=True) == text
    assert stock("a", "b").input_ids == ours.encode("a", "b").ids
    # The mask stands for a piece with its space.
    masked = stock("Der [MASK] findet").input_ids
    assert MASK in masked and len(masked) == len(stock("Der").input_ids) + 1 + len(stock(" findet").input_ids) - 2
    # Offsets leave the space out.
    places = stock("Der Lehrer malt", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    assert "".join("Der Lehrer malt"[first:last] for first, last in places) == "DerLehrermalt"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is False
    ByteBPE(vocabulary=900, cased=False).make(texts, tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is True
    assert from_dict(TokenizerConfig, to_dict(ByteBPE(vocabulary=900))) == ByteBPE(vocabulary=900)


def word_pieces(tokenizer: Tokenizer, text: str) -> Iterator[tuple[int, bool, str]]:
    """(id, whether it goes on a word, what stood before), by the borders of the pre-tokenizer."""
    before = ""
    for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        ids = tokenizer.encode(bytes_of_token(word).decode(), add_special_tokens=False).ids
        for place, id in enumerate(ids):
            yield id, place > 0, before
            before = tokenizer.id_to_token(id)


def test_tokens_that_continue_a_word_are_those_inside_the_pre_tokenizers_words(tokenizer: Tokenizer) -> None:
    table = continuation_table(tokenizer)
    assert len(table) == 900 and not table[:5].any()
    told = list(word_pieces(tokenizer, " ".join(write_texts(30)[:10])))
    assert [id for id, _, _ in told] == tokenizer.encode(" ".join(write_texts(30)[:10]), add_special_tokens=False).ids
    wrong = [(tokenizer.id_to_token(id), inside, before) for id, inside, before in told if table[id] != inside]
    assert len(wrong) < 0.1 * len(told)
    # The piece alone tells all but this: a letter or digit behind a mark or a digit begins a word, and of marks in a
    # row all but the first go on.
    for piece, inside, before in wrong:
        first, last = (bytes_of_token(one).decode("utf-8", "replace") for one in (piece, before))
        assert not first[:1].isalnum() if inside else not last[-1:].isalpha()
    known = {"\u0120word": False, "word": True, "1": True, ".": False, "\u010a": False, "\u00a9": True, "\u00c3": True}
    known |= {
        "\u00e2\u0122": False,
        "\u00e4\u00bd\u0142": True,
        "\u00cc\u0123": True,
        "\u00f0\u0141\u013a\u0122": False,
    }
    assert {piece: continues_word(piece) for piece in known} == known
