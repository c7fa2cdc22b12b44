"""Which parameters decay, and the same steps as torch's plain AdamW."""

from __future__ import annotations

import copy

import torch

from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training.optimizers import AdamW


def model() -> ModernBert:
    torch.manual_seed(1)
    return ModernEncoder(layers=2, width=16, heads=2, inner=12, init_std=0.1).build(40)


def test_matrices_decay_and_embeddings_norms_and_biases_do_not() -> None:
    encoder = model()
    groups = AdamW(weight_decay=0.3).build(encoder).param_groups
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    decaying = {names[id(p)] for group in groups if group["weight_decay"] == 0.3 for p in group["params"]}
    others = {names[id(p)] for group in groups if group["weight_decay"] == 0.0 for p in group["params"]}
    assert decaying | others == set(names.values()) and not decaying & others
    parts = "attention.qkv attention.out unit.up unit.down".split()
    blocks = {f"blocks.{i}.{part}.weight" for i in (0, 1) for part in parts}
    assert decaying == blocks | {"head_dense.weight"}
    assert "embedding.weight" in others and "output.bias" in others


def test_five_steps_equal_torch() -> None:
    ours = model()
    theirs = copy.deepcopy(ours)
    config = AdamW(lr=3e-2, beta1=0.85, beta2=0.97, epsilon=1e-7, weight_decay=0.2)
    mine = config.build(ours)
    decays = [p for n, p in theirs.named_parameters() if p.dim() > 1 and "embedding" not in n]
    rest = [p for p in theirs.parameters() if all(p is not other for other in decays)]
    settings = {"lr": 3e-2, "betas": (0.85, 0.97), "eps": 1e-7, "foreach": False, "fused": False}
    plain = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}], **settings
    )
    ids = torch.randint(5, 40, (4, 10), generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        for encoder, optimizer in ((ours, mine), (theirs, plain)):
            optimizer.zero_grad()
            encoder.logits(ids).square().mean().backward()
            optimizer.step()
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6, msg=name)
