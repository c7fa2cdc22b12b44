"""Text to ids faster than ``tokenizers`` does it, and to the same ids.

Two young libraries, tokie and kitoken, are many times as fast, and right on most text: tokie takes unassigned and
newer characters otherwise, cuts long texts where it has processors for, and reads some settings not at all. So neither
is believed. A layer sends a word through its library only where each of its characters is trusted; the other words go
to the layer below, and the last layer is ``tokenizers`` itself. A character is trusted when ``tokenizers``, asked at
its first appearance, gave the same ids for it in a dozen surroundings; what joins with its neighbours (marks, joiners,
Hangul letters) never is, unless the text is in Unicode's NFC and nothing else is folded.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.readers.cleaning import PLAIN
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.tokenizers.fast_libraries import LIBRARIES, Kind, Library, Unsuited, kind_of
from daybreak.data.tokenizers.hostile_texts import hostile_texts

Flat = tuple[np.ndarray, np.ndarray]
"""uint32[tokens] of all texts in turn, and int64[texts], how many of them each text has. No special tokens."""
Encode = Callable[[Sequence[str]], Flat]

DEFERRED_CHARACTERS = 1_000_000
"""That the layer below the fastest must be asked for: ``tokenizers`` takes as long for them as the check of one."""
SPAN_CHARACTERS = 2000
"""A span stays under the 10,000 bytes from which tokie cuts a text by the number of processors."""
SURROUNDINGS = (
    "{0}", "ab {0} cd", "a{0}b", "a{0}", "{0}b c", "1{0}2", ".{0}.", "({0}a", "a {0}{0}\n{0}.", "\n{0}\n",
    "'{0}s {0}'s", "the {0}x\n\n{0}", "x{0}{0}y",
)  # fmt: skip
UNKNOWN, TRUSTED, DOUBTED = range(3)
JOINING = {"Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Mc", "Me"}
"""Unicode categories of what changes its neighbours, or what versions of Unicode disagree on."""
MARKS = {"Mn", "Mc", "Me"}
ODD = {"Nl", "Zs", "Zl", "Zp"}
"""Letter numbers and other spaces (with circled letters): whether they are letters depends on whom one asks, and in a
byte-level vocabulary that shows only in a word with pieces of both."""
_JAMO = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")
_WORD = re.compile(r"[^ \n]+")
LONGEST = 2000
"""Characters; longer words and gaps go down, so that no span is long."""
_LONG = re.compile(rf"[^ \n]{{{LONGEST},}}|[ \n]{{{LONGEST},}}")


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """Turns texts into flat arrays of ids, special tokens in them read as mere text."""

    reasons: list[str]
    """Why not through a faster library, of each that was looked at."""
    encode: Encode
    _judge: Encode

    @property
    def name(self) -> str:
        """Which libraries it goes through by now, fastest first."""
        return _name(self.encode)

    def __call__(self, texts: Sequence[str]) -> Flat:
        return self.encode(texts)

    def identical(self, texts: Sequence[str]) -> bool:
        """Whether ``tokenizers`` gives the same ids for all of ``texts``: to be asked on a sample of the corpus."""
        return same(self.encode(texts), self._judge(texts))


def fast_encoder(tokenizer: Tokenizer) -> TextEncoder:
    """Return the fastest encoder that agrees with ``tokenizer`` on the hostile texts: ``tokenizers`` if none does.

    Memory: a few MB, and what a call's texts and ids take.

    Args:
        tokenizer: without padding and truncation; from now on it reads special tokens in text as mere text.
    """
    plain = functools.partial(_plain, tokenizer)
    tokenizer.encode_special_tokens = True
    reasons: list[str] = []
    try:
        kind = kind_of(tokenizer)
    except Unsuited as error:
        return TextEncoder([str(error)], plain, plain)
    hostile = hostile_texts(tokenizer)
    truth = plain(hostile)

    def fastest(libraries: Sequence[type[Library]]) -> Encode:
        """The first of them that is suited, with what it does not trust for the ones behind it."""
        for place, library in enumerate(libraries, 1):
            below = Deferred(plain, functools.partial(fastest, libraries[place:])) if libraries[place:] else plain
            try:
                layer = Layer(library(tokenizer, kind), plain, below, kind)
                if not same(layer(hostile), truth):
                    raise Unsuited(f"{library.name} gives other ids")
            except Unsuited as error:
                reasons.append(str(error))
                continue
            return layer
        return plain

    return TextEncoder(reasons, fastest(LIBRARIES), plain)


def plain_encoder(tokenizer: Tokenizer) -> TextEncoder:
    """Return ``tokenizers`` itself in the same clothes."""
    tokenizer.encode_special_tokens = True
    plain = functools.partial(_plain, tokenizer)
    return TextEncoder([], plain, plain)


def same(one: Flat, other: Flat) -> bool:
    """Whether two encodings are equal, text by text."""
    return np.array_equal(one[1], other[1]) and np.array_equal(one[0], other[0])


def _plain(tokenizer: Tokenizer, texts: Sequence[str]) -> Flat:
    found = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    return np.fromiter(itertools.chain.from_iterable(found), np.uint32, int(lengths.sum())), lengths


def _name(encode: Encode) -> str:
    if isinstance(encode, Deferred):
        return _name(encode.encode)
    return f"{encode.library.name}, {_name(encode.below)}" if isinstance(encode, Layer) else "tokenizers"


class Deferred:
    """Encodes by ``plain`` until so much has come that a faster way is worth the time of its check."""

    def __init__(self, plain: Encode, make: Callable[[], Encode]):
        self.encode, self._characters = plain, 0
        self._make: Callable[[], Encode] | None = make

    def __call__(self, texts: Sequence[str]) -> Flat:
        self._characters += sum(map(len, texts))
        if self._make and self._characters >= DEFERRED_CHARACTERS:
            self.encode, self._make = self._make(), None
        return self.encode(texts)


class Layer:
    """Sends what it trusts through one library, and the rest to the layer below.

    Args:
        library: encodes spans of text.
        evaluate: ``tokenizers``.
        below: takes what is not trusted.
        kind: what the tokenizer does to neighbours.

    Raises:
        Unsuited: the library errs in plain ASCII text, so that it would be of no use.
    """

    def __init__(self, library: Library, evaluate: Encode, below: Encode, kind: Kind):
        self.library, self.below, self._judge, self._kind = library, below, evaluate, kind
        self._states = np.zeros(0x110000, np.uint8)
        self._ask(np.frombuffer(PLAIN, np.uint8))
        if wrong := "".join(chr(code) for code in PLAIN if self._states[code] != TRUSTED)[:12]:
            raise Unsuited(f"{library.name} gives other ids around {wrong!r}")

    def __call__(self, texts: Sequence[str]) -> Flat:
        spans: tuple[list[str], list[str]] = ([], [])
        trusted: list[bool] = []
        counts = np.zeros(len(texts), np.int64)
        for number, text in enumerate(texts):
            before = len(trusted)
            for span, fast in self._spans(text):
                spans[fast].append(span)
                trusted.append(fast)
            counts[number] = len(trusted) - before
        below, own = self.below(spans[False]), self.library.encode(spans[True])
        return _woven(below, own, np.array(trusted, bool), counts)

    def _spans(self, text: str) -> list[tuple[str, bool]]:
        """Cut ``text`` where whitespace begins into spans, each with whether it may go through the library."""
        doubted = self._doubted(text)
        found: list[tuple[str, bool]] = []
        start = 0
        for place in doubted.tolist():
            if place < start:
                continue
            end = min((at for mark in " \n" if (at := text.find(mark, place + 1)) >= 0), default=len(text))
            word = max(text.rfind(mark, start, place) for mark in " \n")
            begin = start + len(text[start:word].rstrip(" \n")) if word >= 0 else start
            if begin > start:
                found += ((span, True) for span in cut_at_whitespace(text[start:begin], SPAN_CHARACTERS))
            if found and not found[-1][1]:
                found[-1] = (found[-1][0] + text[begin:end], False)
            else:
                found.append((text[begin:end], False))
            start = end
        if start < len(text):
            found += ((span, True) for span in cut_at_whitespace(text[start:], SPAN_CHARACTERS))
        return found

    def _doubted(self, text: str) -> np.ndarray:
        """Places of characters that this layer does not trust, ascending."""
        if text.isascii():
            data = text.encode()
            codes: np.ndarray = np.frombuffer(data, np.uint8)
            doubts = self._states_of(codes) == DOUBTED if data.translate(None, PLAIN) else np.zeros(len(codes), bool)
        else:
            codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
            doubts = self._states_of(codes) == DOUBTED
        if _may_hold_long_runs(codes):
            for long in _LONG.finditer(text):
                # A long run of whitespace goes with the word behind it, if there is one.
                doubts[min(long.end(), len(text) - 1) if long[0].isspace() else long.start()] = True
        if self._kind.runs:
            for hashes in re.finditer("##", text):  # the libraries take these for a piece that goes on
                doubts[hashes.start()] = True
        if self._kind.byte_level and not text.isascii() and not unicodedata.is_normalized("NFC", text):
            for word in _WORD.finditer(text):
                if not unicodedata.is_normalized("NFC", word[0]):
                    doubts[word.start()] = True
        return np.flatnonzero(doubts)

    def _states_of(self, codes: np.ndarray) -> np.ndarray:
        states = self._states[codes]
        if (new := states == UNKNOWN).any():
            self._ask(np.unique(codes[new]))
            states = self._states[codes]
        return states

    def _ask(self, codes: np.ndarray) -> None:
        """Settle whether each of these characters is trusted."""
        self._states[codes] = DOUBTED
        asked = [int(code) for code in codes if not self._joins(chr(code))]
        texts = [frame.format(chr(code)) for code in asked for frame in SURROUNDINGS]
        mine, theirs = (_lists(flat) for flat in (self.library.encode(texts), self._judge(texts)))
        wide = len(SURROUNDINGS)
        for place, code in enumerate(asked):
            if mine[place * wide : (place + 1) * wide] == theirs[place * wide : (place + 1) * wide]:
                self._states[code] = TRUSTED

    def _joins(self, character: str) -> bool:
        """Whether it must not be trusted, whatever the answers: what it does may show only beside others."""
        if character.isascii():
            return not character.isprintable() and character != "\n"
        category = unicodedata.category(character)
        if category in MARKS:
            # Unicode sorts the marks of a letter; where BERT strips those of class Mn, others may have moved.
            moved = category != "Mn" and unicodedata.combining(character) > 0
            return self._kind.folds or moved or (self._kind.byte_level and not self.library.knows_marks)
        if self._kind.byte_level and (
            category in ODD or (category == "So" and "LATIN" in unicodedata.name(character, ""))
        ):
            return True
        return category in JOINING or bool(_JAMO.match(character))


def _may_hold_long_runs(codes: np.ndarray) -> bool:
    """Whether _LONG may match: a run of LONGEST characters covers a window of half as many from end to end."""
    window = LONGEST // 2
    blank = (codes == ord(" ")) | (codes == ord("\n"))
    windows = blank[: len(blank) // window * window].reshape(-1, window)
    return bool((windows.all(axis=1) | ~windows.any(axis=1)).any())


def _lists(flat: Flat) -> list[list[int]]:
    ids, ends = flat[0].tolist(), np.cumsum(flat[1]).tolist()
    return [ids[start:end] for start, end in zip([0, *ends], ends)]


def _woven(below: Flat, own: Flat, trusted: np.ndarray, counts: np.ndarray) -> Flat:
    """Bring the ids of spans into the order of the text; ``counts`` says how many spans each text has."""
    lengths = np.zeros(len(trusted), np.int64)
    lengths[trusted], lengths[~trusted] = own[1], below[1]
    ids = np.empty(int(lengths.sum()), np.uint32)
    of_own = np.repeat(trusted, lengths)
    ids[of_own], ids[~of_own] = own[0], below[0]
    totals = np.append(0, np.cumsum(lengths))[np.append(0, np.cumsum(counts))]
    return ids, np.diff(totals)
