"""The parity gate: a clean process that knows only transformers must find the same model in the exported folder.

What the trainer computed goes into a small file of cases; ``parity_check.py`` runs in a Python that cannot see
Daybreak, loads the folder by ``AutoModelForMaskedLM`` (and ``AutoModelForPreTraining`` where the model evaluates
sentence pairs), and compares.
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

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.core.serialization import from_dict, to_dict
from daybreak.schemas.run import Parity
from daybreak.training.validation import Validation

REFUSED = "REFUSED.txt"
"""Its presence marks an export that failed the gate."""
PROBE_ROWS = 4
PADDING = 7
"""Positions of padding that the padded forward adds."""
TIMEOUT_SECONDS = 600


def check_parity(
    folder: Path,
    *,
    model: Encoder,
    shape: EncoderConfig,
    length: int,
    validation: Validation,
    accuracy: float,
    text: str,
) -> Parity:
    """Judge the exported ``folder`` against ``model``, which is put into eval mode, and mark it refused if it differs.

    Args:
        shape: what ``model`` was built from; code in the folder must be its ``modelling_files``, or it is not run.
        length: the trained length, which the tokenizer must cut at; validation's rows may be shorter or longer.
        accuracy: what the trainer measured on all of ``validation``'s positions.
        text: a sentence for the tokenizer round trip; it stays on this machine.
    """
    begun = time.monotonic()
    model.eval()
    with tempfile.TemporaryDirectory() as scratch:
        found = _strange_code(folder, shape)
        if found is None:
            save_file(_cases(model, shape, validation), Path(scratch) / "cases.safetensors")
            facts = {
                "accuracy": accuracy,
                "length": length,
                "text": text,
                "special": to_dict(validation.special),
                "code": bool(shape.modelling_files()),
            }
            (Path(scratch) / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
            found = _run_check(folder, Path(scratch))
    parity = from_dict(Parity, {**found, "seconds": round(time.monotonic() - begun, 2)})
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


def _cases(model: Encoder, shape: EncoderConfig, validation: Validation) -> dict[str, Tensor]:
    """All rows with their answers, and full float32 outputs of our own forward on a few of them, on the CPU.

    The probe rows are cut into two segments in the middle, which models without segments ignore; the padded row is
    the first of them, shortened and padded again, so that it stays within the trained length.
    """
    masked, slots, answers = validation.cases()
    ids = masked[:PROBE_ROWS]
    half = torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] // 2
    types = half.long().expand_as(ids)
    short = ids[:1, : ids.shape[1] - PADDING]
    padded = torch.nn.functional.pad(short, (0, PADDING), value=validation.special.pad)
    attend = torch.nn.functional.pad(torch.ones_like(short, dtype=torch.bool), (0, PADDING), value=False)
    cases = {"masked": masked, "slots": slots, "answers": answers, "types": types, "padded": padded, "attend": attend}
    with torch.inference_mode():
        cases["logits"] = model.logits(ids, types=types).float()
        cases["padded_logits"] = model.logits(padded, attend=attend, types=types[:1]).float()
        if shape.predicts_next:
            first = torch.zeros(len(ids), 1, dtype=torch.long, device=ids.device)
            cases["next_logits"] = model.next_logits(model.states(ids, first, types=types)[:, 0]).float()
    return {name: tensor.cpu().contiguous() for name, tensor in cases.items()}


def _strange_code(folder: Path, shape: EncoderConfig) -> dict[str, Any] | None:
    """A failed check when the folder holds code other than ours, which must not even be run; None when it does not."""
    ours = {name: source.read_bytes() for name, source in shape.modelling_files().items()}
    there = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    for name in sorted(ours.keys() | there.keys()):
        if ours.get(name) != there.get(name):
            return _failed(f"'{name}' is not the modelling code that belongs to this model, so it was not run")
    return None


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
