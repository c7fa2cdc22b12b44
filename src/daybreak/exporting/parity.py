"""The parity check: stock transformers in a separate process must compute the same as Daybreak.

The trainer's outputs are written to a small file. ``parity_check.py`` runs in a Python process without Daybreak, loads
the folder with ``AutoModelForMaskedLM`` (and ``AutoModelForPreTraining`` if the model predicts the next sentence), and
compares.
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
from daybreak.core.run_folder import REFUSED
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.schemas.run import Parity
from daybreak.training.validation import Validation

PROBE_ROWS = 4
PADDING = 7
"""Padding tokens of the padded case."""
TIMEOUT_SECONDS = 600
SLOWEST = 1e10
"""Operations a second of the slowest processor that the check waits for, if TIMEOUT_SECONDS are not enough."""


def check_parity(
    folder: Path,
    *,
    model: Encoder,
    shape: EncoderConfig,
    length: int,
    validation: Validation,
    accuracy: float,
    tokenizer: Path,
    text: str,
) -> Parity:
    """Compare the exported ``folder`` with ``model``, which is set to eval mode, and mark it refused if it differs.

    Args:
        shape: the configuration of ``model``; code in the folder is run only if it equals its ``modelling_files``.
        length: the length of training, at which the tokenizer must truncate.
        accuracy: the accuracy that the trainer measured on all positions of ``validation``.
        tokenizer: folder of the tokenizer of training, whose ids the exported one must give.
        text: a sentence that is encoded and decoded; it is not stored.
    """
    start = time.monotonic()
    model.eval()
    with tempfile.TemporaryDirectory() as scratch:
        found = _unknown_code(folder, shape)
        if found is None:
            cases = _cases(model, shape, validation)
            save_file(cases, Path(scratch) / "cases.safetensors")
            operations = 2 * model.parameter_count() * cases["masked"].numel()
            facts = {
                "accuracy": accuracy,
                "length": length,
                "text": text,
                "ids": load_tokenizer(tokenizer).encode(text).ids,
                "special": to_dict(validation.special),
                "code": bool(shape.modelling_files()),
            }
            (Path(scratch) / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
            found = _run_check(folder, Path(scratch), max(TIMEOUT_SECONDS, operations / SLOWEST))
    parity = from_dict(Parity, {**found, "seconds": round(time.monotonic() - start, 2)})
    mark = folder / REFUSED
    if parity.passed:
        mark.unlink(missing_ok=True)
    else:
        mark.write_text(f"This folder failed the parity check: {parity.failure}\n", encoding="utf-8")
    return parity


def verdict(parity: Parity) -> str:
    """The result as a sentence."""
    if not parity.passed:
        return f"REFUSED: the exported folder fails the parity check ({parity.failure}) and is marked as refused."
    return (
        f"Parity: stock transformers {parity.transformers} gives the same logits "
        f"(largest difference {parity.largest_logit_difference:.2g}) and the same masked accuracy."
    )


def _cases(model: Encoder, shape: EncoderConfig, validation: Validation) -> dict[str, Tensor]:
    """All sequences with their targets, and Daybreak's float32 outputs for a few of them, on the CPU.

    The few sequences have two segments, which models without segments ignore. The padded sequence is the first of them,
    shortened and padded to the same length.
    """
    masked, positions, answers = validation.cases()
    ids = masked[:PROBE_ROWS]
    half = torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] // 2
    token_type_ids = half.long().expand_as(ids)
    short = ids[:1, : ids.shape[1] - PADDING]
    padded = torch.nn.functional.pad(short, (0, PADDING), value=validation.special.pad)
    attention_mask = torch.nn.functional.pad(torch.ones_like(short, dtype=torch.bool), (0, PADDING), value=False)
    cases = {
        "masked": masked,
        "positions": positions,
        "answers": answers,
        "token_type_ids": token_type_ids,
        "padded": padded,
        "attention_mask": attention_mask,
    }
    with torch.inference_mode():
        cases["logits"] = model.logits(ids, token_type_ids=token_type_ids).float()
        cases["padded_logits"] = model.logits(
            padded, attention_mask=attention_mask, token_type_ids=token_type_ids[:1]
        ).float()
        if shape.predicts_next:
            first = torch.zeros(len(ids), 1, dtype=torch.long, device=ids.device)
            cases["next_logits"] = model.next_logits(
                model.states(ids, first, token_type_ids=token_type_ids)[:, 0]
            ).float()
    return {name: tensor.cpu().contiguous() for name, tensor in cases.items()}


def _unknown_code(folder: Path, shape: EncoderConfig) -> dict[str, Any] | None:
    """A failed check if the folder contains other code than the model's, which must not be run; else None."""
    ours = {name: source.read_bytes() for name, source in shape.modelling_files().items()}
    there = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    for name in sorted(ours.keys() | there.keys()):
        if ours.get(name) != there.get(name):
            return _failed(f"'{name}' is not the modeling code of this model, so it was not run")
    return None


def _run_check(folder: Path, scratch: Path, timeout: float) -> dict[str, Any]:
    script = Path(__file__).with_name("parity_check.py")
    # -I: without PYTHONPATH and current folder, so that Daybreak cannot be imported.
    command = [sys.executable, "-I", str(script), str(folder.resolve()), str(scratch)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return _failed(f"the check did not end within {timeout:.0f} seconds")
    result = scratch / "parity.json"
    if done.returncode != 0 or not result.exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _failed(f"the check stopped with an error: {last}")
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
