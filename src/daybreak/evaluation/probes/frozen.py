"""Frozen models: the states of an encoder layer by layer, or its masked-LM head."""

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
from daybreak.evaluation.finetuning.classifier import load_config, load_model, load_tokenizer
from daybreak.evaluation.tasks.batches import check_ids
from daybreak.training.hardware.probe import choose_device

BATCH_TOKENS = 4096
"""Tokens per batch."""

Show = Callable[[float], None]
"""Called with the fraction of the work that is done."""


@dataclass(frozen=True)
class FrozenModel:
    """A stock model in eval mode and float32, with its tokenizer."""

    model: Any
    tokenizer: Any
    layers: int
    """Number of layers of the encoder."""
    length: int
    """Longest sequence according to the model's files; for Daybreak's exports the training length."""

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.vocab_size
        return size


def load_encoder(folder: Path) -> FrozenModel:
    """Load the encoder of a Hugging Face folder, without its head."""
    return _load(folder, "", "the encoder")


def load_masked_model(folder: Path) -> FrozenModel:
    """Load the encoder with its masked-LM head."""
    found = _load(folder, "ForMaskedLM", "the encoder or its masked-LM head")
    for role in ("cls", "sep", "mask"):
        if getattr(found.tokenizer, f"{role}_token_id") is None:
            raise UserError(
                f"The tokenizer in '{folder}' names no {role}_token, which masked language modeling needs.",
                "Name it in tokenizer_config.json, or use the folder of a masked language model.",
            )
    return found


def _load(folder: Path, head: str, part: str) -> FrozenModel:
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    model = load_model(folder, config, head, part)
    # Encoders with relative positions may have no maximum.
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length, longest_row(model)]
    length = min(limit for limit in limits if limit is not None)
    return FrozenModel(model.eval().to(choose_device()), tokenizer, config.num_hidden_layers, length)


def part_of(show: Show, done: int, parts: int) -> Show:
    """Return the progress callback of one of several equal parts, of which ``done`` are finished."""
    return lambda fraction: show((done + fraction) / parts)


def longest_row(model: Any) -> int | None:
    """Return the size of the model's table of positions; None if it has no table (rotary, sinusoid)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name:
            # RoBERTa's positions start after the padding id.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


@torch.inference_mode()
def pooled_states(
    frozen: FrozenModel, texts: Sequence[str], length: int, show: Show = lambda fraction: None
) -> np.ndarray:
    """Return the mean of each layer's states over all tokens of a text, [CLS] and [SEP] included.

    This is the pooling of sentence-transformers (Reimers and Gurevych 2019, arXiv:1908.10084, section 3). A batch holds
    texts of equal length only, so there is no padding.

    Args:
        texts: N texts.
        length: most tokens of a text, special tokens included.

    Returns:
        float32[layers + 1, N, D]: the embeddings first, the encoder's output (after its last norm) last.
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


def embeddings(frozen: FrozenModel, texts: Sequence[str], length: int) -> np.ndarray:
    """Return unit vectors float32[N, D]: what the SentenceTransformer of an export computes.

    The arguments are those of ``pooled_states``.
    """
    states: np.ndarray = pooled_states(frozen, texts, length)[-1]
    return states / np.linalg.norm(states, axis=1, keepdims=True)


def _equally_long(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield every index once, in batches of about BATCH_TOKENS tokens with rows of equal length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_length[len(row)].append(index)
    for length in sorted(by_length):
        indices, batch = by_length[length], max(1, BATCH_TOKENS // max(1, length))
        yield from (indices[start : start + batch] for start in range(0, len(indices), batch))
