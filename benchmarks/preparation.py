"""Measure preparation: speed compared with Hugging Face datasets, memory, and the first batch of a huge corpus.

    python benchmarks/preparation.py speed memory --corpus texts/ --megabytes 50 --out preparation.json
    python benchmarks/preparation.py first-batch --gigabytes 100

speed: daybreak prepare and datasets.map with group_texts as in transformers' run_mlm, in turns, with one tokenizer;
whole processes are timed, and ids are compared for each document. memory: peak of all processes at several sizes.
first-batch: sparse token files of that size. If there is too little text, it is repeated with seeded changes, which the
record states.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import psutil
import toy

from daybreak.core.files import read_json, write_json
from daybreak.data.readers.documents import choose_rule, read_documents
from daybreak.data.readers.inputs import Meter, find_files
from daybreak.data.readers.reading import Skips
from daybreak.data.sequences.shards import TOKEN_FILE_BYTES, BlockWriter, block_hash, open_shards
from daybreak.schemas.run import BLOCK_BYTES, BlockFile, Manifest

REPEATED_CHANGES = 0.05
"""Share of the words that are changed where text is repeated."""
POLL_SECONDS = 0.05

DIGEST = """
import hashlib
def digest(documents):
    return sum(int.from_bytes(hashlib.blake2b(d, digest_size=8).digest(), "big") for d in documents) % 2**64
"""
PEER = (
    DIGEST
    + """
import sys, time, json, itertools
begun = time.monotonic()
import numpy as np
from datasets import load_dataset
from transformers import AutoTokenizer
text, folder, cache, workers, length = *sys.argv[1:4], *map(int, sys.argv[4:6])
tokenizer = AutoTokenizer.from_pretrained(folder)
data = load_dataset("json", data_files=text, split="train", cache_dir=cache)
def encode(rows):
    return tokenizer(rows["text"], return_special_tokens_mask=True)
def group_texts(rows):
    joined = {name: list(itertools.chain(*rows[name])) for name in rows}
    total = len(joined["input_ids"]) // length * length
    return {name: [found[i : i + length] for i in range(0, total, length)] for name, found in joined.items()}
encoded = data.map(encode, batched=True, num_proc=workers, remove_columns=data.column_names)
encoded.map(group_texts, batched=True, num_proc=workers)
seconds = time.monotonic() - begun
documents = (np.array(row["input_ids"][1:-1], np.uint32).tobytes() for row in encoded)
print(json.dumps({"inside_seconds": seconds, "ids": digest(documents)}))
"""
)
FIRST = """
import sys, time
begun = time.monotonic()
from pathlib import Path
from daybreak.data.sequences.sampler import StreamRows
from daybreak.data.sequences.shards import open_shards
imported = time.monotonic()
shards = open_shards(Path(sys.argv[1]))
sampler = StreamRows().build(shards.train, 128, 0, shards.manifest.special)
batch = sampler.take(0, 64)
print(imported - begun, time.monotonic() - imported, sampler.rows_per_epoch, len(batch.ids))
"""


# ---------------------------------------------------------------- text


def changed(text: str, share: float, chance: random.Random, words: list[str]) -> str:
    """``text`` with about this fraction of its words replaced."""
    return " ".join(chance.choice(words) if chance.random() < share else word for word in text.split(" "))


def documents(corpus: Path, megabytes: float) -> Iterator[tuple[int, str]]:
    """Yield (repetition of the text, document), all different, up to this many megabytes."""
    files, left, chance = find_files([corpus]), megabytes * 1e6, random.Random(0)
    rule, words, seen, turn = choose_rule(files, "auto"), list[str](), set[int](), 0
    while True:
        for document in read_documents(files, rule, "text", Skips(), Meter()):
            if not turn and len(words) < 100_000:
                words += document.text.split()
            text = changed(document.text, REPEATED_CHANGES, chance, words) if turn else document.text
            if (key := hash(text)) in seen:
                continue
            seen.add(key)
            yield turn, text
            left -= len(text.encode())
            if left <= 0:
                return
        turn += 1


def write_text(corpus: Path, megabytes: float, path: Path) -> dict[str, Any]:
    """Write records of different documents; return their description for the record."""
    repeats = count = 0
    with path.open("w", encoding="utf-8") as file:
        for turn, text in documents(corpus, megabytes):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            repeats, count = turn, count + 1
    return {"documents": count, "megabytes": round(path.stat().st_size / 1e6, 3), "repeats": repeats}


# ---------------------------------------------------------------- speed


def ids_of(data: Path) -> int:
    """The digest that PEER prints of its ids, for Daybreak's ids."""
    room: dict[str, Any] = {}
    exec(DIGEST, room)
    shards, found = open_shards(data), 0
    for split in (shards.train, shards.heldout):
        start = 0
        for end in split.document_ends().tolist():
            found += room["digest"]([split.read(start, end - 1).astype(np.uint32).tobytes()])
            start = end
    return found % 2**64


def speed(chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    text = work / "speed.jsonl"
    facts = write_text(chosen.corpus, chosen.megabytes, text)
    made, vocabulary = work / "speed-first", ["--tokenizer.vocabulary", str(chosen.vocabulary)]
    measure.run(measure.daybreak("prepare", str(text), "--out", str(made), *vocabulary), work / "log.txt")
    tokenizer, workers = str(made / "tokenizer"), str(chosen.workers)
    peer = all(importlib.util.find_spec(name) for name in ("datasets", "transformers"))
    turns: list[dict[str, Any]] = []
    for turn in range(chosen.rounds):
        for who in ("daybreak", "datasets")[:: 1 if turn % 2 == 0 else -1]:
            if who == "datasets" and not peer:
                continue
            out, begun, load = work / f"speed-{who}-{turn}", time.monotonic(), measure.load()
            if who == "daybreak":
                flags = ["--out", str(out), "--tokenizer-from", tokenizer, "--workers", workers]
                measure.run(measure.daybreak("prepare", str(text), *flags), work / "log.txt")
                line: dict[str, Any] = {"seconds": time.monotonic() - begun, "ids": ids_of(out)}
            else:
                command = [sys.executable, "-c", PEER, str(text), tokenizer, str(out), workers, "128"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr[-2000:])
                line = json.loads(done.stdout.splitlines()[-1])
                line["seconds"] = line["inside_seconds"]  # counting its ids is not its work; starting Python is 0.1 s
            turns.append({"who": who, "turn": turn, "load": load, **line})
    rates = {
        who: facts["megabytes"] / measure.mean_and_spread([one["seconds"] for one in turns if one["who"] == who])[0]
        for who in dict.fromkeys(one["who"] for one in turns)
    }
    return {
        "text": facts,
        "turns": turns,
        "megabytes_per_second": rates,
        "ratio": rates["daybreak"] / rates["datasets"] if peer else None,
        "ids_identical": len({one["ids"] for one in turns}) == 1 if peer else None,
        **({} if peer else {"skipped": "datasets is not installed, so there is nothing to compare with"}),
    }


# ---------------------------------------------------------------- memory


def peak_bytes(command: list[str], log: Path) -> int:
    """Peak sum of resident memory over a process and its children; shared memory counts for each."""
    process, peak = measure.start(command, log), 0
    while process.poll() is None:
        try:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in tree))
        except psutil.NoSuchProcess:
            continue
        time.sleep(POLL_SECONDS)
    measure.check_ended(process, log)
    return peak


def memory(chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    lines = []
    for size in chosen.sizes:
        text = work / "memory.jsonl"
        facts = write_text(chosen.corpus, size, text)
        flags = ["--workers", str(chosen.workers), "--tokenizer.vocabulary", str(chosen.vocabulary)]
        command = measure.daybreak("prepare", str(text), "--out", str(work / f"memory-{size}"), *flags)
        lines.append({**facts, "peak_megabytes": peak_bytes(command, work / "log.txt") / 1e6})
    sizes, peaks = [line["megabytes"] for line in lines], [line["peak_megabytes"] for line in lines]
    slope = float(np.polyfit(sizes, peaks, 1)[0]) * 1000 if len(lines) > 1 else None
    return {"sizes": lines, "megabytes_per_gigabyte": slope}


# ---------------------------------------------------------------- the first batch


def sparse_data(gigabytes: float, work: Path) -> Path:
    """Toy data whose training split is a sparse file: one document of id 0."""
    data = toy.toy_data(work)
    manifest, size = read_json(data / "manifest.json", Manifest), max(BLOCK_BYTES, int(gigabytes * 1e9))
    zero, files = block_hash(bytes(BLOCK_BYTES)).hexdigest(), []
    for number, start in enumerate(range(0, size // BLOCK_BYTES * BLOCK_BYTES, TOKEN_FILE_BYTES)):
        own = min(TOKEN_FILE_BYTES, size // BLOCK_BYTES * BLOCK_BYTES - start)
        name = f"train-{number:05d}.tokens.bin"
        files.append(BlockFile(name=name, bytes=own, hashes=[zero] * (own // BLOCK_BYTES)))
        with (data / name).open("wb") as file:
            file.truncate(own)
    tokens = sum(file.bytes for file in files) // manifest.token_bytes
    ends = BlockWriter(data / "train.documents.bin")
    ends.write(np.array([tokens], "<u8"))
    train = dataclasses.replace(
        manifest.train, documents=1, tokens=tokens, token_files=files, document_ends=ends.close(), sentence_ends=None
    )
    write_json(data / "manifest.json", dataclasses.replace(manifest, train=train))
    return data


def first_batch(chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    data, found = sparse_data(chosen.gigabytes, work), []
    for _ in range(chosen.rounds):
        done = subprocess.run([sys.executable, "-c", FIRST, str(data)], capture_output=True, text=True, check=True)
        imports, seconds, rows, _ = map(float, done.stdout.split())
        found.append({"import_seconds": imports, "seconds": seconds, "rows": rows})
    return {"gigabytes": chosen.gigabytes, "rounds": found, "seconds": min(one["seconds"] for one in found)}


MODES = {"speed": speed, "memory": memory, "first-batch": first_batch}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("modes", nargs="*", help=f"what to measure, of {', '.join(MODES)}; all by default")
    parser.add_argument(
        "--corpus", type=Path, help="text of any kind that daybreak prepare reads; toy text with --short"
    )
    parser.add_argument("--megabytes", type=float, default=20.0, help="of text, for speed")
    parser.add_argument("--sizes", type=float, nargs="+", default=[20.0, 40.0, 80.0], help="megabytes, for memory")
    parser.add_argument("--gigabytes", type=float, default=100.0, help="of the sparse file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32768)
    chosen = parser.parse_args()
    modes = chosen.modes or list(MODES)
    if strange := set(modes) - MODES.keys():
        parser.error(f"no such mode: {', '.join(strange)}")
    with measure.work_folder(chosen.work) as work:
        if chosen.short:
            measure.use_one_thread()
            chosen.corpus = chosen.corpus or toy.toy_text(work / "toy")
            chosen.megabytes, chosen.sizes, chosen.gigabytes = 0.5, [0.3, 0.6], 1.0
            chosen.rounds, chosen.vocabulary = 1, 1024
        if not chosen.corpus and set(modes) & {"speed", "memory"}:
            sys.exit("Name a text with --corpus, or use --short.")
        settings = {key: value for key, value in vars(chosen).items() if key not in ("corpus", "out", "work")}
        found = {**measure.record("preparation", settings), "changed_words_in_repeats": REPEATED_CHANGES}
        for mode in modes:
            (work / mode).mkdir(exist_ok=True)
            found[mode] = MODES[mode](chosen, work / mode)
            measure.finish(found, chosen.out)
            print(json.dumps({mode: found[mode]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
