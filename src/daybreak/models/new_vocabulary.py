"""Moving a trained encoder to another vocabulary: every new piece starts from the old pieces that spell it.

V vocabulary, D hidden_size.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

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
    """Return a model of the same weights with ``new``'s vocabulary.

    A piece that both vocabularies have keeps its embedding and its output bias; any other gets the mean over the old
    pieces of its text (the warm start of domain vocabularies, for example AVocaDo, arXiv 2110.13434). Special tokens
    go from role to role.
    """
    fresh = shape.build(_ids(new))
    # Tied tensors stand here under several names. Nothing but these has a row for each id, whatever the shapes.
    tables = {id(tensor) for tensor in (model.decoder.weight, model.decoder.bias)}
    state = fresh.state_dict()
    kept = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in tables}
    fresh.load_state_dict({**state, **{name: tensor.detach() for name, tensor in kept.items() if name in state}})
    sources = token_sources(old, new, old_special, new_special)
    weight, bias = model.decoder.weight.detach(), model.decoder.bias
    with torch.no_grad():
        for place, ids in enumerate(sources):
            fresh.decoder.weight[place] = weight[ids].mean(dim=0)
            if bias is not None:
                fresh.decoder.bias[place] = bias.detach()[ids].mean()
    return fresh


def token_sources(old: Tokenizer, new: Tokenizer, old_special: SpecialIds, new_special: SpecialIds) -> list[list[int]]:
    """For each id of ``new`` the ids of ``old`` that it starts from, at least one each."""
    known = old.get_vocab()
    roles = {getattr(new_special, role): getattr(old_special, role) for role in vars(new_special)}
    sources: list[list[int]] = [[old_special.unk] for _ in range(_ids(new))]
    for piece, place in new.get_vocab().items():
        if place in roles:
            sources[place] = [roles[place]]
        elif piece in known:
            sources[place] = [known[piece]]
        else:
            spelled = old.encode(_text(new, piece), add_special_tokens=False).ids
            sources[place] = spelled or [old_special.unk]
    return sources


def _text(tokenizer: Tokenizer, piece: str) -> str:
    """What ``piece`` writes: without WordPiece's mark of going on, and byte-level pieces as characters."""
    if piece.startswith(CONTINUES) and len(piece) > len(CONTINUES):
        return piece.removeprefix(CONTINUES)
    return str(tokenizer.decoder.decode([piece])) if tokenizer.decoder else piece


def _ids(tokenizer: Tokenizer) -> int:
    """One more than the largest id, for a vocabulary may have holes."""
    return int(max(tokenizer.get_vocab().values())) + 1
