"""Tokens a second of our training step beside transformers' own Trainer, in turns, in one process, on this machine.

    python benchmarks/throughput.py --recipes base,small --lengths 128,512 --out throughput.json

The Trainer is set up as its masked-LM example script does (DataCollatorForLanguageModeling at 15 %, head and logits at
every position), with bfloat16 where we use it, torch's fused AdamW, and loader processes, which are kinder than its
default. ModernBertForMaskedLM has our shape and as many parameters; BertForMaskedLM has the same layers, width and
heads, and a plain unit of 4 x width. Both sides take rows of one length, as many a step, without accumulation.

Ours is timed by stage; "recipe" weighs the stages by the share of time that the recipe gives them.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flops
import measure
import torch
from our_step import WARMUP_STEPS, Block, Cell, ZipfStream, our_block
from stock_trainer import stock_bert, stock_modern, trainer_block

from daybreak.data.sampler import RowSampler
from daybreak.data.shards import open_shards
from daybreak.recipe import Recipe, load_recipe
from daybreak.training import probe
from daybreak.training.objectives import CausalThenMasked

RATE_SIDE = {"cpu": 1024, "cuda": 8192}


def stock_block(cell: Cell, kind: str) -> Callable[[float], Block]:
    """The same for a stock model under transformers' Trainer."""
    if kind == "ModernBERT":
        model = stock_modern(cell.shape, cell.vocabulary, cell.length)
        forward = flops.modern_forward(cell.shape, cell.vocabulary, cell.length, asked=cell.length, targets=cell.length)
    else:
        model = stock_bert(cell.shape, cell.vocabulary, cell.length)
        shape = cell.shape
        forward = flops.bert_forward(shape.layers, shape.width, 4 * shape.width, cell.vocabulary, cell.length)
    kept = cell.sampler.take(0, min(cell.sampler.rows_per_epoch, 64 * cell.rows)).ids

    def block(seconds: float) -> Block:
        steps, spent = trainer_block(
            model, kept, cell.vocabulary, rows=cell.rows, seconds=seconds, warmup=WARMUP_STEPS, device=cell.device,
            bfloat16=cell.precision == "bfloat16", workers=cell.workers,
        )  # fmt: skip
        trained = steps * cell.rows
        return Block(trained * cell.length, spent, float(trained * flops.training(forward)))

    return block


def matrix_rate(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """FLOP/s of large square products on random numbers, back to back."""
    side = RATE_SIDE[device.type]
    left, right = torch.randn(2, side, side, device=device).to(getattr(torch, precision))
    for _ in range(3):
        torch.mm(left, right)
    _synchronise(device)
    begun, products = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            torch.mm(left, right)
        products += 10 if device.type == "cuda" else 1
        _synchronise(device)
    return 2 * side**3 * products / (time.perf_counter() - begun)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


CONTENDERS: dict[str, Callable[[Cell], Callable[[float], Block]]] = {
    "daybreak, causal": lambda cell: our_block(cell, "causal"),
    "daybreak, masked": lambda cell: our_block(cell, "masked"),
    "transformers ModernBERT": lambda cell: stock_block(cell, "ModernBERT"),
    "transformers BERT": lambda cell: stock_block(cell, "BERT"),
}


def measure_cell(cell: Cell, *, seconds: float, turns: int) -> dict[str, Any]:
    """All contenders in turns; the median of the turns counts. One that fails is left out."""
    found: dict[str, Any] = {
        "recipe": cell.recipe.name, "length": cell.length, "rows": cell.rows, "vocabulary": cell.vocabulary,
        "precision": cell.precision, "matrix_rate": [matrix_rate(cell.device, cell.precision)], "contenders": {},
    }  # fmt: skip
    blocks: dict[str, list[Block]] = {name: [] for name in CONTENDERS}
    ready: dict[str, Callable[[float], Block]] = {}
    failed: dict[str, str] = {}
    for _ in range(turns):
        for name, build in CONTENDERS.items():
            if name in failed:
                continue
            try:
                ready.setdefault(name, ready.get(name) or build(cell))
                blocks[name].append(ready[name](seconds))
            except torch.OutOfMemoryError:
                failed[name] = "out of memory"
            except Exception as error:  # such as a Trainer without accelerate: the others still count
                traceback.print_exc()
                failed[name] = type(error).__name__
            if cell.device.type == "cuda":
                torch.cuda.empty_cache()
    found["matrix_rate"].append(matrix_rate(cell.device, cell.precision))
    rate = statistics.fmean(found["matrix_rate"])
    for name, own in blocks.items():
        found["contenders"][name] = {"failed": failed[name]} if name in failed else contender(own, rate)
    _weigh_stages(found["contenders"], cell.recipe)
    return found


def contender(blocks: Sequence[Block], rate: float) -> dict[str, Any]:
    """Medians over the turns; ``rate`` is what the matrix unit was measured to do."""
    speeds = [block.tokens / block.seconds for block in blocks]
    work = [block.flops / block.seconds for block in blocks]
    return {
        "tokens_per_second": statistics.median(speeds),
        "turns": speeds,
        "flops_per_token": blocks[0].flops / blocks[0].tokens,
        "share_of_matrix_rate": statistics.median(work) / rate,
    }


def _weigh_stages(contenders: dict[str, Any], recipe: Recipe) -> None:
    """Add the recipe as a whole: progress is time, so the stages' speeds are averaged by their share of it."""
    causal, masked = contenders["daybreak, causal"], contenders["daybreak, masked"]
    assert isinstance(recipe.objective, CausalThenMasked)
    if "failed" not in causal and "failed" not in masked:
        share = recipe.objective.causal_share
        contenders["daybreak, recipe"] = {
            name: share * causal[name] + (1 - share) * masked[name]
            for name in ("tokens_per_second", "share_of_matrix_rate")
        }


def render(cells: Sequence[dict[str, Any]]) -> str:
    """Tokens a second, and the share of the matrix rate in brackets."""
    names = ["daybreak, recipe", *CONTENDERS]
    rows = []
    for cell in cells:
        line = [f"{cell['recipe']} {cell['length']} x {cell['rows']}"]
        for name in names:
            seen = cell["contenders"].get(name, {"failed": "-"})
            share = f"({seen['share_of_matrix_rate']:.0%})" if "failed" not in seen else ""
            line.append(seen.get("failed") or f"{seen['tokens_per_second'] / 1000:,.1f}k {share}")
        rows.append(line)
    return measure.table(["tokens/s (share of matrix rate)", *names], rows)


def make_cell(recipe: Recipe, length: int, step_tokens: int, device: torch.device, chosen: argparse.Namespace) -> Cell:
    rows = max(1, step_tokens // length)
    stream: Any
    if chosen.data:
        shards = open_shards(chosen.data)
        stream, vocabulary = shards.train, shards.manifest.vocabulary
    else:
        vocabulary = recipe.tokenizer.vocabulary
        stream = ZipfStream(vocabulary, 8 * step_tokens)
    rates = probe.matmul_rates(device)
    precision = max(rates, key=lambda name: rates[name])  # both sides of the comparison get it
    sampler = RowSampler(stream, length, seed=0)
    return Cell(recipe, vocabulary, sampler, length, rows, device, precision, chosen.workers)


def sweep(chosen: argparse.Namespace, device: torch.device, deadline: float, tell: Callable[[Any], None]) -> list[Any]:
    """Every recipe at every length until ``deadline`` (``time.monotonic()``); ``tell`` is given the cells so far."""
    cells: list[Any] = []
    slowest = 0.0
    for name in chosen.recipes.split(","):
        for length in (int(text) for text in chosen.lengths.split(",")):
            begun = time.monotonic()
            if begun + slowest > deadline:
                print(f"No time left for {name} at {length} tokens.", flush=True)
                continue
            recipe = replace(load_recipe(name), length=length)
            cell = make_cell(recipe, length, chosen.step_tokens, device, chosen)
            cells.append(measure_cell(cell, seconds=chosen.seconds, turns=chosen.turns))
            slowest = max(slowest, time.monotonic() - begun)
            tell(cells)
    return cells


def add_flags(to: argparse.ArgumentParser) -> None:
    to.add_argument("--recipes", default="base,small,mini,tiny")
    to.add_argument("--lengths", default="128,512")
    to.add_argument("--step-tokens", type=int, default=65_536, help="of a step, on both sides")
    to.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    to.add_argument("--turns", type=int, default=2, help="of each contender")
    to.add_argument("--workers", type=int, default=4, help="loader processes of the Trainer")


def shorten(chosen: argparse.Namespace) -> None:
    """Settings of a dry run."""
    chosen.recipes, chosen.lengths, chosen.step_tokens, chosen.seconds, chosen.turns = "tiny", "32", 128, 0.5, 2
    chosen.workers = 0


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare; else invented ids")
    add_flags(parser)
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        shorten(chosen)
    settings = {name: getattr(chosen, name) for name in "recipes lengths step_tokens seconds turns workers".split()}
    found = measure.record("throughput", settings)

    def tell(cells: list[Any]) -> None:
        found["cells"] = cells
        measure.finish(found, chosen.out)

    print(render(sweep(chosen, probe.choose_device(), float("inf"), tell)))


if __name__ == "__main__":
    main()
