"""Muon against singular value decompositions in double precision, torch's own Muon, and torch's AdamW."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from daybreak.core.errors import UserError
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training.checkpoint import optimizer_tensors, restore_optimizer
from daybreak.training.optim import muon
from daybreak.training.optim.muon import Muon, MuonOptimizer, orthogonalize

RATE, DECAY = 0.02, 0.1


def model(seed: int = 1) -> ModernBert:
    torch.manual_seed(seed)
    return ModernEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=12, init_std=0.1).build(40)


def train(module: ModernBert, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> list[float]:
    rng = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module.logits(torch.randint(5, 40, (4, 10), generator=rng)).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def gradients(shapes: list[tuple[int, ...]], steps: int) -> Iterator[list[Tensor]]:
    rng = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield [torch.randn(shape, generator=rng) for shape in shapes]


def descend(weights: list[Tensor], optimizer: torch.optim.Optimizer, steps: int) -> None:
    for given_gradients in gradients([tuple(weight.shape) for weight in weights], steps):
        for weight, gradient in zip(weights, given_gradients):
            weight.grad = gradient
        optimizer.step()


def iterated(matrix: np.ndarray) -> np.ndarray:
    """What five steps make of a matrix, in double precision and by its singular values."""
    left, values, right = np.linalg.svd(np.asarray(matrix, dtype=np.float64), full_matrices=False)
    values = values / max(float(np.sqrt((values**2).sum())), 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values) @ right


def parameters(shapes: list[tuple[int, ...]], scale: float = 1.0) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(3)
    return [nn.Parameter(scale * torch.randn(shape, generator=rng)) for shape in shapes]


def ours(weights: list[nn.Parameter], parts: list[int], dtype: torch.dtype = torch.float32) -> MuonOptimizer:
    group = {"params": weights, "parts": parts, "weight_decay": DECAY}
    return MuonOptimizer([group], lr=RATE, momentum=0.9, newton_schulz=dtype)


# ---------------------------------------------------------------- orthogonalisation


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 4),
    rows=st.integers(1, 24),
    columns=st.integers(1, 24),
    size=st.floats(1e-4, 1e4),
    seed=st.integers(0, 2**32 - 1),
)
def test_singular_values_go_where_the_polynomial_sends_them(
    count: int, rows: int, columns: int, size: float, seed: int
) -> None:
    matrices = size * torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(seed))
    found = orthogonalize(matrices)
    for matrix, solved in zip(matrices.numpy(), found.numpy()):
        np.testing.assert_allclose(solved, iterated(matrix), atol=5e-4)
        alone = orthogonalize(torch.from_numpy(matrix)[None])[0].numpy()
        np.testing.assert_allclose(solved, alone, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_is_nearly_orthogonal_and_has_the_singular_vectors(dtype: torch.dtype) -> None:
    matrix = torch.randn(40, 96, generator=torch.Generator().manual_seed(5))
    found = orthogonalize(matrix[None], dtype)[0].double()
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    assert torch.linalg.svdvals(found).min() > 0.65 and torch.linalg.svdvals(found).max() < 1.25
    inside = left.T @ found @ right.T
    assert (inside - inside.diag().diag()).abs().max() < (1e-5 if dtype == torch.float32 else 0.03)


def test_a_matrix_without_gradient_only_decays() -> None:
    (weight,) = parameters([(4, 6)])
    before = weight.detach().clone()
    weight.grad = torch.zeros(4, 6)
    ours([weight], [1]).step()
    torch.testing.assert_close(weight.detach(), before * (1 - RATE * DECAY))


# ---------------------------------------------------------------- steps

SHAPES: list[tuple[int, ...]] = [(48, 16), (24, 16), (16, 12), (16, 16), (2, 16), (20, 5)]
PARTS = [3, 2, 1, 1, 1, 4]


def test_five_steps_are_the_published_rule_in_double_precision() -> None:
    weights = parameters(SHAPES)
    plain = [weight.detach().double().numpy().copy() for weight in weights]
    descend(weights, ours(weights, PARTS), 5)
    moments = [np.zeros(shape) for shape in SHAPES]
    for given_gradients in gradients(SHAPES, 5):
        for place, gradient in enumerate(given_gradients):
            moments[place] = 0.9 * moments[place] + gradient.numpy()
            ahead = gradient.numpy() + 0.9 * moments[place]
            pieces = [iterated(piece) * 0.2 * max(piece.shape) ** 0.5 for piece in np.split(ahead, PARTS[place])]
            plain[place] = plain[place] * (1 - RATE * DECAY) - RATE * np.concatenate(pieces)
    for weight, expected in zip(weights, plain):
        np.testing.assert_allclose(weight.detach().numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 6])
def test_steps_equal_torchs_muon_to_what_bfloat16_tells(dtype: torch.dtype, steps: int) -> None:
    shapes = [shape for shape in SHAPES if shape != (2, 16)] + [(32, 64)]
    weights, theirs = parameters(shapes), parameters(shapes)
    before = [weight.detach().clone() for weight in weights]
    reference = torch.optim.Muon(
        theirs, lr=RATE, weight_decay=DECAY, momentum=0.9, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    descend(weights, ours(weights, [1] * len(shapes), dtype), steps)
    descend(theirs, reference, steps)
    for start, left, right in zip(before, weights, theirs):
        assert torch.linalg.norm(left - right) < 0.03 * torch.linalg.norm(right - start)


def test_fused_matrices_move_as_separate_ones() -> None:
    (fused,) = parameters([(48, 16)])
    apart = [nn.Parameter(piece.clone()) for piece in fused.detach().chunk(3)]
    together, separate = ours([fused], [3]), ours(apart, [1, 1, 1])
    for (gradient,) in gradients([(48, 16)], 4):
        fused.grad = gradient
        for weight, piece in zip(apart, gradient.chunk(3)):
            weight.grad = piece
        together.step()
        separate.step()
    torch.testing.assert_close(fused.detach(), torch.cat([weight.detach() for weight in apart]), rtol=0, atol=1e-6)
    (whole,) = parameters([(48, 16)])
    descend([whole], ours([whole], [1]), 4)
    assert (whole - fused).abs().max() > 0.01


def test_how_many_go_together_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = parameters(SHAPES * 2), parameters(SHAPES * 2)
    descend(many, ours(many, PARTS * 2), 3)
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", {"cpu": 300})
    descend(few, ours(few, PARTS * 2), 3)
    for left, right in zip(many, few):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), max_size=30))
def test_every_stack_is_in_one_batch_of_its_shape(shapes: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "BATCH_ELEMENTS", {"cpu": 20})
        found = list(muon.batches([torch.zeros(shape) for shape in shapes]))
    assert sorted(place for batch in found for place in batch) == list(range(len(shapes)))
    for batch in found:
        assert len({shapes[place][1:] for place in batch}) == 1 and batch == sorted(batch)
        assert len(batch) == 1 or sum(np.prod(shapes[place]) for place in batch) <= 20


# ---------------------------------------------------------------- the optimizer of a whole model


def named(module: nn.Module, group: dict[str, Any]) -> list[str]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [names[id(parameter)] for parameter in group["params"]]


def test_matrices_go_to_muon_and_the_rest_to_adamw_with_a_rate_of_its_own() -> None:
    module = model()
    first, second = Muon(lr=0.03, adam_lr=0.004, weight_decay=0.2).build(module).param_groups
    assert (first["lr"], first["weight_decay"]) == (0.03, 0.2) and (second["lr"], second["weight_decay"]) == (0.004, 0)
    block = {"attention.qkv": 3, "attention.out": 1, "unit.up": 2, "unit.down": 1}
    expected = {f"blocks.{i}.{name}.weight": count for i in (0, 1) for name, count in block.items()}
    assert dict(zip(named(module, first), first["parts"])) == {**expected, "head_dense.weight": 1}
    assert len(first["params"]) + len(second["params"]) == len(list(module.parameters()))
    assert "embedding.weight" in named(module, second)
    first, second = Muon(lr=0.03).build(module).param_groups
    assert second["lr"] == muon.ADAM_LR_FACTOR * first["lr"]


def test_decay_goes_by_role_in_both_halves() -> None:
    module = model()
    optimizer = Muon(decay=("embeddings",), weight_decay=0.3).build(module)
    decaying = [name for group in optimizer.param_groups if group["weight_decay"] for name in named(module, group)]
    assert decaying == ["embedding.weight"]
    assert [group["parts"] is None for group in optimizer.param_groups] == [False, True, True]


def test_a_plain_module_has_one_matrix_a_tensor_and_other_tensors_go_to_adamw() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Conv1d(8, 3, 2))
    first, *others = Muon().build(module).param_groups
    assert named(module, first) == ["0.weight"] and first["parts"] == [1]
    assert [name for group in others for name in named(module, group)] == ["1.weight", "0.bias", "1.bias"]


def test_the_other_half_is_torchs_adamw_bit_for_bit() -> None:
    shapes: list[tuple[int, ...]] = [(9, 4), (4,), ()]
    weights, theirs = parameters(shapes), parameters(shapes)
    group = {"params": weights, "weight_decay": 0.2, "lr": 3e-2}
    descend(weights, MuonOptimizer([group], lr=0.5, betas=(0.85, 0.97), eps=1e-7), 5)
    descend(theirs, torch.optim.AdamW(theirs, lr=3e-2, betas=(0.85, 0.97), eps=1e-7, weight_decay=0.2, fused=True), 5)
    for left, right in zip(weights, theirs):
        assert torch.equal(left, right)


def test_it_goes_on_bit_for_bit_from_what_a_checkpoint_holds() -> None:
    module, again = model(), model(2)
    config = Muon(lr=0.02, adam_lr=0.01)
    optimizer, restored = config.build(module), config.build(again)
    train(module, optimizer, 3)
    again.load_state_dict(copy.deepcopy(module.state_dict()))
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    assert {name.split(".")[1] for name in tensors} == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}
    restore_optimizer(restored, tensors)
    assert train(module, optimizer, 3, seed=1) == train(again, restored, 3, seed=1)
    for left, right in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)


def test_what_has_no_gradient_is_left_alone() -> None:
    still, moved, bias = parameters([(4, 4), (4, 4), (4,)])
    before = still.detach().clone()
    groups: list[dict[str, Any]] = [{"params": [still, moved], "parts": [1, 1]}, {"params": [bias]}]
    optimizer = MuonOptimizer(groups, lr=RATE, weight_decay=DECAY)
    moved.grad = torch.ones(4, 4)
    optimizer.step()
    assert torch.equal(still, before) and list(optimizer.state) == [moved]


@pytest.mark.parametrize("run", ["float32", "bfloat16"])
@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16"])
def test_it_multiplies_as_asked_or_as_the_run_does(asked: str, run: str) -> None:
    found, expected = parameters([(24, 16)]), parameters([(24, 16)])
    optimizer = Muon(newton_schulz=asked, lr=RATE, weight_decay=DECAY).build(nn.ParameterList(found))
    arithmetic = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    with torch.autocast("cpu", arithmetic[run], enabled=run != "float32"):
        descend(found, optimizer, 3)
    group = {"params": expected, "parts": [1], "weight_decay": DECAY}
    dtype = arithmetic[run if asked == "auto" else asked]
    descend(expected, MuonOptimizer([group], lr=RATE, newton_schulz=dtype), 3)
    assert torch.equal(found[0], expected[0]) and found[0].dtype == torch.float32


@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16"])
def test_it_learns_a_batch_by_heart(arithmetic: str) -> None:
    module = model()
    optimizer = Muon(lr=0.02, adam_lr=0.02, newton_schulz=arithmetic, weight_decay=0.0).build(module)
    ids = torch.randint(5, 40, (4, 10), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module.logits(ids).flatten(0, 1), ids.roll(1, 1).flatten())
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[0] > 3.0 and losses[-1] < 0.1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"newton_schulz": "float16"}, "newton-schulz cannot be 'float16'"),
        ({"adam_lr": -1.0}, "adam-lr is -1"),
        ({"momentum": 1.0}, "momentum is 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Muon(**fields)
