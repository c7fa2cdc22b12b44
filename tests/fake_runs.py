"""A run folder as a real run leaves it, with records that were drawn and not trained."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daybreak.core.files import write_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint, to_dict
from daybreak.schemas.run import (
    BlockFile,
    Decisions,
    Environment,
    FillMask,
    Manifest,
    Parity,
    Source,
    Split,
    StepRecord,
    Summary,
    TraceRecord,
    ValidationRecord,
)
from daybreak.schemas.tasks import TaskResult

UNIGRAM = 6.283
WriteRun = Callable[..., Path]


def fake_steps(chance: random.Random, seconds: float, steps: int, causal: float, floor: float) -> list[StepRecord]:
    """Losses that fall as a real run's do: the causal stage first, then the masked one from a little above it."""
    found = []
    for step in range(0, steps, max(1, steps // 400)):
        progress = step / steps
        stage = "causal" if progress < causal else "masked"
        since = progress if stage == "causal" else progress - causal
        loss = floor + (4.4 if stage == "causal" else 1.5) * math.exp(-6 * since) + chance.gauss(0, 0.05)
        rate = 2e-3 * min(1.0, progress / 0.1) * min(1.0, (1.02 - progress) / 0.4)
        found.append(
            StepRecord(
                step=step, elapsed=6 + progress * (seconds - 12), progress=progress, tokens=step * 32 * 128,
                stage=stage, loss=loss, targets=step * 32 * 19, learning_rate=rate,
                gradient_norm=0.8 + chance.random() / 4,
                tokens_per_second=(21_000 if stage == "causal" else 25_000) + chance.gauss(0, 600),
            )
        )  # fmt: skip
    return found


def fake_validations(steps: list[StepRecord], causal: float, floor: float, ended: bool) -> list[ValidationRecord]:
    found = []
    for place in range(10, 0, -1):
        step = steps[-1 - (place - 1) * (len(steps) // 11)]
        if step.progress < causal:
            continue
        since = max(0.0, step.progress - causal)
        loss = floor + 0.1 + 1.3 * math.exp(-5 * since)
        found.append(
            ValidationRecord(
                step=step.step, elapsed=step.elapsed, progress=step.progress, tokens=step.tokens, loss=loss,
                accuracy=0.05 + max(0.0, 0.09 * (6.3 - loss)), positions=12_160, distinct=640, unigram_loss=UNIGRAM,
                most_frequent_fraction=0.052, final=ended and place == 1, seconds=0.7,
            )
        )  # fmt: skip
    return found


def fake_manifest() -> Manifest:
    def block(name: str) -> BlockFile:
        return BlockFile(name=name, bytes=1 << 20, hashes=[])

    def split(documents: int, tokens: int) -> Split:
        return Split(documents=documents, tokens=tokens, token_files=[block("t.bin")], document_ends=block("d.bin"))

    return Manifest(
        format=1, tokenizer="5f1c0a77d2e9b431", tokenizer_kind="WordPiece", vocabulary=8192, token_bytes=2,
        document_rule="record", train=split(41_230, 3_412_000), heldout=split(830, 68_400),
        unigram_counts=block("unigram.bin"), duplicates=1204, skipped={"too short": 311, "broken UTF-8": 0},
        sources=[Source(path="/home/someone/secret/docstrings.jsonl", documents=42_060, characters=14_920_331)],
        characters=14_920_331, seconds=18.4,
    )  # fmt: skip


def fake_results(chance: random.Random, lift: float) -> list[TaskResult]:
    def result(task: str, model: str, metric: str, middle: float, baseline: float) -> TaskResult:
        values = [middle + chance.gauss(0, 0.008) for _ in range(3)]
        mean = sum(values) / 3
        return TaskResult(
            protocol="quick", task=task, model=model, kind="classification", metric=metric,
            scores={metric: values, "macro f1": [value - 0.04 for value in values]}, seeds=[0, 1, 2], mean=mean,
            spread=(sum((value - mean) ** 2 for value in values) / 2) ** 0.5, selection="last epoch",
            train_rows=6_000, dev_rows=1_000, baseline=baseline,
            settings={"learning_rate": 3e-4, "epochs": 3, "batch": 32, "length": 128},
            labels=["numpy", "scipy", "torch"], seconds=21.0,
        )  # fmt: skip

    return [
        result("which-package", "pretrained", "accuracy", 0.61 + lift, 0.21),
        result("which-package", "untrained", "accuracy", 0.48, 0.21),
        result("cola", "pretrained", "matthews correlation", 0.14 + lift, 0.0),
        result("cola", "untrained", "matthews correlation", 0.02, 0.0),
    ]


EXAMPLES = [
    ("Return a copy of the [MASK] with only its first character capitalized.", "string", "string array list name file"),
    ("Raises ValueError if the value is not [MASK].", "present", "valid None found empty present"),
    ("The shape of the input <tensor> & its [MASK].", "dtype", "shape size dtype values type"),
]


def fake_ending(folder: RunFolder, path: Path, last: ValidationRecord, seconds: float, passed: bool) -> None:
    parity = Parity(
        passed=passed, checks={"logits": passed, "padded_equals_unpadded": True, "tokenizer_round_trip": True},
        largest_logit_difference=3.1e-6 if passed else 0.4, tolerance=1e-4, masked_accuracy=last.accuracy,
        transformers="5.0.0", seconds=6.2, failure=None if passed else "logits differ by 0.4",
    )  # fmt: skip
    spent = {"start": 5.1, "train": seconds - 16, "validate": 6.4, "checkpoint": 1.9, "export": 1.7, "lost": 0.0}
    write_json(
        folder.summary,
        Summary(
            budget="3m", elapsed=seconds - 0.9, wall=seconds - 0.9, time_by_category=spent, steps=last.step + 1,
            tokens=last.tokens, epochs=last.tokens / 3_412_000, parameters=1_476_992, resumes=0,
            tokens_per_second=23_400.0, validation=last, parity=parity, parity_seconds=6.2,
        ),
    )  # fmt: skip
    (path / "model").mkdir()


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return ``write(name, ...)``: it fills tmp_path/name with the files of a run and returns that path.

    ``ended=False`` leaves a run that was killed half way: no summary, no results, no examples.
    """

    def write(
        name: str = "tiny", *, seed: int = 1, seconds: float = 180.0, steps: int = 1_000, causal: float = 0.4,
        floor: float = 4.4, ended: bool = True, passed: bool = True, recipe: dict[str, Any] | None = None,
    ) -> Path:  # fmt: skip
        chance = random.Random(seed)
        path = tmp_path / name
        path.mkdir()
        folder = RunFolder(path)
        records = fake_steps(chance, seconds, steps, causal, floor)
        records = records if ended else records[: int(0.7 * len(records))]
        validations = fake_validations(records, causal, floor, ended)
        lines = [{"type": "step"} | to_dict(record) for record in records]
        lines += [{"type": "validation"} | to_dict(record) for record in validations]
        write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in lines))
        trace = [TraceRecord(step=r.step, elapsed=r.elapsed, progress=r.progress) for r in records]
        write_text(folder.trace, "".join(json.dumps(to_dict(line)) + "\n" for line in trace))
        values = {
            "name": "tiny", "seed": seed, "length": 128, "batch": 32, "budget": "3m", "max_grad_norm": 1.0,
            "model": {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128},
            "objective": {"kind": "CausalThenMasked"},
            "optimizer": {"kind": "AdamW", "lr": 2e-3}, "schedule": {"kind": "Trapezoid", "warmup": 0.1},
            "tokenizer": {"kind": "WordPiece", "vocabulary": 8192, "cased": False},
        }  # fmt: skip
        values |= recipe or {}
        write_json(folder.recipe, {**values, "fingerprint": fingerprint(values)})
        write_json(
            folder.environment,
            Environment(
                daybreak="0.1.0", python="3.11.9", torch="2.12.0", platform="Linux-6.1", device="Some CPU @ 2.5 GHz",
                cores=2, memory_gib=7.7, started=1_790_000_000.0,
            ),
        )  # fmt: skip
        write_json(
            folder.decisions,
            Decisions(
                device="cpu", threads=2, precision="float32", microbatch=32, world_size=1, reserve_seconds=4.0,
                validation_rows=64, validation_marks=10, matmul_gflops={"float32": 118.0, "bfloat16": 21.5},
            ),
        )  # fmt: skip
        write_json(folder.manifest, fake_manifest())
        if ended:
            fake_ending(folder, path, validations[-1], seconds, passed)
            write_json(folder.results, fake_results(chance, lift=(4.4 - floor) / 5))
            odds = [0.41, 0.2, 0.11, 0.06, 0.03]
            shown = [FillMask(text=a, answer=b, guesses=c.split(), probabilities=odds) for a, b, c in EXAMPLES]
            write_json(folder.examples, shown)
        return path

    return write
