from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_texts import LISTS, language_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from daybreak.data.tokenizers import fast_encoding
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.fast_encoding import (
    CheckedEncoder,
    Flat,
    TextEncoder,
    UnsupportedTokenizer,
    fast_encoder,
    tokenizer_traits,
)
from daybreak.data.tokenizers.tokenizer import WordPiece

# No Thai, whose words WordPiece cuts in a way of ours.
TEXTS = list(itertools.chain.from_iterable(language_texts(name, 12) for name in LISTS if name != "thai"))
TEXTS += ["The well-known (1999) \"words\" -- aren't many... they're ''few''! ### a_b 3.14 caf\u00e9 \u2014 x" * 3] * 9
CONFIGS = {
    "wordpiece": WordPiece(vocabulary=1500),
    "cased": WordPiece(vocabulary=1500, cased=True),
    "runs": WordPiece(vocabulary=1500, punctuation="runs"),
    "cramming": WordPiece(vocabulary=1500, normalizer="cramming"),
    "cramming cased": WordPiece(vocabulary=1500, normalizer="cramming", cased=True),
    "crammed": WordPiece(vocabulary=1500, normalizer="cramming", punctuation="runs"),
    "bytes": ByteBPE(vocabulary=1500),
    "uncased bytes": ByteBPE(vocabulary=1500, cased=False),
}
WILD = st.one_of(
    st.sampled_from("ab '#.-_[]\n\n\u00e9\u0301\u4f60\u3002\u093f\u0e33\u200d\u1161\u03a3`\t"),
    st.characters(codec="utf-8"),
)


@functools.cache
def encoder(name: str) -> TextEncoder:
    return fast_encoder(CONFIGS[name].train(TEXTS))


def test_plain_encoding_is_that_of_tokenizers() -> None:
    tokenizer = WordPiece(vocabulary=600).train(TEXTS)
    texts = ["", "some words [SEP]", "x"]
    ids, lengths = TextEncoder(tokenizer)(texts)
    assert ids.dtype == np.uint32 and lengths.tolist()[0] == 0
    wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == wanted and 3 not in wanted[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_tokie_is_used_where_it_can_reproduce_the_tokenizer(name: str) -> None:
    pytest.importorskip("tokie", reason="needs the extra fast")
    found = encoder(name)
    assert isinstance(found, CheckedEncoder) == (name not in ("runs", "crammed", "uncased bytes"))
    assert found.identical(TEXTS)


@pytest.mark.parametrize("name", CONFIGS)
def test_ids_are_those_of_tokenizers_on_any_text(name: str) -> None:
    pytest.importorskip("tokie", reason="needs the extra fast")
    found = encoder(name)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text(WILD, max_size=60), max_size=6))
    def check(texts: list[str]) -> None:
        assert found.identical([*texts, " ".join(texts), "the\n\n".join(texts)])

    check()


@pytest.mark.parametrize("name", ["wordpiece", "bytes"])
def test_every_character_of_unicode(name: str) -> None:
    pytest.importorskip("tokie", reason="needs the extra fast")
    every = [chr(code) for code in range(0x80, sys.maxunicode, 101) if not 0xD800 <= code < 0xE000]
    texts = [" ".join(f"x{one}y {one}" for one in every[place : place + 60]) for place in range(0, len(every), 60)]
    assert encoder(name).identical(texts)


@pytest.mark.parametrize("name", ["wordpiece", "bytes"])
def test_long_words_long_gaps_and_long_texts(name: str) -> None:
    pytest.importorskip("tokie", reason="needs the extra fast")
    gaps = ["word" + "\n" * size + "next" + " " * 3 for size in (2, 1999, 2000, 2001, 12000)]
    words = ["x" * size + " y" for size in (99, 100, 101, 1999, 2001, 30000)]
    long = ["\n\n".join(TEXTS), "\n\n\n".join(["a few plain words"] * 4000), "\n" * 5000, " \n" * 3000 + "end"]
    assert encoder(name).identical([*gaps, *words, *long])


class Wrong:
    """Right on the texts that check single characters, wrong on one word."""

    def __init__(self, tokenizer: Tokenizer, traits: object):
        self._plain = TextEncoder(tokenizer)

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, lengths = self._plain(texts)
        return (ids + 1 if any("qwert" in text for text in texts) else ids), lengths


class LacksZ(Wrong):
    """Drops the letter z."""

    def encode(self, texts: Sequence[str]) -> Flat:
        return self._plain([text.replace("z", "") for text in texts])


class AsciiOnly(Wrong):
    """Replaces every character but ASCII; records the texts that it receives."""

    seen = ""

    def encode(self, texts: Sequence[str]) -> Flat:
        AsciiOnly.seen += "".join(texts)
        return self._plain(["".join(one if one.isascii() else "?" for one in text) for text in texts])


def test_a_library_with_wrong_ids_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = WordPiece(vocabulary=600).train(TEXTS)
    monkeypatch.setattr(fast_encoding, "Tokie", LacksZ)
    with pytest.raises(UnsupportedTokenizer, match="other ids around 'z'"):
        CheckedEncoder(tokenizer)
    assert fast_encoder(tokenizer).identical(["a z"])
    monkeypatch.setattr(fast_encoding, "Tokie", Wrong)
    found = fast_encoder(tokenizer)
    assert found.identical(["a word"]) and not found.identical(["a qwert"])
    monkeypatch.setattr(fast_encoding, "hostile_texts", lambda tokenizer: ["qwert"])
    assert fast_encoder(tokenizer).identical(["a qwert"])


def test_untrusted_text_goes_through_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_encoding, "Tokie", AsciiOnly)
    checked = CheckedEncoder(WordPiece(vocabulary=1500, cased=True).train(TEXTS))
    AsciiOnly.seen = ""
    assert checked.identical(["plain caf\u00e9 words  \n\n\u00e4 end" + " " * 3000 + "x", "", "more" * 600])
    assert "plain words end" in AsciiOnly.seen and "plain caf" not in AsciiOnly.seen
    assert "  " not in AsciiOnly.seen and "more" not in AsciiOnly.seen


def test_other_kinds_of_tokenizers_stay_with_tokenizers() -> None:
    metaspace = Tokenizer(models.BPE({"a": 0, "\u2581": 1}, []))
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    metaspace.decoder = decoders.Metaspace()
    added = WordPiece(vocabulary=400).train(["a few words"] * 3)
    added.add_tokens(["few words"])
    thai = WordPiece(vocabulary=400, cased=True).train(language_texts("thai", 9))
    for tokenizer in (metaspace, added, thai):
        with pytest.raises(UnsupportedTokenizer):
            tokenizer_traits(tokenizer)


def test_a_library_that_panics_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tokie does over some vocabularies, with an exception that is no Exception."""
    tokie = pytest.importorskip("tokie")

    class Panic(BaseException):
        pass

    class Engine:
        @staticmethod
        def from_json(path: str) -> None:
            raise Panic("index out of bounds")

    monkeypatch.setattr(tokie, "Tokenizer", Engine)
    found = fast_encoder(WordPiece(vocabulary=400).train(["a few words"] * 3))
    assert not isinstance(found, CheckedEncoder) and found.identical(["a few words"])
