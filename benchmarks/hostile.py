"""Prepare text that is too large for a test: one huge line, and very many small files.

    python benchmarks/hostile.py --line-gigabytes 3 --files 100000 --out hostile.json

The record holds the peak resident memory over all processes and the seconds of each.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import measure
import toy
from preparation import peak_bytes


def one_line(path: Path, gigabytes: float) -> None:
    """One long line whose blocks all differ."""
    words, chance = toy.toy_words(), random.Random(0)
    block = " ".join(chance.choices(words, k=100_000))
    with path.open("w", encoding="utf-8") as file:
        for number in range(max(1, int(gigabytes * 1e9 / len(block)))):
            file.write(f"{number} {block} ")


def tiny_files(folder: Path, count: int) -> None:
    words, chance = toy.toy_words(), random.Random(0)
    for number in range(count):
        place = folder / f"{number // 1000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.txt").write_text(" ".join(chance.choices(words, k=40)) + "\n", encoding="utf-8")


def both(chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    line, files = work / "line.txt", work / "files"
    one_line(line, chosen.line_gigabytes)
    tiny_files(files, chosen.files)
    found = {}
    for name, text in (("line", line), ("files", files)):
        flags = ["--out", str(work / f"{name}-data"), "--workers", str(chosen.workers)]
        command = measure.daybreak("prepare", str(text), *flags, "--tokenizer.vocabulary", str(chosen.vocabulary))
        begun = time.monotonic()
        peak = peak_bytes(command, work / f"{name}.log")
        found[name] = {"peak_megabytes": peak / 1e6, "seconds": time.monotonic() - begun}
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--line-gigabytes", type=float, default=3.0)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32768)
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.line_gigabytes, chosen.files, chosen.vocabulary = 0.004, 300, 1024
    settings = {key: value for key, value in vars(chosen).items() if key not in ("out", "work")}
    with measure.work_folder(chosen.work) as work:
        found = {**measure.record("hostile", settings), **both(chosen, work)}
    measure.finish(found, chosen.out)
    print(json.dumps({name: found[name] for name in ("line", "files")}, indent=1))


if __name__ == "__main__":
    main()
