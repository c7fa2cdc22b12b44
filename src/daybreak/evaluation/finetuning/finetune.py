"""The fine-tuning loop: a few epochs over labeled rows, and predictions in row order."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from daybreak.evaluation.finetuning.fast_training import Direct, UsedRows, WorkingCopy, fast_precision, shrinks
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding, prediction_batches, training_batches
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.training.hardware.probe import choose_device

LENGTH_MULTIPLE = 8
"""In half precision on a CPU, lengths are padded to a multiple of this: torch compiles a kernel for each new shape."""
SHOWN_EVERY = {"cpu": 1, "cuda": 32}
"""Steps between two calls of ``Show``: to read a loss, the processor waits until the GPU has finished its queue."""
Show = Callable[[float, float], None]
"""Called after some steps with the fraction of the work that is done and the loss of the batch."""


def rate_fraction(step: int, steps: int, warmup: int, shape: str) -> float:
    """Return the fraction of the peak learning rate at ``step`` (from 0): linear warm-up, then decay to 0.

    Args:
        shape: shape of the decay, ``linear`` or ``cosine``.
    """
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(1, steps - warmup)
    return left if shape == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)


def layer_scales(model: Any, decay: float) -> dict[str, float]:
    """Return the factor of the learning rate for each parameter, smaller for layers nearer to the input.

    Follows _get_layer_lrs in model/optimization.py of google-research/electra: ``decay ** (n + 2 - depth)`` for n
    layers, with depth 0 for the embeddings, i + 1 for layer i (from 0), n + 1 for modules between the layers and the
    head (a last norm, BERT's pooler) and n + 2 for the head.
    """
    names = [name for name, _ in model.named_parameters()]
    inside = [name for name in names if name.startswith(f"{model.base_model_prefix}.")]
    layer = {name: int(number[1]) for name in inside if (number := re.search(r"\.(\d+)\.", name))}
    layers = max(layer.values(), default=-1) + 1
    scales = dict.fromkeys(names, 1.0)
    between = 0
    for name in inside:  # in forward order
        if name in layer:
            between = layers + 1
        scales[name] = decay ** (layers + 2 - (layer[name] + 1 if name in layer else between))
    return scales


def parameter_groups(model: Any, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: matrices have weight decay, norms and biases have not.

    Each group's ``scale`` is its factor of the learning rate.
    """
    scales = layer_scales(model, layer_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (weight_decay if parameter.ndim >= 2 else 0.0, scales[name])
            groups.setdefault(key, []).append(parameter)
    return [{"params": found, "weight_decay": decay, "scale": scale} for (decay, scale), found in groups.items()]


def set_dropout(model: nn.Module, probability: float) -> None:
    """Set the probability of every dropout layer that the model has."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def freeze(model: Any) -> None:
    """Freeze the encoder and turn off its dropout, so that only the head learns.

    A pooler counts as part of the head: pretraining without sentence pairs leaves it random.
    """
    encoder = getattr(model, model.base_model_prefix)
    encoder.eval()
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("pooler" in name)


def epoch_batches(lengths: Sequence[int], batch: int, drop_last: bool, generator: torch.Generator) -> list[list[int]]:
    """Return the batches of one epoch; ``drop_last`` drops randomly chosen rows so that all batches are full."""
    if not drop_last or len(lengths) <= batch:
        return training_batches(lengths, batch, generator)
    kept = torch.randperm(len(lengths), generator=generator)[: len(lengths) // batch * batch].tolist()
    batches = training_batches([lengths[row] for row in kept], batch, generator)
    return [[kept[place] for place in places] for places in batches]


def autocast(device: torch.device, kind: Kind) -> torch.autocast:
    """Return an autocast context: bfloat16 on a GPU that supports it, if the kind of task allows it.

    It is off on a CPU, where autocast is slower.
    """
    fits = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=fits and not kind.exact)


def compute_precision(model: Any, kind: Kind, protocol: Protocol) -> str:
    """Return the precision of ``fine_tune`` on this machine: ``float32`` or ``bfloat16``."""
    device = choose_device()
    if device.type != "cpu":
        return "bfloat16" if autocast(device, kind)._enabled else "float32"
    return fast_precision(model, kind, device) if protocol.precision == "fast" else "float32"


class Batches:
    """The batches of one part of a task, with the inputs that the model's forward method accepts."""

    def __init__(self, model: Any, kind: Kind, padding: Padding, rows: EncodedRows):
        taken = inspect.signature(model.forward).parameters
        features = {name: values for name, values in rows.features.items() if name in taken}
        self._kind, self._padding = kind, padding
        self._rows = replace(rows, features=features)
        self.device = next(model.parameters()).device

    def inputs(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        found = self._kind.collate(self._padding, self._rows, indices)
        return {name: self._on_device(value) for name, value in found.items()}

    def targets(self, indices: Sequence[int], width: int) -> torch.Tensor:
        return self._on_device(self._kind.targets(self._rows, indices, width))

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device; only from pinned memory does a GPU copy while the processor goes on."""
        return (tensor.pin_memory() if self.device.type == "cuda" else tensor).to(self.device, non_blocking=True)


def fine_tune(
    model: Any,
    kind: Kind,
    padding: Padding,
    rows: EncodedRows,
    protocol: Protocol,
    setting: Setting,
    seed: int,
    show: Show,
) -> float:
    """Train ``model`` in place with AdamW; ``seed`` determines the order of the batches.

    Returns:
        The mean loss of the last epoch; not finite if training diverged.
    """
    fast = compute_precision(model, kind, protocol) == "bfloat16" and choose_device().type == "cpu"
    few = UsedRows(model, rows, padding) if protocol.precision == "fast" and shrinks(model, protocol) else None
    rows, padding = (few.rows, few.padding) if few else (rows, padding)
    if fast:
        padding = replace(padding, multiple=LENGTH_MULTIPLE, most=max(rows.lengths))
    batches = Batches(model, kind, padding, rows)
    if protocol.dropout is not None:  # also of layers whose probability is in no field of the config
        set_dropout(model, protocol.dropout)
    model.train()
    if protocol.frozen:
        freeze(model)
    layer_decay = protocol.layer_decay_at(model.config.hidden_size)
    groups = parameter_groups(model, protocol.decay_of(setting), layer_decay)
    optimizer = torch.optim.AdamW(groups, lr=setting.rate, betas=protocol.betas, eps=protocol.eps, fused=True)
    table = few.group(optimizer) if few else None
    computing = WorkingCopy(model) if fast else Direct(model)
    precision = autocast(batches.device, kind)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(epoch_batches(rows.lengths, setting.batch, protocol.drop_last, torch.Generator()))
    steps = setting.epochs * per_epoch
    warmup = max(1, round(protocol.warmup * steps))
    step, decay, losses = 0, 1.0, [torch.zeros(())]
    for _ in range(setting.epochs):
        losses = []
        for indices in epoch_batches(rows.lengths, setting.batch, protocol.drop_last, generator):
            rate = setting.rate * rate_fraction(step, steps, warmup, protocol.shape)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            if table:
                decay *= 1.0 - table["lr"] * table["weight_decay"]
            inputs = batches.inputs(indices)
            with precision:
                outputs = computing.model(**inputs)
            loss = kind.loss(outputs, batches.targets(indices, inputs["input_ids"].shape[-1]))
            optimizer.zero_grad()
            loss.backward()
            computing.gather()
            if protocol.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), protocol.max_grad_norm)
            optimizer.step()
            computing.spread()
            step += 1
            losses.append(loss.detach())
            if step % SHOWN_EVERY[batches.device.type] == 0:
                show(step / steps, loss.item())
    if few:
        few.restore(decay)
    return float(np.mean(torch.stack(losses).tolist()))


@torch.inference_mode()
def predict(model: Any, kind: Kind, padding: Padding, rows: EncodedRows) -> list[np.ndarray]:
    """Return the model's output for each sample, in the order of ``rows``, in float32."""
    model.eval()
    batches = Batches(model, kind, padding, rows)
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for indices in prediction_batches(rows.lengths):
        for index, answer in zip(indices, kind.answers(model(**batches.inputs(indices)))):
            found[index] = answer
    return found
