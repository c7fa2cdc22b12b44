"""Decisions in mid-course: plain data that hold from a step on, so that a replay takes them where the run took them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from daybreak.schemas.changes import Change
from daybreak.schemas.run import Decisions


def in_force(decisions: Decisions, step: int) -> Change:
    """What holds for ``step``: the last change up to it, or what was decided at the start."""
    held = Change(
        step=0,
        why="the start",
        microbatch=decisions.microbatch,
        world_size=decisions.world_size,
        threads=decisions.threads,
        compiled=decisions.compiled,
    )
    for change in decisions.changes:
        if change.step <= step:
            held = change
    return held


def changed(decisions: Decisions, step: int, why: str, **values: Any) -> Decisions:
    """Decisions in which ``values`` of a Change hold from ``step`` on; later changes go, their steps are done again."""
    held = in_force(decisions, step)
    change = replace(held, step=step, why=why, skip_to=held.skip_to if held.step == step else None)
    kept = [earlier for earlier in decisions.changes if earlier.step < step]
    return replace(decisions, changes=[*kept, replace(change, **values)])


def uncompiled(decisions: Decisions, step: int) -> Decisions:
    """Decisions of a run that can no longer be compiled from ``step`` on."""
    return changed(decisions, step, "no longer compiled: torch.compile failed", compiled=False)


def cut(decisions: Decisions, step: int) -> Decisions:
    """Decisions of a run that goes on from the checkpoint at ``step``: later steps are lost, with their changes."""
    return replace(decisions, changes=[change for change in decisions.changes if change.step <= step])
