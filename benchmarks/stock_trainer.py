"""Time transformers' own models under its Trainer, as its masked-LM example trains them.

Used by throughput.py and race.py; run alone it trains a toy model for a second. The plain loop has no Trainer: the same
BertForMaskedLM, masks in three lines, torch's default AdamW, clipping.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import flops
import measure
import numpy as np
import torch
from our_step import WARMUP_STEPS, Block, Cell
from torch import Tensor

from daybreak.models.modern import ModernEncoder

RATE = 0.15
MASK_ID = 4
"""Special ids come first, [MASK] last of them, in every tokenizer that Daybreak trains."""


def stock_modern(shape: ModernEncoder, vocabulary: int, length: int) -> torch.nn.Module:
    """ModernBertForMaskedLM with Daybreak's shape."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(ModernBertConfig(**shape.to_hugging_face(vocabulary, length)))


def stock_bert(shape: ModernEncoder, vocabulary: int, length: int, dropout: float = 0.1) -> torch.nn.Module:
    """BertForMaskedLM with the same layers, hidden size and heads, and transformers' dropout by default."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocabulary, hidden_size=shape.hidden_size, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, intermediate_size=4 * shape.hidden_size, max_position_embeddings=length,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def stock_tokenizer(vocabulary: int) -> Any:
    """What the collator needs: special ids and the number of tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = {piece: i for i, piece in enumerate([*names, *(f"w{i}" for i in range(len(names), vocabulary))])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(pieces, unk_token="[UNK]")), pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


class Rows(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Sequences of one length, as a stored data set of grouped texts."""

    def __init__(self, rows: np.ndarray):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = self._rows[index]
        return {"input_ids": ids.tolist(), "special_tokens_mask": (ids <= MASK_ID).astype(int).tolist()}


def trainer_block(
    model: torch.nn.Module,
    rows_of_ids: np.ndarray,
    vocabulary: int,
    *,
    rows: int,
    seconds: float,
    warmup: int,
    device: torch.device,
    precision: str,
    workers: int,
) -> tuple[int, float]:
    """Train for about ``seconds`` after ``warmup`` steps; return the timed steps and seconds."""
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
            bf16=precision == "bfloat16",
            fp16=precision == "float16",
            learning_rate=1e-4,
            warmup_steps=100,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            **common_arguments(device),
        )
        collator = DataCollatorForLanguageModeling(stock_tokenizer(vocabulary), mlm_probability=RATE)
        trainer = Trainer(model, arguments, collator, Rows(rows_of_ids), callbacks=[watch])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.steps, watch.spent


def common_arguments(device: torch.device) -> dict[str, Any]:
    """Arguments of every Trainer: torch's fused AdamW, full batches, no output and no files."""
    return {
        "use_cpu": device.type == "cpu",
        "weight_decay": 0.01,
        "optim": "adamw_torch_fused",
        "dataloader_drop_last": True,
        "dataloader_pin_memory": device.type == "cuda",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def hidden(ids: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """BERT's masks: of 15 % of the tokens 80 % become [MASK] and 10 % another token; other labels are -100."""
    chosen = (torch.rand(ids.shape, device=ids.device) < RATE) & (ids > MASK_ID)
    split = torch.rand(ids.shape, device=ids.device)
    shown = torch.where(chosen & (split < 0.8), MASK_ID, ids)
    shown = torch.where(chosen & (split >= 0.9), torch.randint_like(ids, MASK_ID + 1, vocabulary), shown)
    return shown, torch.where(chosen, ids, -100)


def plain_block(model: torch.nn.Module, cell: Cell, kept: np.ndarray) -> Callable[[float], tuple[int, float]]:
    """A loop without a Trainer; return the timed steps and seconds."""
    model.to(cell.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    scaler = torch.amp.GradScaler(cell.device.type, enabled=cell.precision == "float16")
    rows = torch.from_numpy(kept)
    taken = 0

    def step() -> None:
        nonlocal taken
        picked = torch.arange(taken, taken + cell.rows) % len(rows)
        taken += cell.rows
        ids, labels = hidden(rows[picked].to(cell.device), cell.vocabulary)
        half = cell.precision != "float32"
        with torch.autocast(cell.device.type, getattr(torch, cell.precision) if half else None, enabled=half):
            loss = model(input_ids=ids, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss.item()  # our step ends by reading its loss, too

    def block(seconds: float) -> tuple[int, float]:
        for _ in range(WARMUP_STEPS):
            step()
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            step()
            steps += 1
        return steps, time.perf_counter() - begun

    return block


def stock_block(cell: Cell, kind: str) -> Callable[[float], Block]:
    """A variant of throughput.py that trains for about the given seconds and returns its measurements."""
    shape, vocabulary, length = cell.shape, cell.vocabulary, cell.length
    if kind.endswith("ModernBERT"):
        model = stock_modern(shape, vocabulary, length)
        forward = flops.modern_forward(shape, vocabulary, length, asked=length, targets=length)
    else:
        model = stock_bert(shape, vocabulary, length)
        forward = flops.bert_forward(shape.layers, shape.hidden_size, 4 * shape.hidden_size, vocabulary, length)
    kept = cell.sampler.take(0, min(cell.sampler.rows_per_epoch, 64 * cell.rows)).input_ids
    plain = plain_block(model, cell, kept) if kind.startswith("plain") else None

    def block(seconds: float) -> Block:
        steps, spent = plain(seconds) if plain else trainer_block(
            model, kept, vocabulary, rows=cell.rows, seconds=seconds, warmup=WARMUP_STEPS, device=cell.device,
            precision=cell.precision, workers=cell.workers,
        )  # fmt: skip
        trained = steps * cell.rows
        return Block(trained * length, spent, float(trained * flops.training(forward)))

    return block


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    shape = ModernEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=64)
    ids = np.random.default_rng(0).integers(5, 200, (64, 32))
    found: dict[str, Any] = {}
    for build in (stock_modern, stock_bert):
        steps, spent = trainer_block(
            build(shape, 200, 32), ids, 200, rows=4, seconds=0.5, warmup=3, device=torch.device("cpu"),
            precision="float32", workers=0,
        )  # fmt: skip
        found[build.__name__] = {"steps": steps, "seconds": spent}
        print(f"{build.__name__}: {steps} steps in {spent:.2f} s")
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
