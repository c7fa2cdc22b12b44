"""Does our fine-tuning loop agree with transformers' own Trainer?

    python benchmarks/trainer_agreement.py MODEL --task-dir GLUE --tasks rte,cola --seeds 5 --out agreement.json
    python benchmarks/trainer_agreement.py --short        a toy model on toy rows: shows that the script works

Both sides get the same model, fresh classifiers from the same seeds, the same rows, tokens, learning rate, epochs,
batch size, decay, clipping, and a linear schedule with the same warmup. They differ in the order of the rows (the
Trainer draws its own) and in our batches of similar length. They take turns, task by task, so that a slow hour harms
both. "agree" means that the means differ by no more than the larger spread over seeds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.base.errors import UserError
from daybreak.base.files import write_json
from daybreak.base.terminal import working
from daybreak.evaluation.batches import EncodedRows
from daybreak.evaluation.classifier import build_classifier
from daybreak.evaluation.finetune import answers
from daybreak.evaluation.known_tasks import known_task, spelled_out
from daybreak.evaluation.measure import EncodedTask, encode_task, measure
from daybreak.evaluation.metrics import score
from daybreak.evaluation.protocols import Protocol, find_protocol
from daybreak.evaluation.task_file import read_task_file
from daybreak.evaluation.tasks import TaskRows, load_task


def trainer_score(folder: Path, data: TaskRows, rows: EncodedTask, protocol: Protocol, seed: int) -> float:
    """The headline metric on dev after fine-tuning with transformers' Trainer."""
    from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainingArguments

    (setting,) = protocol.settings(rows.width)

    def listed(part: EncodedRows) -> list[dict[str, Any]]:
        return [
            {name: values[i] for name, values in part.features.items()} | {"label": part.targets[i]}
            for i in range(len(part))
        ]

    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            seed=seed,
            num_train_epochs=setting.epochs,
            per_device_train_batch_size=protocol.batch,
            per_device_eval_batch_size=64,
            learning_rate=setting.rate,
            lr_scheduler_type="linear",
            warmup_steps=protocol.warmup,
            weight_decay=protocol.weight_decay,
            max_grad_norm=protocol.clip,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            build_classifier(folder, data, seed, untrained=False),
            arguments,
            train_dataset=listed(rows.train),
            data_collator=DataCollatorWithPadding(rows.tokenizer),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        logits = np.asarray(trainer.predict(listed(rows.dev)).predictions)  # type: ignore[arg-type]
    found = score(data.task.kind, len(data.labels), rows.dev.targets, answers(logits, data.task.kind))
    return found[data.task.metric]


def compare(folder: Path, data: TaskRows, protocol: Protocol, seeds: int) -> dict[str, Any]:
    """Both loops on one task."""
    build_classifier(folder, data, 0, untrained=False)  # imports what both need, so that neither side pays for it
    with working(f"{data.task.name}, ours") as work:
        ours = measure(folder, data, protocol, seeds, work)
    started = time.monotonic()
    rows = encode_task(folder, data, protocol)
    theirs = [trainer_score(folder, data, rows, protocol, seed) for seed in range(seeds)]
    seconds = time.monotonic() - started
    spread = statistics.stdev(theirs) if seeds > 1 else 0.0
    difference = ours.mean - statistics.fmean(theirs)
    return {
        "task": data.task.name,
        "metric": ours.metric,
        "baseline": ours.baseline,
        "settings": ours.settings,
        "train_rows": ours.train_rows,
        "dev_rows": ours.dev_rows,
        "seeds": ours.seeds,
        "ours": {"scores": ours.scores[ours.metric], "mean": ours.mean, "spread": ours.spread, "seconds": ours.seconds},
        "trainer": {"scores": theirs, "mean": statistics.fmean(theirs), "spread": spread, "seconds": seconds},
        "difference": difference,
        "agree": abs(difference) <= max(ours.spread, spread),
        "time_ratio": seconds / ours.seconds,
    }


def write_toy(folder: Path) -> tuple[Path, Path]:
    """A ModernBERT of one layer x 32 with random weights, and a task of 800 rows; returns both paths."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    words = "sun warm bright rain cold dark the day was very and it will be some more".split()
    pieces = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(piece, pieces[piece]) for piece in specials.values()]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", **specials,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    config = ModernBertConfig(
        vocab_size=len(pieces), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    ModernBertForMaskedLM(config).save_pretrained(folder)
    chance = random.Random(0)
    lines = []
    for row in range(800):
        telling = words[3:6] if row % 2 else words[:3]
        text = " ".join([chance.choice(telling), *chance.choices(words[6:], k=chance.randint(2, 12))])
        lines.append(json.dumps({"text": text, "label": "rainy" if row % 2 else "sunny"}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    task = folder / "toy.toml"
    task.write_text('train = "rows.jsonl"\ntext = "text"\nlabel = "label"\n', encoding="utf-8")
    return folder, task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a Hugging Face folder of an encoder")
    parser.add_argument("--task-dir", type=Path)
    parser.add_argument("--tasks", default="rte,cola", help="GLUE names and .toml files, with commas between")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--protocol", default="quick")
    parser.add_argument("--train-rows", type=int, help="instead of the protocol's")
    parser.add_argument("--epochs", type=int, help="instead of the protocol's")
    parser.add_argument("--threads", type=int, help="of torch; by default torch's own choice")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--short", action="store_true", help="a toy model, a toy task, two seeds")
    chosen = parser.parse_args()
    if not chosen.short and chosen.model is None:
        parser.error("name a model folder, or use --short")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if chosen.short:
            chosen.model, task = write_toy(Path(scratch))
            chosen.tasks, chosen.seeds = str(task), 2
        figures = run(chosen)
    print(json.dumps(figures, indent=2))
    if chosen.out:
        write_json(chosen.out, figures)


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    import transformers

    protocol = find_protocol(chosen.protocol).changed(epochs=chosen.epochs, rows=chosen.train_rows)
    tasks = [
        read_task_file(Path(name)) if name.endswith(".toml") else known_task(name, chosen.task_dir)
        for name in spelled_out(chosen.tasks.split(","))
    ]
    return {
        "model": chosen.model.name,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tasks": [compare(chosen.model, load_task(task), protocol, chosen.seeds) for task in tasks],
    }


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
