"""Measure how well a tokenizer fits a text, and recommend a vocabulary size."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.data.filters.deduplication import document_key
from daybreak.data.filters.scripts import folded_wrongly
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.tokenizers.tokenizer import vocabulary_size
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.schemas.corpus import TokenizerQuality, VocabularyAdvice

SIZES = (4096, 8192, 16384, 32768, 65536)
TRAIN_CHARACTERS = 4_000_000
"""Maximum training text used for a recommendation."""
EXAMPLES, LEARNABLE = 100, 0.95
"""A vocabulary is learnable if this fraction of its merges has this many examples (Gowda and May 2020, section 5)."""
BATCH = 256
UNKNOWN = 0.01
"""Fraction of unknown tokens from which there is a warning."""
BYTE_LEVEL = "daybreak prepare --tokenizer-kind ByteBPE"
IMPORTED = "Start from a cased model, or train a tokenizer on the text with --tokenizer.cased."
"""Remedy for the tokenizer of a model."""


def measure_quality(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerQuality:
    """Measure ``tokenizer`` on held-out text of at least one word.

    Words are separated by whitespace, so Chinese or Thai has long words. Tokens are counted on the whole text. Whole
    and unknown words are counted on each word with a space before it. Memory grows with the number of different words.
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
    if not tokens:
        raise UserError(
            "The tokenizer removes all characters of the held-out text.",
            f"Choose byte-level BPE, which keeps all characters ({BYTE_LEVEL}), or give other text.",
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
    """Yield (count, ids) of each different word, encoded with a space before it."""
    different = iter(words.items())
    while some := list(itertools.islice(different, BATCH)):
        found = _ids(tokenizer, [f" {word}" for word, _ in some])
        yield from zip((count for _, count in some), found)


ACCENTED = 0.005
"""Minimum fraction of accented letters in a language with accents; English has less than 0.001."""
ACCENT_SAMPLE, ACCENT_PIECE = 1_000_000, 1_000
"""Approximate number of characters in which accented letters are counted, in pieces of this length."""


def _is_mark(letter: str) -> bool:
    """Whether it is a mark of a letter, and not one that chooses between two pictures of an emoji."""
    return unicodedata.category(letter) == "Mn" and not "\ufe00" <= letter <= "\ufe0f"


def accented_fraction(texts: Iterable[str]) -> float:
    """Return the fraction of letters with an accent, a vowel sign or another mark, in pieces from everywhere in a text.

    The short i of Cyrillic is a letter with an accent, and so is an Arabic letter with hamza. A mark of its own is one
    more letter. A hash of each piece decides whether it is counted.

    Args:
        texts: read twice.
    """
    fraction = ACCENT_SAMPLE / max(1, sum(map(len, texts)))
    letters: Counter[str] = Counter()
    for text in texts:
        for start in range(0, len(text), ACCENT_PIECE):
            piece = text[start : start + ACCENT_PIECE]
            if fraction >= 1 or (document_key(piece) & 0xFFFFFFFF) < fraction * 2**32:
                letters.update(piece)
    marks = Counter({letter: count for letter, count in letters.items() if _is_mark(letter)})
    plain = Counter({letter: count for letter, count in letters.items() if letter.isalpha()})
    accented = sum(count for letter, count in plain.items() if len(unicodedata.normalize("NFD", letter)) > 1)
    return (accented + marks.total()) / max(1, plain.total() + marks.total())


def folding_warning(
    tokenizer: Tokenizer, letters: Counter[str], texts: Iterable[str] = (), *, imported: bool = False
) -> str:
    """Return a warning with a remedy if this tokenizer damages scripts or accents of the text; empty if it does not.

    Args:
        letters: counts by script.
        texts: a sample in which accented letters are counted; read twice.
        imported: it is that of a model, which no option changes.
    """
    folds = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("\u00e9") == "e"
    if folds and (damaged := folded_wrongly(letters)):
        remedy = IMPORTED if imported else f"Add --tokenizer.cased, or choose byte-level BPE ({BYTE_LEVEL})."
        return (
            f"this tokenizer removes accents, which deletes vowels or splits syllables in {' and '.join(damaged)}. "
            f"{remedy}"
        )
    if folds and (fraction := accented_fraction(texts)) >= ACCENTED:
        remedy = IMPORTED if imported else "Add --tokenizer.cased to keep accents and capitals."
        return f"{fraction:.1%} of the letters have accents or other marks, which this tokenizer removes. {remedy}"
    return ""


def unknown_warning(quality: TokenizerQuality, *, imported: bool = False) -> str:
    """Return a warning with a remedy if many tokens of the held-out text are unknown to this tokenizer, else ""."""
    if quality.unknown_tokens < UNKNOWN:
        return ""
    remedy = (
        "Train a tokenizer on the text, or start from a model of its language."
        if imported
        else f"Use a larger --tokenizer.vocabulary, or choose byte-level BPE ({BYTE_LEVEL})."
    )
    return (
        f"{quality.unknown_tokens:.1%} of the tokens of the held-out text are unknown to this tokenizer, and the model "
        f"learns nothing about their words. {remedy}"
    )


HIDDEN_SIZE, BODY, PREDICTED = 512, 25_000_000, 0.3
"""A small model: its hidden size, its parameters without the token embedding, the fraction of tokens it predicts."""


def compute_cost(quality: TokenizerQuality) -> float:
    """Return the parameters that such a model uses per character of text.

    A step processes each token with BODY parameters, and the predicted ones also with the decoder of hidden size x
    vocabulary parameters. FLOPs are proportional to these parameters (Kaplan et al. 2020, arXiv 2001.08361, section
    2.1).
    """
    return (BODY + PREDICTED * HIDDEN_SIZE * quality.vocabulary) / quality.characters_per_token


def advise(
    train_texts: Iterable[str],
    heldout_texts: Sequence[str],
    config: TrainedTokenizer,
    sizes: Sequence[int] = SIZES,
    *,
    characters: int = 0,
) -> VocabularyAdvice:
    """Recommend the learnable vocabulary size with the lowest compute cost per character, see ``compute_cost``.

    A larger vocabulary encodes the same text in fewer tokens, but each token costs more at the decoder. The text must
    also contain enough examples: Gowda and May (2020, arXiv 2004.02334) find that the best vocabulary is the largest
    one in which 95 % of the tokens have at least 100 examples; here only merged tokens count. Both criteria concern
    speed and rarity, not the final quality of a model.

    The tokenizer is trained once, at the largest size, on at most TRAIN_CHARACTERS. For a large corpus this
    underestimates the larger vocabularies.

    Args:
        train_texts: training text of the tokenizer.
        heldout_texts: other text for the measurement.
        config: the kind of tokenizer; its size is ignored.
        sizes: candidates.
        characters: size of the whole training text, by which examples are scaled; 0 if ``train_texts`` is all of it.
    """
    train = some_of(train_texts, TRAIN_CHARACTERS)
    scale = max(1.0, characters / max(1, sum(map(len, train))))
    words = Counter(itertools.chain.from_iterable(map(str.split, train)))
    found: list[TokenizerQuality] = []
    able: list[TokenizerQuality] = []
    for tokenizer in config.train_sizes(train, sorted(sizes)):
        if found and vocabulary_size(tokenizer) == found[-1].vocabulary:
            break  # the text has no more merges
        found.append(measure_quality(tokenizer, heldout_texts))
        if learnable_fraction(tokenizer, words, scale) >= LEARNABLE:
            able.append(found[-1])
    best = min(able, key=compute_cost) if able else found[0]
    return VocabularyAdvice(sizes=found, recommended=best.vocabulary, why=_why(best, found, able))


def some_of(texts: Iterable[str], characters: int) -> list[str]:
    """Return a deterministic sample of ``texts`` with at most ``characters`` in total, in order.

    Args:
        texts: read twice; an iterator is stored in memory.
    """
    texts = list(texts) if iter(texts) is texts else texts
    fraction = characters / max(1, sum(map(len, texts)))
    if fraction >= 1:
        return list(texts)
    # The held-out split uses the leading bits of the same key, so the sample uses the lowest bits.
    drawn = (text for text in texts if (document_key(text) & 0xFFFFFFFF) < fraction * 2**32)
    return first_characters(drawn, characters) or first_characters(texts, characters)


def first_characters(texts: Iterable[str], characters: int) -> list[str]:
    """Return the first of ``texts`` with ``characters`` in total; the last one is truncated."""
    found: list[str] = []
    for text in texts:
        if characters <= 0:
            break
        found.append(text[:characters])
        characters -= len(text)
    return found


def learnable_fraction(tokenizer: Tokenizer, words: Counter[str], scale: float = 1.0) -> float:
    """Return the fraction of tokens of two or more characters that occur at least EXAMPLES times.

    Args:
        words: the words of a text with their counts.
        scale: factor by which the text is longer than ``words``.
    """
    counts = np.zeros(vocabulary_size(tokenizer), np.int64)
    for count, ids in _word_ids(tokenizer, words):
        np.add.at(counts, ids, count)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    vocabulary = tokenizer.get_vocab().items()
    merged = [id for token, id in vocabulary if token not in special and len(token.removeprefix("##")) > 1]
    return float((counts[merged] * scale >= EXAMPLES).mean()) if merged else 0.0


def _why(best: TokenizerQuality, found: list[TokenizerQuality], able: list[TokenizerQuality]) -> str:
    if not able:
        return (
            f"The text is small: even of {best.vocabulary:,} tokens, fewer than {LEARNABLE:.0%} have {EXAMPLES} "
            "examples in it (Gowda and May 2020)."
        )
    message = f"It has the lowest compute per character for hidden size {HIDDEN_SIZE} and {BODY:,} other parameters"
    larger = [quality for quality in found if quality.vocabulary > best.vocabulary]
    if not larger:
        return f"{message}; no larger size was tried."
    more = larger[0].characters_per_token / best.characters_per_token - 1
    change = f"{abs(more):.1%} {'more' if more >= 0 else 'fewer'}"
    next_one = f"{larger[0].vocabulary:,} tokens would give {change} characters per token"
    if larger[0] not in able:
        return f"{message}; {next_one}, but too few of them have {EXAMPLES} examples (Gowda and May 2020)."
    return f"{message}; {next_one}, which does not pay for their cost."
