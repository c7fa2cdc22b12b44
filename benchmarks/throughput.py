"""Measure tokens per second of Daybreak's training step and of transformers' models, in turns.

    python benchmarks/throughput.py --out throughput.json
    python benchmarks/throughput.py --recipes base,small --lengths 128,512 --out throughput.json
    python benchmarks/throughput.py --other ../earlier-commit --out throughput.json

Each variant is a separate process, so that its peak memory is measured separately; they run in turns. The Trainer is
set up as in its masked-LM example script (DataCollatorForLanguageModeling at 15 %, head and logits at every position),
with bfloat16 where Daybreak uses it, torch's fused AdamW, and loader processes on a GPU, which are faster than its
default. The plain loop is BertForMaskedLM with torch's AdamW and no Trainer. ModernBertForMaskedLM has Daybreak's shape
and number of parameters; BertForMaskedLM has the same layers, hidden size and heads, and an ungated unit of 4 x hidden
size. Both sides use the same length and batch, without accumulation.

Daybreak is timed by stage; "recipe" weighs the stages by their fraction of the time. Its speed is given as a fraction
of the speed of large square products, and of the speed of the step's own matrix products in the same turns
(matrix_products.py). With ``--other``, the step of another checkout is timed in the same turns. Memory is the peak
resident memory of the process with imports, without loader processes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import measure
import torch
from variant import CONTENDERS, Variant

from daybreak.data.sequences.shards import open_shards
from daybreak.recipe import Recipe, load_recipe
from daybreak.training.hardware import probe
from daybreak.training.objectives.objective import CausalThenMasked

RATE_SIDE = {"cpu": 1024, "cuda": 8192}
STAGES = ("causal", "masked")
OTHER = {f"other commit, {stage}": f"daybreak, {stage}" for stage in STAGES}
"""Variants that another checkout runs, and their names there."""
KEPT = ("peak_gib", "device_peak_gib", "resident_before_gib", "products")
"""What a record keeps of a variant's last block."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "recipes": "tiny,mini", "lengths": "128", "vocabularies": "8192,32768", "step_tokens": 2_048, "seconds": 10.0,
        "turns": 5, "workers": 0,
    },
    "cuda": {
        "recipes": "base,small,mini,tiny", "lengths": "128,512", "vocabularies": "0", "step_tokens": 65_536,
        "seconds": 4.0, "turns": 2, "workers": 4,
    },
}  # fmt: skip


def matrix_rate(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """FLOP/s of large square products on random numbers."""
    side = RATE_SIDE[device.type]
    left, right = torch.randn(2, side, side, device=device).to(getattr(torch, precision))
    for _ in range(3):
        torch.mm(left, right)
    probe.synchronize(device)
    begun, products = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            torch.mm(left, right)
        products += 10 if device.type == "cuda" else 1
        probe.synchronize(device)
    return 2 * side**3 * products / (time.perf_counter() - begun)


def measure_cell(
    settings: dict[str, Any],
    *,
    seconds: float,
    turns: int,
    log: Path,
    deadline: float = float("inf"),
    checkout: Path | None = None,
) -> dict[str, Any]:
    """Run all variants in turns and return medians; variants that fail are left out.

    Args:
        deadline: in ``time.monotonic()``; then the running variant is ended, and the cell is not ``complete``.
        checkout: of another commit, whose step takes turns too.
    """
    device, precision, watch = torch.device(settings["device"]), settings["precision"], measure.Watch()
    names = ("recipe", "length", "rows", "vocabulary", "precision", "threads")
    found: dict[str, Any] = {name: settings[name] for name in names}
    found |= {"matrix_rate": [matrix_rate(device, precision)], "variants": {}}
    contenders = (*CONTENDERS, *(OTHER if checkout else ()))
    blocks: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}

    def started(name: str) -> Variant:
        if checkout and name in OTHER:
            return Variant(OTHER[name], settings, log, checkout)
        return Variant(name, settings, log)

    with ExitStack() as stack:
        # On a GPU all start at once: there the cores that import compute nothing.
        first = contenders if device.type == "cuda" else ()
        ready = {name: stack.enter_context(closing(started(name))) for name in first}
        for _ in range(turns):
            for name, own in blocks.items():
                left = deadline - time.monotonic()
                if left > 0 and not any("failed" in block for block in own):
                    if name not in ready:
                        ready[name] = stack.enter_context(closing(started(name)))
                    own.append(ready[name].block(seconds, left))
    found["complete"] = time.monotonic() < deadline
    found["matrix_rate"].append(matrix_rate(device, precision))
    rate = statistics.fmean(found["matrix_rate"])
    for name, own in blocks.items():
        last = own[-1] if own else {"failed": "no time left"}
        found["variants"][name] = last if "failed" in last else variant(own, rate)
    add_whole_recipe(found["variants"], load_recipe(settings["recipe"]))
    return found | watch.facts(settings["threads"])


def variant(blocks: Sequence[dict[str, Any]], rate: float) -> dict[str, Any]:
    """Medians over the turns; ``rate`` is the measured speed of matrix products."""
    speeds = [block["tokens"] / block["seconds"] for block in blocks]
    work = [block["flops"] / block["seconds"] for block in blocks]
    last = {name: blocks[-1][name] for name in KEPT if name in blocks[-1]}
    return {
        "tokens_per_second": statistics.median(speeds),
        "turns": speeds,
        "flops_per_token": blocks[0]["flops"] / blocks[0]["tokens"],
        "flops_per_second": statistics.median(work),
        "share_of_matrix_rate": statistics.median(work) / rate,
        **last,
    }


def add_whole_recipe(variants: dict[str, Any], recipe: Recipe) -> None:
    """Add to Daybreak's stages their fraction of the products' speed, and the recipe as a whole.

    Progress is time, so the stages' speeds are averaged by their share of it. The stages of another commit are
    averaged by the shares of this one, so that only the speed of the steps differs.
    """
    stages = [variants[f"daybreak, {stage}"] for stage in STAGES]
    for stage, seen in zip(STAGES, stages):
        alone = variants[f"products, {stage}"]
        if "failed" not in seen and "failed" not in alone:
            shares = [mine / theirs for mine, theirs in zip(seen["turns"], alone["turns"])]
            seen["share_of_products_rate"] = statistics.median(shares)
    assert isinstance(recipe.objective, CausalThenMasked)
    share = recipe.objective.causal_fraction
    for whose in ("daybreak", "other commit"):
        causal, masked = (variants.get(f"{whose}, {stage}", {"failed": "-"}) for stage in STAGES)
        if "failed" in causal or "failed" in masked:
            continue
        variants[f"{whose}, recipe"] = {
            name: share * causal[name] + (1 - share) * masked[name]
            for name in ("tokens_per_second", "share_of_matrix_rate", "share_of_products_rate")
            if name in causal and name in masked
        } | {"peak_gib": max(seen.get("peak_gib", 0.0) for seen in (causal, masked))}


def render(cells: Sequence[dict[str, Any]]) -> str:
    """Tokens per second, in brackets the fractions of both product speeds, and memory."""
    blocks = []
    for cell in cells:
        head = f"{cell['recipe']}, vocabulary {cell['vocabulary']}, {cell['rows']} x {cell['length']} tokens a step"
        rows = []
        others = [name for name in ("other commit, recipe", *OTHER) if name in cell["variants"]]
        for name in ["daybreak, recipe", *CONTENDERS, *others]:
            seen = cell["variants"].get(name, {"failed": "-"})
            if "failed" in seen:
                rows.append([name, str(seen["failed"]), "", "", ""])
                continue
            shares = [seen.get(f"share_of_{which}_rate") for which in ("matrix", "products")]
            told = ["" if share is None else f"{share:.0%}" for share in shares]
            rows.append([name, f"{seen['tokens_per_second']:,.0f}", *told, f"{seen['peak_gib']:.2f}"])
        void = ", machine busy: void" if cell["void"] else ""
        columns = [head + void, "tokens/s", "of square products", "of own products", "peak GiB"]
        blocks.append(measure.table(columns, rows))
    return "\n\n".join(blocks)


def cell_settings(name: str, length: int, vocabulary: int, chosen: argparse.Namespace, device: torch.device) -> Any:
    """Settings for ``built``; ``vocabulary`` 0 for that of the data or of the recipe."""
    known = open_shards(chosen.data).manifest.vocabulary if chosen.data else 0
    if vocabulary and vocabulary < known:
        sys.exit(f"The data have {known} tokens, more than a vocabulary of {vocabulary}.")
    return {
        "recipe": name,
        "length": length,
        "vocabulary": vocabulary or known or load_recipe(name).tokenizer.vocabulary,
        "rows": max(1, chosen.step_tokens // length),
        "data": str(chosen.data) if chosen.data else None,
        "device": str(device),
        "precision": probe.precisions(device)[-1],  # of both sides: half precision wherever a run would time it
        "workers": chosen.workers,
        "threads": torch.get_num_threads(),
    }


def sweep(
    chosen: argparse.Namespace,
    device: torch.device,
    deadline: float,
    log: Path,
    tell: Callable[[Any], None],
    before: Sequence[dict[str, Any]] = (),
    checkout: Path | None = None,
) -> list[Any]:
    """Measure every recipe and vocabulary at every length until ``deadline``; ``tell`` receives all cells.

    Args:
        log: where what the variants print goes.
        before: cells of an earlier call. Complete ones are kept, others too if there is no time to measure them anew.
        checkout: of another commit, whose step takes turns too.
    """
    settle(chosen, device)
    known = {cell_name(cell): cell for cell in before}
    cells: list[Any] = []
    asked = [[int(text) for text in each.split(",")] for each in (chosen.lengths, chosen.vocabularies)]
    for name, length, vocabulary in itertools.product(chosen.recipes.split(","), *asked):
        settings = cell_settings(name, length, vocabulary, chosen, device)
        earlier = known.get(cell_name(settings))
        if earlier and (earlier["complete"] or time.monotonic() >= deadline):
            cells.append(earlier)
        elif time.monotonic() < deadline:
            found = measure_cell(
                settings,
                seconds=chosen.seconds,
                turns=chosen.turns,
                log=log,
                deadline=deadline,
                checkout=checkout,
            )
            cells.append(found)
        else:
            print(f"No time left for {name} at {length} tokens.", flush=True)
        tell(cells)
    return cells


def cell_name(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a cell, or its settings, from the others of a sweep."""
    return tuple(cell[name] for name in ("recipe", "length", "rows", "vocabulary"))


def add_flags(to: argparse.ArgumentParser) -> None:
    to.add_argument("--recipes", help="base,small,mini,tiny on a GPU, tiny,mini on a CPU")
    to.add_argument("--lengths", help="128,512 on a GPU, 128 on a CPU")
    to.add_argument("--vocabularies", help="0 for the recipe's own: the default on a GPU; 8192,32768 on a CPU")
    to.add_argument("--step-tokens", type=int, help="of a step, on both sides: 65,536 on a GPU, 2,048 on a CPU")
    to.add_argument("--seconds", type=float, help="of a turn: 4 on a GPU, 10 on a CPU")
    to.add_argument("--turns", type=int, help="of each variant: 2 on a GPU, 5 on a CPU")
    to.add_argument("--workers", type=int, help="loader processes of the Trainer: 4 on a GPU; none on a CPU")


def settle(chosen: argparse.Namespace, device: torch.device) -> None:
    """Fill in default settings."""
    for name, value in DEFAULTS[device.type].items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)


def shorten(chosen: argparse.Namespace) -> None:
    """Settings of a dry run."""
    chosen.recipes, chosen.lengths, chosen.step_tokens, chosen.seconds, chosen.turns = "tiny", "32", 128, 0.5, 2
    chosen.workers, chosen.vocabularies = 0, "512,1024"


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare; else invented ids")
    parser.add_argument("--other", type=Path, help="checkout of another commit, whose step is timed in the same turns")
    add_flags(parser)
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        shorten(chosen)
    device = probe.choose_device()
    settle(chosen, device)
    settings = {name: getattr(chosen, name) for name in DEFAULTS["cpu"]}
    found = measure.record("throughput", settings)
    found["environment"] = measure.thread_settings()
    other = chosen.other.resolve() if chosen.other else None
    if other:
        found["other_commit"] = measure.commit(other)

    def tell(cells: list[Any]) -> None:
        found["cells"] = cells
        measure.finish(found, chosen.out)

    with measure.work_folder(chosen.work) as work:
        print(render(sweep(chosen, device, float("inf"), work / "log.txt", tell, checkout=other)))


if __name__ == "__main__":
    main()
