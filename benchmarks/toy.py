"""Small synthetic text, data and task, on which the benchmarks are tried with --short.

python benchmarks/toy.py --work FOLDER        writes and prepares them in FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import measure


def data_folder(chosen: argparse.Namespace, work: Path) -> Path:
    """Return ``--data``, or toy data made now with ``--short``."""
    if chosen.data:
        return Path(chosen.data)
    if not chosen.short:
        sys.exit("Name a folder made by daybreak prepare with --data, or use --short.")
    return toy_data(work)


def toy_words(count: int = 1500) -> list[str]:
    """Invented words, always the same."""
    syllables = [first + second for first in "bdfglmnprst" for second in ("a", "e", "i", "o", "un", "er")]
    chance = random.Random(0)
    drawn = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(4 * count)]
    return list(dict.fromkeys(drawn))[:count]


def toy_text(folder: Path, documents: int = 600) -> Path:
    """Write a .jsonl of invented words with Zipf frequencies; each word depends on the previous one."""
    words, chance = toy_words(), random.Random(1)
    weights = [1 / (rank + 1) for rank in range(len(words))]
    lines = []
    for _ in range(documents):
        drawn = chance.choices(range(len(words)), weights, k=150)
        chained = [
            drawn[0],
            *((7 * left + 1) % len(words) if i % 2 else drawn[i] for i, left in enumerate(drawn[:-1], 1)),
        ]
        lines.append(json.dumps({"text": " ".join(words[i] for i in chained) + "."}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def toy_data(work: Path) -> Path:
    """Prepare toy text and return the data folder."""
    data = work / "toy-data"
    command = measure.daybreak("prepare", str(toy_text(work)), "--out", str(data), "--tokenizer.vocabulary", "1024")
    measure.run(command, work / "log.txt")
    return data


def toy_task(folder: Path) -> Path:
    """A task with two classes of invented sentences, as a file for evaluate."""
    words = toy_words()
    rows = [
        {"text": " ".join(words[(7 * row + 3 * i) % 400 + 400 * (row % 2)] for i in range(8)), "label": "ab"[row % 2]}
        for row in range(120)
    ]
    (folder / "toy-task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = folder / "toy-task.toml"
    task.write_text('train = "toy-task.jsonl"\ntext = "text"\nlabel = "label"\n', encoding="utf-8")
    return task


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    with measure.work_folder(chosen.work) as work:
        facts = measure.read_json(toy_data(work) / "manifest.json")
        toy_task(work)
    found = {"documents": facts["train"]["documents"], "tokens": facts["train"]["tokens"]}
    print(json.dumps(found))
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
