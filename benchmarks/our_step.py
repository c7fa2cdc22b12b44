"""Time Daybreak's training step by stage, for throughput.py.

Run alone it trains a toy model for a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import flops
import measure
import numpy as np
import torch

from daybreak.core.world import World
from daybreak.data.sequences.sampler import RowSampler
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint
from daybreak.training.clock import ReplayClock
from daybreak.training.hardware import probe
from daybreak.training.hardware.compiling import compile_blocks
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import Phase, SecondPhase
from daybreak.training.prefetch import Prefetch
from daybreak.training.schedule import Ramp
from daybreak.training.step import Training, take_step
from daybreak.training.validation import Validation

WARMUP_STEPS = 3
MASKED_PARTS = 8
"""Evenly spread moments of the masked stage that a block goes through in turn, so that it sees every mask rate."""


class ZipfStream:
    """Token ids with Zipf frequencies, to measure speed without a corpus."""

    def __init__(self, vocabulary: int, tokens: int):
        weights = 1.0 / np.arange(1, vocabulary - 4)
        self._ids = 5 + np.random.default_rng(0).choice(len(weights), tokens, p=weights / weights.sum())

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._ids[start:stop]

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        return self._ids[starts[:, None] + np.arange(width)]


@dataclass(frozen=True)
class Cell:
    """One shape at one length."""

    recipe: Recipe
    vocabulary: int
    sampler: RowSampler
    length: int
    rows: int
    """Of a step."""
    device: torch.device
    precision: str
    workers: int

    @property
    def shape(self) -> ModernEncoder:
        assert isinstance(self.recipe.model, ModernEncoder)
        return self.recipe.model


@dataclass(frozen=True)
class Block:
    """One period of timed training."""

    tokens: int
    seconds: float
    flops: float


def our_training(cell: Cell) -> Training:
    """The parts of a training step, built as pretraining builds them, in its arithmetic."""
    probe.choose_device()
    torch.manual_seed(0)
    model = cell.recipe.model.build(cell.vocabulary).to(cell.device)
    if cell.device.type == "cuda":  # as a run of more than some minutes does there
        compile_blocks(model)
    validation = Validation(cell.sampler.at(np.arange(1)), np.ones(cell.vocabulary, dtype=np.uint64), cell.device)
    return Training(
        model=model,
        data_parallel=DataParallel(model, World()),
        optimizer=cell.recipe.optimizer.build(model),
        average=None,
        objective=cell.recipe.objective,
        schedule=cell.recipe.schedule,
        phases=(
            Phase(
                take=cell.sampler.take,
                view=cell.sampler.view,
                length=cell.length,
                rows_per_epoch=cell.sampler.rows_per_epoch,
                batch=cell.rows,
                microbatch=cell.rows,
            ),
        ),
        phase2=SecondPhase(),
        ramp=Ramp(),
        clock=ReplayClock([]),
        prefetch=Prefetch() if cell.device.type == "cuda" else None,
        world=World(),
        max_grad_norm=cell.recipe.max_grad_norm,
        seed=0,
        device=cell.device,
        decisions=Decisions(
            device=cell.device.type,
            threads=torch.get_num_threads(),
            precision=cell.precision,
            microbatch=cell.rows,
            world_size=1,
            reserve_seconds=0.0,
            validation_rows=1,
            validation_marks=0,
            matmul_gflops={},
        ),
        validation=validation,
        run=None,
        journal=None,
        monitors=(),
        time_by_category=dict.fromkeys(("train", "data", "communicate"), 0.0),
    )


def moments(objective: CausalThenMasked, stage: str) -> list[float]:
    """Points of progress within ``stage``."""
    if stage == "causal":
        return [0.0]
    share = objective.causal_fraction
    return [share + (1 - share) * (part + 0.5) / MASKED_PARTS for part in range(MASKED_PARTS)]


def our_block(cell: Cell, stage: str) -> Callable[[float], Block]:
    """A variant that trains for about the given seconds and returns its measurements."""
    training = our_training(cell)
    assert isinstance(cell.recipe.objective, CausalThenMasked)
    at = moments(cell.recipe.objective, stage)
    cost = [flops.training(flops.step_forward(cell.recipe, cell.vocabulary, cell.length, moment)) for moment in at]
    progress = checkpoint.START

    def block(seconds: float) -> Block:
        nonlocal progress
        for step in range(WARMUP_STEPS):
            progress = take_step(training, progress, at[step % len(at)]).progress
        begun, steps, done = time.perf_counter(), 0, 0.0
        while time.perf_counter() - begun < seconds:  # a step ends by reading its loss: nothing is left in flight
            progress = take_step(training, progress, at[steps % len(at)]).progress
            done += cell.rows * cost[steps % len(at)]
            steps += 1
        return Block(steps * cell.rows * cell.length, time.perf_counter() - begun, done)

    return block


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    recipe = replace(
        load_recipe("tiny"), model=ModernEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=64), length=32
    )
    stream: Any = ZipfStream(200, 5000)
    cell = Cell(recipe, 200, RowSampler(stream, 32, seed=0), 32, 4, torch.device("cpu"), "float32", 0)
    found = {stage: our_block(cell, stage)(0.5) for stage in ("causal", "masked")}
    for stage, block in found.items():
        print(f"{stage}: {block.tokens} tokens in {block.seconds:.2f} s")
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
