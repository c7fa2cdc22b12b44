"""Build the corpus report, DATA/corpus.json, from the results of a preparation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.filters.deduplication import DROPPED
from daybreak.data.filters.filter import Filter
from daybreak.data.pipeline.encoding import DENSITIES
from daybreak.data.pipeline.first_pass import EXAMPLES, Facts, FirstPass, Reason, near_copies
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.pipeline.tokenizer_quality import advise, measure_quality, some_of
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
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


@dataclass
class _Passage:
    """Documents and characters before and after one filter."""

    name: str
    why: str
    passes: int
    documents: list[int] = field(default_factory=lambda: [0, 0])
    characters: list[int] = field(default_factory=lambda: [0, 0])
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[DroppedText] = field(default_factory=list)

    def report(self) -> StepReport:
        return StepReport(
            name=self.name,
            why=self.why,
            passes=self.passes,
            documents_in=self.documents[0],
            documents_out=self.documents[1],
            characters_in=self.characters[0],
            characters_out=self.characters[1],
            reasons=dict(self.reasons.most_common()),
            examples=self.examples,
        )


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """Counts of documents and characters, computed from the first pass."""

    steps: list[StepReport]
    sources: list[SourceReport]
    lengths: Histogram
    documents: int
    characters: int
    words: int

    @property
    def kept(self) -> dict[str, int]:
        """Kept characters by source."""
        return {source.path: source.kept_characters for source in self.sources}


def count(first_pass: FirstPass, steps: Sequence[Filter]) -> CorpusFacts:
    """Count documents and characters by filter, by source and by length.

    Args:
        steps: the filters in the order in which they were applied; NearDuplicates last, if used.
    """
    passages = [_Passage(step.name, step.why(), step.passes) for step in steps]
    passages.append(_Passage("ExactDuplicates", "all but one of documents that are equal", 0))
    sources: dict[str, np.ndarray] = {}
    lengths = np.zeros(len(LENGTHS) - 1, np.int64)
    words = 0
    for part, facts in enumerate(first_pass.facts):
        number = first = first_pass.offsets[part]
        for rows, assignments in first_pass.documents(part):
            near = near_copies(first_pass.near, number, len(rows)) & (rows["reason"] == 0)
            number += len(rows)
            kept = assignments != DROPPED
            characters = rows["characters"].astype(np.int64)
            _pass_through(passages, facts.reasons, rows["reason"], characters, kept, near)
            _count_sources(sources, facts, number - len(rows) - first, characters, kept)
            lengths += np.histogram(np.clip(characters[kept], LENGTHS[0], LENGTHS[-1] - 1), LENGTHS)[0]
            words += int(rows["words"][kept].sum(dtype=np.int64))
        for example in facts.examples:
            shown = passages[example.step].examples
            if sum(one.reason == example.text.reason for one in shown) < EXAMPLES:
                shown.append(example.text)
    totals = sum(sources.values(), np.zeros(4, np.int64))
    return CorpusFacts(
        steps=[passage.report() for passage in passages],
        sources=[
            SourceReport(
                path=path,
                documents=int(found[0]),
                characters=int(found[1]),
                kept_documents=int(found[2]),
                kept_characters=int(found[3]),
            )
            for path, found in sources.items()
        ],
        lengths=Histogram(edges=LENGTHS, counts=lengths.tolist()),
        documents=int(totals[2]),
        characters=int(totals[3]),
        words=words,
    )


def _count_sources(
    sources: dict[str, np.ndarray], facts: Facts, first: int, characters: np.ndarray, kept: np.ndarray
) -> None:
    """Add the documents and characters, all and kept, of a slice of a part from document ``first`` on."""
    ends = np.cumsum(list(facts.sources.values()))
    owners = np.searchsorted(ends, np.arange(first, first + len(kept)), side="right")
    columns = [np.bincount(owners, values, len(ends)) for values in (None, characters, kept, characters * kept)]
    for source, found in zip(facts.sources, np.array(columns).T, strict=True):
        sources.setdefault(source, np.zeros(4, np.int64))[:] += found.astype(np.int64)


def _pass_through(
    passages: list[_Passage],
    reasons: Sequence[Reason],
    codes: np.ndarray,
    characters: np.ndarray,
    kept: np.ndarray,
    near: np.ndarray,
) -> None:
    """Update the counts of all filters; each filter sees the documents that passed those before it."""
    step_of = np.array([len(passages), *(reason.step for reason in reasons)])[codes]
    equal = (codes == 0) & ~kept & ~near
    step_of[equal] = len(passages) - 1
    if near.any():
        step_of[near] = len(passages) - 2
        passages[-2].reasons["nearly the same as another"] += int(near.sum())
    for place, passage in enumerate(passages):
        there, out = step_of >= place, step_of > place
        passage.documents = [passage.documents[0] + int(there.sum()), passage.documents[1] + int(out.sum())]
        passage.characters = [
            passage.characters[0] + int(characters[there].sum()),
            passage.characters[1] + int(characters[out].sum()),
        ]
    for code, reason in enumerate(reasons, 1):
        passages[reason.step].reasons[reason.why] += int((codes == code).sum())
    if equal.any():
        passages[-1].reasons["equal to another"] += int(equal.sum())


def quality_on(first_pass: FirstPass, tokenizer: Tokenizer) -> TokenizerQuality | None:
    """Evaluate the tokenizer on held-out text; None if the sample of a large corpus contains none.

    Raises:
        UserError: the tokenizer deletes all of that text.
    """
    texts = some_of(first_pass.heldout_sample, QUALITY_CHARACTERS)
    return measure_quality(tokenizer, texts) if texts else None


def report(
    preprocessing: Preprocessing,
    first_pass: FirstPass,
    facts: CorpusFacts,
    density: np.ndarray,
    epochs: dict[str, float],
    *,
    quality: TokenizerQuality | None,
    config: TokenizerConfig,
    tokens: int,
    seconds: float,
) -> CorpusReport:
    """Build the report.

    Args:
        density: documents by tokens per character, between the edges ``encoding.DENSITIES``.
        epochs: by source.
        quality: result of ``quality_on``.
        config: the configuration of the tokenizer.
        tokens: total of all shards.
    """
    languages: Counter[str] = Counter()
    for part in first_pass.facts:
        languages.update(part.languages)
    texts = some_of(first_pass.heldout_sample, QUALITY_CHARACTERS) if preprocessing.advise else []
    return CorpusReport(
        preset=preprocessing.preset,
        documents=facts.documents,
        characters=facts.characters,
        words=facts.words,
        tokens=tokens,
        seconds=seconds,
        steps=facts.steps,
        sources=[replace(source, epochs=epochs[source.path]) for source in facts.sources],
        lengths=facts.lengths,
        compressibility=Histogram(edges=DENSITIES.tolist(), counts=density.tolist()),
        scripts=_fractions(first_pass.letters),
        languages=_fractions(languages),
        contamination=_contamination(preprocessing, first_pass),
        tokenizer=quality,
        advice=advise(first_pass.sample, texts, config, characters=facts.characters) if texts else None,
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
