"""Compare fine-tuning with transformers' Trainer: scores, time and memory.

    python benchmarks/trainer_agreement.py MODEL --task-dir GLUE --tasks cola,mrpc+rte --seeds 3 --out agreement.json
    python benchmarks/trainer_agreement.py --short        a toy model on toy examples, to test the script

Each side is one command, timed from outside with its imports: `daybreak evaluate`, and a Trainer that fine-tunes the
seeds one after the other on all cores. Both use the same model, new heads from the same seeds, the same examples and
tokens, and the settings of the protocol quick: learning rate, epochs, batch size, decay, clipping, a linear schedule
with the same warm-up. They differ in the order of the examples, in Daybreak's batches of similar length, and in how
seeds use the cores. They run in turns, task by task; tasks joined by + are one command on each side. --padding max pads
to the maximum length, as run_glue.py does by default; longest pads as DataCollatorWithPadding does. "agree" means that
the means differ by at most the larger spread over seeds. Memory is the peak over samples of the sum of the proportional
set sizes of a side's processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import measure as shared
import numpy as np
import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.evaluation.finetuning.classifier import build_classifier, load_config, load_tokenizer
from daybreak.evaluation.finetuning.jobs import EncodedTask, encode_task, max_sequence_length
from daybreak.evaluation.model_source import find_tasks
from daybreak.evaluation.protocols.known_protocols import find_protocol
from daybreak.evaluation.protocols.protocol import Protocol
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.schemas.tasks import TaskResult

SAMPLE_SECONDS = 0.2


def trainer_score(folder: Path, rows: EncodedTask, protocol: Protocol, seed: int, padding: str) -> float:
    """Headline metric on dev after fine-tuning with transformers' Trainer."""
    from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainingArguments

    task = rows.data.task
    kind = kind_of(task)
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    (setting,) = protocol.settings(config.hidden_size, task.whole)

    def listed(part: EncodedRows) -> list[dict[str, Any]]:
        return [
            {name: values[i] for name, values in part.features.items()} | {"label": part.targets[i]}
            for i in range(len(part))
        ]

    length = max_sequence_length(config, tokenizer, protocol)
    whole = {"padding": "max_length", "max_length": length} if padding == "max" else {}
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            seed=seed,
            num_train_epochs=setting.epochs,
            per_device_train_batch_size=setting.batch,
            per_device_eval_batch_size=64,
            learning_rate=setting.rate,
            lr_scheduler_type="linear",
            warmup_steps=protocol.warmup,
            weight_decay=protocol.weight_decay,
            max_grad_norm=protocol.max_grad_norm or 0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            build_classifier(folder, kind, rows.data.labels, seed, untrained=False),
            arguments,
            train_dataset=listed(rows.train),
            data_collator=DataCollatorWithPadding(tokenizer, **whole),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        logits = np.asarray(trainer.predict(listed(rows.parts["dev"])).predictions)  # type: ignore[arg-type]
    judged = kind.evaluate(rows.parts["dev"], list(logits), rows.data.labels)
    return kind.score(judged, rows.data.labels)[task.metric]


def trainer_side(chosen: argparse.Namespace) -> None:
    """Process of the Trainer: all seeds of each task, scores by task into --out."""
    protocol = changed(chosen)
    scores = {}
    for task in find_tasks(chosen.tasks.split(","), chosen.task_dir):
        rows = encode_task(chosen.model, load_task(task), protocol)
        each = [trainer_score(chosen.model, rows, protocol, seed, chosen.padding) for seed in range(chosen.seeds)]
        scores[task.name] = each
    write_json(chosen.out, scores)


def changed(chosen: argparse.Namespace) -> Protocol:
    return find_protocol("quick").changed(epochs=chosen.epochs, rows=chosen.rows)


def flags(chosen: argparse.Namespace, task: str) -> list[str]:
    """Flags of both sides."""
    told = {"task-dir": chosen.task_dir, "epochs": chosen.epochs, "rows": chosen.rows}
    given = [word for name, value in told.items() if value for word in (f"--{name}", str(value))]
    return [str(chosen.model), "--tasks", task, "--seeds", str(chosen.seeds), *given]


def watched(command: list[str], log: Path) -> tuple[float, float]:
    """Run a command; return its seconds and the peak memory of its processes in GB."""
    most, ended = [0.0], threading.Event()
    begun = time.monotonic()
    process = shared.start(command, log)

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            most[0] = max(most[0], sum(map(own_memory, family(process.pid))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    process.wait()
    seconds = time.monotonic() - begun
    ended.set()
    thread.join()
    shared.check_ended(process, log)
    return seconds, most[0] / 1e9


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def own_memory(pid: int) -> float:
    """Proportional set size in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def compare(chosen: argparse.Namespace, group: str, work: Path) -> dict[str, Any]:
    """Run both sides on the same tasks, one after the other."""
    tasks = group.replace("+", ",")
    place = work / "-".join(Path(task).stem for task in tasks.split(","))
    watch = shared.Watch()
    command = shared.daybreak("evaluate", *flags(chosen, tasks), "--out", str(place), "--overwrite")
    seconds, gigabytes = watched(command, place.with_suffix(".ours.log"))
    results = read_json(place / "results.json", list[TaskResult])
    found: dict[str, Any] = {
        "tasks": [task_facts(result) for result in results],
        "ours": {"seconds": seconds, "gigabytes": gigabytes},
    }
    for padding in chosen.padding.split(","):
        told = [*flags(chosen, tasks), "--padding", padding, "--side", "trainer", "--out", str(place / "trainer.json")]
        theirs, memory = watched([sys.executable, __file__, *told], place.with_suffix(f".trainer-{padding}.log"))
        scores = read_json(place / "trainer.json")
        found[f"trainer, padded to {padding}"] = {
            "seconds": theirs,
            "gigabytes": memory,
            "time_ratio": theirs / seconds,
            "memory_ratio": memory / gigabytes,
            "tasks": {result.task: agreement(result, scores[result.task]) for result in results},
        }
    return found | watch.facts(torch.get_num_threads())


def task_facts(result: TaskResult) -> dict[str, Any]:
    names = "task metric baseline settings train_rows dev_rows seeds mean spread hardware".split()
    return {name: getattr(result, name) for name in names} | {"scores": result.scores[result.metric]}


def agreement(ours: TaskResult, scores: list[float]) -> dict[str, Any]:
    """Scores of both sides; differences of means and the larger spread over seeds."""
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    difference = ours.mean - statistics.fmean(scores)
    return {
        "scores": scores,
        "mean": statistics.fmean(scores),
        "spread": spread,
        "difference": difference,
        "agree": abs(difference) <= max(ours.spread, spread),
    }


def write_toy(folder: Path) -> tuple[Path, Path]:
    """Write a ModernBERT of one layer x 32 with random weights and a task of 800 examples; return both paths."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True)
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
    parser = shared.parser(__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a Hugging Face folder of an encoder")
    parser.add_argument("--task-dir", type=Path)
    parser.add_argument("--tasks", default="rte,cola", help="GLUE names and .toml files, with commas or + between")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="instead of the protocol's")
    parser.add_argument("--epochs", type=int, help="instead of the protocol's")
    parser.add_argument("--padding", default="longest", help="of the Trainer: longest, max, or both with a comma")
    parser.add_argument("--side", choices=("both", "trainer"), default="both", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side == "trainer":
        trainer_side(chosen)
        return
    if not chosen.short and chosen.model is None:
        parser.error("name a model folder, or use --short")
    with shared.work_folder(chosen.work) as work:
        if chosen.short:
            shared.use_one_thread()
            chosen.model, task = write_toy(work / "toy")
            chosen.tasks, chosen.seeds = str(task), 2
        told = {"model": chosen.model.name, "protocol": changed(chosen).name, "seeds": chosen.seeds}
        found = shared.record("trainer_agreement", told) | {"cores": os.cpu_count(), "groups": []}
        for group in chosen.tasks.split(","):
            found["groups"].append(compare(chosen, group, work))
            print(json.dumps(found["groups"][-1], indent=2), flush=True)
            shared.finish(found, chosen.out)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
