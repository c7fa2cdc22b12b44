"""Which parameters decay, and the same steps as torch's plain optimizers and as BERT's own rule in numpy."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from daybreak.core.errors import UserError
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training import checkpoint
from daybreak.training.optim.muon import Muon
from daybreak.training.optim.optimizers import MOMENTS, Adam, AdamW, BertAdam, OptimizerConfig, roles

PLAIN: dict[str, Any] = {"foreach": False, "fused": False}


def model() -> ModernBert:
    torch.manual_seed(1)
    return ModernEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=12, init_std=0.1).build(40)


class Parts(nn.Module):
    """One of each kind, under names that say nothing or the wrong thing."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_table = nn.Embedding(9, 4)
        self.norm_of_the_matter = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.ones(1))
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.bias = nn.Parameter(torch.zeros(9))
        self.decoder = nn.Linear(4, 9, bias=False)
        self.decoder.weight = self.bias_table.weight


def decaying(config: OptimizerConfig, module: nn.Module) -> set[str]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = config.build(module).param_groups
    assert sorted(names[id(p)] for group in groups for p in group["params"]) == sorted(names.values())
    return {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


def train(module: ModernBert, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> None:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        module.logits(torch.randint(5, 40, (4, 10), generator=rng)).square().mean().backward()
        optimizer.step()


def same(ours: nn.Module, theirs: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=rtol, atol=atol, msg=name)


# ---------------------------------------------------------------- roles


def test_roles_go_by_what_a_parameter_is() -> None:
    assert roles(Parts()) == {
        "bias_table.weight": "embeddings",
        "norm_of_the_matter.weight": "matrices",
        "norm_of_the_matter.bias": "biases",
        "inner.0.weight": "norms",
        "inner.0.bias": "biases",
        "inner.1.weight": "norms",
        "inner.2.weight": "matrices",
        "inner.2.bias": "biases",
        "scale": "scalars",
        "gain": "scalars",
        "bias": "biases",
    }


def test_matrices_decay_and_embeddings_norms_and_biases_do_not() -> None:
    parts = "attention.qkv attention.out unit.up unit.down".split()
    blocks = {f"blocks.{i}.{part}.weight" for i in (0, 1) for part in parts}
    assert decaying(AdamW(weight_decay=0.3), model()) == blocks | {"head_dense.weight"}
    assert decaying(AdamW(weight_decay=0.0), model()) == set() == decaying(AdamW(decay=()), model())


def test_the_groups_of_the_systems_that_are_repeated() -> None:
    """crammed-bert spares norms and biases, its first version biases alone, BERT both."""
    second = ("matrices", "embeddings", "scalars")
    by_role = roles(Parts())
    for config, expected in (
        (AdamW(decay=second), set(second)),
        (AdamW(decay=(*second, "norms")), {*second, "norms"}),
        (BertAdam(), {"matrices", "embeddings"}),
        (Adam(decay=("matrices", "embeddings")), {"matrices", "embeddings"}),
    ):
        assert decaying(config, Parts()) == {name for name, role in by_role.items() if role in expected}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"beta1": 1.0}, "--optimizer.beta1 is 1"),
        ({"beta2": -0.1}, "--optimizer.beta2 is -0.1"),
        ({"beta2": math.nan}, "--optimizer.beta2 is nan"),
        ({"epsilon": -1e-8}, "--optimizer.epsilon is -1e-08"),
        ({"epsilon": 0.0}, "--optimizer.epsilon is 0"),
        ({"weight_decay": -0.01}, "--optimizer.weight-decay is -0.01"),
        ({"decay": ("matrices", "weights")}, "--optimizer.decay cannot name 'weights'"),
    ],
)
@pytest.mark.parametrize("kind", [AdamW, Adam, BertAdam])
def test_settings_that_mean_nothing_are_refused(kind: type[OptimizerConfig], wrong: dict[str, Any], text: str) -> None:
    """Torch's own optimizers raise a ValueError for them, and ours for the original BERT would go astray."""
    with pytest.raises(UserError, match=re.escape(text)):
        kind(**wrong)
    kind(weight_decay=0.0, beta1=0.0, epsilon=1e-30)  # type: ignore[call-arg]


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(("kind", "plain"), [(AdamW, torch.optim.AdamW), (Adam, torch.optim.Adam)])
def test_five_steps_equal_torch(kind: Any, plain: Any) -> None:
    ours = model()
    theirs = copy.deepcopy(ours)
    config = kind(lr=3e-2, beta1=0.85, beta2=0.97, epsilon=1e-7, weight_decay=0.2)
    decays = [p for n, p in theirs.named_parameters() if p.dim() > 1 and "embedding" not in n]
    rest = [p for p in theirs.parameters() if all(p is not other for other in decays)]
    groups = [{"params": decays, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}]
    train(ours, config.build(ours), 5)
    train(theirs, plain(groups, lr=3e-2, betas=(0.85, 0.97), eps=1e-7, **PLAIN), 5)
    same(ours, theirs)


def test_bert_adam_is_the_published_rule() -> None:
    """Restated for one tensor after google-research/bert: no bias correction, decay beside the moments."""
    rng = np.random.default_rng(0)
    layer = nn.Linear(5, 3).double()
    optimizer = BertAdam(lr=1e-2, weight_decay=0.1).build(layer)
    tensors = {name: parameter.detach().numpy().copy() for name, parameter in layer.named_parameters()}
    m = {name: np.zeros_like(value) for name, value in tensors.items()}
    v = copy.deepcopy(m)
    for step in range(6):
        rate = 1e-2 * (step + 1) / 6
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, parameter in layer.named_parameters():
            gradient = rng.normal(size=parameter.shape)
            parameter.grad = torch.from_numpy(gradient)
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            update = m[name] / (np.sqrt(v[name]) + 1e-6)
            if name == "weight":
                update += 0.1 * tensors[name]
            tensors[name] = tensors[name] - rate * update
        optimizer.step()
    for name, parameter in layer.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), tensors[name], rtol=1e-12)


def test_bert_adam_takes_large_first_steps() -> None:
    layer = nn.Linear(2, 2, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.full((2, 2), 7.0)
    BertAdam(lr=1.0, weight_decay=0.0).build(layer).step()
    torch.testing.assert_close(before - layer.weight, torch.full((2, 2), 0.1 / 0.001**0.5), rtol=1e-4, atol=0)


def test_bert_adam_leaves_alone_what_has_no_gradient() -> None:
    parts = Parts()
    optimizer = BertAdam(lr=1.0).build(parts)
    before = copy.deepcopy(parts)
    parts.scale.grad = torch.ones(1)
    optimizer.step()
    assert parts.scale != before.scale and len(optimizer.state) == 1
    parts.scale = before.scale
    same(parts, before, rtol=0, atol=0)


@pytest.mark.parametrize("config", [BertAdam(lr=1e-2), Adam(lr=1e-2), AdamW(lr=1e-2)])
def test_a_checkpoint_goes_on_as_if_nothing_had_been(config: OptimizerConfig, tmp_path: Path) -> None:
    ours = model()
    optimizer = config.build(ours)
    train(ours, optimizer, 3)
    checkpoint.save(tmp_path, checkpoint.START, ours, optimizer)
    again = model()
    restored = config.build(again)
    checkpoint.load_newest(tmp_path, again, restored)
    if isinstance(config, BertAdam):
        assert {name for state in restored.state.values() for name in state} == set(MOMENTS)
    train(ours, optimizer, 3, seed=1)
    train(again, restored, 3, seed=1)
    same(ours, again, rtol=0, atol=0)


@pytest.mark.parametrize(
    "config",
    [Muon(momentum=0.5, beta1=0.6, beta2=0.7, epsilon=1e-3), BertAdam(beta1=0.6, beta2=0.7, epsilon=1e-3)],
    ids=["Muon", "BertAdam"],
)
def test_every_number_of_the_configuration_reaches_the_optimizer(config: OptimizerConfig) -> None:
    for group in config.build(model()).param_groups:
        assert (group["betas"], group["eps"], group.get("momentum", 0.5)) == ((0.6, 0.7), 1e-3, 0.5)
