"""A small text for tests of preparation, what comes of it, and what it must not leave behind."""

from __future__ import annotations

import json
import random
from pathlib import Path

PART = 6_000
"""Bytes of a part, so that such a text has several."""


def write_records(path: Path, documents: int = 600, seed: int = 5) -> Path:
    """Records, a tenth of them copies of others."""
    chance = random.Random(seed)
    words = "the a of river stone valley walks sings under over quiet bright morning and then because it's 7".split()
    texts = [" ".join(chance.choices(words, k=chance.randrange(3, 60))).capitalize() for _ in range(documents)]
    texts += chance.sample(texts, documents // 10)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


WHO = "teacher farmer doctor painter sailor baker singer driver writer hunter".split()
DOES = "finds paints carries watches cleans sells hides breaks mends draws".split()
WHAT = "table window garden letter basket bridge mirror candle ladder bottle".split()
WHERE = "near the river|behind the church|in the old town|under the great tree|at the market".split("|")
WHEN = "every morning|before the winter|after the long war|on a quiet evening|without a single word".split("|")


def small_text(chance: random.Random, sentences: int) -> str:
    """Sentences of a small grammar: enough rule in them that a model of a few thousand numbers learns something."""
    kinds = "the {who} {does} the {what} {where} .|{when} the {who} {does} a {what} ."
    kinds += "|the {who} and the {other} talk about the {what} {when} ."
    return " ".join(
        chance.choice(kinds.split("|")).format(
            who=chance.choice(WHO), other=chance.choice(WHO), does=chance.choice(DOES), what=chance.choice(WHAT),
            where=chance.choice(WHERE), when=chance.choice(WHEN),
        )
        for _ in range(sentences)
    )  # fmt: skip


Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """All files by name; what only tells the time is taken out."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in ("manifest.json", "corpus.json"):
        told = json.loads(found[name])
        told.pop("seconds")
        found[name] = json.dumps(told).encode()
    return found
