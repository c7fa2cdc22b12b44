"""Conversion of a trained encoder to another vocabulary: a new token starts from the old tokens that spell it."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.schemas.run import SpecialIds

CONTINUES = "##"


def with_vocabulary(
    model: Encoder,
    shape: EncoderConfig,
    *,
    old: Tokenizer,
    new: Tokenizer,
    old_special: SpecialIds,
    new_special: SpecialIds,
) -> Encoder:
    """Return a model with the same weights and the vocabulary of ``new``.

    A token of both vocabularies keeps its embedding and its output bias. Any other token gets the mean over the old
    tokens of its text (as in AVocaDo, arXiv 2110.13434), as do all tokens if the kind of the tokenizer changes: equal
    strings then have other meanings. Special tokens are mapped by role.
    """
    fresh = shape.build(_ids(new))
    # Tied tensors have several names. Only these tables have one row per id.
    tables = {id(tensor) for tensor in (model.decoder.weight, model.decoder.bias)}
    others = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in tables}
    fresh.load_state_dict(others, strict=False)
    sources = token_sources(old, new, old_special, new_special)
    weight, bias = model.decoder.weight.detach(), model.decoder.bias
    with torch.no_grad():
        for place, ids in enumerate(sources):
            fresh.decoder.weight[place] = weight[ids].mean(dim=0)
            if bias is not None:
                fresh.decoder.bias[place] = bias.detach()[ids].mean()
    return fresh


def token_sources(old: Tokenizer, new: Tokenizer, old_special: SpecialIds, new_special: SpecialIds) -> list[list[int]]:
    """Return for each id of ``new`` the ids of ``old`` that it starts from, at least one."""
    # "the" begins a word in WordPiece and continues one in byte-level BPE, where a letter such as "\u00e9" is a byte.
    old_ids = old.get_vocab() if type(old.model) is type(new.model) else {}
    roles = {getattr(new_special, role): getattr(old_special, role) for role in vars(new_special)}
    sources: list[list[int]] = [[old_special.unk] for _ in range(_ids(new))]
    for token, place in new.get_vocab().items():
        if place in roles:
            sources[place] = [roles[place]]
        elif token in old_ids:
            sources[place] = [old_ids[token]]
        else:
            spelled = old.encode(_text(new, token), add_special_tokens=False).ids
            sources[place] = spelled or [old_special.unk]
    return sources


def _text(tokenizer: Tokenizer, token: str) -> str:
    """The text of ``token`` with the space before it: a word of WordPiece has one, byte-level tokens contain theirs."""
    if isinstance(tokenizer.model, models.WordPiece):
        if token.startswith(CONTINUES) and len(token) > len(CONTINUES):
            return token.removeprefix(CONTINUES)
        return f" {token}" if token[:1].isalnum() else token
    return str(tokenizer.decoder.decode([token])) if tokenizer.decoder else token


def _ids(tokenizer: Tokenizer) -> int:
    """The largest id plus one; a vocabulary may have gaps."""
    return int(max(tokenizer.get_vocab().values())) + 1
