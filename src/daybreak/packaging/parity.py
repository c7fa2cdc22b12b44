"""The parity gate: a clean process that knows only transformers must find the same model in the exported folder.

What the trainer computed goes into a small file of cases; ``parity_check.py`` runs in a Python that cannot see
Daybreak, loads the folder by ``AutoModelForMaskedLM``, and compares.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from daybreak.base.encoder import Encoder
from daybreak.base.plain import from_plain
from daybreak.base.records import Parity
from daybreak.training.validation import Validation

REFUSED = "REFUSED.txt"
"""Its presence marks an export that failed the gate."""
PROBE_ROWS = 4
TIMEOUT_SECONDS = 600


def check_parity(folder: Path, *, model: Encoder, validation: Validation, accuracy: float, text: str) -> Parity:
    """Judge the exported ``folder`` against ``model``, and mark it refused when they differ.

    Args:
        accuracy: what the trainer measured on all of ``validation``'s positions.
        text: a sentence for the tokenizer round trip; it stays on this machine.
    """
    begun = time.monotonic()
    masked, slots, answers = (tensor.cpu() for tensor in validation.cases())
    with tempfile.TemporaryDirectory() as scratch:
        cases = Path(scratch) / "cases.safetensors"
        save_file(
            {
                "masked": masked.contiguous(),
                "slots": slots.contiguous(),
                "answers": answers.contiguous(),
                "logits": trainer_logits(model, masked[:PROBE_ROWS]),
            },
            cases,
        )
        facts = {"accuracy": accuracy, "text": text}
        (Path(scratch) / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        found = _run_check(folder, Path(scratch))
    parity = from_plain(Parity, {**found, "seconds": round(time.monotonic() - begun, 2)})
    mark = folder / REFUSED
    if parity.passed:
        mark.unlink(missing_ok=True)
    else:
        mark.write_text(f"This folder failed the parity gate: {parity.failure}\n", encoding="utf-8")
    return parity


def verdict(parity: Parity) -> str:
    """One sentence for the user."""
    if not parity.passed:
        return f"REFUSED: the exported folder fails the parity gate ({parity.failure}); it is marked so."
    return (
        f"Parity: stock transformers {parity.transformers} gives the same logits "
        f"(largest difference {parity.largest_logit_difference:.1e}) and the same masked accuracy."
    )


def trainer_logits(model: Encoder, ids: Tensor) -> Tensor:
    """Full float32 logits [B, L, V] of our own forward, on the CPU."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        return model.logits(ids.to(device)).float().cpu().contiguous()


def _run_check(folder: Path, scratch: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("parity_check.py")
    # -I: no PYTHONPATH, no current folder, so that nothing of Daybreak can lend a hand.
    command = [sys.executable, "-I", str(script), str(folder.resolve()), str(scratch)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _failed(f"the check did not end within {TIMEOUT_SECONDS} seconds")
    result = scratch / "parity.json"
    if done.returncode != 0 or not result.exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _failed(f"the check itself stopped: {last}")
    return json.loads(result.read_text(encoding="utf-8"))


def _failed(why: str) -> dict[str, Any]:
    return {
        "passed": False,
        "checks": {},
        "largest_logit_difference": -1.0,
        "tolerance": 0.0,
        "masked_accuracy": 0.0,
        "transformers": "",
        "failure": why,
    }
