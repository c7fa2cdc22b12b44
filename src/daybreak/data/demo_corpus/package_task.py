"""The task of the default corpus: which package does a sentence come from?

The names of the packages are masked in the text, whole modules are held out for the dev file, and the classes are
balanced, so that the constant answer scores 1 / number of packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from daybreak.core.files import write_text
from daybreak.data.readers.sentences import split_sentences

CLASSES = 8
DEV_MODULES = 6
"""One module in this many is held out: its sentences are dev rows, and its text is not in the corpus."""
TRAIN_ROWS, DEV_ROWS = 4000, 1600
SENTENCE_CHARACTERS = range(40, 251)
SHORT_NAME = 3
"""Names up to this length (np, pd) are masked as whole words, longer ones also inside words."""

Texts = Mapping[str, Iterable[Sequence[str]]]
"""Package -> its modules, each as a sequence of paragraphs."""


def text_hash(text: str) -> bytes:
    """Return 8 bytes for a pseudorandom order of names that is the same on every machine."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def held_out(module: str) -> bool:
    """Return whether a module belongs to the dev file; a fixed function of its name."""
    return int.from_bytes(text_hash(f"dev {module}"), "big") % DEV_MODULES == 0


def write_task(out: Path, names: Iterable[str], train: Texts, dev: Texts, corpus: Iterable[str]) -> None:
    """Write task.toml, task-train.jsonl and task-dev.jsonl into ``out``.

    Args:
        names: all spellings of the packages' names, which are masked in every row.
        train: label -> modules whose text may be in the corpus.
        dev: label -> held-out modules.
        corpus: all paragraphs of the corpus; dev sentences that also occur there are left out.
    """
    mask = Mask(names)
    known = {mask(sentence) for paragraph in corpus for sentence in split_sentences(paragraph) if _is_row(sentence)}
    train_rows = _rows(train, mask, set(), TRAIN_ROWS)
    # Masking can make two sentences equal, so the masked texts are compared as well.
    dev_rows = _rows(dev, mask, known | {text for text, _ in train_rows}, DEV_ROWS)
    for name, rows in (("task-train.jsonl", train_rows), ("task-dev.jsonl", dev_rows)):
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows]
        write_text(out / name, "".join(lines))
    write_text(out / "task.toml", TASK)


TASK = """\
# Which package does this sentence come from? Names are masked, and the dev modules are not in the corpus.
name = "packages"
kind = "classification"
format = "jsonl"
train = "task-train.jsonl"
dev = "task-dev.jsonl"
text = "text"
label = "label"
metric = "accuracy"
"""


class Mask:
    """Replaces names, words that contain them and dotted paths that start with them by ``package``."""

    def __init__(self, names: Iterable[str]):
        spellings = sorted({name.lower() for name in names}, key=lambda name: (-len(name), name))
        long = [re.split("[-_ ]+", name) for name in spellings if len(name) > SHORT_NAME]
        short = [re.escape(name) for name in spellings if len(name) <= SHORT_NAME]
        self._beginnings = [parts[0] for parts in long]
        words = "|".join("[-_ ]?".join(map(re.escape, parts)) for parts in long)
        self._long = re.compile(rf"(?<![\w./@-])[\w./@-]*(?:{words})[\w/-]*(?:\.\w+)*(?:\(\))?", re.IGNORECASE)
        words = "|".join(short) or "(?!)"
        self._short = re.compile(rf"(?<![\w.])(?:{words})(?:(?:\.\w+)+(?:\(\))?|(?!\w))", re.IGNORECASE)

    def __call__(self, text: str) -> str:
        masked, lower = text, text.lower()
        if any(beginning in lower for beginning in self._beginnings):  # faster than the pattern
            masked = self._long.sub("package", masked)
        masked = self._short.sub("package", masked)
        return text if masked == text else re.sub(r"\bpackage(?:[ /,-]+package\b)+", "package", masked)


def _rows(texts: Texts, mask: Mask, excluded: set[str], count: int) -> list[tuple[str, str]]:
    """Draw at most ``count`` rows, equally many of each label, by the hash of the text; add them to ``excluded``."""
    candidates: dict[str, str] = {}
    for label, modules in texts.items():
        for sentence in (s for paragraphs in modules for paragraph in paragraphs for s in split_sentences(paragraph)):
            # A sentence that occurs in two packages has no label.
            candidates[sentence] = label if candidates.get(sentence, label) == label else ""
    fraction = count // max(1, len(texts))
    by_label: dict[str, list[str]] = {label: [] for label in texts}
    for sentence in sorted((s for s in candidates if _is_row(s) and s not in excluded), key=text_hash):
        rows = by_label.get(candidates[sentence])
        if rows is not None and len(rows) < fraction:
            masked = mask(sentence)
            if _is_row(masked) and masked not in excluded:
                excluded.add(masked)
                rows.append(masked)
    fraction = min(map(len, by_label.values()), default=0)
    drawn = [(text, label) for label, rows in by_label.items() for text in rows[:fraction]]
    return sorted(drawn, key=lambda row: text_hash(row[0]))


def _is_row(text: str) -> bool:
    return len(text) in SENTENCE_CHARACTERS and text[0].isupper() and text[-1] == "." and "\\" not in text
