"""``onnx/model.onnx`` beside the weights: the encoder without a head, for ONNX Runtime, checked against torch.

sentence-transformers and optimum expect this path. Inputs are those of the tokenizer (``input_ids``,
``attention_mask``, and ``token_type_ids`` for BERT), int64 [batch, length], both sizes dynamic; the output is
``last_hidden_state``, float32 [batch, length, hidden_size]. The graph has no masked-language-modeling head, because
embeddings and classifiers do not need the logits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.core.errors import UserError
from daybreak.core.extras import install_hint
from daybreak.core.files import read_json, write_text
from daybreak.models.importing import quiet_transformers

FILE = "onnx/model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
OUTPUT = "last_hidden_state"
OPSET = 18
WITHOUT = "Use the folder without it: its other files are complete."
LONGEST = 512
"""Longest sequence of the comparison, because attention over thousands of positions needs gigabytes."""
TRACED = [12, 6]
"""Lengths of the sequences of the traced example; torch treats a size of 1 as fixed."""


@dataclass(frozen=True)
class OnnxCheck:
    """The difference between ONNX Runtime and torch on padded batches of several lengths."""

    largest_difference: float
    tolerance: float
    runtime: str
    """Version of ONNX Runtime."""


def check_onnx_installed() -> None:
    """Raise if a package is missing, before any work is done."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {' and '.join(missing)}.", install_hint("serve", "onnx"))


def write_onnx(folder: Path) -> OnnxCheck:
    """Add ``onnx/model.onnx`` to an exported folder, and a section to its card.

    Args:
        folder: an export that passed the parity check; its code is run.
    """
    check_onnx_installed()
    config = read_json(folder / "config.json")
    names = read_json(folder / "tokenizer_config.json")["model_input_names"]
    model = _Features(_loaded(folder, "auto_map" in config), names)
    target = folder / FILE
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    staged.parent.mkdir(exist_ok=True)
    try:
        _export(model, names, config["vocab_size"], staged)
        found = _compare(model, names, config, staged)
        os.replace(staged, target)
    except (Exception, KeyboardInterrupt) as error:
        shutil.rmtree(staged.parent)
        if isinstance(error, UserError | KeyboardInterrupt):
            raise
        # torch's exporter and ONNX Runtime have no common class of errors
        raise UserError(f"This model cannot be written as ONNX ({type(error).__name__}).", WITHOUT) from error
    _add_to_card(folder / "README.md", names, found)
    return found


class _Features(nn.Module):
    """The encoder with positional inputs."""

    def __init__(self, encoder: nn.Module, names: list[str]):
        super().__init__()
        self.encoder = encoder
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        """int64 [B, L] each -> float32 [B, L, D]."""
        return self.encoder(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def _loaded(folder: Path, own_code: bool) -> nn.Module:
    from transformers import AutoModel

    with _quiet():
        return AutoModel.from_pretrained(folder, trust_remote_code=own_code, dtype=torch.float32).eval()


def _export(model: _Features, names: list[str], vocabulary: int, path: Path) -> None:
    inputs = _inputs(names, vocabulary, TRACED)
    free = {0: "batch", 1: "length"}
    with _quiet():
        program = torch.onnx.export(
            model,
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=(tuple(free for _ in names),),
            input_names=names,
            output_names=[OUTPUT],
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    program.save(str(path), external_data=False)


def _compare(model: _Features, names: list[str], config: dict[str, Any], path: Path) -> OnnxCheck:
    """Compare all positions that are not padding, in batches of other sizes than the traced one."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    longest = min(int(config.get("max_position_embeddings", 128)), LONGEST)
    apart, largest = 0.0, 0.0
    for lengths in ([1], [3, 1], [longest], [longest, max(1, longest // 2), 2, 1], [max(1, longest - 1)] * 3):
        inputs = _inputs(names, config["vocab_size"], lengths)
        with torch.inference_mode():
            expected = model(*inputs.values())
        (received,) = session.run([OUTPUT], {name: tensor.numpy() for name, tensor in inputs.items()})
        real = inputs["attention_mask"].bool()
        difference = (torch.from_numpy(received) - expected)[real].abs().max().item()
        apart = max(apart, difference) if difference == difference else float("inf")
        largest = max(largest, expected[real].abs().max().item())
    # As in the parity check: one part in 10^4 at values of size 10, proportionally more for larger values.
    tolerance = 1e-4 * max(1.0, largest / 10)
    if not apart <= tolerance:
        raise UserError(
            f"In ONNX Runtime the model differs from torch by {apart:.1e} (allowed {tolerance:.1e}), so the file was "
            "deleted.",
            WITHOUT,
        )
    return OnnxCheck(apart, tolerance, onnxruntime.__version__)


def _inputs(names: list[str], vocabulary: int, lengths: list[int]) -> dict[str, Tensor]:
    """Random tokens: sequence i has ``lengths[i]`` tokens and then padding; segments change in the middle."""
    batch, length = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(batch * length)
    position = torch.arange(length)
    tensors = {
        "input_ids": torch.randint(0, vocabulary, (batch, length), generator=generator),
        "attention_mask": (position < torch.tensor(lengths)[:, None]).long(),
        "token_type_ids": (position >= length // 2).long().repeat(batch, 1),
    }
    return {name: tensors[name] for name in names}


def _add_to_card(card: Path, names: list[str], found: OnnxCheck) -> None:
    if not card.is_file():
        return
    section = (
        f"## ONNX\n\n`{FILE}` is the encoder without a head: inputs {', '.join(f'`{name}`' for name in names)} "
        f"(int64, dynamic batch and length), output `{OUTPUT}` (float32). In ONNX Runtime {found.runtime} the largest "
        f"difference from torch, on padded batches of several lengths, is {found.largest_difference:.1e} "
        f"(allowed {found.tolerance:.1e})."
    )
    write_text(card, f"{card.read_text(encoding='utf-8').rstrip()}\n\n{section}\n")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of the libraries; errors still raise."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
