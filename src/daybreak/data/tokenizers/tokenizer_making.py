"""What all tokenizers that are made share: what makes one, the special tokens, and how it is written to its folder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.serialization import Component, to_dict
from daybreak.core.special_tokens import USUAL

SPECIAL_TOKENS = tuple(USUAL.values())
"""What the special tokens are for, in their order; the fields of SpecialIds."""
SMALLEST_VOCABULARY = 300
MANY_DOCUMENTS = 100
"""From this number of documents on, every piece must be used in SEVERAL_DOCUMENTS of them."""
SEVERAL_DOCUMENTS = 2
SURPLUS = 1 / 4
"""Share of pieces trained beyond the vocabulary wanted, to fill the places of those that too few documents use."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Component):
    """A tokenizer before it is made."""

    @abstractmethod
    def make(self, texts: Iterable[str], folder: Path) -> Tokenizer:
        """Write the tokenizer's files into ``folder`` and return it.

        Args:
            texts: what it may learn from, one string a document, in any order; iterable more than once.
            folder: the tokenizer folder, created here.
        """

    def identity(self) -> Any:
        """A plain value that tells this tokenizer from another one made of the same text."""
        return to_dict(self)


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer(TokenizerConfig):
    """One that learns its pieces from the text, the same from the same text."""

    smallest: ClassVar[str]
    """What a vocabulary must hold in any case, in words for people."""

    vocabulary: int = 32768
    """Number of ids wanted, special tokens included; a small text may give fewer."""

    @abstractmethod
    def learn(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """What ``train_sizes`` does once its arguments are checked; ``texts`` can be read again and again."""

    def make(self, texts: Iterable[str], folder: Path) -> Tokenizer:
        tokenizer = self.train(texts)
        save_tokenizer(tokenizer, folder)
        return tokenizer

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the pieces from ``texts`` (read twice; a plain iterator is kept in memory for that).

        Raises:
            UserError: the vocabulary is too small.
        """
        return self.train_sizes(texts, (self.vocabulary,))[0]

    def train_sizes(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """Learn once, at the largest of ``sizes``, and cut the smaller vocabularies from that.

        The largest is what ``train`` gives.

        Raises:
            UserError: a vocabulary is too small.
        """
        if min(sizes) < SMALLEST_VOCABULARY:
            raise UserError(
                f"A vocabulary of {min(sizes)} cannot hold {self.smallest}.", f"Ask for {SMALLEST_VOCABULARY} or more."
            )
        return self.learn(list(texts) if iter(texts) is texts else texts, sizes)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` so that ``AutoTokenizer`` loads the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{role}_token": token for role, token in USUAL.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": tokenizer.normalizer.normalize_str("A") == "a",
    }
    write_json(folder / "tokenizer_config.json", config)
