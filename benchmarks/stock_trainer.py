"""The other side of the speed comparison: stock models under transformers' Trainer, as its masked-LM example runs them.

Used by throughput.py; run by itself it trains a toy for a second.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import measure
import numpy as np
import torch

from daybreak.models.modern import ModernEncoder

RATE = 0.15


def stock_modern(shape: ModernEncoder, vocabulary: int, length: int) -> torch.nn.Module:
    """ModernBertForMaskedLM of our own shape."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(ModernBertConfig(**shape.to_hugging_face(vocabulary, length)))


def stock_bert(shape: ModernEncoder, vocabulary: int, length: int) -> torch.nn.Module:
    """BertForMaskedLM with the same layers, width and heads."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, intermediate_size=4 * shape.width, max_position_embeddings=length,
        )
    )  # fmt: skip


def stock_tokenizer(vocabulary: int) -> Any:
    """What the collator asks for: the special ids and the number of tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = {piece: i for i, piece in enumerate([*names, *(f"w{i}" for i in range(len(names), vocabulary))])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(pieces, unk_token="[UNK]")), pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


class Rows(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Rows of one length, as grouped texts come from a stored data set."""

    def __init__(self, rows: np.ndarray):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = self._rows[index]
        return {"input_ids": ids.tolist(), "special_tokens_mask": (ids <= 4).astype(int).tolist()}


def trainer_block(
    model: torch.nn.Module,
    rows_of_ids: np.ndarray,
    vocabulary: int,
    *,
    rows: int,
    seconds: float,
    warmup: int,
    device: torch.device,
    bfloat16: bool,
    workers: int,
) -> tuple[int, float]:
    """Train for about ``seconds`` after ``warmup`` steps; return the steps and seconds that were timed."""
    from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainerCallback
    from transformers import TrainingArguments as Arguments

    class Stopwatch(TrainerCallback):
        begun = 0.0
        spent = 0.0
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            if state.global_step < warmup:
                return control
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # our step ends by reading its loss, too
            now = time.perf_counter()
            if state.global_step == warmup:
                self.begun = now
                return control
            self.steps, self.spent = state.global_step - warmup, now - self.begun
            control.should_training_stop = self.spent >= seconds
            return control

    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as scratch:
        arguments = Arguments(
            output_dir=scratch,
            max_steps=1_000_000,
            per_device_train_batch_size=rows,
            bf16=bfloat16,
            use_cpu=device.type == "cpu",
            learning_rate=1e-4,
            warmup_steps=100,
            weight_decay=0.01,
            optim="adamw_torch_fused",
            dataloader_num_workers=workers,
            dataloader_drop_last=True,
            dataloader_pin_memory=device.type == "cuda",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        collator = DataCollatorForLanguageModeling(stock_tokenizer(vocabulary), mlm_probability=RATE)
        trainer = Trainer(model, arguments, collator, Rows(rows_of_ids), callbacks=[watch])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.steps, watch.spent


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    shape = ModernEncoder(layers=1, width=32, heads=2, inner=64)
    ids = np.random.default_rng(0).integers(5, 200, (64, 32))
    found: dict[str, Any] = {}
    for build in (stock_modern, stock_bert):
        steps, spent = trainer_block(
            build(shape, 200, 32), ids, 200, rows=4, seconds=0.5, warmup=3, device=torch.device("cpu"), bfloat16=False,
            workers=0,
        )  # fmt: skip
        found[build.__name__] = {"steps": steps, "seconds": spent}
        print(f"{build.__name__}: {steps} steps in {spent:.2f} s")
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
