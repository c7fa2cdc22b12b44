"""How well a tokenizer suits a text, and which size of vocabulary would."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.terminal import say
from daybreak.data.filters.deduplication import document_key
from daybreak.data.filters.scripts import folded_wrongly
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.tokenizers.tokenizer import vocabulary_size
from daybreak.data.tokenizers.tokenizer_making import TokenizerConfig, TrainedTokenizer
from daybreak.schemas.corpus import TokenizerQuality, VocabularyAdvice

SIZES = (4096, 8192, 16384, 32768, 65536)
TRAIN_CHARACTERS = 4_000_000
HELDOUT_CHARACTERS = 1_000_000
"""What advice is measured on at most."""
EXAMPLES, LEARNABLE = 100, 0.95
"""A vocabulary can be learned when this share of its merges has this many examples (Gowda and May 2020, section 5)."""
BATCH = 256


def measure_quality(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerQuality:
    """Measure ``tokenizer`` on held-out text. A word is what whitespace parts, so Chinese or Thai has long ones.

    Tokens are those of the whole text. Whether a word is one piece, or has an unknown one, is asked of the word with a
    space before it. Memory grows with the number of different words.

    Raises:
        UserError: the text holds no word, or the tokenizer deletes all that it holds.
    """
    name = getattr(tokenizer.model, "unk_token", None)
    unknown = tokenizer.token_to_id(name) if name else None
    words: Counter[str] = Counter()
    characters = tokens = unknown_tokens = 0
    for text in texts:
        words.update(text.split())
        characters += len(text)
        for ids in _ids(tokenizer, list(cut_at_whitespace(text))):
            tokens += len(ids)
            unknown_tokens += ids.count(unknown) if unknown is not None else 0
    if not words:
        raise UserError("There is no held-out text to measure the tokenizer on.", "Give more text.")
    if not tokens:
        raise UserError(
            "The tokenizer leaves nothing of the held-out text: it deletes all of its characters.",
            "Choose --tokenizer-kind ByteBPE, which keeps them all, or give other text.",
        )
    whole = covered = 0
    for count, ids in _word_ids(tokenizer, words):
        known = unknown is None or unknown not in ids
        covered += count * known
        whole += count * (known and len(ids) == 1)
    return TokenizerQuality(
        vocabulary=vocabulary_size(tokenizer),
        characters=characters,
        tokens_per_word=tokens / words.total(),
        characters_per_token=characters / tokens,
        whole_words=whole / words.total(),
        unknown_tokens=unknown_tokens / tokens,
        covered_words=covered / words.total(),
    )


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _word_ids(tokenizer: Tokenizer, words: Counter[str]) -> Iterator[tuple[int, list[int]]]:
    """Each different word, with a space before it: how often it occurs, and its ids."""
    different = iter(words.items())
    while some := list(itertools.islice(different, BATCH)):
        found = _ids(tokenizer, [f" {word}" for word, _ in some])
        yield from zip((count for _, count in some), found)


ACCENTED = 0.005
"""Fraction of letters with accents from which a language uses them; English has fewer than 0.001."""
ACCENT_SAMPLE = 1_000_000
"""Characters in which they are counted."""


def accented_fraction(texts: Iterable[str]) -> float:
    """The fraction of the Latin letters, in the first ACCENT_SAMPLE characters, that carry an accent."""
    accented = plain = read = 0
    for text in texts:
        for letter, count in Counter(text[: ACCENT_SAMPLE - read]).items():
            if letter.isascii():
                plain += count * letter.isalpha()
            elif letter.isalpha():
                parts = unicodedata.normalize("NFD", letter)
                accented += count * (len(parts) > 1 and parts[0].isascii())
        read += len(text)
        if read >= ACCENT_SAMPLE:
            break
    return accented / max(1, accented + plain)


def warn_of_folding(tokenizer: Tokenizer, letters: Counter[str], texts: Iterable[str] = ()) -> None:
    """Say, in one sentence with its remedy, which scripts or accents of the text this tokenizer damages.

    Args:
        letters: by script.
        texts: a sample, in which letters with accents are counted.
    """
    folds = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("\u00e9") == "e"
    if folds and (damaged := folded_wrongly(letters)):
        say(
            f"Careful: this tokenizer folds accents away, which deletes vowels or takes syllables apart in "
            f"{' and '.join(damaged)}. Add --tokenizer.cased, or choose --tokenizer-kind ByteBPE."
        )
    elif folds and (fraction := accented_fraction(texts)) >= ACCENTED:
        say(
            f"Careful: {fraction:.1%} of the letters carry accents, and this tokenizer removes them. "
            "Add --tokenizer.cased to keep accents and capitals."
        )


@dataclass(frozen=True)
class Cost:
    """What a token costs in training a model of this size.

    A step reads each token with ``body`` parameters and decodes ``predicted`` of them with width times vocabulary more;
    work is proportional to both (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
    """

    width: int = 512
    body: int = 25_000_000
    """Parameters without the table of the vocabulary."""
    predicted: float = 0.3
    """Share of the tokens that are predicted."""

    def of(self, quality: TokenizerQuality) -> float:
        """Parameters that a character of the text meets."""
        decoder = self.predicted * self.width * quality.vocabulary
        return (self.body + decoder) / quality.characters_per_token


def advise(
    train_texts: Iterable[str],
    heldout_texts: Iterable[str],
    config: TokenizerConfig,
    sizes: Sequence[int] = SIZES,
    *,
    characters: int = 0,
    cost: Cost | None = None,
) -> VocabularyAdvice:
    """Recommend a size of vocabulary: of those that the text can teach, the one that reads it with the least work.

    A larger vocabulary reads the same text in fewer tokens, but each costs more at the decoder: ``Cost`` weighs the
    two. And the text must show its pieces often enough: Gowda and May (2020, arXiv 2004.02334) find that the best
    vocabulary is the largest of which 95 % of the pieces have 100 examples or more; here the pieces that were merged
    count. Both speak of speed and of rarity, not of what a model scores in the end, which only a run can tell.

    One training at the largest size serves for all. It sees at most TRAIN_CHARACTERS, so of a large corpus the larger
    vocabularies come out somewhat worse here than they would be.

    Args:
        train_texts: what the tokenizer may learn from.
        heldout_texts: other text, to measure on.
        config: which kind of tokenizer; its own size plays no part.
        sizes: to choose from.
        characters: of the whole training text, by which examples are scaled up; 0 where ``train_texts`` are all.
        cost: of the model; a small one of width 512 by default.

    Raises:
        UserError: ``config`` takes over a tokenizer; or there is no held-out text.
    """
    if not isinstance(config, TrainedTokenizer):
        raise UserError("A tokenizer that is taken over has its size already.", "Ask for advice without it.")
    cost = cost or Cost()
    train, heldout = some_of(train_texts, TRAIN_CHARACTERS), some_of(heldout_texts, HELDOUT_CHARACTERS)
    scale = max(1.0, characters / max(1, sum(map(len, train))))
    words = Counter(itertools.chain.from_iterable(map(str.split, train)))
    found: list[TokenizerQuality] = []
    taught: list[bool] = []
    for tokenizer in config.train_sizes(train, sorted(sizes)):
        if found and vocabulary_size(tokenizer) == found[-1].vocabulary:
            break  # the text gives no more pieces
        found.append(measure_quality(tokenizer, heldout))
        taught.append(learnable_fraction(tokenizer, words, scale) >= LEARNABLE)
    able = [quality for quality, enough in zip(found, taught) if enough]
    best = min(able, key=cost.of) if able else found[0]
    return VocabularyAdvice(sizes=found, recommended=best.vocabulary, why=_why(best, found, able, cost))


def some_of(texts: Iterable[str], characters: int) -> list[str]:
    """Texts of at most ``characters`` altogether, from all of ``texts`` alike, in their order: the same each time.

    Args:
        texts: read twice; a plain iterator is kept in memory for that.
    """
    texts = list(texts) if iter(texts) is texts else texts
    fraction = characters / max(1, sum(map(len, texts)))
    if fraction >= 1:
        return list(texts)
    # What is held out is told by the leading bits of the same key, so its lowest are taken.
    drawn = (text for text in texts if (document_key(text) & 0xFFFFFFFF) < fraction * 2**32)
    return first_characters(drawn, characters) or first_characters(texts, characters)


def first_characters(texts: Iterable[str], characters: int) -> list[str]:
    """The first of ``texts``, up to so many characters; the last is cut."""
    found: list[str] = []
    for text in texts:
        if characters <= 0:
            break
        found.append(text[:characters])
        characters -= len(text)
    return found


def learnable_fraction(tokenizer: Tokenizer, words: Counter[str], scale: float = 1.0) -> float:
    """Share of the pieces of several letters (or bytes) with EXAMPLES or more in ``words`` repeated ``scale`` times."""
    counts = np.zeros(vocabulary_size(tokenizer), np.int64)
    for count, ids in _word_ids(tokenizer, words):
        np.add.at(counts, ids, count)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    pieces = ((piece, id) for piece, id in tokenizer.get_vocab().items() if piece not in special)
    merged = [id for piece, id in pieces if len(piece.removeprefix("##")) > 1]
    return float((counts[merged] * scale >= EXAMPLES).mean()) if merged else 0.0


def _why(best: TokenizerQuality, found: list[TokenizerQuality], able: list[TokenizerQuality], cost: Cost) -> str:
    if not able:
        return (
            f"The text is small: of {best.vocabulary:,} pieces, too, fewer than {LEARNABLE:.0%} have {EXAMPLES} "
            "examples in it (Gowda and May 2020)."
        )
    message = (
        f"It reads the text with the least work for a model of width {cost.width} and {cost.body:,} other parameters"
    )
    larger = [quality for quality in found if quality.vocabulary > best.vocabulary]
    if not larger:
        return f"{message}; no larger size was tried."
    more = larger[0].characters_per_token / best.characters_per_token - 1
    next_one = (
        f"{larger[0].vocabulary:,} pieces would hold {abs(more):.1%} {'more' if more >= 0 else 'less'} text a token"
    )
    if larger[0] not in able:
        return f"{message}; {next_one}, but too few of them have {EXAMPLES} examples (Gowda and May 2020)."
    return f"{message}; {next_one}, which is less than they cost."
