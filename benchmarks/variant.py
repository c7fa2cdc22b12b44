"""Run one side of a speed comparison in its own process, so that its memory is measured separately.

Used by throughput.py; run alone it measures a toy variant for a second.

The parent writes a number of seconds on each line; the worker trains for about that time and answers with one line of
JSON. Between blocks it waits for input.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import measure
import torch
from matrix_products import ProductsBlock
from our_step import Block, Cell, ZipfStream, our_block

from daybreak.cli import SPINS
from daybreak.core.process import status_bytes
from daybreak.data.sequences.sampler import RowSampler
from daybreak.data.sequences.shards import open_shards
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import load_recipe

ANSWER = "variant: "
"""Begins the lines that are meant for the parent; Trainers print lines of their own."""
NAMES_BEFORE = ("contender.py", "contender: ")
"""Of this script and of ``ANSWER`` in commits before 2026-11-23 13:00."""
BATCHES = 64
"""Of an epoch of invented ids: the Trainer starts its loader processes anew for each epoch."""
TOY: dict[str, Any] = {"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 64}


def stock(kind: str) -> Callable[[Cell], Callable[[float], Block]]:
    """A model of transformers, which only this process imports."""

    def build(cell: Cell) -> Callable[[float], Block]:
        from stock_trainer import stock_block

        return stock_block(cell, kind)

    return build


CONTENDERS: dict[str, Callable[[Cell], Callable[[float], Block]]] = {
    "daybreak, causal": lambda cell: our_block(cell, "causal"),
    "daybreak, masked": lambda cell: our_block(cell, "masked"),
    "products, causal": lambda cell: ProductsBlock(cell, "causal"),
    "products, masked": lambda cell: ProductsBlock(cell, "masked"),
    "plain loop BERT": stock("plain loop BERT"),
    "transformers ModernBERT": stock("Trainer ModernBERT"),
    "transformers BERT": stock("Trainer BERT"),
}
"""Whose names begin with "products" do not train: they time the matrix products of our step, by themselves."""


class Variant:
    """Process of a variant, started at once; it works when the first block is requested.

    Args:
        settings: of the cell, as ``built`` reads them.
        log: what the process prints beside its answers.
        checkout: whose sources and benchmarks the process runs.
    """

    def __init__(self, name: str, settings: dict[str, Any], log: Path, checkout: Path = measure.ROOT):
        script, self._answer = checkout / "benchmarks" / Path(__file__).name, ANSWER.encode()
        if not script.exists():
            script, self._answer = script.with_name(NAMES_BEFORE[0]), NAMES_BEFORE[1].encode()
        command = [sys.executable, str(script), "--name", name, "--cell", json.dumps(settings)]
        self._log = log.open("ab")
        environment = measure.environment(checkout)
        if name.startswith("daybreak"):  # as in its commands; the Trainer has libgomp's default
            environment["GOMP_SPINCOUNT"] = SPINS
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=self._log, env=environment)

    def block(self, seconds: float, limit: float = float("inf")) -> dict[str, Any]:
        """Run one block; return its tokens, seconds, FLOPs and memory, or why it ``failed``.

        After ``limit`` seconds the process is killed: to start and to compile may take minutes.
        """
        assert self._process.stdin and self._process.stdout
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(f"{seconds}\n".encode())
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(self._answer):
                    found: dict[str, Any] = json.loads(line[len(self._answer) :])
                    return found
                self._log.write(line)
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        return {"failed": f"ended with {self._process.wait()}"}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def built(settings: dict[str, Any]) -> Cell:
    """Build the cell of ``settings``: recipe, vocabulary, length, batch, data (or none), precision, workers."""
    recipe = load_recipe(settings["recipe"])
    if settings.get("toy"):
        recipe = replace(recipe, model=ModernEncoder(**TOY))
    recipe = replace(recipe, length=settings["length"])
    stream: Any
    if settings["data"]:
        stream = open_shards(Path(settings["data"])).train
    else:
        stream = ZipfStream(settings["vocabulary"], BATCHES * settings["rows"] * settings["length"])
    sampler = RowSampler(stream, settings["length"], seed=0)
    return Cell(
        recipe, settings["vocabulary"], sampler, settings["length"], settings["rows"],
        torch.device(settings["device"]), settings["precision"], settings["workers"],
    )  # fmt: skip


def resident(name: str) -> int:
    found = status_bytes(name)
    assert found is not None, "this system does not tell the memory of a process"
    return found


def memory(device: torch.device) -> dict[str, float]:
    """Peak memory of this process in GiB, including imports."""
    peak = resident("VmHWM")
    found = {"peak_gib": round(peak / 2**30, 3)}
    if device.type == "cuda":
        found["device_peak_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    return found


def answer(name: str, settings: dict[str, Any]) -> None:
    """Main loop of the worker: one block for each line of its input."""
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    cell, work = built(settings), None
    for line in sys.stdin:
        try:
            work = work or CONTENDERS[name](cell)
            start = resident("VmRSS")
            block = work(float(line))
            found = {**asdict(block), "resident_before_gib": round(start / 2**30, 3), **memory(cell.device)}
            if isinstance(work, ProductsBlock):
                found["products"] = work.details()
        except torch.OutOfMemoryError:
            found = {"failed": "out of memory"}
        except Exception as error:  # such as a Trainer without accelerate: the others still count
            traceback.print_exc()
            found = {"failed": type(error).__name__}
        if cell.device.type == "cuda":
            torch.cuda.empty_cache()
        print(ANSWER + json.dumps(found), flush=True)


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--name", choices=CONTENDERS, default="daybreak, masked")
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.cell:
        answer(chosen.name, chosen.cell)
        return
    cell = {"recipe": "tiny", "vocabulary": 200, "length": 32, "rows": 4, "data": None, "device": "cpu"}
    cell |= {"precision": "float32", "workers": 0, "threads": 1, "toy": True}
    with measure.work_folder(chosen.work) as work:
        one = Variant(chosen.name, cell, work / "log.txt")
        found = one.block(1.0)
        one.close()
    print(json.dumps(found))
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
