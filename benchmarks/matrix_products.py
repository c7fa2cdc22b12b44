"""Time the matrix products of one training step separately, the lower bound of the step's time.

    python benchmarks/matrix_products.py --recipe mini --vocabulary 8192

The products have the shapes of the step: y = x w' forward, dX = g w and dW = g' x backward; the queries and the unit of
the last layer and the head at the masked positions only; the decoder in chunks of targets; attention as two batched
products. Each is timed repeatedly with preallocated outputs. The rate is the sum of all FLOPs divided by the sum of all
times. throughput.py runs it in turns with the steps: the fraction of this rate that a step reaches is the fraction of
its time that the products need.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flops
import measure
import torch
from our_step import Block, Cell, ZipfStream, moments
from torch import Tensor

from daybreak.data.sequences.sampler import RowSampler
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe, load_recipe
from daybreak.training.hardware import probe
from daybreak.training.objectives.loss import chunk
from daybreak.training.objectives.objective import CausalThenMasked

REPEATS = 3
"""Each product is timed at least so often in a pass."""


@dataclass(frozen=True)
class Product:
    """x [batch, rows, inner] times the transpose of w [batch, columns, inner]; ``count`` of them in a step."""

    name: str
    rows: int
    inner: int
    columns: int
    count: int = 1
    batch: int = 1
    accumulates: bool = False
    """The decoder's: with a bias forward, its dW added to what earlier chunks gave."""

    @property
    def flops(self) -> int:
        """FLOPs of one forward product."""
        return 2 * self.batch * self.rows * self.inner * self.columns


def products(
    recipe: Recipe, vocabulary: int, length: int, rows: int, progress: float, device: torch.device
) -> list[Product]:
    """The products of a step of ``rows`` sequences at ``progress``, forward as in flops.step_forward."""
    shape = recipe.model
    assert isinstance(shape, ModernEncoder)
    asked, targets = flops.asked_and_targets(recipe, length, progress)
    width, inner, channels, heads = (
        shape.hidden_size,
        shape.intermediate_size,
        shape.hidden_size // shape.heads,
        rows * shape.heads,
    )
    every, few = rows * length, rows * asked
    upper = shape.layers - 1
    found = [
        Product("qkv", every, width, 3 * width, upper),
        *_attention(length, length, channels, heads, upper),
        *_after_attention(every, width, inner, upper),
        Product("last keys, values", every, width, 2 * width),
        Product("last queries", few, width, width),
        *_attention(asked, length, channels, heads, 1, "last "),
        *_after_attention(few, width, inner, 1, "last "),
        Product("head", few, width, width),
    ]
    at_once = chunk(device, vocabulary)
    whole, rest = divmod(rows * targets, at_once)
    found.append(Product("decoder", at_once, width, vocabulary, whole, accumulates=True))
    found.append(Product("decoder, rest", rest, width, vocabulary, 1 if rest else 0, accumulates=True))
    return [product for product in found if product.count]


def _attention(asked: int, length: int, channels: int, heads: int, count: int, which: str = "") -> list[Product]:
    return [
        Product(f"{which}scores", asked, channels, length, count, heads),
        Product(f"{which}mixing", asked, length, channels, count, heads),
    ]


def _after_attention(rows: int, width: int, inner: int, count: int, which: str = "") -> list[Product]:
    return [
        Product(f"{which}out", rows, width, width, count),
        Product(f"{which}up", rows, width, 2 * inner, count),
        Product(f"{which}down", rows, inner, width, count),
    ]


class Timed:
    """Seconds of a product in its three directions."""

    def __init__(self, product: Product, device: torch.device, precision: torch.dtype):
        lead = (product.batch,) if product.batch > 1 else ()

        def made(*size: int) -> Tensor:
            return torch.randn(*lead, *size, device=device, dtype=precision)

        x, weight = made(product.rows, product.inner), made(product.columns, product.inner)
        gradient = made(product.rows, product.columns)
        multiply: Callable[..., Any] = torch.bmm if lead else torch.mm
        y, to_x, to_weight = torch.empty_like(gradient), torch.empty_like(x), torch.empty_like(weight)
        self._directions: dict[str, Callable[[], Any]] = {
            "forward": lambda: multiply(x, weight.mT, out=y),
            "dX": lambda: multiply(gradient, weight, out=to_x),
            "dW": lambda: multiply(gradient.mT, x, out=to_weight),
        }
        if product.accumulates:
            bias = torch.randn(product.columns, device=device, dtype=precision)
            to_weight.zero_()
            self._directions["forward"] = lambda: torch.addmm(bias, x, weight.mT, out=y)
            self._directions["dW"] = lambda: to_weight.addmm_(gradient.mT, x)
        self._device, self._repeats = device, max(REPEATS, product.count)

    def seconds(self) -> dict[str, float]:
        return {name: self._time(call) for name, call in self._directions.items()}

    def _time(self, call: Callable[[], Any]) -> float:
        call()
        probe.synchronize(self._device)
        begun = time.perf_counter()
        for _ in range(self._repeats):
            call()
        probe.synchronize(self._device)
        return (time.perf_counter() - begun) / self._repeats


class ProductsBlock:
    """A variant of throughput.py that times the products of whole steps for about the given seconds."""

    def __init__(self, cell: Cell, stage: str):
        objective = cell.recipe.objective
        assert isinstance(objective, CausalThenMasked)
        self._cell, self._passes = cell, 0
        at = moments(objective, stage)
        self._steps = [
            products(cell.recipe, cell.vocabulary, cell.length, cell.rows, moment, cell.device) for moment in at
        ]
        self._seen: dict[Product, dict[str, list[float]]] = {}

    def __call__(self, seconds: float) -> Block:
        precision = getattr(torch, self._cell.precision)
        begun, passes, spent, work = time.perf_counter(), 0, 0.0, 0.0
        while not passes or time.perf_counter() - begun < seconds:
            for product in self._steps[self._passes % len(self._steps)]:
                took = Timed(product, self._cell.device, precision).seconds()
                for direction, each in took.items():
                    self._seen.setdefault(product, {}).setdefault(direction, []).append(each)
                spent += product.count * sum(took.values())
                work += product.count * flops.training(product.flops)
            passes += 1
            self._passes += 1
        return Block(passes * self._cell.rows * self._cell.length, spent, work)

    def details(self) -> list[dict[str, Any]]:
        """GFLOP/s of each product by direction (medians over passes)."""
        return [
            {
                "product": product.name,
                "shape": [product.batch, product.rows, product.inner, product.columns],
                "count": product.count,
                **{
                    name: round(product.flops / statistics.median(times) / 1e9, 1)
                    for name, times in self._seen[product].items()
                },
            }
            for product in self._seen
        ]


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.vocabulary, chosen.length, chosen.rows, chosen.seconds = 512, 32, 4, 0.1
    device, recipe = probe.choose_device(), load_recipe(chosen.recipe)
    names = ("recipe", "vocabulary", "length", "rows", "seconds")
    found = measure.record("matrix_products", {name: getattr(chosen, name) for name in names})
    stream: Any = ZipfStream(chosen.vocabulary, 50 * chosen.length)
    sampler = RowSampler(stream, chosen.length, seed=0)
    cell = Cell(recipe, chosen.vocabulary, sampler, chosen.length, chosen.rows, device, "float32", 0)
    for stage in ("causal", "masked"):
        timed = ProductsBlock(cell, stage)
        block = timed(chosen.seconds)
        found[stage] = {"gflops": block.flops / block.seconds / 1e9, "products": timed.details()}
        print(f"{stage}: {found[stage]['gflops']:.1f} GFLOP/s, weighted by FLOPs")
        rows = [
            [each["product"], " x ".join(map(str, each["shape"])), str(each["count"]),
             *(f"{each[name]:.1f}" for name in ("forward", "dX", "dW"))]
            for each in found[stage]["products"]
        ]  # fmt: skip
        print(measure.table(["product", "batch x rows x inner x columns", "count", "forward", "dX", "dW"], rows))
    measure.finish(found, chosen.out)


if __name__ == "__main__":
    main()
