"""Measure how many planted near duplicates and evaluation texts the preparation finds in a corpus.

    python benchmarks/copies.py --corpus texts/ --megabytes 20 --rates 0.02 0.05 0.1 0.2 --out copies.json

Existing near copies are removed first, so that every later match that was not planted is a false positive. The planted
texts are documents with a fraction of their words changed, and items of random words. If there is too little text, it
is repeated with seeded changes, which the record states.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import measure
import toy
from preparation import REPEATED_CHANGES, changed, documents

from daybreak.data.filters.contamination import EvaluationTexts
from daybreak.data.filters.near_duplicates import near_duplicates, write_signatures

ITEM_WORDS = 20
LEAST_WORDS = 50
"""Of a document of which a copy is planted."""


def resemblance(one: str, other: str) -> float:
    """Jaccard index of word 5-grams."""
    first, second = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (one.split(), other.split()))
    return len(first & second) / max(1, len(first | second))


def find_copies(texts: list[str], folder: Path) -> set[int]:
    write_signatures(enumerate(texts), folder, 0)
    return set(near_duplicates(folder).tolist())


def copies(chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    if not importlib.util.find_spec("datatrove"):
        return {"skipped": "datatrove is not installed, whose MinHash it is"}
    read = list(documents(chosen.corpus, chosen.megabytes))
    texts = [text for _, text in read if len(text.split()) >= LEAST_WORDS]
    natural = find_copies(texts, work / "natural")
    texts = [text for number, text in enumerate(texts) if number not in natural]
    chance, words = random.Random(1), sorted({word for text in texts[:500] for word in text.split()})
    planted: dict[int, tuple[float, float]] = {}
    for rate in chosen.rates:
        for number in chance.sample(range(len(texts) - len(planted)), min(chosen.planted, len(texts) // 10)):
            text = changed(texts[number], rate, chance, words)
            planted[len(texts)] = rate, resemblance(texts[number], text)
            texts.append(text)
    begun = time.monotonic()
    found = find_copies(texts, work / "planted")
    seconds = time.monotonic() - begun
    lines = []
    for rate in chosen.rates:
        own = [number for number, (at, _) in planted.items() if at == rate]
        alike = measure.mean_and_spread([planted[number][1] for number in own])[0]
        recall = sum(number in found for number in own) / len(own)
        lines.append({"changed_words": rate, "planted": len(own), "mean_resemblance": alike, "recall": recall})
    near = {"megabytes": sum(map(len, texts)) / 1e6, "documents": len(texts), "natural_copies_taken_out": len(natural)}
    near |= {"repeats": read[-1][0]}
    near |= {"seconds": seconds, "rates": lines, "precision": len(found & planted.keys()) / max(1, len(found))}
    return {"near_duplicates": near, "contamination": contamination(texts, words, chosen.planted)}


def contamination(texts: list[str], words: list[str], count: int) -> dict[str, Any]:
    """Plant half of a set of random evaluation items in documents, and search for all of them."""
    chance = random.Random(2)
    items = [" ".join(chance.choices(words, k=ITEM_WORDS)) for _ in range(2 * count)]
    texts, truth = list(texts), set[int]()
    for item, number in enumerate(chance.sample(range(len(texts)), min(count, len(texts)))):
        before = texts[number].split(" ")
        before.insert(chance.randrange(len(before) + 1), items[item])
        texts[number] = " ".join(before)
        truth.add(item)
    index = EvaluationTexts([items])
    begun = time.monotonic()
    found = {item for text in texts for _, item in index.find(text)}
    seconds = time.monotonic() - begun
    right = len(found & truth)
    facts = {"planted": len(truth), "not_planted": len(items) - len(truth), "seconds": seconds}
    return {**facts, "recall": right / len(truth), "precision": right / max(1, len(found))}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument(
        "--corpus", type=Path, help="text of any kind that daybreak prepare reads; toy text with --short"
    )
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.02, 0.05, 0.1, 0.2], help="of changed words")
    parser.add_argument("--planted", type=int, default=200, help="copies at each rate, and evaluation items")
    chosen = parser.parse_args()
    with measure.work_folder(chosen.work) as work:
        if chosen.short:
            chosen.corpus = chosen.corpus or toy.toy_text(work / "toy")
            chosen.megabytes, chosen.planted = 0.5, 20
        if not chosen.corpus:
            sys.exit("Name a text with --corpus, or use --short.")
        settings = {key: value for key, value in vars(chosen).items() if key not in ("corpus", "out", "work")}
        found = {**measure.record("copies", settings), "changed_words_in_repeats": REPEATED_CHANGES}
        found |= copies(chosen, work)
    measure.finish(found, chosen.out)
    told = ("near_duplicates", "contamination", "skipped")
    print(json.dumps({key: found[key] for key in told if key in found}, indent=1))


if __name__ == "__main__":
    main()
