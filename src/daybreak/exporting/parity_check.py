"""A script (python -I parity_check.py MODEL SCRATCH) that uses transformers and torch but not Daybreak."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# transformers copies modeling code before running it: into the scratch folder, not into the user's cache.
os.environ["HF_MODULES_CACHE"] = str(Path(sys.argv[2]) / "modules")

import torch
import transformers
from safetensors.torch import load_file


def main(folder: str, scratch: Path) -> None:
    """Compare and write scratch/parity.json."""
    transformers.logging.set_verbosity_error()
    torch.set_float32_matmul_precision("highest")  # the environment may ask for less
    cases = load_file(scratch / "cases.safetensors")
    facts = json.loads((scratch / "facts.json").read_text(encoding="utf-8"))
    code = facts["code"]
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=code).float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=code)
    difference, padding = compare_logits(model, cases)
    # One part in 10^4 at logits of size 10, proportionally more for larger logits.
    tolerance = 1e-4 * max(1.0, cases["logits"].abs().max().item() / 10)
    accuracy = masked_accuracy(model, cases)
    checks = {
        "logits": difference <= tolerance,
        "padded equals unpadded": padding <= tolerance,
        **check_tokenizer(tokenizer, model, facts),
        "trained length": tokenizer.model_max_length == facts["length"] <= longest(model),
        # Ties between two logits may resolve differently; one position in a thousand covers them.
        "masked accuracy": abs(accuracy - facts["accuracy"]) <= 1e-3,
    }
    if "next_logits" in cases:
        checks["next sentence"] = compare_next(folder, cases) <= tolerance
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


def compare_logits(model: Any, cases: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the largest difference from the trainer's logits, and the largest effect of padding on other tokens.

    For a model that attends to padding, the padded case is only compared with the trainer's logits.
    """
    ours, token_type_ids = cases["logits"], cases["token_type_ids"]
    ids, padded, attention_mask = cases["masked"][: len(ours)], cases["padded"], cases["attention_mask"]
    short = int(attention_mask.sum())
    with torch.inference_mode():
        theirs = model(input_ids=ids, **segments(model, token_type_ids)).logits
        together = model(
            input_ids=padded, attention_mask=attention_mask.long(), **segments(model, token_type_ids[:1])
        ).logits
        alone = model(input_ids=padded[:, :short], **segments(model, token_type_ids[:1, :short])).logits
    padding = (together - cases["padded_logits"])[:, :short].abs().max().item()
    if not getattr(model.config, "attend_padding", False):
        padding = max(padding, (together[:, :short] - alone).abs().max().item())
    return (theirs - ours).abs().max().item(), padding


def segments(model: Any, token_type_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The segments as an argument, for models with segment embeddings."""
    return {"token_type_ids": token_type_ids} if getattr(model.config, "type_vocab_size", 0) > 1 else {}


def compare_next(folder: str, cases: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between the trainer's next-sentence logits and stock ``BertForPreTraining``'s."""
    model = transformers.AutoModelForPreTraining.from_pretrained(folder).float().eval()
    ours = cases["next_logits"]
    with torch.inference_mode():
        found = model(input_ids=cases["masked"][: len(ours)], token_type_ids=cases["token_type_ids"])
    return (found.seq_relationship_logits - ours).abs().max().item()


def check_tokenizer(tokenizer: Any, model: Any, facts: dict[str, Any]) -> dict[str, bool]:
    """Check the tokenizer on a text, and the ids on which it and the model must agree.

    A class of transformers may build another tokenizer from the folder than its tokenizer.json describes.
    """

    def known(encoded: list[int]) -> list[int]:
        # Decoding drops special tokens, which include the unknown token.
        return [i for i in encoded if i != tokenizer.unk_token_id]

    text, special = facts["text"], facts["special"]

    def again(encoded: list[int]) -> list[int]:
        # Some settings of a tokenizer clean up spaces while they decode, which joins "did n't".
        decoded = tokenizer.decode(encoded, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found: list[int] = tokenizer(decoded)["input_ids"]
        return found

    encoded = tokenizer(text)["input_ids"]
    # Without its unknown tokens, what is left of a word may have other pieces. These are then encoded again.
    sample = again(encoded) if tokenizer.unk_token_id in encoded else encoded
    token_type_ids = tokenizer(text, text, return_token_type_ids=True)["token_type_ids"]
    # RoBERTa's tokenizer knows one segment only.
    told = bool(segments(model, torch.zeros(1))) and token_type_ids[-1] == 1
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in special}
    return {
        "tokenizer": encoded == facts["ids"],
        "tokenizer round trip": known(sample) == known(again(sample)),
        "special tokens": ids == special and model.config.pad_token_id == special["pad"],
        "segments": ("token_type_ids" in tokenizer.model_input_names) == told,
        "vocabulary": len(tokenizer) <= model.config.vocab_size,
    }


def longest(model: Any) -> float:
    """The largest number of positions of the model."""
    return getattr(model.config, "max_position_embeddings", float("inf"))


def masked_accuracy(model: Any, cases: dict[str, torch.Tensor]) -> float:
    """Accuracy of the stock model on the masked tokens of all sequences."""
    correct = 0
    with torch.inference_mode():
        for masked, positions, answers in zip(
            cases["masked"].split(16), cases["positions"].split(16), cases["answers"].split(16), strict=True
        ):
            predictions = model(input_ids=masked).logits.argmax(dim=-1).gather(1, positions)
            correct += int((predictions == answers).sum())
    return correct / cases["answers"].numel()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
