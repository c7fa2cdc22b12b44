"""Import the tokenizer of a model folder unchanged: its tokens, its special ids and its files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.special_tokens import special_ids
from daybreak.data.tokenizers.tokenizer import (
    FILES,
    SPECIAL_TOKENS,
    TokenizerConfig,
    assemble,
    load_tokenizer,
    save_tokenizer,
)


@dataclass(frozen=True, kw_only=True)
class Existing(TokenizerConfig):
    """The tokenizer of a model folder, of any kind and with any special ids; no training.

    A folder with vocab.txt only, as of the first BERT releases, gets a tokenizer.json that splits text as BERT does.
    """

    folder: str
    """Folder of a model, with tokenizer.json or vocab.txt; of prepared text; or of a run."""

    def make(self, texts: Iterable[str], folder: Path) -> Tokenizer:
        """Copy the files.

        Raises:
            UserError: there is no tokenizer, it is damaged, or it lacks one of the special tokens.
        """
        source = self._source()
        _settings(source)  # fails now rather than at export
        found = [name for name in FILES if (source / name).is_file()]
        folder.mkdir(parents=True, exist_ok=True)
        if "tokenizer.json" not in found:
            save_tokenizer(bert_tokenizer(source), folder)
        for name in found:
            shutil.copyfile(source / name, folder / name)
        tokenizer = load_tokenizer(folder)
        special_ids(tokenizer, folder)
        return tokenizer

    def identity(self) -> Any:
        """Return hashes of the files, independent of their folder."""
        source = self._source()
        found = [(name, (source / name).read_bytes()) for name in FILES if (source / name).is_file()]
        return {"kind": "Existing"} | {name: hashlib.blake2b(data, digest_size=8).hexdigest() for name, data in found}

    def _source(self) -> Path:
        given = Path(os.path.expanduser(self.folder))
        for source in (given, given / "tokenizer", given / "model"):  # a model, prepared text, a run
            if any((source / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
                return source
        raise UserError(
            f"There is no tokenizer.json and no vocab.txt in '{self.folder}'.",
            "Give the folder of a model, of prepared text or of a run.",
        )


def bert_tokenizer(folder: Path) -> Tokenizer:
    """Build BERT's tokenizer from ``folder/vocab.txt``, one token per line; uncased unless configured otherwise."""
    path = folder / "vocab.txt"
    try:
        # Not splitlines, because a token may be a character such as U+2028, which it treats as a line break.
        tokens = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.", "Restore it, or give another folder.") from None
    vocabulary = {token.rstrip(): id for id, token in enumerate(tokens)}
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise UserError(f"'{path}' has no {missing[0]}.", "Give the folder of a BERT model.")
    settings = _settings(folder)
    normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    return assemble(vocabulary, normalizer, pre_tokenizers.BertPreTokenizer())


def _settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, or {} if there is none."""
    path = folder / "tokenizer_config.json"
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
