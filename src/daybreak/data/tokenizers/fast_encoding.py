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
import json
import random
import re
import tempfile
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.readers.cleaning import PLAIN
from daybreak.data.readers.text_pieces import cut_at_whitespace

STAND_IN = "\ue000"
"""Begins the name that a special token gets in the copies: a private character, which is never trusted."""


class Unsuited(Exception):
    """This library, or any, cannot be used for this tokenizer: the message says why."""


@dataclass(frozen=True)
class Kind:
    """What matters of a tokenizer that the libraries may try."""

    byte_level: bool
    cramming: bool
    """Cramming's normaliser: straight quotes, and nothing but ASCII."""
    runs: bool
    """Whether marks in a row are one word."""
    uncased: bool
    folds: bool
    """Whether a character's ids may hang on the marks around it, even in text that is in Unicode's NFC."""


def kind_of(tokenizer: Tokenizer) -> Kind:
    """Look at how ``tokenizer`` is made.

    Raises:
        Unsuited: it is neither one of BERT's kind nor a byte-level one, so that text cannot be cut at spaces.
    """
    plain = json.loads(tokenizer.to_str())
    if any(not token["special"] for token in plain["added_tokens"]):
        raise Unsuited("the tokenizer has added words")
    parts = [part["type"] for part in _parts(plain["normalizer"], "normalizers")]
    cutting = _parts(plain["pre_tokenizer"], "pretokenizers")
    cuts = [part["type"] for part in cutting]
    uncased = bool(tokenizer.normalizer) and tokenizer.normalizer.normalize_str("A") == "a"
    if plain["model"]["type"] == "WordPiece" and cuts in (["BertPreTokenizer"], ["Whitespace"]):
        cramming = parts[:2] == ["Replace", "Replace"] and tokenizer.normalizer.normalize_str("``a''\u4f60") == '"a"'
        if cramming or parts == ["BertNormalizer"]:
            return Kind(False, cramming, cuts == ["Whitespace"], uncased, folds=cramming)
    byte_level = plain["model"]["type"] == "BPE" and cuts in (["ByteLevel"], ["Split", "ByteLevel"])
    if byte_level and set(parts) <= {"NFC", "Lowercase"} and not cutting[-1]["add_prefix_space"]:
        return Kind(True, False, False, uncased, folds=uncased)
    raise Unsuited("the tokenizer is neither of BERT's kind nor byte-level BPE")


def _parts(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer, one or several."""
    if step is None:
        return []
    found: list[dict[str, Any]] = step[name] if step["type"] == "Sequence" else [step]
    return found


class Library(ABC):
    """One library, told of one tokenizer."""

    name: str
    knows_marks = True
    """Whether an accent or vowel sign may belong to a word (\\p{M}), as in our byte-level tokenizers."""

    @abstractmethod
    def __init__(self, tokenizer: Tokenizer, kind: Kind): ...

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return uint32[tokens] of all texts in turn and int64[texts], the number of each."""


def _copy(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json without anything that would find special tokens in a text."""
    plain: dict[str, Any] = json.loads(tokenizer.to_str())
    special = {token["content"] for token in plain["added_tokens"]} - {plain["model"].get("unk_token")}
    vocabulary = plain["model"]["vocab"]
    plain["model"]["vocab"] = {STAND_IN + piece if piece in special else piece: id for piece, id in vocabulary.items()}
    return plain | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


class Kitoken(Library):
    """kitoken: reads every setting; a few times as fast as ``tokenizers``."""

    name = "kitoken"

    def __init__(self, tokenizer: Tokenizer, kind: Kind):
        try:
            from kitoken import Kitoken as Engine  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise Unsuited("kitoken is not installed (extra fast)") from None
        try:
            plain = _copy(tokenizer)
            # It wants to find the unknown token among these, and yet does not look for them in text.
            plain["added_tokens"] = [
                token
                for token in json.loads(tokenizer.to_str())["added_tokens"]
                if token["content"] == plain["model"].get("unk_token")
            ]
            self._engine = Engine.from_tokenizers(json.dumps(plain).encode())
        except Exception as error:  # it has no exceptions of its own
            raise Unsuited(f"kitoken cannot read the tokenizer ({error})") from None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        found = self._engine.encode_all(list(texts), False)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(itertools.chain.from_iterable(found), np.uint32, int(lengths.sum())), lengths


class Tokie(Library):
    """tokie: the fastest, but it knows only some normalisers and pre-tokenizers, so it is told of the nearest."""

    name = "tokie"

    def __init__(self, tokenizer: Tokenizer, kind: Kind):
        try:
            from tokie import Tokenizer as Engine  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise Unsuited("tokie is not installed (extra fast)") from None
        if kind.runs:
            raise Unsuited("tokie cannot take marks in a row for one word")
        self._quotes = kind.cramming
        plain = _copy(tokenizer)
        if kind.byte_level:
            self.knows_marks = False  # it takes any expression for one that it has, here for GPT-2's
            plain["normalizer"] = {"type": "NFC"}
            plain["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        else:
            plain["normalizer"] = {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": kind.uncased,
                "lowercase": kind.uncased,
            }
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "tokenizer.json"
                path.write_text(json.dumps(plain), "utf-8")
                self._engine = Engine.from_json(str(path))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Rust's PanicException is no Exception, and none of ours to name
            raise Unsuited(f"tokie cannot read the tokenizer ({error})") from None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._quotes:
            texts = [text.replace("``", '"').replace("''", '"') for text in texts]
        if not texts:
            return np.zeros(0, np.uint32), np.zeros(0, np.int64)
        encode: Any = self._engine.encode_batch_flat  # type: ignore[attr-defined, unused-ignore]  # not in its stubs
        ids, lengths = encode(list(texts), add_special_tokens=False)
        return ids, lengths.astype(np.int64)


LIBRARIES: tuple[type[Library], ...] = (Tokie, Kitoken)
"""The fastest first."""


def hostile_texts(tokenizer: Tokenizer, seed: int = 0) -> list[str]:
    """Texts on which libraries are known to differ, or might; always the same for the same vocabulary."""
    chance = random.Random(seed)
    texts = [f"a {token} b{token}" for token in sorted(tokenizer.get_vocab()) if token[:1] in "[<" and len(token) > 2][
        :40
    ]
    texts += ["[SEP]", "[CLS][PAD]", "x[MASK]y [UNK] [sep]", "", " ", "\n", "\n\n\n", " \n a \n\n\n b  ", "a\t\r\nb"]
    texts += ["a" * size + tail for size in (99, 100, 101, 1999, 2001, 9000, 12000) for tail in ("", " b", "\n\nb")]
    texts += ["it's I'LL they'd 'sa ''s x's' \"''``", "...!!! a_b __x__ --- ###a ##a #", "3.14 1,000 x12y 12" * 3]
    texts += [
        "a\u0301 e\u0301\u0323 \ufb01 \u212b",
        "\u200b\u200d\ufeff\u00ad a\u200bb",
        "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea",
    ]
    texts += [
        "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645",
        "\u4f60\u597d\u3002a\u4f60b",
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35" * 40,
    ]
    texts += [
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "\u110b\u1161\u11ab \uc548",
        "\u03a3\u0391\u03a3 \u0130I\u0131",
        "\0 a\x01b\x7f \x85 \u2028",
    ]
    every = [chr(code) for code in range(0x80, 0x110000, 997) if not 0xD800 <= code <= 0xDFFF]
    texts += [" ".join(f"a{one} {one}b" for one in every[place : place + 40]) for place in range(0, len(every), 40)]
    usual = [chr(code) for code in range(0x20, 0x600) if unicodedata.category(chr(code)) != "Cc"]
    texts += ["".join(chance.choices(usual, k=60)) for _ in range(200)]
    letters = "etaoinshrdlu" + "".join(map(chr, range(0x21, 0x7F)))
    texts += [
        " ".join("".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(40)) for _ in range(100)
    ]
    count = tokenizer.get_vocab_size()
    pieces = [tokenizer.decode([id]) for id in chance.sample(range(count), min(400, count))]
    glued = ["".join(chance.choices(pieces, k=3)) for _ in range(1000)]
    lines = ["\n" * chance.randint(1, 3) + "word " * chance.randint(1, 400) for _ in range(60)]
    return [*texts, " ".join(glued), "".join(glued), "".join(lines)]


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
