"""Tokenizers: how text becomes ids. Training the same text twice gives the same bytes, and fixed special ids.

A tokenizer folder holds ``tokenizer.json`` (everything, also for ``tokenizers`` alone) and ``tokenizer_config.json``
(what ``transformers.AutoTokenizer`` wants to know beside it).
"""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders

from daybreak.core.errors import UserError
from daybreak.core.serialization import check_choice
from daybreak.data.tokenizers.byte_bpe import SPACE, bytes_of_token, continues_word
from daybreak.data.tokenizers.tokenizer_making import (
    SPECIAL_TOKENS,
    SURPLUS,
    Alphabet,
    TrainedTokenizer,
    alphabet_of,
    common_ids,
    training_chunks,
)
from daybreak.data.tokenizers.tokenizer_making import TokenizerConfig as TokenizerConfig
from daybreak.data.tokenizers.tokenizer_making import save_tokenizer as save_tokenizer

PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
NORMALIZERS = ("bert", "cramming")
PUNCTUATION = ("single", "runs")
# Thai with Lao, Tibetan, Burmese, Khmer: blocks of scripts without spaces whose characters are not split either.
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
UNSPACED = frozenset(map(chr, (*range(0x0E00, 0x10A0), *range(0x1780, 0x1800))))
UNSPACED_FRACTION = 0.01
"""Minimum fraction of such characters in a text of such a script."""
PIECE_SPACE = "\u2581"
"""The space in a vocabulary of SentencePiece, such as XLM-RoBERTa's."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
"""Files of a tokenizer in a model folder."""

_Assemble = Callable[[dict[str, int]], Tokenizer]


@dataclass(frozen=True, kw_only=True)
class WordPiece(TrainedTokenizer):
    """BERT's tokenizer (Devlin et al. 2018): split at whitespace and punctuation, then take the longest tokens.

    Training is deterministic: threads and the order of the texts do not matter. With 100 texts or more, each token of
    two or more characters occurs in at least two of them, so that a name in a single private text does not become a
    token. With fewer texts, it occurs at least twice, also in a single one. A text is a document as it was read: a line
    or chunk of a file counts as one.
    """

    smallest = "an alphabet"

    cased: bool = False
    """Keep upper case and accents; otherwise both are removed. That suits English, but Finnish loses its dots, Hindi
    and Thai lose vowels, and Korean and Japanese syllables are split."""
    normalizer: str = "bert"
    """bert: the original's. cramming: straight quotes and ASCII only (Geiping and Goldstein 2022)."""
    punctuation: str = "single"
    """single: each punctuation mark is a word. runs: consecutive marks are one word, as in Cramming."""

    def __post_init__(self) -> None:
        check_choice("--tokenizer.normalizer", self.normalizer, NORMALIZERS)
        check_choice("--tokenizer.punctuation", self.punctuation, PUNCTUATION)

    def learn(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """Train once and truncate; the text is encoded once per size.

        Tokens are in merge order, so a smaller vocabulary is nearly the one trained at its size: its alphabet fits its
        size, but merges of removed characters are lost.
        """
        characters = alphabet_of(texts, self._assemble({token: id for id, token in enumerate(SPECIAL_TOKENS)}))
        assemble = functools.partial(self._assemble, unspaced=characters.fraction(UNSPACED) >= UNSPACED_FRACTION)
        tokens = _learn(assemble, texts, characters, max(sizes))
        return [assemble(_cut(assemble, texts, tokens, characters, size)) for size in sizes]

    def _assemble(self, vocabulary: dict[str, int], unspaced: bool = False) -> Tokenizer:
        normalizer = (
            cramming_normalizer(self.cased)
            if self.normalizer == "cramming"
            else normalizers.BertNormalizer(lowercase=not self.cased, strip_accents=not self.cased)
        )
        return assemble(vocabulary, normalizer, word_cutter(runs=self.punctuation == "runs", unspaced=unspaced))


def cramming_normalizer(cased: bool) -> normalizers.Normalizer:
    """Return the normalizer of Cramming (with NFKC if accents are kept)."""
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    fold = [normalizers.NFKC()] if cased else [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    ascii_only = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"[^\x00-\x7F]+"), "")]
    return normalizers.Sequence([*quotes, *fold, *ascii_only])


def word_cutter(*, runs: bool, unspaced: bool) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits at whitespace and punctuation, as BERT does.

    Args:
        runs: consecutive marks are one word (Cramming's expression \\w+|[^\\w\\s]+).
        unspaced: words of Thai, Lao, Tibetan, Burmese and Khmer, which are whole phrases, are split after 32 letters
            with their signs, because BERT treats a word of more than 100 characters as unknown.
    """
    cutter = pre_tokenizers.Whitespace() if runs else pre_tokenizers.BertPreTokenizer()
    if not unspaced:
        return cutter
    return pre_tokenizers.Sequence(
        [cutter, pre_tokenizers.Split(Regex(rf"(?:[{_UNSPACED}]\p{{M}}{{0,2}}){{1,32}}"), "isolated")]
    )


def _learn(assemble: _Assemble, texts: Iterable[str], characters: Alphabet, size: int) -> list[str]:
    """Return more than ``size`` tokens in order: special tokens, characters, then merges."""
    alphabet, continuations = characters.fitted(size)
    # The trainer numbers "##x" tokens in the random order of a hash map and breaks ties between merges by these
    # numbers. Passing all of them in sorted order makes training deterministic.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + int(SURPLUS * size),
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in continuations)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    blank = assemble({token: id for id, token in enumerate(SPECIAL_TOKENS)})
    blank.train_from_iterator(training_chunks(texts), trainer)
    # Without the added tokens: the trainer adds "##x" to them, and they would match inside any text.
    surplus = blank.get_vocab(with_added_tokens=False)
    return sorted(surplus, key=surplus.__getitem__)


def _cut(
    assemble: _Assemble, texts: Iterable[str], tokens: list[str], characters: Alphabet, size: int
) -> dict[str, int]:
    """Return the first ``size`` tokens in their alphabet that are single characters or used in enough texts."""
    fitted = [set(kept) for kept in characters.fitted(size)]

    def single(token: str) -> bool:
        return len(token.removeprefix("##")) == 1 or token in SPECIAL_TOKENS

    def fits(token: str) -> bool:
        body = token.removeprefix("##")
        return fitted[token != body and len(body) == 1].issuperset(body) or token in SPECIAL_TOKENS

    surplus = {token: id for id, token in enumerate(list(filter(fits, tokens))[: size + int(SURPLUS * size)])}
    common = common_ids(texts, assemble(surplus))
    # Required tokens come first in this order, so the rarest merges are dropped.
    kept = [token for token, id in surplus.items() if single(token) or common[id]]
    return {token: id for id, token in enumerate(kept[:size])}


def assemble(
    vocabulary: dict[str, int], normalizer: normalizers.Normalizer, pre_tokenizer: pre_tokenizers.PreTokenizer
) -> Tokenizer:
    """Build a WordPiece tokenizer with ``vocabulary``, which contains SPECIAL_TOKENS under any ids."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = token_decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load ``folder/tokenizer.json`` with any special ids, without padding and truncation."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"There is no tokenizer.json in '{folder}'.", "Check the path, or prepare the data again.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception for every problem of a file
        raise UserError(f"'{path}' is not a tokenizer: {error}.", "Restore it, or prepare the data again.") from None
    # Published files often contain such settings.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the largest id + 1, the number of embeddings of a model; ids may have gaps."""
    return int(max(tokenizer.get_vocab().values())) + 1


def continuation_table(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool[vocabulary]: the ids of tokens that continue a word if they are not the first of their text.

    These are tokens with ``##``, those of ``continues_word``, and of SentencePiece those that begin with a letter,
    digit or mark and not with its space.
    """
    table = np.zeros(vocabulary_size(tokenizer), bool)
    space = _space(tokenizer)
    for token, id in tokenizer.get_vocab().items():
        if space == PIECE_SPACE:
            table[id] = unicodedata.category(token[0])[0] in "LMN"
        else:
            table[id] = continues_word(token) if space == SPACE else token.startswith("##")
    table[[id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = False
    return table


def inner_byte_table(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool[vocabulary]: the ids of byte-level tokens that begin inside a character; none of other tokenizers."""
    table = np.zeros(vocabulary_size(tokenizer), bool)
    if _space(tokenizer) == SPACE:
        for token, id in tokenizer.get_vocab().items():
            table[id] = any(0x80 <= byte < 0xC0 for byte in bytes_of_token(token)[:1])
    return table


def _space(tokenizer: Tokenizer) -> str:
    """Return the letter of a vocabulary for the space before a word; another or none if it has no such letter."""
    parted = tokenizer.pre_tokenizer.pre_tokenize_str(" a") if tokenizer.pre_tokenizer else []
    return str(parted[0][0][0]) if parted else ""


def overlap(one: Tokenizer, other: Tokenizer) -> float:
    """Return the fraction of the tokens of ``one``, without special tokens, that ``other`` also has."""
    special = {token.content for token in one.get_added_tokens_decoder().values() if token.special}
    tokens = one.get_vocab().keys() - special
    return len(tokens & other.get_vocab().keys()) / max(1, len(tokens))


def tokenizer_fingerprint(folder: Path) -> str:
    """Return blake2b (8 bytes, hex) of ``folder/tokenizer.json``."""
    try:
        return hashlib.blake2b((folder / "tokenizer.json").read_bytes(), digest_size=8).hexdigest()
    except OSError:
        raise UserError(
            f"There is no readable tokenizer.json in '{folder}'.", "Check the path, or prepare the data again."
        ) from None
