"""Trunks x objectives and trunks x optimizers through steps on the pretended device and on the processor; prints JSON.

By combination: the largest difference of a loss and of a weight, and each place that waited for the device in a step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import device  # before torch
import numpy as np
import torch
import transformers

from daybreak.core.batch import Batch
from daybreak.core.encoder import EncoderConfig
from daybreak.core.world import World
from daybreak.evaluation.finetuning.finetune import fine_tune
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.evaluation.tasks.task import LabeledRows
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START
from daybreak.training.clock import ReplayClock
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked, Objective
from daybreak.training.optim.muon import Muon
from daybreak.training.optim.optimizers import Adam, AdamW, BertAdam, OptimizerConfig
from daybreak.training.phases import Phase, SecondPhase
from daybreak.training.prefetch import Prefetch
from daybreak.training.schedule import Ramp, Trapezoid
from daybreak.training.step import Training, take_step
from daybreak.training.validation import Validation

VOCABULARY, LENGTH, ROWS = 101, 16, 8
SHAPE: dict[str, Any] = {"layers": 2, "hidden_size": 32, "heads": 2, "intermediate_size": 24}
TRUNKS: dict[str, EncoderConfig] = {
    "modern": ModernEncoder(**SHAPE, global_every=2, window=8),
    "bert": BertEncoder(**SHAPE, positions=32, next_sentence=True),
    "crammed": CrammedEncoder(**SHAPE),
}
OBJECTIVES: dict[str, Objective] = {
    "causal then masked": CausalThenMasked(causal_fraction=0.3, causal_targets=0.3),
    "fixed": Masked(protect_special=False),
    "bernoulli": Masked(count="bernoulli"),
    "rounded, pairs": Masked(count="rounded", most=5, next_sentence=True),
    "whole words": Masked(whole_words=True),
}
OPTIMIZERS: dict[str, OptimizerConfig] = {
    "muon": Muon(lr=1e-3), "adamw": AdamW(lr=1e-3), "adam": Adam(lr=1e-3), "bert adam": BertAdam(lr=1e-3),
}  # fmt: skip
MOMENTS = (0.1, 0.5, 0.9)


def batches(paired: bool) -> Callable[[int, int, float], Batch]:
    """Rows that are a function of their place: pairs with padding, or full ones."""

    def take(position: int, rows: int, progress: float = 0.0) -> Batch:
        chance = np.random.default_rng(position)
        ids = chance.integers(5, VOCABULARY, (rows, LENGTH))
        ids[:, 0] = 2
        if not paired:
            return Batch(input_ids=ids)
        attention_mask = np.arange(LENGTH) < chance.integers(LENGTH // 2, LENGTH + 1, (rows, 1))
        token_type_ids, next_sentence_label = (np.arange(LENGTH) >= 6) & attention_mask, chance.integers(0, 2, rows)
        return Batch(
            input_ids=np.where(attention_mask, ids, 0),
            attention_mask=attention_mask,
            token_type_ids=token_type_ids.astype(np.int64),
            next_sentence_label=next_sentence_label,
        )

    return take


def training(trunk: str, objective: str, optimizer: str, where: str) -> Training:
    torch.manual_seed(0)
    model = TRUNKS[trunk].build(VOCABULARY).to(where).train()
    take, at = batches("pairs" in objective), torch.device(where)
    decisions = Decisions(
        device=at.type, threads=1, precision="float32", microbatch=ROWS, world_size=1, reserve_seconds=0.0,
        validation_rows=1, validation_marks=0, matmul_gflops={},
    )  # fmt: skip
    phase = Phase(
        take=take, view=lambda _: None, length=LENGTH, rows_per_epoch=1000, batch=ROWS, microbatch=ROWS
    )  # fmt: skip
    return Training(
        model=model,
        data_parallel=DataParallel(model, World()), optimizer=OPTIMIZERS[optimizer].build(model), average=None,
        objective=OBJECTIVES[objective], schedule=Trapezoid(), phases=(phase,), phase2=SecondPhase(), ramp=Ramp(),
        clock=ReplayClock([]), world=World(), max_grad_norm=1.0, seed=0, device=at, decisions=decisions,
        validation=Validation(take(9_999, 4, 0.0), np.ones(VOCABULARY, np.uint64), at), run=None, journal=None,
        monitors=(), time_by_category=dict.fromkeys(("data", "train", "communicate"), 0.0), prefetch=Prefetch(),
        is_continuation=np.arange(VOCABULARY) % 3 == 0 if "words" in objective else None,
    )  # fmt: skip


def steps(made: Training) -> tuple[list[float], list[dict[str, int]]]:
    """Losses, and what each step waited for."""
    progress, losses, waits = START, [], []
    for at in MOMENTS:
        device.WAITS.clear()
        outcome = take_step(made, progress, at)
        waits.append(dict(device.WAITS))
        progress, losses = outcome.progress, [*losses, outcome.loss]
    return losses, waits


def compared(trunk: str, objective: str, optimizer: str) -> dict[str, Any]:
    here, there = (training(trunk, objective, optimizer, where) for where in ("cpu", "cuda"))
    expected, _ = steps(here)
    losses, waits = steps(there)
    weights = [
        float((mine.detach() - theirs.detach().cpu()).abs().max())
        for mine, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True)
    ]
    loss = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
    return {"loss": loss, "weight": max(weights), "waits": waits}


def planted() -> str:
    """What a rotary table on the processor leads to."""
    from daybreak.models import modern

    table = modern.rotary_table
    modern.rotary_table = lambda length, channels, base, _: table(length, channels, base, torch.device("cpu"))
    try:
        take_step(training("modern", "fixed", "adamw", "cuda"), START, 0.5)
    except RuntimeError as error:
        return str(error)
    finally:
        modern.rotary_table = table
    return ""


def fine_tuning(steps: int) -> dict[str, Any]:
    """The last loss of a fine-tuning on both devices, and how often it waited."""
    found: dict[str, Any] = {}
    chance = np.random.default_rng(0)
    sizes = chance.integers(4, LENGTH, 8 * steps)
    sequences = [[2, *chance.integers(5, VOCABULARY, size).tolist(), 3] for size in sizes]
    features = {"input_ids": sequences, "attention_mask": [[1] * len(each) for each in sequences]}
    labels = chance.integers(0, 2, len(sequences)).tolist()
    rows = EncodedRows(features, labels, list(map(len, sequences)), LabeledRows([], []))
    protocol, setting = replace(PROTOCOLS["quick"], dropout=0.0), Setting(epochs=1, rate=1e-3, batch=8)
    padding = Padding({"input_ids": 0, "attention_mask": 0}, left=False)
    for where in ("cpu", "cuda"):
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
        )
        model = transformers.BertForSequenceClassification(config).to(where)
        device.WAITS.clear()
        found[where] = fine_tune(model, KINDS["classification"], padding, rows, protocol, setting, 0, lambda *_: None)
    return {**found, "waits": dict(device.WAITS)}


def main() -> None:
    torch.set_num_threads(1)
    device.begin()
    found: dict[str, Any] = {}
    for trunk in TRUNKS:
        for objective in OBJECTIVES:
            if "pairs" in objective and not TRUNKS[trunk].predicts_next:
                continue
            for optimizer in OPTIMIZERS if objective == "fixed" else ["muon"]:
                found[f"{trunk}, {objective}, {optimizer}"] = compared(trunk, objective, optimizer)
    json.dump({"steps": found, "planted": planted(), "fine_tuning": fine_tuning(64)}, sys.stdout)


if __name__ == "__main__":
    main()
