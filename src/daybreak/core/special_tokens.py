"""Special token ids of a vocabulary, from the files beside a tokenizer."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.schemas.run import SpecialIds

USUAL = {role.name: f"[{role.name.upper()}]" for role in fields(SpecialIds)}
"""Role of a special token -> its text in the tokenizers of BERT and Daybreak."""
OF_ROBERTA = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
"""The same for RoBERTa, XLM-RoBERTa and CamemBERT, whose published folders do not name them either."""


class Vocabulary(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used here."""

    def token_to_id(self, token: str) -> int | None: ...


def special_ids(tokenizer: Vocabulary, folder: Path) -> SpecialIds:
    """Find the special ids from the configuration files in ``folder``, else from [PAD] and so on, else from <pad>."""
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        with contextlib.suppress(UserError):  # not every tokenizer has both, and the usual names are tried without them
            content = read_json(folder / name)
            named |= content if isinstance(content, dict) else {}
    ids: dict[str, int] = {}
    for role, usual in USUAL.items():
        token = named.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        found = [tokenizer.token_to_id(name) for name in (token, usual, OF_ROBERTA[role]) if isinstance(name, str)]
        id = next((each for each in found if each is not None), None)
        if id is None:
            raise UserError(
                f"The tokenizer in '{folder}' has no {token or usual} token.",
                f"Use one with {', '.join(USUAL.values())}, or name its own in tokenizer_config.json.",
            )
        ids[role] = id
    return SpecialIds(**ids)
