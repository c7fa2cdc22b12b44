"""Encode text with tokie, several times as fast as ``tokenizers`` and with identical ids.

tokie differs from ``tokenizers`` on some text: on unassigned and recently added characters, on texts so long that it
splits them by the number of processors, and for some normalizer settings. Daybreak therefore checks it:

- A word goes through tokie only if each of its characters is trusted. All other words go through ``tokenizers``.
- When a character first appears, both libraries encode it in SURROUNDINGS. It is trusted if all ids agree.
- Characters that interact with their neighbors (combining marks, joiners, Hangul jamo) are never trusted. The one
  exception are marks that stay in place, if the tokenizer is WordPiece with the normalizer of BERT.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.readers.cleaning import PLAIN
from daybreak.data.readers.text_pieces import cut_at_whitespace

Flat = tuple[np.ndarray, np.ndarray]
"""uint32[tokens]: the ids of all texts, concatenated; int64[texts]: the number of ids of each. No special tokens."""

PLACEHOLDER = "\ue000"
"""Prefix that renames special tokens in tokie's copy of the vocabulary: a private character, which is never trusted."""
SPAN_CHARACTERS = 2000
"""Keeps spans under 10,000 bytes, the size from which tokie splits a text by the number of processors."""
SURROUNDINGS = (
    "{0}", "ab {0} cd", "a{0}b", "a{0}", "{0}b c", "1{0}2", ".{0}.", "({0}a", "a {0}{0}\n{0}.", "\n{0}\n",
    "'{0}s {0}'s", "the {0}x\n\n{0}", "x{0}{0}y",
)  # fmt: skip
UNKNOWN, TRUSTED, UNTRUSTED = range(3)
JOINING = {"Cc", "Cf", "Cn", "Co", "Cs"}
"""Unicode categories of characters that change their neighbors, or that differ between versions of Unicode."""
MARKS = {"Mn", "Mc", "Me"}
AMBIGUOUS = {"Nl", "Zs", "Zl", "Zp"}
"""Letter numbers and unusual spaces (and circled letters): libraries disagree on whether they are letters. In a
byte-level vocabulary the difference shows only in words that mix them with letters."""
_JAMO = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")


class UnsupportedTokenizer(Exception):
    """tokie cannot be used for this tokenizer; the message says why."""


@dataclass(frozen=True)
class TokenizerTraits:
    """The properties of a tokenizer that decide how tokie is configured."""

    byte_level: bool = False
    cramming: bool = False
    """The Cramming normalizer: straight quotes, ASCII only."""
    uncased: bool = False


def tokenizer_traits(tokenizer: Tokenizer) -> TokenizerTraits:
    """Read the traits from the tokenizer's configuration.

    Raises:
        UnsupportedTokenizer: it is neither a BERT-style nor a byte-level tokenizer that tokie can reproduce.
    """
    config = json.loads(tokenizer.to_str())
    if any(not token["special"] for token in config["added_tokens"]):
        raise UnsupportedTokenizer("the tokenizer has added words")
    normalizers = [part["type"] for part in _parts(config["normalizer"], "normalizers")]
    pre_tokenizers = _parts(config["pre_tokenizer"], "pretokenizers")
    cuts = [part["type"] for part in pre_tokenizers]
    if config["model"]["type"] == "WordPiece" and cuts == ["BertPreTokenizer"]:
        cramming = normalizers[:2] == ["Replace"] * 2 and tokenizer.normalizer.normalize_str("``a''\u4f60") == '"a"'
        if cramming or normalizers == ["BertNormalizer"]:
            return TokenizerTraits(cramming=cramming, uncased=tokenizer.normalizer.normalize_str("A") == "a")
    byte_level = config["model"]["type"] == "BPE" and cuts in (["ByteLevel"], ["Split", "ByteLevel"])
    if byte_level and set(normalizers) <= {"NFC"} and not pre_tokenizers[-1]["add_prefix_space"]:
        return TokenizerTraits(byte_level=True)
    raise UnsupportedTokenizer("tokie reproduces only BERT-style WordPiece and cased byte-level BPE")


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the members of a normalizer or pre-tokenizer, whether it is a sequence or a single one."""
    if component is None:
        return []
    parts: list[dict[str, Any]] = component[name] if component["type"] == "Sequence" else [component]
    return parts


class Tokie:
    """tokie, configured with the supported normalizer and pre-tokenizer that are closest to the tokenizer's own.

    Raises:
        UnsupportedTokenizer: tokie is not installed or cannot load the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, traits: TokenizerTraits):
        try:
            from tokie import Tokenizer as Engine  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise UnsupportedTokenizer("tokie is not installed (extra fast)") from None
        self._quotes = traits.cramming
        config = _without_special_tokens(tokenizer)
        if traits.byte_level:
            # tokie replaces any expression by its own, here GPT-2's.
            config["normalizer"] = {"type": "NFC"}
            config["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        else:
            config["normalizer"] = {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": traits.uncased,
                "lowercase": traits.uncased,
            }
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "tokenizer.json"
                path.write_text(json.dumps(config), "utf-8")
                self._engine = Engine.from_json(str(path))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a PanicException from Rust derives from BaseException
            raise UnsupportedTokenizer(f"tokie cannot read the tokenizer ({error})") from None

    def encode(self, texts: Sequence[str]) -> Flat:
        if self._quotes:
            texts = [text.replace("``", '"').replace("''", '"') for text in texts]
        if not texts:
            return np.zeros(0, np.uint32), np.zeros(0, np.int64)
        encode: Any = self._engine.encode_batch_flat  # type: ignore[attr-defined, unused-ignore]  # not in its stubs
        ids, lengths = encode(list(texts), add_special_tokens=False)
        return ids, lengths.astype(np.int64)


def _without_special_tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of tokenizer.json, changed so that special tokens are not recognized in text."""
    config: dict[str, Any] = json.loads(tokenizer.to_str())
    special = {token["content"] for token in config["added_tokens"]} - {config["model"].get("unk_token")}
    vocabulary = config["model"]["vocab"]
    config["model"]["vocab"] = {
        PLACEHOLDER + token if token in special else token: id for token, id in vocabulary.items()
    }
    return config | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


class TextEncoder:
    """Encodes texts with ``tokenizers`` to flat arrays of ids. Special tokens in a text are encoded as ordinary text.

    Args:
        tokenizer: without padding and truncation. Its ``encode_special_tokens`` is set.
    """

    def __init__(self, tokenizer: Tokenizer):
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> Flat:
        return self.reference(texts)

    def reference(self, texts: Sequence[str]) -> Flat:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths

    def identical(self, texts: Sequence[str]) -> bool:
        """Return whether ``tokenizers`` gives the same ids for all ``texts``; meant for a sample of the corpus."""
        return all(map(np.array_equal, self(texts), self.reference(texts)))


def fast_encoder(tokenizer: Tokenizer) -> TextEncoder:
    """Return an encoder that uses tokie if it agrees with ``tokenizer`` on ``hostile_texts``, else ``tokenizers``.

    Memory: a few MB, and the texts and ids of one call.
    """
    try:
        encoder = CheckedEncoder(tokenizer)
    except UnsupportedTokenizer:
        return TextEncoder(tokenizer)
    return encoder if encoder.identical(hostile_texts(tokenizer)) else TextEncoder(tokenizer)


class CheckedEncoder(TextEncoder):
    """Encodes trusted spans with tokie and the rest with ``tokenizers``.

    Raises:
        UnsupportedTokenizer: tokie cannot be used, or gives wrong ids for plain ASCII text.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._traits = tokenizer_traits(tokenizer)
        self._library = Tokie(tokenizer, self._traits)
        self._states = np.zeros(0x110000, np.uint8)
        self._check(np.frombuffer(PLAIN, np.uint8))
        if wrong := "".join(chr(code) for code in PLAIN if self._states[code] != TRUSTED)[:12]:
            raise UnsupportedTokenizer(f"tokie gives other ids around {wrong!r}")

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
        plain, fast_ids = self.reference(spans[False]), self._library.encode(spans[True])
        return _interleave(plain, fast_ids, np.array(trusted, bool), counts)

    def _spans(self, text: str) -> list[tuple[str, bool]]:
        """Split ``text`` where whitespace begins; return the spans, each with whether tokie may encode it."""
        found: list[tuple[str, bool]] = []

        def add_trusted(part: str) -> None:
            # A longer span holds a long word or run of whitespace, for which tokie is not checked.
            pieces = cut_at_whitespace(part, SPAN_CHARACTERS)
            found.extend((piece, len(piece) <= SPAN_CHARACTERS) for piece in pieces if piece)

        start = 0
        for place in self._untrusted(text):
            if place < start:
                continue
            end = min((at for mark in " \n" if (at := text.find(mark, place + 1)) >= 0), default=len(text))
            word = max(text.rfind(mark, start, place) for mark in " \n")
            begin = start + len(text[start:word].rstrip(" \n")) if word >= 0 else start
            add_trusted(text[start:begin])
            if found and not found[-1][1]:
                found[-1] = (found[-1][0] + text[begin:end], False)
            else:
                found.append((text[begin:end], False))
            start = end
        add_trusted(text[start:])
        return found

    def _untrusted(self, text: str) -> list[int]:
        """Return the positions of untrusted characters, ascending."""
        if text.isascii():
            data = text.encode()
            if not data.translate(None, PLAIN):
                return []
            codes: np.ndarray = np.frombuffer(data, np.uint8)
        else:
            codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        if (new := self._states[codes] == UNKNOWN).any():
            self._check(np.unique(codes[new]))
        places: list[int] = np.flatnonzero(self._states[codes] == UNTRUSTED).tolist()
        return places

    def _check(self, codes: np.ndarray) -> None:
        """Decide for each of these characters whether it is trusted."""
        self._states[codes] = UNTRUSTED
        candidates = [int(code) for code in codes if not self._interacts(chr(code))]
        texts = [frame.format(chr(code)) for code in candidates for frame in SURROUNDINGS]
        encoded = self._library.encode(texts), self.reference(texts)
        fast, plain = (np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in encoded)
        equal = np.fromiter(map(np.array_equal, fast, plain), bool, len(texts)).reshape(-1, len(SURROUNDINGS))
        self._states[np.array(candidates, int)[equal.all(axis=1)]] = TRUSTED

    def _interacts(self, character: str) -> bool:
        """Return whether a character may change how others are encoded, so that no test of it alone suffices."""
        if character.isascii():
            return not character.isprintable() and character != "\n"
        category = unicodedata.category(character)
        if category in MARKS:
            # Normalization reorders the marks of a letter; if BERT strips those of class Mn, others may have moved.
            moved = category != "Mn" and unicodedata.combining(character) > 0
            return self._traits.cramming or self._traits.byte_level or moved
        circled = category == "So" and "LATIN" in unicodedata.name(character, "")
        ambiguous = self._traits.byte_level and (category in AMBIGUOUS or circled)
        return ambiguous or category in JOINING or bool(_JAMO.match(character))


def _interleave(plain: Flat, fast: Flat, trusted: np.ndarray, counts: np.ndarray) -> Flat:
    """Merge the ids of both libraries in text order; ``counts`` is the number of spans of each text."""
    lengths = np.zeros(len(trusted), np.int64)
    lengths[trusted], lengths[~trusted] = fast[1], plain[1]
    ids = np.empty(int(lengths.sum()), np.uint32)
    is_fast = np.repeat(trusted, lengths)
    ids[is_fast], ids[~is_fast] = fast[0], plain[0]
    totals = np.append(0, np.cumsum(lengths))[np.append(0, np.cumsum(counts))]
    return ids, np.diff(totals)


def hostile_texts(tokenizer: Tokenizer) -> list[str]:
    """Return texts on which tokenizer libraries are known or likely to differ; deterministic for a vocabulary."""
    rng = random.Random(0)
    special = [token for token in sorted(tokenizer.get_vocab()) if token[:1] in "[<" and len(token) > 2][:40]
    every = [chr(code) for code in range(0x80, 0x110000, 997) if not 0xD800 <= code <= 0xDFFF]
    usual = [chr(code) for code in range(0x20, 0x600) if unicodedata.category(chr(code)) != "Cc"]
    letters = "etaoinshrdlu" + "".join(map(chr, range(0x21, 0x7F)))
    count = tokenizer.get_vocab_size()
    tokens = [tokenizer.decode([id]) for id in rng.sample(range(count), min(400, count))]
    glued = ["".join(rng.choices(tokens, k=3)) for _ in range(1000)]
    known = [
        "[SEP]", "[CLS][PAD]", "x[MASK]y [UNK] [sep]", "", " ", "\n", "\n\n\n", " \n a \n\n\n b  ", "a\t\r\nb",
        "it's I'LL they'd 'sa ''s x's' \"''``", "...!!! a_b __x__ --- ###a ##a #", "3.14 1,000 x12y 12" * 3,
        "a\u0301 e\u0301\u0323 \ufb01 \u212b", "\u200b\u200d\ufeff\u00ad a\u200bb", "\0 a\x01b\x7f \x85 \u2028",
        "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea", "\u03a3\u0391\u03a3 \u0130I\u0131",
        "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645", "\u4f60\u597d\u3002a\u4f60b",
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35" * 40, "\u0939\u093f\u0928\u094d\u0926\u0940",
        "\u110b\u1161\u11ab \uc548",
    ]  # fmt: skip
    return [
        *(f"a {token} b{token}" for token in special),
        *known,
        *("a" * size + tail for size in (99, 100, 101, 1999, 2001, 9000, 12000) for tail in ("", " b", "\n\nb")),
        *(" ".join(f"a{one} {one}b" for one in every[place : place + 40]) for place in range(0, len(every), 40)),
        *("".join(rng.choices(usual, k=60)) for _ in range(200)),
        *(" ".join("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(40)) for _ in range(100)),
        " ".join(glued),
        "".join(glued),
        "".join("\n" * rng.randint(1, 3) + "word " * rng.randint(1, 400) for _ in range(60)),
    ]
