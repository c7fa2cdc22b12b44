"""Cramming's filter: remove text that a tokenizer cannot compress (Geiping and Goldstein 2022, section 4.4)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.tokenizers.tokenizer import load_tokenizer

SELF = "self"
FILTER_VOCABULARY = 32_768
"""Smallest vocabulary of a tokenizer that is trained for the filter: the paper's. A smaller one needs more tokens for
the same text: with 8,192 the threshold removes 29 % of 1,500 Wikipedia articles, with 32,768 below 1 %."""
REASON = "too many tokens for its characters"


def count_tokens(text: str, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of ``text`` with its special tokens; long text is split at whitespace."""
    encoded = tokenizer.encode_batch_fast(list(cut_at_whitespace(text)), add_special_tokens=False)
    return sum(map(len, encoded)) + int(tokenizer.num_special_tokens_to_add(False))


@dataclass(frozen=True, kw_only=True)
class Compressibility(DocumentFilter):
    """Keeps a document if its tokens are fewer than ``threshold`` times its characters.

    The paper gives 0.3 as an example; all of its published runs use 0.25. They count with the pretrained tokenizer of
    albert-base-v2 or, with ``remove_trash: self``, with a tokenizer trained on the text.
    """

    threshold: float = 0.25
    """Tokens per character."""
    tokenizer: str = SELF
    """self for a tokenizer trained on the unfiltered text, else a tokenizer folder, such as that of albert-base-v2."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UserError(f"A threshold of {self.threshold} is not possible.", "Give tokens per character in (0, 1].")

    @property
    def needs_tokenizer(self) -> bool:
        return self.tokenizer == SELF

    def why(self) -> str:
        whose = "a tokenizer of this text" if self.needs_tokenizer else f"the tokenizer in '{self.tokenizer}'"
        return f"text that {whose} cannot compress: Cramming's filter (Geiping and Goldstein 2022)"

    def open(self, context: Context) -> FilterFunction:
        folder = context.tokenizer if self.needs_tokenizer else Path(os.path.expanduser(self.tokenizer))
        if folder is None:
            raise ValueError("a tokenizer trained on the text must be given")
        tokenizer = load_tokenizer(folder)
        tokenizer.encode_special_tokens = True  # "[SEP]" in the text is ordinary text

        def evaluate(text: str) -> str | None:
            return None if count_tokens(text, tokenizer) < self.threshold * len(text) else REASON

        return evaluate
