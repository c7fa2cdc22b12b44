"""Run transformers' Trainer once as run_mlm.py trains, evaluated at the same fixed times as Daybreak.

    python benchmarks/reference.py --data DATA --recipe mini --budget 15m --rate 1e-3 --dropout 0 --out curve.json

Used by race.py together with judged.py. BertForMaskedLM of the recipe's shape (an ungated unit of 4 x hidden size) from
random weights, the same prepared sequences and tokenizer, DataCollatorForLanguageModeling at 15 %, torch's fused AdamW
with a decay of 0.01, clipping at 1. Every choice favors the reference:

- run_mlm's linear schedule with warm-up counts steps, which must be known in advance. Here it follows the clock: it
  starts with the first step and reaches 0 exactly at the end of the time.
- The clock starts with the process, imports included, and stops during evaluations; saving is not charged.
- No logging, no saving, no progress bar; sequences come from a memory map.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import torch
import toy
from judged import Judge, Stopwatch, add_judging_flags, marks_of, tell
from stock_trainer import RATE, common_arguments, stock_bert, stock_tokenizer
from torch import Tensor, nn

from daybreak.core.process import process_started
from daybreak.core.serialization import to_dict
from daybreak.data.sequences.shards import Shards, TokenStream, open_shards
from daybreak.evaluation.probes.context_use import measure_context_use
from daybreak.evaluation.probes.retrieval import HELD_OUT_TOKENS
from daybreak.models.layers import take
from daybreak.models.modern import ModernEncoder
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import load_recipe
from daybreak.schemas.run import SpecialIds
from daybreak.training.hardware.probe import choose_device


class StoredRows(torch.utils.data.Dataset[dict[str, list[int]]]):
    """The sequences that Daybreak trains on, [CLS] and a cut of the stream, as a stored data set of grouped texts."""

    def __init__(self, stream: TokenStream, length: int, special: SpecialIds):
        self._stream, self._width, self._special = stream, length - 1, special

    def __len__(self) -> int:
        return len(self._stream) // self._width

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = [self._special.cls, *self._stream.read(index * self._width, (index + 1) * self._width).tolist()]
        return {"input_ids": ids, "special_tokens_mask": [int(i <= self._special.mask) for i in ids]}


class Asked:
    """BertForMaskedLM with the interface that Daybreak's measurements need."""

    def __init__(self, model: Any):
        self.model = model
        self.decoder = model.cls.predictions.decoder

    def logits(self, ids: Tensor, positions: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits [R, K, V] at the positions ``positions`` [R, K] of ``ids`` [R, L]."""
        states = self.model.bert(input_ids=ids, attention_mask=attention_mask).last_hidden_state
        logits: Tensor = self.model.cls(take(states, positions))
        return logits

    def eval(self) -> None:
        self.model.eval()

    def train(self) -> None:
        self.model.train()


def linear(progress: float, warmup: float) -> float:
    """Factor of the peak learning rate: up in the share ``warmup`` of the training time, then down to 0."""
    return max(0.0, min(progress / warmup, (1.0 - progress) / (1.0 - warmup)))


class Timer:
    """Clock of the run: progress of the training time, and whether it is over."""

    def __init__(self, budget: float, watch: Stopwatch):
        self._budget, self._watch, self._started = budget, watch, process_started()
        self._begun: float | None = None

    def elapsed(self) -> float:
        return self._watch.now() - self._started

    def begin(self) -> None:
        """Start the clock before the first step."""
        self._begun = self.elapsed()

    def progress(self) -> float:
        if self._begun is None:
            return 0.0
        return min(1.0, (self.elapsed() - self._begun) / max(self._budget - self._begun, 1e-9))


def callback(asked: Asked, evaluate: Judge, timer: Timer, tokens: int, limit: int) -> Any:
    """Callback that evaluates the model between steps and ends the run; ``tokens`` per step."""
    from transformers import TrainerCallback

    class Judging(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            evaluate.look(asked, timer.elapsed(), 0, 0)
            timer.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
            step = state.global_step
            evaluate.look(asked, timer.elapsed(), step, step * tokens)
            control.should_training_stop = timer.progress() >= 1.0 or step == limit
            return control

    return Judging()


def trained(chosen: argparse.Namespace, shards: Shards, data: Path, seconds: float) -> dict[str, Any]:
    """Train and evaluate; return the curve and the facts."""
    from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments, set_seed

    watch = Stopwatch()
    timer = Timer(seconds, watch)
    recipe, manifest, device = load_recipe(chosen.recipe), shards.manifest, choose_device()
    length = chosen.length or recipe.length
    assert isinstance(recipe.model, ModernEncoder)
    set_seed(chosen.seed)
    model = stock_bert(recipe.model, manifest.vocabulary, length, chosen.dropout).to(device)
    yard = heldout_validation(replace(recipe, length=length), shards, data, device)
    evaluate, asked = Judge(yard, marks_of(seconds, chosen.marks), watch), Asked(model)

    class Timed(Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda _: linear(timer.progress(), chosen.warmup)
            )
            return self.lr_scheduler

    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            max_steps=10_000_000,
            per_device_train_batch_size=chosen.batch,
            bf16=chosen.bf16 or device.type == "cuda",
            learning_rate=chosen.rate,
            seed=chosen.seed,
            **common_arguments(device),
        )
        collator = DataCollatorForLanguageModeling(stock_tokenizer(manifest.vocabulary), mlm_probability=RATE)
        rows = StoredRows(shards.train, length, manifest.special)
        each = chosen.batch * length
        trainer = Timed(
            model, arguments, collator, rows, callbacks=[callback(asked, evaluate, timer, each, chosen.steps)]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    found = outcome(trainer.state.global_step, each, evaluate, asked, timer, model)
    heldout = shards.heldout
    stream = heldout.read(0, min(HELD_OUT_TOKENS, len(heldout)))
    context = measure_context_use(asked, stream, heldout.document_ends(), special=manifest.special, longest=length)
    found["context_use"] = None if context is None else to_dict(context)
    if chosen.save:
        model.save_pretrained(chosen.save)
        shutil.copytree(data / "tokenizer", chosen.save, dirs_exist_ok=True)
    return found


def outcome(steps: int, each: int, evaluate: Judge, asked: Asked, timer: Timer, model: nn.Module) -> dict[str, Any]:
    """The curve with its end; the model is evaluated once more if the last mark was not met exactly."""
    elapsed = timer.elapsed()
    if evaluate.wanted and evaluate.curve[-1]["step"] != steps:
        evaluate.evaluate(asked, elapsed, steps, steps * each)
    begun = evaluate.curve[0]["seconds"] if evaluate.curve else 0.0
    return {
        **evaluate.facts(),
        "steps": steps,
        "tokens": steps * each,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens_per_second": steps * each / max(elapsed - begun, 1e-9),
        "elapsed": elapsed,
    }


def main() -> None:
    parser = measure.parser(__doc__)
    add_judging_flags(parser)
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=float, default=0.06, help="share of the training time in which the rate rises")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=0, help="of a row; 0 for the recipe's")
    parser.add_argument("--bf16", action="store_true", help="the Trainer's own, on a CPU too; always on a GPU")
    parser.add_argument("--save", type=Path, help="folder for the model, as daybreak evaluate takes it")
    parser.add_argument("--steps", type=int, default=0, help="end after so many, whatever the time; 0 for no end")
    chosen = parser.parse_args()
    seconds = 20.0 if chosen.short else measure.budget_seconds(chosen.budget)
    if chosen.short:
        measure.use_one_thread()
        chosen.marks, chosen.batch, chosen.length = 3, 4, 32
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        settings = {name: value for name, value in vars(chosen).items() if not isinstance(value, Path)}
        found = measure.record("reference", settings)
        found |= trained(chosen, open_shards(data), data, seconds)
    measure.finish(found, None)
    tell(found, chosen.out)


if __name__ == "__main__":
    main()
