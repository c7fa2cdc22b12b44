"""How much a run computed, and how much its machine could have: counted from its records, without building a model."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daybreak.core.formatting import percent, significant
from daybreak.reporting.events import place
from daybreak.reporting.runs import RunRecords

EXA = 1e18
UNITS = ((EXA, "exaFLOP"), (1e15, "petaFLOP"), (1e12, "teraFLOP"), (1e9, "gigaFLOP"))
BACKWARD = 2
"""Products of the backward pass for each one of the forward pass."""


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a training step: matrix products and attention only, as ``recipes`` counts them."""

    token: float
    """For each token read: the trunk up to the last layer's keys and values."""
    target: float
    """For each predicted position: the rest of the last layer, which runs there alone, and the head."""


@dataclass(frozen=True)
class Trained:
    """Operations since the start of a run, at each recorded line; a line between two of them."""

    tokens: list[int]
    flops: list[float]

    @property
    def total(self) -> float:
        return self.flops[-1]

    def at(self, tokens: int) -> float:
        """Operations by the time that so many tokens were read."""
        after = bisect_left(self.tokens, tokens)
        if after == len(self.tokens):
            return self.total * tokens / self.tokens[-1]
        begun, done = (self.tokens[after - 1], self.flops[after - 1]) if after else (0, 0.0)
        share = (tokens - begun) / max(self.tokens[after] - begun, 1)
        return done + share * (self.flops[after] - done)


def cost(shape: Mapping[str, Any], vocabulary: int, length: int) -> Cost | None:
    """What an encoder of this shape costs in rows of ``length`` positions; None for one that is not of ours.

    Args:
        shape: ``model`` of a recipe as plain JSON.
    """
    try:
        layers, width, inner = int(shape["layers"]), int(shape["hidden_size"]), int(shape["intermediate_size"])
        kind = shape["kind"]
        gated = {"ModernEncoder": True, "BertEncoder": False, "CrammedEncoder": shape.get("gated", True)}[kind]
    except (KeyError, TypeError, ValueError):
        return None
    square = 2 * width * width
    attention, unit = 4 * length * width, (6 if gated else 4) * width * inner
    head = 0 if kind == "CrammedEncoder" and shape.get("head", "none") == "none" else square
    layer = 4 * square + attention + unit
    token = (layers - 1) * layer + 2 * square
    target = 2 * square + attention + unit + head + 2 * width * vocabulary
    return Cost((1 + BACKWARD) * token, (1 + BACKWARD) * target)


def trained(run: RunRecords) -> Trained | None:
    """The operations of all steps that are part of the run; None where its architecture or its steps are unknown.

    A second phase that was to begin as soon as the loss is flat is taken to begin where it would have at the latest.
    """
    later = run.recipe.get("phase2") or {}
    start = later.get("start", 1.0)
    first, second = (_cost(run, length) for length in (run.recipe.get("length"), later.get("length")))
    tokens, flops = [], []
    read = asked = 0
    done = 0.0
    for step in run.steps:
        now = second if start < 1 and step.progress > start else first
        if now is None:
            return None
        done += now.token * (step.tokens - read) + now.target * (step.targets - asked)
        read, asked = step.tokens, step.targets
        tokens.append(read)
        flops.append(done)
    return Trained(tokens, flops) if read > 0 and done > 0 else None


def _cost(run: RunRecords, length: Any) -> Cost | None:
    if run.manifest is None or not isinstance(length, int):
        return None
    return cost(run.recipe.get("model") or {}, run.manifest.vocabulary, length)


def capacity(run: RunRecords) -> float | None:
    """Operations that the devices could have done in the time charged, at the rate of a matrix product measured there.

    None where no such rate is recorded in the precision of training.
    """
    found = run.decisions
    rate = found.matmul_gflops.get(found.precision) if found else None
    if not found or not rate or not math.isfinite(rate) or run.elapsed <= 0:
        return None
    seconds, since, devices = 0.0, 0.0, found.world_size
    for change in run.changes:
        now = place(run, change.step)[0]
        seconds += devices * max(0.0, now - since)
        since, devices = max(since, now), change.world_size
    return 1e9 * rate * (seconds + devices * max(0.0, run.elapsed - since))


def flops_words(flops: float) -> str:
    """``1.234e16`` -> ``12.3 petaFLOP``."""
    size, name = next(((size, name) for size, name in UNITS if flops >= size), UNITS[-1])
    return f"{significant(flops / size)} {name}"


def arithmetic_words(run: RunRecords) -> str | None:
    """What a run computed, and what share that is of what its devices could have; None where it cannot be counted."""
    done = trained(run)
    if done is None:
        return None
    whole = capacity(run)
    of = f", {percent(done.total / whole)} of its devices' capacity" if whole else ""
    return f"{flops_words(done.total)}{of}"
