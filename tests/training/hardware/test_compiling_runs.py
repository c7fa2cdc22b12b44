"""A compiler that gives up in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from toy_run import equal, journaled, training

from daybreak.core.files import read_json
from daybreak.schemas.run import Decisions
from daybreak.training.hardware.compiling import compile_blocks
from daybreak.training.objectives.objective import CausalThenMasked


def test_a_stage_that_does_not_compile_runs_as_it_is_written(tmp_path: Path) -> None:
    """Decided at that step and written down: the run ends as one that never compiled."""
    objective, graphs = CausalThenMasked(causal_fraction=0.5), []

    def breaks_later(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        if len(graphs) > 1:
            raise OSError("No space left on device")
        return graph.forward

    made = training(tmp_path / "compiled", objective=objective)
    made = replace(made, decisions=replace(made.decisions, compiled=True))
    compile_blocks(made.model, breaks_later)
    journaled(made)
    assert made.run is not None
    (change,) = read_json(made.run.decisions, Decisions).changes
    assert (change.step, change.compiled) == (15, False) and len(graphs) == 2
    plain = training(tmp_path / "plain", objective=objective)
    journaled(plain)
    assert equal(made, plain)
