"""Embeddings of queries in numpy: importing torch takes longer than a search.

L positions, D hidden size, H heads, C = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from daybreak.core.files import read_json

ERF = np.vectorize(math.erf, otypes=[np.float32])
"""scipy's is faster for large arrays, and its import takes longer than a query."""


def supports(model: Path) -> bool:
    """Return whether the exported model is a ModernBERT, whose forward pass this module has."""
    return bool(read_json(model / "config.json").get("model_type") == "modernbert")


class QueryEncoder:
    """The forward pass of an exported ModernBERT (arXiv 2412.13663) for one text at a time.

    It equals ``models.modern`` up to the rounding of float32. Of the embedding, only the rows of a text are read.
    """

    def __init__(self, model: Path):
        self._config: dict[str, Any] = read_json(model / "config.json")
        self._file = safe_open(model / "model.safetensors", framework="np")
        self._weights: dict[str, np.ndarray] = {}

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        """Return the mean of the last hidden states, float32 [D] of unit length, for ids with special tokens."""
        config = self._config
        table = self._file.get_slice("model.embeddings.tok_embeddings.weight")
        x = self._norm(np.concatenate([table[id : id + 1] for id in ids]), "model.embeddings.norm")
        for index, kind in enumerate(config["layer_types"]):
            layer = f"model.layers.{index}"
            window = None if kind == "full_attention" else config["local_attention"] // 2
            base = config["rope_parameters"][kind]["rope_theta"]
            # The embedding is normalized already.
            x = x + self._attention(self._norm(x, f"{layer}.attn_norm") if index else x, layer, base, window)
            passed, gate = np.split(self._linear(self._norm(x, f"{layer}.mlp_norm"), f"{layer}.mlp.Wi"), 2, axis=1)
            gelu = passed * (1 + ERF(passed / math.sqrt(2))) / 2
            x = x + self._linear(gelu * gate, f"{layer}.mlp.Wo")
        mean = self._norm(x, "model.final_norm").mean(axis=0)
        return mean / max(float(np.linalg.norm(mean)), 1e-12)

    def _attention(self, x: np.ndarray, layer: str, base: float, window: int | None) -> np.ndarray:
        length, heads = len(x), self._config["num_attention_heads"]
        qkv = self._linear(x, f"{layer}.attn.Wqkv").reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
        channels = qkv.shape[-1]
        angles = np.outer(np.arange(length), base ** -(np.arange(0, channels, 2) / channels)).astype(np.float32)
        query, key = _rotated(qkv[:2], np.cos(angles), np.sin(angles))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(channels)
        if window is not None:
            positions = np.arange(length)
            scores = np.where(abs(positions[:, None] - positions) <= window, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ qkv[2]
        return self._linear(mixed.transpose(1, 0, 2).reshape(length, -1), f"{layer}.attn.Wo")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ self._weight(name).T)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt(centred.var(axis=1, keepdims=True) + self._config["norm_eps"])
        return np.asarray(centred / deviation * self._weight(name))

    def _weight(self, name: str) -> np.ndarray:
        if name not in self._weights:
            self._weights[name] = self._file.get_tensor(f"{name}.weight")
        return self._weights[name]


def _rotated(states: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """Rotate each channel pair (c, c + C/2) of states [..., L, C] by its angle [L, C/2]."""
    first, second = np.split(states, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
