"""The mean of the last weights, against numpy's mean of snapshots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from daybreak.core.errors import UserError
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training.averaging import Averaging, RunningAverage

STEPS = 40


def layer() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 2)


def walk(module: nn.Module, average: RunningAverage, first: int, last: int) -> None:
    """Steps ``first`` to ``last`` of a run of STEPS, as the loop takes them: the weights of a step, then the mean."""
    for step in range(first, last + 1):
        rng = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=rng))
        average.update(step, (step - 1) / STEPS)


@settings(max_examples=60, deadline=None)
@given(fraction=st.floats(0, 1), every=st.integers(1, 50))
def test_it_is_the_mean_of_the_snapshots_that_count(fraction: float, every: int) -> None:
    module, reference = layer(), layer()
    average = RunningAverage(Averaging(fraction=fraction, every=every), module)
    snapshots = []
    for step in range(1, STEPS + 1):
        walk(module, average, step, step)
        if fraction > 0 and (step - 1) / STEPS >= 1 - fraction and step % every == 0:
            snapshots.append([parameter.detach().double().numpy() for parameter in module.parameters()])
    average.put_in(reference)
    expected = [np.mean(arrays, axis=0) for arrays in zip(*snapshots)] or [p.detach() for p in layer().parameters()]
    assert int(average.tensors()["count"]) == len(snapshots)
    for parameter, array in zip(reference.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stop", [3, 21, 26, 39])
def test_a_restart_in_the_middle_changes_no_bit(stop: int, tmp_path: Path) -> None:
    averaging = Averaging(fraction=0.5, every=5)
    whole, halves = layer(), layer()
    straight, before = RunningAverage(averaging, whole), RunningAverage(averaging, halves)
    walk(whole, straight, 1, STEPS)
    walk(halves, before, 1, stop)
    save_file(before.tensors(), tmp_path / "average.safetensors")
    after = RunningAverage(averaging, halves)
    after.restore(load_file(tmp_path / "average.safetensors"))
    walk(halves, after, stop + 1, STEPS)
    found, expected = after.tensors(), straight.tensors()
    assert set(found) == set(expected) == {"count", "mean.weight", "mean.bias"} and int(expected["count"]) == 4
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_going_back_forgets_what_had_counted_since() -> None:
    module = layer()
    average = RunningAverage(Averaging(fraction=1.0, every=1), module)
    nothing = {name: tensor.clone() for name, tensor in average.tensors().items()}
    walk(module, average, 1, 2)
    earlier = {name: tensor.clone() for name, tensor in average.tensors().items()}
    kept = module.weight.detach().clone()
    walk(module, average, 3, 9)
    average.restore(earlier)
    assert all(torch.equal(tensor, earlier[name]) for name, tensor in average.tensors().items())
    walk(module, average, 3, 3)  # its own tensors move on, those that were read do not
    assert int(earlier["count"]) == 2 and not torch.equal(average.tensors()["mean.weight"], earlier["mean.weight"])
    average.restore(nothing)
    assert set(average.tensors()) == {"count"}
    with torch.no_grad():
        module.weight.copy_(kept)
    average.put_in(module)
    assert torch.equal(module.weight, kept)


def test_a_tied_decoder_stays_tied() -> None:
    def build(seed: int) -> ModernBert:
        torch.manual_seed(seed)
        return ModernEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=12).build(40)

    model = build(1)
    average = RunningAverage(Averaging(fraction=1.0, every=1), model)
    first = model.embedding.weight.detach().clone()
    average.update(1, 0.0)
    with torch.no_grad():
        model.embedding.weight.mul_(3.0)
    average.update(2, 0.1)
    average.put_in(model)
    assert model.output.weight is model.embedding.weight
    torch.testing.assert_close(model.output.weight.detach(), 2 * first)
    other = build(2)
    average.put_in(other)
    assert other.output.weight is other.embedding.weight
    ids = torch.arange(5, 25)[None]
    assert torch.equal(other.logits(ids), model.logits(ids))


def test_the_mean_of_coarse_weights_is_not_rounded() -> None:
    module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    average = RunningAverage(Averaging(fraction=1.0, every=1), module)
    for step, value in enumerate((1.0, 1.0, 1.0078125), start=1):
        nn.init.constant_(module.weight, value)
        average.update(step, 0.0)
    assert average.tensors()["mean.weight"].item() == pytest.approx((2 + 1.0078125) / 3, abs=1e-7)


def test_training_goes_on_untouched() -> None:
    module = layer()
    average = RunningAverage(Averaging(fraction=1.0, every=1), module)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    average.update(1, 0.5)
    module(torch.ones(1, 3)).sum().backward()
    assert all(torch.equal(left, right) for left, right in zip(before, module.parameters()))
    assert not any(tensor.requires_grad for tensor in average.tensors().values())


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"fraction": 1.5}, "fraction is 1.5"), ({"fraction": -0.1}, "fraction is -0.1"), ({"every": 0}, "every is 0")],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Averaging(**fields)  # type: ignore[arg-type]
