"""The libraries that encode faster than ``tokenizers``, each told in its own way what a tokenizer is."""

from __future__ import annotations

import itertools
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

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
