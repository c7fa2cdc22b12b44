"""What the model read, in counts and shares: never text, never a path."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePath

from daybreak.core.formatting import count, percent
from daybreak.exporting.card_text import line, table
from daybreak.schemas.corpus import Contamination, CorpusReport, StepReport
from daybreak.schemas.run import Manifest

SOURCES_NAMED = 10
SHARES_NAMED = 5
WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Between the words of a step's name, which is that of a class."""


def text_block(manifest: Manifest, corpus: CorpusReport | None) -> str:
    """The sources, what was made of them, what each step left out, and evaluation text in it.

    Args:
        corpus: None of data prepared by a version that had no such report.
    """
    rows = [
        ["Training documents", count(manifest.train.documents)],
        ["Training tokens", count(manifest.train.tokens)],
        ["Held-out documents", count(manifest.heldout.documents)],
        ["Characters", count(manifest.characters)],
        ["Exact duplicates removed", f"{manifest.duplicates:,}"],
        ["Left out", ", ".join(f"{number:,} {why}" for why, number in manifest.skipped.items() if number) or "nothing"],
        ["Tokenizer", f"{manifest.tokenizer_kind}, {manifest.vocabulary:,} tokens"],
    ]
    if corpus is not None:
        rows += [["Scripts, by letters", _shares(corpus.scripts)], ["Languages, by documents", _languages(corpus)]]
    names = [f"`{line(PurePath(source.path).name)}`" for source in manifest.sources[:SOURCES_NAMED]]
    more = len(manifest.sources) - len(names)
    named = ", ".join(names) + (f" and {more} more" if more else "")
    parts = ["## Training text", f"Sources: {named}.", table(["", ""], rows)]
    if corpus is not None:
        parts += [_steps(corpus), _contamination(corpus.contamination)]
    return "\n\n".join(filter(None, parts))


def _shares(found: Mapping[str, float]) -> str:
    """The largest shares; those that are none, as in a damaged record, are passed over."""
    told = sorted(((share, name) for name, share in found.items() if 0 < share <= 1), reverse=True)
    return ", ".join(f"{name} {percent(share)}" for share, name in told[:SHARES_NAMED]) or "not told"


def _languages(corpus: CorpusReport) -> str:
    return _shares(corpus.languages) if corpus.languages else "not judged"


def _steps(corpus: CorpusReport) -> str:
    rows = [_step(step) for step in corpus.steps if step.documents_in > step.documents_out]
    if not rows:
        return ""
    lead = f"What the steps of the preparation (`{line(corpus.preset)}`) left out, in their order:"
    return f"{lead}\n\n{table(['Step', 'Documents left out', 'of those that came to it'], rows)}"


def _step(step: StepReport) -> list[str]:
    gone = step.documents_in - step.documents_out
    share = gone / step.documents_in if step.documents_in else math.nan
    return [WORD.sub(" ", step.name), f"{gone:,}", percent(share) if math.isfinite(share) else "-"]


def _contamination(found: list[Contamination]) -> str:
    if not found:
        return "No evaluation text was looked for in it."
    rows = [
        [
            f"`{PurePath(one.path).name}`",
            f"{one.items_found:,} of {one.items:,}",
            "nothing to do" if not one.items_found else "documents removed" if one.removed else "only counted",
        ]
        for one in found
    ]
    lead = "Lines of evaluation texts that were met: 13 of their words in a row, or all of one with 8 to 12 words:"
    return f"{lead}\n\n{table(['Evaluation text', 'Lines found', 'What was done'], rows)}"
