"""One record of each kind that a run writes."""

from __future__ import annotations

from typing import Any

from daybreak.schemas.run import DeviceUse, MachineRecord, Parity, StepRecord, ValidationRecord

DEVICES = [
    DeviceUse(name="secret card", utilisation=0.9, memory=1, memory_total=2, temperature=60.0, watts=300.0),
    DeviceUse(name="secret card", utilisation=0.1, memory=1, memory_total=2),
]
MACHINE = MachineRecord(
    step=8, elapsed=4.0, processor=0.5, load=1.5, memory=10, memory_free=20, disk_free=30, devices=DEVICES
)
VALIDATION = ValidationRecord(
    step=8, elapsed=4.0, progress=0.5, tokens=1000, loss=4.0, accuracy=0.2, positions=50, distinct=9,
    unigram_loss=6.0, most_frequent_fraction=0.05, final=True, seconds=0.5,
)  # fmt: skip
PASSED = Parity(
    passed=True, checks={}, largest_logit_difference=0.0, tolerance=1.0, masked_accuracy=0.0, transformers="",
    seconds=0.0,
)  # fmt: skip


def step_record(step: int = 7, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "elapsed": 3.0, "progress": 0.25, "tokens": 900, "stage": "masked", "loss": 4.5, "targets": 90,
        "learning_rate": 2e-3, "gradient_norm": 0.8, "tokens_per_second": 300.0,
    }  # fmt: skip
    return StepRecord(step=step, **{**values, **changes})
