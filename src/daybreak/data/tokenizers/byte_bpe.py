"""Byte-level BPE: tokens are byte sequences, so no character is unknown (Radford et al. 2019)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from daybreak.data.tokenizers.tokenizer_making import (
    SPECIAL_TOKENS,
    SURPLUS,
    TrainedTokenizer,
    common_ids,
    training_chunks,
)

SPACE = "\u0120"
"""The space in a byte-level vocabulary."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
LETTERS = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)}
"""Byte of each vocabulary letter: printable bytes are themselves, the others are U+0100 onwards, in order."""
_FIRST_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}
"""Payload bits of the first byte of a UTF-8 character, by the number of its bytes."""


def bytes_of_token(token: str) -> bytes:
    """Return the bytes of a byte-level token; empty for other tokens, such as special tokens."""
    return bytes(LETTERS[letter] for letter in token) if LETTERS.keys() >= set(token) else b""


def continues_word(token: str) -> bool:
    """Return whether a byte-level token continues a word if it is not the first of its text.

    It does if it begins with a letter, a digit or a mark, or inside a character. A space or punctuation begins a word.
    Only the token itself is examined: a word directly after a bracket or hyphen counts as its continuation.
    """
    data = bytes_of_token(token)
    if not data or data[0] < 0x80:
        return bool(data) and chr(data[0]).isalnum()
    if data[0] < 0xC0:
        return True
    size = 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
    code = data[0] & _FIRST_BITS[size]
    known = data[1:size]
    for byte in known:
        code = code << 6 | byte & 0x3F
    open_bits = 6 * (size - 1 - len(known))
    # An incomplete character counts as a letter if it can become one.
    codes = range(code << open_bits, min(code + 1 << open_bits, 0x110000))
    return any(unicodedata.category(chr(code))[0] in "LMN" for code in codes)


# GPT-2's expression, in which a letter may also be an accent (\p{M}): without that, each vowel sign of Hindi or Thai
# parts its word. The endings are English and hurt nobody else.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?(?:\p{L}|\p{M})+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"

Merge = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ByteBPE(TrainedTokenizer):
    """Byte-level BPE (Radford et al. 2019): the most frequent adjacent pairs within words are merged into tokens.

    Every byte is a token, so nothing is unknown, and decoding restores the text (in Unicode NFC). Training is
    deterministic for any number of threads and order of texts. With 100 texts or more, each token of two or more bytes
    occurs in at least two of them, so that a name in a single private text does not become a token. With fewer texts,
    it occurs at least twice, also in a single one. A text is a document as it was read: a line or chunk of a file
    counts as one.
    """

    smallest = "the bytes"

    cased: bool = True
    """Keep upper case; otherwise text is lowercased. Accents are kept in both cases."""

    def learn(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """The first merges of a large vocabulary are those of a small one."""
        blank = self._assemble({token: id for id, token in enumerate(SPECIAL_TOKENS)}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=max(sizes) + int(SURPLUS * max(sizes)),
            min_frequency=2,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        blank.train_from_iterator(training_chunks(texts), trainer)
        surplus = blank.get_vocab(with_added_tokens=False)
        merges = trained_merges(blank)
        kept = kept_tokens(surplus, merges, common_ids(texts, self._assemble(surplus, merges)))
        return [self._cut(kept[:size], merges) for size in sizes]

    def _cut(self, tokens: list[str], merges: list[Merge]) -> Tokenizer:
        known = set(tokens)
        usable = [(a, b) for a, b in merges if known >= {a, b, a + b}]
        return self._assemble({token: id for id, token in enumerate(tokens)}, usable)

    def _assemble(self, vocabulary: dict[str, int], merges: list[Merge]) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        folding = [normalizers.NFC()] if self.cased else [normalizers.Lowercase(), normalizers.NFC()]
        tokenizer.normalizer = normalizers.Sequence(folding)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        template = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
        # Offsets exclude the space at the start of a token.
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
        # The masked token includes the space before it, as in RoBERTa.
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False, lstrip=token == "[MASK]") for token in SPECIAL_TOKENS]
        )
        return tokenizer


def trained_merges(tokenizer: Tokenizer) -> list[Merge]:
    """Return the merges of a BPE tokenizer in order."""
    return [(a, b) for a, b in json.loads(tokenizer.to_str())["model"]["merges"]]


def kept_tokens(vocabulary: dict[str, int], merges: list[Merge], common: np.ndarray) -> list[str]:
    """Return the tokens whose ids are ``common`` and the tokens these are merged from, in vocabulary order.

    A token needs both parts of each merge that produces it, and their parts in turn. They are substrings of it and
    therefore occur in as many documents. No other token of two or more bytes is kept.
    """
    parts: dict[str, set[str]] = {}
    for a, b in merges:
        parts.setdefault(a + b, set()).update((a, b))
    kept = {token for token in vocabulary if len(token) == 1 or token in SPECIAL_TOKENS}
    waiting = [token for token, id in vocabulary.items() if common[id]]
    while waiting:
        token = waiting.pop()
        if token not in kept:
            kept.add(token)
            waiting.extend(parts.get(token, ()))
    return sorted(kept, key=vocabulary.__getitem__)
