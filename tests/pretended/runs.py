"""One run on the pretended device, from ``pretrain`` to ``evaluate``: out of memory, stopped, resumed, verified.

    python runs.py DATA TASK RUN          prints JSON

The microbatch does not fit from step 5 on, and the process is asked to leave at step 10.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import device  # before torch
import torch

STEPS = 20
SHAPE = (
    "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 24 "
    "--length 16 --batch 8 --microbatch 8"
).split()


def command(*words: object) -> int:
    from daybreak.cli import main

    try:
        main([str(word) for word in words])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def out_of_memory(rows: int, since: int) -> None:
    """More than ``rows`` rows at a time do not fit from row ``since`` of the run on."""
    from daybreak.training.objectives.objective import CausalThenMasked

    loss = CausalThenMasked.loss

    def tight(self: Any, model: Any, batch: Any, *, position: int, **more: Any) -> Any:
        if len(batch) > rows and since <= position < since + 1000:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return loss(self, model, batch, position=position, **more)

    CausalThenMasked.loss = tight  # type: ignore[method-assign]


def leaving(at: int) -> None:
    """The process gets SIGTERM in its step ``at``, and only the first time."""
    from daybreak.training import loop

    step, asked = loop.take_step, []

    def falling(training: Any, progress: Any, *more: Any, **settings: Any) -> Any:
        if progress.step == at and not asked:
            asked.append(at)
            os.kill(os.getpid(), signal.SIGTERM)
        return step(training, progress, *more, **settings)

    loop.take_step = falling


def main() -> None:
    data, task, run = map(Path, sys.argv[1:4])
    torch.set_num_threads(1)
    device.begin()
    from daybreak.training.hardware import probe

    probe.SIZE["cuda"] = 32
    out_of_memory(rows=4, since=5 * 8)
    leaving(at=10)
    pretrain = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", f"{STEPS}steps", *SHAPE]
    pretrain += ["--compile", "off"]
    found: dict[str, Any] = {"stopped": command(*pretrain), "resumed": command(*pretrain)}
    found["verified"] = command("verify", run, "--data", data)
    found["evaluated"] = command("evaluate", run, "--tasks", task, "--seeds", 1, "--epochs", 1, "--workers", 1)
    Path(sys.argv[4]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
