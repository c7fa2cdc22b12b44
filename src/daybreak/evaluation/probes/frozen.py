"""A model as it came, with nothing trained on top: an encoder's states layer by layer, or its masked-LM head."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import (
    check_complete,
    load_config,
    load_tokenizer,
    model_class,
    read_weights,
    reading,
)
from daybreak.evaluation.tasks.batches import check_ids
from daybreak.training.hardware.probe import choose_device

BATCH_TOKENS = 4096
"""Tokens that go through the model at a time."""

Show = Callable[[float], None]
"""Called with the share of the work that is done."""


@dataclass(frozen=True)
class FrozenModel:
    """A stock model in eval mode and float32, with what belongs to it."""

    model: Any
    tokenizer: Any
    layers: int
    """Blocks of the encoder."""
    length: int
    """Longest row that the model's files speak of: the trained length, for an export of ours."""

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.vocab_size
        return size


def load_encoder(folder: Path) -> FrozenModel:
    """The bare encoder of a Hugging Face folder, or of one with a head, which is left behind.

    Raises:
        UserError: config, tokenizer or weights cannot be used, or the model needs foreign code.
    """
    return _load(folder, "", "the encoder")


def load_masked_model(folder: Path) -> FrozenModel:
    """The encoder with its masked-LM head.

    Raises:
        UserError: as ``load_encoder``; or the folder has no such head, or its tokenizer lacks a token that rows need.
    """
    found = _load(folder, "ForMaskedLM", "the encoder or its masked-LM head")
    for role in ("cls", "sep", "mask"):
        if getattr(found.tokenizer, f"{role}_token_id") is None:
            raise UserError(
                f"The tokenizer in '{folder}' names no {role}_token, which rows with hidden tokens need.",
                "Name it in tokenizer_config.json, or use the folder of a masked language model.",
            )
    return found


def _load(folder: Path, head: str, part: str) -> FrozenModel:
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    with reading(folder, "model"):
        model, report = read_weights(folder, model_class(config, head), config)
    check_complete(folder, report["missing_keys"], part)
    # Some encoders, those with relative positions among them, name no longest row.
    told = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length, longest_row(model)]
    length = min(rows for rows in told if rows is not None)
    return FrozenModel(model.eval().to(choose_device()), tokenizer, config.num_hidden_layers, length)


def part_of(show: Show, done: int, parts: int) -> Show:
    """What to call with the share of one of several equal parts, ``done`` of which are finished."""
    return lambda share: show((done + share) / parts)


def longest_row(model: Any) -> int | None:
    """Most tokens that the model's table of positions has room for; None where it has no table (rotary, sinusoid)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name:
            # RoBERTa counts its positions from behind the padding id.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


@torch.inference_mode()
def pooled_states(
    frozen: FrozenModel, texts: Sequence[str], length: int, show: Show = lambda share: None
) -> np.ndarray:
    """The mean of each layer's states over all tokens of a text, [CLS] and [SEP] among them.

    That is what sentence-transformers pools (Reimers and Gurevych 2019, arXiv:1908.10084, section 3). Only texts of
    equally many tokens share a batch, so that there is no padding for any layer to see.

    Args:
        texts: N of them.
        length: tokens of a text at most, special ones included; it loses its end.

    Returns:
        float32[layers + 1, N, D]: first the embeddings, last what the encoder gives, after its last norm.

    Raises:
        UserError: the tokenizer makes ids that the model does not know.
    """
    taken = inspect.signature(frozen.model.forward).parameters
    made = dict(frozen.tokenizer(list(texts), truncation=True, max_length=length))
    features = {name: values for name, values in made.items() if name in taken}
    ids = features["input_ids"]
    check_ids(ids, frozen.vocabulary)
    found = np.empty((0, 0, 0), np.float32)
    done = 0
    for indices in _equally_long(ids):
        inputs = {
            name: torch.tensor([values[index] for index in indices], device=frozen.device)
            for name, values in features.items()
        }
        outputs = frozen.model(**inputs, output_hidden_states=True)
        # Not every family puts its last norm into the last of the hidden states.
        states = (*outputs.hidden_states[:-1], outputs.last_hidden_state)
        means = torch.stack([state.mean(dim=1) for state in states]).float().cpu().numpy()
        if not found.size:
            found = np.empty((len(means), len(ids), means.shape[2]), np.float32)
        found[:, indices] = means
        done += len(indices)
        show(done / len(ids))
    return found


def _equally_long(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Every index once, in batches of about BATCH_TOKENS tokens whose rows have one length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_length[len(row)].append(index)
    for length in sorted(by_length):
        indices, batch = by_length[length], max(1, BATCH_TOKENS // max(1, length))
        yield from (indices[start : start + batch] for start in range(0, len(indices), batch))
