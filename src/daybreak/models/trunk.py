"""What the architectures share: checks of a shape, a trunk with a tied decoder, and the way to and from checkpoints.

B sequences, L positions, K masked positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, to_export_tensors
from daybreak.core.errors import UserError
from daybreak.models.layers import Attention, correlate, visibility_mask

Model = TypeVar("Model", bound=Encoder)
Names = Callable[[str], list[str]]
"""Daybreak's name of a parameter -> its names in a checkpoint: several if it stacks their tensors."""

# ---------------------------------------------------------------- shapes


def check_shape(*sizes: int, dropouts: tuple[float, ...] = (), correlations: tuple[float, ...] = ()) -> None:
    """Raise UserError for a size below 1, a dropout outside [0, 1) or a correlation outside [0, 1] in --model."""
    if min(sizes) < 1:
        raise UserError("Every size in --model must be at least 1.", "Correct the number.")
    if not all(0 <= rate < 1 for rate in dropouts):
        raise UserError("A dropout in --model must be at least 0 and below 1.", "Correct the number.")
    if not all(0 <= value <= 1 for value in correlations):
        raise UserError("The correlations in --model must be in [0, 1].", "Correct the number.")


def check_heads(hidden_size: int, heads: int) -> None:
    """Raise UserError if the heads do not divide the hidden size."""
    if hidden_size % heads:
        raise UserError(
            f"A hidden size of {hidden_size} cannot be divided into {heads} heads.",
            "Choose --model.heads so that it divides --model.hidden-size.",
        )


# ---------------------------------------------------------------- the model


class Trunk(Encoder):
    """An encoder whose decoder has the weight of its embedding; subclasses call ``tie_decoder``."""

    def __init__(self, shape: Any, vocabulary: int):
        super().__init__()
        self.shape = shape
        self.vocabulary = vocabulary
        self.hidden_size = shape.hidden_size
        self.embedding = nn.Embedding(vocabulary, shape.hidden_size)

    def tie_decoder(self, *, bias: bool = True) -> None:
        self.output = nn.Linear(self.hidden_size, self.vocabulary, bias=bias)
        self.output.weight = self.embedding.weight

    @property
    def decoder(self) -> nn.Linear:
        return self.output

    def run_blocks(self, x: Tensor, positions: Tensor | None, causal: bool, attention_mask: Tensor | None) -> Tensor:
        """Run blocks of global attention, the last one at ``positions`` only: [B, L, D] -> [B, L or K, D]."""

        def mask_of(queries: Tensor | None, by_mask: bool) -> Tensor | None:
            return visibility_mask(
                x.shape[1],
                causal=by_mask,
                window=None,
                attention_mask=attention_mask,
                positions=queries,
                device=x.device,
            )

        # SDPA is faster with its own causal attention than with a mask, which masked positions need.
        mask = mask_of(None, causal and attention_mask is not None)
        for block in self.blocks[:-1]:
            x = self.run_block(block, x, mask, causal, None)
        last = mask if positions is None else mask_of(positions, causal)
        return self.run_block(self.blocks[-1], x, last, causal and positions is None, positions)


def correlate_attention(model: Encoder, query_key: float, value_output: float) -> None:
    """Give initial key weights this correlation with the query weights, and output weights with the transposed value
    weights, at constant variance (mimetic initialization, Trockman and Kolter 2023, arXiv 2305.09828, section 3)."""
    for block in model.blocks:
        attention = cast(Attention, block.attention)
        query, key, value = attention.qkv.weight.chunk(3)
        correlate(key, query, query_key)
        correlate(attention.out.weight, value.T, value_output)


# ---------------------------------------------------------------- names


def renamed(name: str, starts: tuple[tuple[str, str], ...], inner: tuple[tuple[str, str], ...]) -> str:
    """Replace the first of ``starts`` (ours, theirs) that ``name`` begins with, then all of ``inner``."""
    ours, theirs = next(pair for pair in starts if name.startswith(pair[0]))
    name = theirs + name[len(ours) :]
    for ours, theirs in inner:
        name = name.replace(ours, theirs)
    return name


def export_state(model: Encoder, names: Names) -> dict[str, Tensor]:
    """Return the state dict under the names of the export, without the tied decoder weight.

    transformers ties that weight again when it loads.
    """
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name != "output.weight":
            theirs = names(name)
            # Copies instead of views of one storage, which safetensors refuses.
            parts = [part.clone() for part in tensor.chunk(len(theirs))] if len(theirs) > 1 else [tensor]
            state.update(zip(theirs, parts))
    return to_export_tensors(state)


# ---------------------------------------------------------------- import


def check_fixed(known: Mapping[str, tuple[Any, ...]], entry: Callable[[str, Any], Any]) -> None:
    """Raise UserError for the first entry of a config.json with a value that the architecture lacks.

    Args:
        known: name -> supported values; a missing entry has the first one.
        entry: (name, default) -> the value in the config.json.
    """
    for name, values in known.items():
        value = entry(name, values[0])
        if value not in values:
            raise UserError(
                f"The checkpoint has {name} = {value!r}; only {' or '.join(map(repr, values))} is supported.",
                "Use another checkpoint.",
            )


def load_checkpoint(
    architecture: Callable[[Any, int], Model],
    shape: Any,
    vocabulary: int,
    weights: Mapping[str, Tensor],
    names: Names,
    *,
    copies: Mapping[str, str],
    ignored: str,
    wanted: str,
) -> Model:
    """Build the model of ``shape`` with the tensors of a checkpoint, in float32.

    Args:
        architecture: class of the model.
        copies: maps a tensor that may be missing to the one that it equals.
        ignored: regular expression for names that the architecture does not need.
        wanted: description of a complete checkpoint, for error messages.

    Raises:
        UserError: a tensor is missing, unknown, of another size, or differs from the tensor that it should equal.
    """
    sizes = _parameter_sizes(shape, vocabulary, weights)
    state = dict(weights)
    for copy, original in copies.items():
        if original in state and not torch.equal(state.setdefault(copy, state[original]), state[original]):
            raise UserError(
                f"The checkpoint's '{copy}' is not tied to '{original}'.", "Use a checkpoint with tied weights."
            )
    theirs = {ours: names(ours) for ours in sizes}
    expected = {name for parts in theirs.values() for name in parts}
    if missing := sorted(expected - state.keys(), key=lambda name: (name in copies, name)):
        raise UserError(f"The checkpoint lacks '{missing[0]}'.", f"Use a complete checkpoint of a {wanted}.")
    if unknown := sorted(name for name in state.keys() - expected if not re.search(ignored, name)):
        raise UserError(f"The checkpoint holds '{unknown[0]}', which is not part of a {wanted}.", "Use another one.")
    found = {}
    for ours, parts in theirs.items():
        tensor = torch.cat([state[name].float() for name in parts]) if len(parts) > 1 else state[parts[0]].float()
        if tuple(tensor.shape) not in (sizes[ours], sizes[ours] or (1,)):
            raise UserError(
                f"The checkpoint's '{parts[0]}' is {tuple(tensor.shape)}, but its config.json says {sizes[ours]}.",
                "Use weights and config of one checkpoint.",
            )
        found[ours] = tensor.reshape(sizes[ours])
    model = architecture(shape, vocabulary)
    model.load_state_dict(found)
    return model


def _parameter_sizes(shape: Any, vocabulary: int, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Sizes of the state dict of the model that a config.json describes, without allocating it.

    A file of a few bytes can describe a model of any size, so it is built with real tensors only after its sizes were
    compared with those of the weights.
    """
    if shape.layers > len(weights):
        raise UserError(
            f"The config.json says {shape.layers:,} layers, but the checkpoint has only {len(weights)} tensors.",
            "Use weights and config of one checkpoint.",
        )
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in shape.build(vocabulary).state_dict().items()}
