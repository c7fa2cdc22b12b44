"""The cross-entropy that never holds all logits, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from daybreak.training.objectives import loss
from daybreak.training.objectives.loss import CHUNK, LinearCrossEntropy, loss_and_gradient

WIDTH, VOCABULARY = 12, 37


def parts(targets: int, seed: int, scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Features, weight and bias that want gradients, and the answers."""
    rng = torch.Generator().manual_seed(seed)
    sizes = ((targets, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    inputs = [(scale * torch.randn(size, generator=rng)).requires_grad_() for size in sizes]
    return inputs, torch.randint(VOCABULARY, (targets,), generator=rng)


def both(targets: int, seed: int, scale: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """(loss, three gradients) of ours and of torch's, after an upstream slope of 0.37."""
    found = []
    for ours in (True, False):
        inputs, answers = parts(targets, seed, scale)
        if ours:
            loss = LinearCrossEntropy.apply(*inputs, answers)
        else:
            features, weight, bias = inputs
            loss = F.cross_entropy(F.linear(features, weight, bias), answers, reduction="sum")
        (0.37 * loss).backward()
        found.append([loss.detach(), *(tensor.grad for tensor in inputs)])
    return found[0], found[1]


@pytest.mark.parametrize("targets", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 3])
def test_value_and_gradients_equal_torch(targets: int) -> None:
    for mine, theirs in zip(*both(targets, seed=targets)):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-4 if mine.dim() == 0 else 2e-5)


@settings(max_examples=30, deadline=None)
@given(targets=st.integers(1, 40), seed=st.integers(0, 2**31), scale=st.sampled_from([0.01, 1.0, 12.0]))
def test_value_and_gradients_equal_torch_for_any_input(targets: int, seed: int, scale: float) -> None:
    mine, theirs = both(targets, seed, scale)
    for left, right in zip(mine, theirs):
        assert torch.isfinite(left).all()
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4 * max(1.0, scale))


def test_autocast_stays_near_float32_and_keeps_float32_gradients() -> None:
    exact, answers = parts(CHUNK + 20, seed=2)
    LinearCrossEntropy.apply(*exact, answers).backward()
    low, _ = parts(CHUNK + 20, seed=2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = LinearCrossEntropy.apply(*low, answers)
    assert loss.dtype == torch.float32
    loss.backward()
    reference = LinearCrossEntropy.apply(*exact, answers)
    assert loss.item() == pytest.approx(reference.item(), rel=5e-3)
    for mine, right in zip(low, exact):
        assert mine.grad is not None and right.grad is not None and mine.grad.dtype == torch.float32
        assert (mine.grad - right.grad).norm() <= 0.02 * right.grad.norm()


@pytest.mark.parametrize("arithmetic", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("targets", [CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 3])
def test_compiled_chunks_give_what_uncompiled_ones_give(
    arithmetic: torch.dtype, targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whole chunks are compiled, so that all have one shape; the function here is what the compiler gets."""
    monkeypatch.setattr(loss, "CPU_CHUNK", CHUNK)
    shapes = []

    def compiled(logits: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shapes.append(tuple(logits.shape))
        return loss_and_gradient(logits, answers)

    inputs, answers = parts(targets, seed=5)
    found = []
    for code in (None, compiled):
        mine = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        with torch.autocast("cpu", arithmetic):
            total = LinearCrossEntropy.apply(*mine, answers, code)
        total.backward()
        found.append([total, *(tensor.grad for tensor in mine)])
    assert shapes == [(CHUNK, VOCABULARY)] * (targets // CHUNK)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-3 * float(one.detach().abs().max()))
    if targets < CHUNK:
        assert all(torch.equal(one, other) for one, other in zip(*found))


def test_the_loss_that_is_compiled_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(6)
    logits = (4 * torch.randn(40, 300, generator=generator)).to(torch.bfloat16)
    answers = torch.randint(300, (40, 1), generator=generator)
    exact = logits.double().requires_grad_()
    right = F.cross_entropy(exact, answers[:, 0], reduction="sum")
    (slope,) = torch.autograd.grad(right, exact)
    total, gradient, bias = loss_and_gradient(logits, answers)
    assert total.dtype == bias.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(total.double(), right.detach(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(bias.double(), slope.sum(dim=0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), slope, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("targets", [1, CHUNK + 3])
def test_a_decoder_without_a_bias(targets: int) -> None:
    (features, weight, _), answers = parts(targets, seed=4)
    other = [tensor.detach().clone().requires_grad_() for tensor in (features, weight)]
    ours = LinearCrossEntropy.apply(features, weight, None, answers)
    theirs = F.cross_entropy(F.linear(*other), answers, reduction="sum")
    (0.37 * ours).backward()
    (0.37 * theirs).backward()
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-4)
    for mine, right in zip((features, weight), other):
        torch.testing.assert_close(mine.grad, right.grad, rtol=2e-5, atol=2e-5)


def test_no_target_is_no_loss() -> None:
    inputs, answers = parts(0, seed=1)
    loss = LinearCrossEntropy.apply(*inputs, answers)
    loss.backward()
    assert loss.item() == 0 and all(tensor.grad is not None and not tensor.grad.any() for tensor in inputs)


def test_it_works_without_gradients() -> None:
    inputs, answers = parts(7, seed=3)
    with torch.no_grad():
        loss = LinearCrossEntropy.apply(*inputs, answers)
    assert not loss.requires_grad and loss.item() > 0


@pytest.mark.parametrize("arithmetic", [torch.float32, torch.bfloat16])
def test_memory_that_is_used_again_changes_nothing(arithmetic: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers of targets, other shapes and a validation before training, each beside new memory."""

    def step(targets: int, width: int, buffers: loss.Buffers) -> list[Tensor]:
        monkeypatch.setattr(loss, "BUFFERS", buffers)
        rng = torch.Generator().manual_seed(targets)
        sizes = ((targets, width), (VOCABULARY, width), (VOCABULARY,))
        inputs = [torch.randn(size, generator=rng).requires_grad_() for size in sizes]
        answers = torch.randint(VOCABULARY, (targets,), generator=rng)
        with torch.autocast("cpu", arithmetic, enabled=arithmetic != torch.float32):
            with torch.inference_mode():
                LinearCrossEntropy.apply(*inputs, answers)
            total = LinearCrossEntropy.apply(*inputs, answers)
        total.backward()
        return [total.detach(), *(each.grad for each in inputs if each.grad is not None)]

    kept = loss.Buffers()
    for targets, width in ((8, WIDTH), (20, WIDTH), (3, WIDTH), (CHUNK + 5, 5), (0, 5), (8, WIDTH)):
        found, expected = step(targets, width, kept), step(targets, width, loss.Buffers())
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    memory = [kept.take(4, torch.zeros(VOCABULARY, WIDTH), arithmetic)[0].data_ptr() for _ in "12"]
    assert memory[0] == memory[1]
