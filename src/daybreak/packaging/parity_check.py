"""Run by itself (python -I parity_check.py MODEL SCRATCH): knows transformers and torch, nothing of Daybreak."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file

PADDING = 7
"""Positions of padding that the padded forward adds."""


def main(folder: str, scratch: Path) -> None:
    """Compare and write scratch/parity.json."""
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cases = load_file(scratch / "cases.safetensors")
    facts = json.loads((scratch / "facts.json").read_text(encoding="utf-8"))
    ours, ids = cases["logits"], cases["masked"][: len(cases["logits"])]
    with torch.inference_mode():
        theirs = model(input_ids=ids).logits
        # Shorter rows first, so that padding stays within the trained length.
        short = ids[:, : ids.shape[1] - PADDING]
        alone = model(input_ids=short).logits
        padded = torch.nn.functional.pad(short, (0, PADDING), value=tokenizer.pad_token_id)
        seen = torch.nn.functional.pad(torch.ones_like(short), (0, PADDING))
        together = model(input_ids=padded, attention_mask=seen).logits[:, : short.shape[1]]
    difference = (theirs - ours).abs().max().item()
    # One part in 10^4 at logits of size 10; larger logits carry proportionally larger rounding.
    tolerance = 1e-4 * max(1.0, ours.abs().max().item() / 10)
    accuracy = masked_accuracy(model, cases)
    encoded = tokenizer(facts["text"])["input_ids"]
    again = tokenizer(tokenizer.decode(encoded, skip_special_tokens=True))["input_ids"]
    checks = {
        "logits": difference <= tolerance,
        "padded equals unpadded": (alone - together).abs().max().item() <= tolerance,
        "tokenizer round trip": encoded == again and encoded[0] == tokenizer.cls_token_id,
        "special tokens": tokenizer.mask_token_id == 4 and tokenizer.pad_token_id == model.config.pad_token_id == 0,
        "vocabulary": len(tokenizer) == model.config.vocab_size,
        "trained length": tokenizer.model_max_length == ids.shape[1] == model.config.max_position_embeddings,
        # Ties between two logits may fall either way; one position in a thousand covers them.
        "masked accuracy": abs(accuracy - facts["accuracy"]) <= 1e-3,
    }
    wrong = [name for name, passed in checks.items() if not passed]
    result = {
        "passed": not wrong,
        "checks": checks,
        "largest_logit_difference": difference,
        "tolerance": tolerance,
        "masked_accuracy": accuracy,
        "transformers": transformers.__version__,
        "failure": f"differs in {', '.join(wrong)}" if wrong else None,
    }
    (scratch / "parity.json").write_text(json.dumps(result), encoding="utf-8")


def masked_accuracy(model: torch.nn.Module, cases: dict[str, torch.Tensor]) -> float:
    """Share of the hidden tokens that the stock model guesses, over all rows."""
    right = 0
    with torch.inference_mode():
        for masked, slots, answers in zip(
            cases["masked"].split(16), cases["slots"].split(16), cases["answers"].split(16), strict=True
        ):
            guesses = model(input_ids=masked).logits.argmax(dim=-1).gather(1, slots)
            right += int((guesses == answers).sum())
    return right / cases["answers"].numel()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
