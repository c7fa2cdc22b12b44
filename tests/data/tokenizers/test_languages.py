"""Nothing assumes English: accents, scripts without spaces, scripts of many characters."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_texts import LISTS, language_texts
from tokenizers import Tokenizer

from daybreak.data.pipeline.tokenizer_quality import measure_quality
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.text_pieces import LONGEST_PIECE, cut_at_whitespace
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import UNK, WordPiece
from daybreak.data.tokenizers.tokenizer_making import training_chunks

HAN = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    return {language: [clean(text) for text in language_texts(language, 120)] for language in LISTS}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


@pytest.mark.parametrize("language", LISTS)
def test_byte_level_tokens_know_every_text_and_give_it_back(texts: dict[str, list[str]], language: str) -> None:
    own = ByteBPE(vocabulary=1000).train(texts[language])
    english = ByteBPE(vocabulary=400).train(["a few words", "a few more words"])
    for text in language_texts(language, 20, seed=9):
        for tokenizer in (own, english):
            ids = tokenizer.encode(text).ids
            assert UNK not in ids and tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert measure_quality(own, texts[language]).characters_per_token > 1.5


@pytest.mark.parametrize("language", LISTS)
def test_a_cased_wordpiece_keeps_every_character(texts: dict[str, list[str]], language: str) -> None:
    tokenizer = WordPiece(vocabulary=2000, cased=True).train(texts[language])
    for text in language_texts(language, 20, seed=9):
        tokens = pieces(tokenizer, text)
        assert "[UNK]" not in tokens
        assert "".join(token.removeprefix("##") for token in tokens) == clean(text).replace(" ", "")


def test_uncased_bytes_lose_capitals_and_keep_accents(texts: dict[str, list[str]]) -> None:
    small = ByteBPE(vocabulary=2000, cased=False).train(texts["finnish"])
    assert pieces(small, "\u00c4ITI L\u00d6YT\u00c4\u00c4") == pieces(small, "\u00e4iti l\u00f6yt\u00e4\u00e4")
    assert pieces(small, "\u00e4iti") != pieces(small, "aiti")


def test_a_long_thai_phrase_is_not_unknown(texts: dict[str, list[str]]) -> None:
    tokenizer = WordPiece(vocabulary=1500, cased=True).train(texts["thai"])
    phrase = "".join(language_texts("thai", 1, seed=4)).replace(" ", "")
    assert len(phrase) > 200
    assert "[UNK]" not in pieces(tokenizer, phrase)
    assert "".join(piece.removeprefix("##") for piece in pieces(tokenizer, phrase)) == phrase
    # Cut, it still has pieces of several letters.
    assert len(phrase) / len(pieces(tokenizer, phrase)) > 2
    # A text with a few words of Thai in it is cut as BERT does, and keeps BERT's rule for long words.
    english = WordPiece(vocabulary=600).train(["many plain words " * 400 + "\u0e04\u0e23\u0e39"] * 2)
    assert english.pre_tokenizer.pre_tokenize_str("a" + "\u0e04" * 50) == [("a" + "\u0e04" * 50, (0, 51))]


def test_a_text_of_many_characters_loses_none_to_the_alphabet() -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices(HAN, k=2000)) for _ in range(20)] + [HAN, HAN]
    tokenizer = WordPiece(vocabulary=8192).train(texts)
    assert set(HAN) <= tokenizer.get_vocab().keys()
    assert measure_quality(tokenizer, texts).unknown_tokens == 0
    hangul = "".join(map(chr, range(0xAC00, 0xAC00 + 3000)))
    spaced = [" ".join("".join(rng.choices(hangul, k=3)) for _ in range(2000)) for _ in range(10)]
    korean = WordPiece(vocabulary=4096, cased=True).train(spaced).get_vocab()
    # Each may begin and go on a word, so that half of the vocabulary holds a quarter as many syllables.
    assert sum(piece in hangul for piece in korean) == sum("##" + one in korean for one in hangul)
    assert 1000 <= sum(piece in hangul for piece in korean) <= 1024


@settings(max_examples=80, deadline=None)
@given(
    st.text(st.sampled_from("ab' \n.-\u4f60\u597d\u3002\uff0c\u0301\u0e04\u0e39\u00e9"), max_size=60),
    st.integers(1, 12),
)
def test_cutting_changes_no_ids(text: str, size: int) -> None:
    text = clean(text)
    found = list(cut_at_whitespace(text, size))
    assert "".join(found) == text
    for tokenizer in CUTTING:
        ids = [id for piece in found for id in tokenizer.encode(piece, add_special_tokens=False).ids]
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids


CUTTING = [
    kind.train(["ab ba. a-b \u4f60\u597d\u3002\u4f60\u597d, \u0e04\u0e39 \n\n\n ab\n\n\nba 'ab ba' " * 4] * 3)
    for kind in (ByteBPE(vocabulary=320), WordPiece(vocabulary=320), WordPiece(vocabulary=320, cased=True))
]


def test_text_without_spaces_is_cut_at_its_full_stops_and_never_too_long() -> None:
    chinese = "\u4f60\u597d\u5417\u3002" * 5000
    found = list(cut_at_whitespace(chinese, 1000))
    assert max(map(len, found)) <= 1000 and len(found) <= 21
    assert all(piece.endswith("\u3002") for piece in found)
    assert "".join(found) == chinese
    endless = list(cut_at_whitespace("x" * (2 * LONGEST_PIECE + 5)))
    assert [len(piece) for piece in endless] == [LONGEST_PIECE, LONGEST_PIECE, 5]


def test_an_endless_word_is_learned_from_in_parts() -> None:
    assert list(training_chunks(["ab " + "x" * 2500])) == ["ab " + "x" * 1000 + " " + "x" * 1000 + " " + "x" * 500]
    assert list(training_chunks(["a few words"])) == ["a few words"]
