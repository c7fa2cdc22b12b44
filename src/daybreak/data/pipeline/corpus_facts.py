"""Build the corpus report, DATA/corpus.json, from the results of a preparation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.filters.deduplication import DROPPED
from daybreak.data.filters.filter import Filter
from daybreak.data.pipeline.encoding import DENSITIES
from daybreak.data.pipeline.first_pass import EXAMPLES, Facts, FirstPass, Reason, near_copies
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.pipeline.tokenizer_quality import advise, measure_quality, some_of
from daybreak.data.tokenizers.tokenizer_making import TokenizerConfig, TrainedTokenizer
from daybreak.schemas.corpus import (
    Contamination,
    CorpusReport,
    DroppedText,
    Histogram,
    SourceReport,
    StepReport,
    TokenizerQuality,
)

LENGTHS = [float(1 << power) for power in range(4, 25)]
"""Edges of the histogram of document lengths, in characters."""
QUALITY_CHARACTERS = 1_000_000
"""Characters of held-out text on which the tokenizer is evaluated."""


def begin_report(preprocessing: Preprocessing, first_pass: FirstPass, steps: Sequence[Filter]) -> CorpusReport:
    """Return the report as far as the first pass tells it: documents and characters by filter, source and length.

    Args:
        steps: the filters in the order in which they were applied; NearDuplicates last, if used.
    """
    named = [(step.name, step.why(), step.passes) for step in steps]
    named.append(("ExactDuplicates", "all but one of documents that are equal", 0))
    flows = np.zeros((len(named), 4), np.int64)  # documents and characters into a step, and out of it
    reasons = [Counter[str]() for _ in named]
    examples: list[list[DroppedText]] = [[] for _ in named]
    sources: dict[str, np.ndarray] = {}  # documents and characters, read and kept
    lengths = np.zeros(len(LENGTHS) - 1, np.int64)
    words = 0
    for part, facts in enumerate(first_pass.facts):
        number = first = first_pass.offsets[part]
        for rows, assignments in first_pass.documents(part):
            near = near_copies(first_pass.near, number, len(rows)) & (rows["reason"] == 0)
            kept = assignments != DROPPED
            characters = rows["characters"].astype(np.int64)
            _count_steps(flows, reasons, facts.reasons, rows["reason"], characters, kept, near)
            _count_sources(sources, facts, number - first, characters, kept)
            lengths += np.histogram(np.clip(characters[kept], LENGTHS[0], LENGTHS[-1] - 1), LENGTHS)[0]
            words += int(rows["words"][kept].sum(dtype=np.int64))
            number += len(rows)
        for example in facts.examples:
            shown = examples[example.step]
            if sum(one.reason == example.text.reason for one in shown) < EXAMPLES:
                shown.append(example.text)
    _, _, documents, characters_kept = sum(sources.values(), np.zeros(4, np.int64)).tolist()
    languages = sum((Counter(part.languages) for part in first_pass.facts), Counter())
    return CorpusReport(
        preset=preprocessing.preset,
        documents=documents,
        characters=characters_kept,
        words=words,
        tokens=0,
        seconds=0.0,
        steps=[
            StepReport(
                name=name, why=why, passes=passes, documents_in=flow[0], documents_out=flow[2], characters_in=flow[1],
                characters_out=flow[3], reasons=dict(reason.most_common()), examples=shown,
            )
            for (name, why, passes), flow, reason, shown in zip(named, flows.tolist(), reasons, examples)
        ],
        sources=[
            SourceReport(path=path, documents=read, characters=size, kept_documents=kept, kept_characters=kept_size)
            for path, (read, size, kept, kept_size) in ((path, found.tolist()) for path, found in sources.items())
        ],
        lengths=Histogram(edges=LENGTHS, counts=lengths.tolist()),
        compressibility=Histogram(edges=DENSITIES.tolist(), counts=[]),
        scripts=_fractions(first_pass.letters),
        languages=_fractions(languages),
        contamination=_contamination(preprocessing, first_pass),
    )  # fmt: skip


def _count_sources(
    sources: dict[str, np.ndarray], facts: Facts, first: int, characters: np.ndarray, kept: np.ndarray
) -> None:
    """Add the documents and characters, all and kept, of a slice of a part from document ``first`` on."""
    ends = np.cumsum(list(facts.sources.values()))
    owners = np.searchsorted(ends, np.arange(first, first + len(kept)), side="right")
    columns = [np.bincount(owners, values, len(ends)) for values in (None, characters, kept, characters * kept)]
    for source, found in zip(facts.sources, np.array(columns).T, strict=True):
        sources.setdefault(source, np.zeros(4, np.int64))[:] += found.astype(np.int64)


def _count_steps(
    flows: np.ndarray,
    counters: Sequence[Counter[str]],
    reasons: Sequence[Reason],
    codes: np.ndarray,
    characters: np.ndarray,
    kept: np.ndarray,
    near: np.ndarray,
) -> None:
    """Update the counts of all steps; each one sees the documents that passed those before it."""
    step_of = np.array([len(flows), *(reason.step for reason in reasons)])[codes]
    equal = (codes == 0) & ~kept & ~near
    for chosen, step, why in ((equal, -1, "equal to another"), (near, -2, "nearly the same as another")):
        if chosen.any():
            step_of[chosen] = len(flows) + step
            counters[step][why] += int(chosen.sum())
    for code, reason in enumerate(reasons, 1):
        counters[reason.step][reason.why] += int((codes == code).sum())
    for step, flow in enumerate(flows):
        for column, chosen in enumerate((step_of >= step, step_of > step)):
            flow[2 * column : 2 * column + 2] += chosen.sum(), characters[chosen].sum()


def quality_on(first_pass: FirstPass, tokenizer: Tokenizer) -> TokenizerQuality | None:
    """Evaluate the tokenizer on held-out text; None if the sample of a large corpus contains none."""
    texts = some_of(first_pass.heldout_sample, QUALITY_CHARACTERS)
    return measure_quality(tokenizer, texts) if texts else None


def complete_report(
    report: CorpusReport,
    first_pass: FirstPass,
    density: np.ndarray,
    epochs: dict[str, float],
    quality: TokenizerQuality | None,
    *,
    advice_for: TokenizerConfig | None,
    tokens: int,
    seconds: float,
) -> CorpusReport:
    """Add to the report what the tokenizer and the second pass tell.

    Args:
        report: result of ``count``.
        density: documents by tokens per character, between the edges ``encoding.DENSITIES``.
        epochs: by source.
        quality: result of ``quality_on``.
        advice_for: recommend a size for this tokenizer, which is to be trained; None for no advice.
        tokens: total of all shards.
    """
    advice = None
    if isinstance(advice_for, TrainedTokenizer) and (texts := some_of(first_pass.heldout_sample, QUALITY_CHARACTERS)):
        advice = advise(first_pass.sample, texts, advice_for, characters=report.characters)
    return replace(
        report,
        tokens=tokens,
        seconds=seconds,
        sources=[replace(source, epochs=epochs[source.path]) for source in report.sources],
        compressibility=Histogram(edges=DENSITIES.tolist(), counts=density.tolist()),
        tokenizer=quality,
        advice=advice,
    )


def _fractions(found: Counter[str]) -> dict[str, float]:
    return {name: round(number / found.total(), 6) for name, number in found.most_common()}


def _contamination(preprocessing: Preprocessing, first_pass: FirstPass) -> list[Contamination]:
    if not preprocessing.evaluation:
        return []
    met = {item for part in first_pass.facts for item in part.items}
    return [
        Contamination(
            path=path,
            items=first_pass.evaluation_items[place],
            items_found=sum(evaluation == place for evaluation, _ in met),
            documents=sum(part.contaminated.get(str(place), 0) for part in first_pass.facts),
            removed=preprocessing.remove_evaluation,
        )
        for place, path in enumerate(preprocessing.evaluation)
    ]
