"""Compare a device with the CPU and with transformers: forward pass and gradients in float32 and half precision.

    python benchmarks/device_parity.py --out parity.json        uses the GPU if there is one

The random weights are larger than at the start of training, so that logits are far from 0. Differences are relative:
the root mean square of the difference divided by that of the CPU's float32 result. The largest logit difference has the
tolerance of the export's parity check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import measure
import torch
from stock_trainer import stock_modern
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training.hardware import probe
from daybreak.training.objectives.objective import CausalThenMasked

VOCABULARY, ROWS, LENGTH, MASKED = 4096, 4, 64, 24
"""Longer sequences, if they are so few, do not use torch's attention with masks (models/layers.py)."""
LAYOUTS = {
    "global": ModernEncoder(layers=4, hidden_size=256, heads=4, intermediate_size=512, init_std=0.08),
    "mixed": ModernEncoder(
        layers=4, hidden_size=256, heads=4, intermediate_size=512, init_std=0.08, global_every=3, window=32
    ),
}
FLOAT32 = 1e-4
"""Allowed in float32, relative; also the parity check's figure for logits of size 10."""
HALF = 0.05
"""Allowed in half precision, relative: bfloat16's 8 bits of mantissa are 0.4 % a rounding, and some dozen of them
meet. float16, which older cards have instead, rounds more finely."""


def relative(found: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference relative to that of ``expected``."""
    difference = (found.detach().cpu().double() - expected.detach().cpu().double()).square().mean().sqrt()
    return float(difference / expected.detach().cpu().double().square().mean().sqrt())


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Ids [B, L], masked positions [B, K] and attention mask [B, L], the same on every machine."""
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=chance)
    ids[:, 0] = 2
    positions = torch.stack([torch.randperm(LENGTH, generator=chance)[:MASKED].sort().values for _ in range(ROWS)])
    attention_mask = torch.arange(LENGTH)[None] < torch.randint(LENGTH // 2, LENGTH, (ROWS, 1), generator=chance)
    return ids, positions, attention_mask


def forwards(model: ModernBert, device: torch.device) -> dict[str, Tensor]:
    """Logits of every forward path on ``device``."""
    ids, positions, attention_mask = (tensor.to(device) for tensor in batch())
    model = model.to(device)
    with torch.inference_mode():
        return {
            "all positions": model.logits(ids),
            "asked positions": model.logits(ids, positions),
            "padded": model.logits(ids, attention_mask=attention_mask)[attention_mask],
            "causal": model.decoder(model.features(ids, causal=True)),
        }


def gradients(model: ModernBert, device: torch.device, precision: torch.dtype, progress: float) -> Tensor:
    """All gradients of one step of the objective, as one vector."""
    ids = batch()[0].to(device)
    model = model.to(device)
    model.zero_grad(set_to_none=True)
    with torch.autocast(device.type, precision, enabled=precision != torch.float32):
        loss = CausalThenMasked().loss(model, Batch(input_ids=ids), seed=0, position=0, progress=progress)
    loss.sum.backward()
    return torch.cat([parameter.grad.flatten().cpu() for parameter in model.parameters() if parameter.grad is not None])


def checks(device: torch.device, layouts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the checks: name, difference, tolerance."""
    half = probe.half_precision(device)
    for layout in layouts:
        shape = LAYOUTS[layout]
        torch.manual_seed(0)
        model = shape.build(VOCABULARY)
        home = torch.device("cpu")
        expected = forwards(model, home)
        for way, found in forwards(model, device).items():
            yield finding(f"{layout}, forward, {way}", relative(found, expected[way]), FLOAT32)
        whole = expected["all positions"]
        yield finding(f"{layout}, largest logit difference to stock on the device", *against_stock(model, device))
        ids, positions, _ = (tensor.to(device) for tensor in batch())
        picked = whole.gather(1, positions.cpu()[:, :, None].expand(-1, -1, VOCABULARY))
        agreed = relative(expected["asked positions"], picked)
        yield finding(f"{layout}, asked positions equal all positions", agreed, FLOAT32)
        with torch.inference_mode(), torch.autocast(device.type, getattr(torch, half)):
            low = model.to(device).logits(ids)
        yield finding(f"{layout}, forward in {half}", relative(low.float(), whole), HALF)
        for stage, progress in (("causal", 0.0), ("masked", 0.9)):
            right = gradients(model, home, torch.float32, progress)
            same = gradients(model, device, torch.float32, progress)
            low_gradient = gradients(model, device, getattr(torch, half), progress)
            yield finding(f"{layout}, {stage} gradient", relative(same, right), FLOAT32)
            yield finding(f"{layout}, {stage} gradient in {half}", relative(low_gradient, right), HALF)


def against_stock(model: ModernBert, device: torch.device) -> tuple[float, float]:
    """Largest logit difference to transformers' class on ``device``, and the tolerance of the export's parity check."""
    stock = stock_modern(model.shape, VOCABULARY, LENGTH).to(device).eval()
    weights = {name: tensor.to(device) for name, tensor in model.shape.export_weights(model).items()}
    weights["decoder.weight"] = weights["model.embeddings.tok_embeddings.weight"]
    stock.load_state_dict(weights)
    ids = batch()[0].to(device)
    with torch.inference_mode():
        theirs, ours = stock(input_ids=ids).logits, model.to(device).logits(ids)
    return float((theirs - ours).abs().max()), FLOAT32 * max(1.0, float(ours.abs().max()) / 10)


def finding(what: str, difference: float, allowed: float) -> dict[str, Any]:
    return {"what": what, "difference": difference, "allowed": allowed, "passed": difference <= allowed}


def check_device(device: torch.device, layouts: Iterable[str] = tuple(LAYOUTS)) -> dict[str, Any]:
    """All checks, and whether all passed."""
    found = list(checks(device, layouts))
    precision = torch.get_float32_matmul_precision()
    passed = all(one["passed"] for one in found)
    return {"device": device.type, "float32_products": precision, "passed": passed, "findings": found}


def render(found: dict[str, Any]) -> str:
    rows = [
        [one["what"], f"{one['difference']:.1e}", f"{one['allowed']:.1e}", "yes" if one["passed"] else "NO"]
        for one in found["findings"]
    ]
    return measure.table([f"cpu against {found['device']}", "difference", "allowed", "passed"], rows)


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    if chosen.short:
        measure.use_one_thread()
    layouts = ["mixed"] if chosen.short else list(LAYOUTS)
    found = {**measure.record("device parity", {}), **check_device(probe.choose_device(), layouts)}
    measure.finish(found, chosen.out)
    print(render(found))


if __name__ == "__main__":
    main()
