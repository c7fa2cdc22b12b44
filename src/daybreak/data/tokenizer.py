"""Tokenizers: how text becomes ids. Special ids are fixed; training the same text twice gives the same bytes.

A tokenizer folder holds ``tokenizer.json`` (everything, also for ``tokenizers`` alone) and ``tokenizer_config.json``
(what ``transformers.AutoTokenizer`` wants to know beside it).
"""

from __future__ import annotations

import hashlib
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders

from daybreak.base.errors import UserError
from daybreak.base.files import write_json
from daybreak.base.plain import Component

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))

SMALLEST_VOCABULARY = 300
SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000
MANY_DOCUMENTS = 100
"""From this number of documents on, every piece must be used in SEVERAL_DOCUMENTS of them."""
SEVERAL_DOCUMENTS = 2
SURPLUS = 1 / 4
"""Share of pieces trained beyond the vocabulary wanted, to fill the places of those that too few documents use."""
BATCH_DOCUMENTS = 64
PIECE_CHARACTERS = 1 << 16
"""Long texts are cut at whitespace into pieces of about this size: bounds memory and feeds every core."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Component):
    """A tokenizer before it is trained."""

    vocabulary: int = 32768
    """Number of ids wanted, special tokens included; a small text may give fewer."""

    @abstractmethod
    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the vocabulary from ``texts``, one string a document, in any order."""


@dataclass(frozen=True, kw_only=True)
class WordPiece(TokenizerConfig):
    """BERT's tokenizer (Devlin et al. 2018): whitespace and punctuation split, then the longest known pieces.

    Training is deterministic, whatever the number of threads and the order of the texts. A name that stands in one
    private document does not become a piece: from MANY_DOCUMENTS texts on, each piece of two or more characters is
    used in at least SEVERAL_DOCUMENTS of them; for fewer texts it merely occurs twice.
    """

    cased: bool = False
    """Keep capitals and accents; otherwise both are folded away."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the pieces from ``texts`` (read twice; a plain iterator is kept in memory for that).

        Raises:
            UserError: the vocabulary is too small to hold an alphabet.
        """
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise UserError(
                f"A vocabulary of {self.vocabulary} cannot hold an alphabet.",
                f"Ask for {SMALLEST_VOCABULARY} or more.",
            )
        if iter(texts) is texts:
            texts = list(texts)
        blank = self._assemble({token: id for id, token in enumerate(SPECIAL_TOKENS)})
        alphabet, continuations = _alphabet(texts, blank, _alphabet_limit(self.vocabulary))
        # The trainer numbers "##x" pieces as it meets them in a hash map, in a new order each time, and breaks ties
        # between merges by these numbers. Naming them all beforehand, sorted, takes that freedom away.
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocabulary + int(SURPLUS * self.vocabulary),
            min_frequency=2,
            special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in continuations)],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        blank.train_from_iterator((piece for text in texts for piece in cut_at_whitespace(text)), trainer)
        # The trainer has also entered the "##x" pieces as added tokens, which would be found inside any text:
        # a fresh tokenizer around the same vocabulary has none of that.
        surplus = blank.get_vocab(with_added_tokens=False)
        uses, documents = _document_counts(texts, self._assemble(surplus))
        several = SEVERAL_DOCUMENTS if documents >= MANY_DOCUMENTS else 0
        pieces = sorted(surplus, key=surplus.__getitem__)
        # What is always needed comes first in this order, so that the cut at the end falls on the rarest merges.
        kept = [
            p for p in pieces if len(p.removeprefix("##")) == 1 or p in SPECIAL_TOKENS or uses[surplus[p]] >= several
        ]
        return self._assemble({piece: id for id, piece in enumerate(kept[: self.vocabulary])})

    def _assemble(self, vocabulary: dict[str, int]) -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not self.cased, strip_accents=not self.cased)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = token_decoders.WordPiece(prefix="##")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
        )
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
        return tokenizer


def cut_at_whitespace(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at most about ``characters``, cut only where whitespace is: same ids in all."""
    start = 0
    while len(text) - start > characters:
        end = max(text.rfind(" ", start + 1, start + characters), text.rfind("\n", start + 1, start + characters))
        if end < 0:
            ends = [place for mark in " \n" if (place := text.find(mark, start + characters)) >= 0]
            end = min(ends, default=len(text))
        yield text[start:end]
        start = end
    yield text[start:]


def _document_counts(texts: Iterable[str], tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """Return int64[ids], the number of texts that use each id, and the number of texts."""
    counts = np.zeros(tokenizer.get_vocab_size(), np.int64)
    documents = 0
    source = iter(texts)
    while batch := list(itertools.islice(source, BATCH_DOCUMENTS)):
        pieces = [list(cut_at_whitespace(text)) for text in batch]
        flat = list(itertools.chain.from_iterable(pieces))
        encoded = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        for own in pieces:
            counts[list({id for _ in own for id in next(encoded).ids})] += 1
        documents += len(batch)
    return counts, documents


def _alphabet_limit(vocabulary: int) -> int:
    return min(LARGEST_ALPHABET, max(SMALLEST_ALPHABET, vocabulary // 32))


def _alphabet(texts: Iterable[str], tokenizer: Tokenizer, limit: int) -> tuple[list[str], list[str]]:
    """Return the commonest characters after normalisation, and those among them that may continue a word; sorted."""
    raw = np.zeros(0x110000, np.int64)
    for text in texts:
        for piece in cut_at_whitespace(text):
            values, counts = np.unique(np.frombuffer(piece.encode("utf-32-le"), np.uint32), return_counts=True)
            raw[values] += counts
    counted: dict[str, int] = {}
    continues: set[str] = set()
    for code in np.flatnonzero(raw):
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(f"a{chr(code)}")):
            continues.update(word[1:])
            for character in word:
                counted[character] = counted.get(character, 0) + int(raw[code])
    # The probe's own "a" was counted with every character; it is in the alphabet of any text that has one anyway.
    kept = sorted(counted, key=lambda character: (-counted[character], character))[:limit]
    return sorted(kept), sorted(continues.intersection(kept))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` so that ``AutoTokenizer`` loads the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    lowercase = isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and tokenizer.normalizer.lowercase
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": lowercase,
    }
    write_json(folder / "tokenizer_config.json", config)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load ``folder/tokenizer.json``.

    Raises:
        UserError: it is missing, is no tokenizer, or its special tokens do not have our ids.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"There is no tokenizer.json in '{folder}'.", "Check the path, or prepare the data again.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for whatever is wrong with a file
        raise UserError(f"'{path}' is no tokenizer: {error}.", "Restore it, or prepare the data again.") from None
    if [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] != list(range(len(SPECIAL_TOKENS))):
        raise UserError(
            f"'{path}' does not give {', '.join(SPECIAL_TOKENS)} the ids 0 to {len(SPECIAL_TOKENS) - 1}.",
            "Use a tokenizer made by daybreak prepare.",
        )
    return tokenizer


def tokenizer_fingerprint(folder: Path) -> str:
    """Return blake2b (8 bytes, hex) of ``folder/tokenizer.json``.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return hashlib.blake2b((folder / "tokenizer.json").read_bytes(), digest_size=8).hexdigest()
    except OSError:
        raise UserError(
            f"There is no readable tokenizer.json in '{folder}'.", "Check the path, or prepare the data again."
        ) from None
