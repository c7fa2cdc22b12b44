from __future__ import annotations

import random
from collections import Counter

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from daybreak.core.errors import UserError
from daybreak.data.pipeline import tokenizer_quality as module
from daybreak.data.pipeline.tokenizer_quality import (
    accented_fraction,
    advise,
    first_characters,
    folding_warning,
    learnable_fraction,
    measure_quality,
    some_of,
    unknown_warning,
)
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import SPECIAL_TOKENS, WordPiece
from daybreak.schemas.corpus import TokenizerQuality


def write_texts(documents: int = 100, seed: int = 1) -> list[str]:
    rng = random.Random(7)
    syllables = [a + b for a in "b c d f g k l m n p r s t st tr".split() for b in "a e i o u an er in".split()]
    words = ["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3)))) for _ in range(4000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, weights, k=300)) + "." for _ in range(documents)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return write_texts()


def test_what_is_measured_by_hand() -> None:
    pieces = ["[UNK]", "ab", "c", "##c", "##d", "."]
    tokenizer = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # ab | ab ##c ##d | [UNK] | c . | ab: 8 tokens of 5 words.
    assert measure_quality(tokenizer, ["ab abcd", "xy c.\nab"]) == TokenizerQuality(
        vocabulary=6,
        characters=15,
        tokens_per_word=8 / 5,
        characters_per_token=15 / 8,
        whole_words=2 / 5,
        unknown_tokens=1 / 8,
        covered_words=4 / 5,
    )
    ascii_only = WordPiece(vocabulary=300, normalizer="cramming").train(["a b c"] * 3)
    with pytest.raises(UserError, match=r"removes all characters of the held-out text.*ByteBPE"):
        measure_quality(ascii_only, ["\u4f60\u597d"])


def test_a_byte_level_tokenizer_has_no_unknown(texts: list[str]) -> None:
    found = measure_quality(ByteBPE(vocabulary=600).train(texts), ["\u4f60\u597d " + texts[0]])
    assert found.unknown_tokens == 0 and found.covered_words == 1
    assert 1 < found.tokens_per_word < 5


def test_cut_vocabularies_are_nearly_those_trained_at_their_size(texts: list[str]) -> None:
    heldout = write_texts(20, seed=2)
    for tokenizer, size in zip(WordPiece().train_sizes(texts, (400, 700, 1000)), (400, 700, 1000)):
        own = WordPiece(vocabulary=size).train(texts)
        mine, theirs = tokenizer.get_vocab().keys(), own.get_vocab().keys()
        assert len(mine) == len(theirs) == size
        assert len(mine & theirs) >= 0.97 * size
        cut, trained = measure_quality(tokenizer, heldout), measure_quality(own, heldout)
        assert cut.characters_per_token == pytest.approx(trained.characters_per_token, rel=0.01)
    assert own.to_str() == tokenizer.to_str()


@pytest.mark.parametrize("config", [WordPiece(), ByteBPE()])
def test_advice(texts: list[str], config: WordPiece | ByteBPE, monkeypatch: pytest.MonkeyPatch) -> None:
    heldout = write_texts(20, seed=2)
    sizes = (800, 400, 60000, 1200)
    # A text of this size alone cannot teach a large vocabulary.
    alone = advise(texts, heldout, config, sizes)
    assert alone.recommended == 400 and "examples" in alone.why
    tiny = advise(texts[:2], heldout, config, (400, 800))
    assert tiny.recommended == tiny.sizes[0].vocabulary and tiny.why.startswith("The text is small")
    # Where it can, the model decides.
    monkeypatch.setattr(module, "LEARNABLE", 0)
    monkeypatch.setattr(module, "HIDDEN_SIZE", 64)
    large = advise(texts, heldout, config, sizes)
    assert [quality.vocabulary for quality in large.sizes[:3]] == [400, 800, 1200]
    assert large.sizes[3].vocabulary < 60000  # the text gives no more
    per_token = [quality.characters_per_token for quality in large.sizes]
    assert per_token == sorted(per_token) and per_token[0] > 1
    assert large.recommended == large.sizes[3].vocabulary and "no larger size was tried" in large.why
    # A wide and shallow model pays more for its decoder.
    monkeypatch.setattr(module, "HIDDEN_SIZE", 8192)
    monkeypatch.setattr(module, "BODY", 10**5)
    wide = advise(texts, heldout, config, sizes)
    assert wide.recommended == 400 and "does not pay for their cost" in wide.why


def test_examples_are_counted_and_scaled() -> None:
    tokenizer = WordPiece(vocabulary=400).train(["ab ab b"] * 10)
    assert tokenizer.get_vocab().keys() - set(SPECIAL_TOKENS) == {"a", "b", "##a", "##b", "ab"}
    assert learnable_fraction(tokenizer, Counter({"ab": 99, "b": 200})) == 0
    assert learnable_fraction(tokenizer, Counter({"ab": 60, "xab": 9, "abb": 40})) == 1
    assert learnable_fraction(tokenizer, Counter(ab=1), scale=100) == 1


def test_no_more_text_is_taken_than_asked_for() -> None:
    assert first_characters(iter(["abc", "defg", "h"]), 5) == ["abc", "de"]
    assert first_characters(["abc"], 5) == ["abc"]


def test_a_part_of_the_texts_is_of_all_of_them() -> None:
    texts = [f"english {number}" for number in range(1000)] + [f"suomea {number}" for number in range(1000)]
    found = some_of(texts, 4_000)
    assert found == some_of(iter(texts), 4_000) == sorted(found, key=texts.index)
    assert 3_000 < sum(map(len, found)) <= 4_000
    assert 0.4 < sum(text.startswith("suomea") for text in found) / len(found) < 0.6
    assert some_of(texts, 10**9) == texts and some_of([], 5) == [] and some_of(["x" * 50], 5) == ["xxxxx"]


# ---------------------------------------------------------------- accents that a tokenizer would remove


FRENCH = (
    "L'\u00e9t\u00e9 dernier, nous avons visit\u00e9 la for\u00eat et le ch\u00e2teau pr\u00e8s de la rivi\u00e8re."
)
RUSSIAN = (
    "\u041d\u043e\u0432\u044b\u0439 \u0434\u043e\u043c \u0441\u0442\u043e\u0438\u0442 \u0443 \u0440\u0435\u043a\u0438"
)
ENGLISH = "Last summer we saw the forest and the castle near the river. " * 9 + "The caf\u00e9 is new."


def test_the_fraction_is_that_of_the_letters() -> None:
    assert accented_fraction(["\u00e9a b", "cd"]) == pytest.approx(1 / 5)
    assert accented_fraction(["123 \u4e2d"]) == 0.0
    assert accented_fraction(["\u0783\u07a8"]) == 0.5, "a letter of Thaana and its vowel sign"


@pytest.mark.parametrize("characters", [80, 40_000])
def test_accents_are_found_wherever_they_are(characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short texts and in long ones: English first, as many letters of French after it."""
    monkeypatch.setattr(module, "ACCENT_SAMPLE", 10_000)
    monkeypatch.setattr(module, "ACCENT_PIECE", 100)
    chance = random.Random(3)

    def texts(words: str) -> list[str]:
        text = " ".join(chance.choices(words.split(), k=7_000))[:40_000]
        return [text[start : start + characters] for start in range(0, len(text), characters)]

    english, french = texts("last summer we saw the forest"), texts("l'\u00e9t\u00e9 la for\u00eat pr\u00e8s")
    assert accented_fraction(english) == 0
    assert accented_fraction(english + french) == pytest.approx(accented_fraction(french) / 2, rel=0.3)


@pytest.mark.parametrize(
    ("text", "cased", "warned"),
    [(FRENCH, False, True), (FRENCH, True, False), (ENGLISH, False, False), (RUSSIAN, False, True)],
)
def test_who_is_warned(text: str, cased: bool, warned: bool) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)
    said = folding_warning(tokenizer, Counter({"Latin": 60}), [text])
    assert ("letters have accents" in said and "--tokenizer.cased" in said) == warned


def test_the_warning_names_what_can_be_done() -> None:
    """No option of ``daybreak run`` chooses byte-level BPE, and none changes the tokenizer of a model."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    said = folding_warning(tokenizer, Counter({"Thai": 60}))
    assert "Add --tokenizer.cased, or choose byte-level BPE (daybreak prepare --" in said
    for letters in ("Thai", "Latin"):
        said = folding_warning(tokenizer, Counter({letters: 60}), [FRENCH], imported=True)
        assert "removes" in said and "Start from a cased model" in said


def test_a_text_whose_words_are_unknown_is_named() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "river": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert unknown_warning(measure_quality(tokenizer, ["river " * 200])) == ""
    quality = measure_quality(tokenizer, ["river " * 150 + "\u0440\u0435\u043a\u0430 " * 50])
    said = unknown_warning(quality)
    assert said.startswith("25.0% of the tokens of the held-out text are unknown") and "byte-level BPE" in said
    assert "--tokenizer.vocabulary" not in unknown_warning(quality, imported=True)
