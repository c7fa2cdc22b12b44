"""A small text for tests of preparation, and what it must not leave behind."""

from __future__ import annotations

import json
import random
from pathlib import Path


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
