"""Muon: matrices are updated by their orthogonalized momentum, all other parameters by AdamW, in one optimizer.

Torch's own Muon orthogonalizes in bfloat16 only, one matrix at a time. This is slow on processors without bfloat16, and
its rounding is so coarse that runs with one and with several processes drift apart.

N matrices, R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from daybreak.core.serialization import check_choice
from daybreak.training.optim.optimizers import OptimizerConfig, roles

DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5: steepest at 0, and after STEPS all but the smallest singular values are about 0.7 to
1.2."""
TINY = 1e-7
"""Smallest norm for the division: a matrix without gradient does not change."""
ADAMW_RMS = 0.2
"""Root mean square of a typical AdamW update, to which an orthogonal update is scaled."""
ADAM_LR_FACTOR = 3.0
"""Learning rate of all other parameters relative to that of the matrices (records: study-muon-rates)."""
BATCH_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Elements that are orthogonalized together. On a CPU many small matrices or few large ones, so that the copies stay in
its cache; on a GPU all matrices of a shape, up to 1 GiB of float32, because each batch costs about twenty launches."""


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerConfig):
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) on matrices, AdamW on all other parameters.

    Updates are scaled as in "Muon is scalable" (arXiv 2502.16982, section 2.2), so learning rate and weight decay are
    of AdamW's size. Matrices that share one tensor, such as query, key and value, are orthogonalized separately.
    """

    lr: float = 1e-3
    momentum: float = 0.95
    newton_schulz: str = "auto"
    """Dtype of the orthogonalization: float32, bfloat16, or auto for that of the run (see --precision)."""
    adam_lr: float = 0.0
    """Peak learning rate of all other parameters: embeddings, norms, biases, scalars; 0 for 3 times ``lr``."""
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("--optimizer.newton-schulz", self.newton_schulz, DTYPES)

    def at_rate(self, factor: float) -> Self:
        return replace(super().at_rate(factor), adam_lr=self.adam_lr * factor)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return MuonOptimizer(
            self.groups(model),
            lr=self.lr,
            momentum=self.momentum,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            newton_schulz=DTYPES[self.newton_schulz],
        )

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the groups of Muon, then those of AdamW with their own rate; see ``OptimizerConfig.groups``."""
        role = roles(model)
        # A plain module has one matrix per tensor.
        parts: Callable[[str], int] = getattr(model, "parts", lambda name: 1)
        fused = {parameter: parts(name) for name, parameter in model.named_parameters()}
        matrices = {p for name, p in model.named_parameters() if role[name] == "matrices" and p.dim() == 2}
        muon_groups, adam_groups = [], []
        for group in super().groups(model):
            chosen = [p for p in group["params"] if p in matrices]
            left = [p for p in group["params"] if p not in matrices]
            if chosen:
                muon_groups.append({**group, "params": chosen, "parts": [fused[p] for p in chosen]})
            if left:
                adam_groups.append({**group, "params": left, "lr": self.adam_lr or ADAM_LR_FACTOR * self.lr})
        return muon_groups + adam_groups


class MuonOptimizer(torch.optim.Optimizer):
    """Muon for groups with ``parts``, the number of stacked matrices in each parameter; AdamW for all other groups.

    m <- mu m + (1 - mu) g;  O <- newton_schulz(mu m + (1 - mu) g);
    p <- (1 - lr decay) p - lr 0.2 sqrt(max(R, C)) O

    The dtype of ``newton_schulz`` is that of torch.autocast around ``step`` if none is given.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        newton_schulz: torch.dtype | None = None,
    ):
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        # "fused" makes torch move a loaded step count to the device of its kernel.
        super().__init__(params, {**defaults, "newton_schulz": newton_schulz, "parts": None, "fused": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moved:
                continue
            if group["parts"] is None:
                self._move_by_adam(moved, group)
            else:
                self._move_by_muon(moved, group)

    def _move_by_adam(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self._state(parameter, "exp_avg") for parameter in parameters],
            [self._state(parameter, "exp_avg_sq") for parameter in parameters],
            [],
            [self._state(parameter, "step") for parameter in parameters],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _move_by_muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        moments = [self._state(parameter, "momentum_buffer") for parameter in parameters]
        torch._foreach_lerp_(moments, gradients, 1.0 - group["momentum"])
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        parts = {parameter: count for parameter, count in zip(group["params"], group["parts"])}

        def matrices(tensors: list[Tensor]) -> list[Tensor]:
            return [wide(split(tensor, parts[parameter])) for tensor, parameter in zip(tensors, parameters)]

        targets, now, mean = matrices(parameters), matrices(gradients), matrices(moments)
        for batch in batches(targets):
            nesterov = torch.cat([now[i].lerp(mean[i], group["momentum"]) for i in batch])
            dtype = group["newton_schulz"] or newton_schulz_dtype(nesterov.device.type)
            solved = orthogonalize(nesterov, dtype).split([len(targets[i]) for i in batch])
            for i, direction in zip(batch, solved):
                targets[i].add_(direction, alpha=-group["lr"] * ADAMW_RMS * math.sqrt(direction.shape[2]))

    def _state(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            count = name == "step"
            state[name] = torch.zeros((), device=parameter.device) if count else torch.zeros_like(parameter)
        return state[name]


def newton_schulz_dtype(device: str) -> torch.dtype:
    """The current dtype of torch.autocast; float32 outside of it."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


def split(tensor: Tensor, parts: int) -> Tensor:
    """View [N * R, C] as its N matrices [N, R, C]."""
    return tensor.unflatten(0, (parts, -1))


def wide(matrices: Tensor) -> Tensor:
    """View [N, R, C] with the longer side last, so that the products of Newton-Schulz are the smaller ones."""
    return matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices


def batches(stacks: list[Tensor]) -> Iterator[list[int]]:
    """Yield indices of stacks [N, R, C] that are processed together: one shape and device, at most BATCH_ELEMENTS
    elements.

    A larger stack is a batch of its own.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, stack in enumerate(stacks):
        key = (stack.shape[1:], stack.device)
        batch = alike.setdefault(key, [])
        if batch and sum(stacks[i].numel() for i in batch) + stack.numel() > BATCH_ELEMENTS[stack.device.type]:
            yield batch
            batch = alike[key] = []
        batch.append(place)
    yield from alike.values()


def orthogonalize(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bring every singular value of each matrix [N, R, C] near 1: U S V^T to nearly U V^T, in ``dtype``.

    The quintic Newton-Schulz iteration of Muon (Jordan 2024). Singular values below about a thousandth of the Frobenius
    norm stay small; those of the zero matrix stay 0.
    """
    a, b, c = COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True).clamp_min(TINY)
    x = (matrices / norms).to(dtype)
    with torch.autocast(matrices.device.type, enabled=False):
        for _ in range(STEPS):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
