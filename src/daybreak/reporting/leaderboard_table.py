"""The leaderboard in Markdown: which runs of a class are comparable, their ranking, and the runs without a place."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daybreak.core.formatting import count, percent
from daybreak.reporting.blocks import UNKNOWN
from daybreak.reporting.studies import mean_and_spread, table
from daybreak.schemas.records import RULES, VERIFIED_STEPS, Record, tolerance
from daybreak.schemas.tasks import CLAIM_SEEDS, spread

HEAD = f"""# Leaderboard

The lowest held-out loss within a fixed time, by hardware. {{rules}} describes how to submit a run and what a place \
means. `daybreak leaderboard` generated this page from {{records}}.

A row is one recipe (its name and the start of its fingerprint without the seed) on one machine: mean and standard \
deviation over seeds, which link to their records. Losses are in nats per token on held-out positions and are \
comparable only within a table. A row gets a place if its seeds are 0, 1, 2 and so on without a gap, and at least \
{CLAIM_SEEDS}."""


@dataclass(frozen=True)
class Filed:
    """A run in the folder of records."""

    name: str
    link: str
    """Relative to the page."""
    record: Record


@dataclass(frozen=True)
class BudgetClass:
    name: str
    seconds: float
    on_gpu: bool

    def holds(self, record: Record) -> bool:
        """Whether a run has this time budget, within the tolerance, and ran on this kind of hardware."""
        if record.seconds is None or record.on_gpu != self.on_gpu or (self.on_gpu and record.processes > 1):
            return False
        return max(abs(time - self.seconds) for time in (record.seconds, record.elapsed)) <= tolerance(self.seconds)


CLASSES = (
    BudgetClass("10 minutes on CPUs", 600.0, on_gpu=False),
    BudgetClass("30 minutes on CPUs", 1800.0, on_gpu=False),
    BudgetClass("10 minutes on one GPU", 600.0, on_gpu=True),
    BudgetClass("30 minutes on one GPU", 1800.0, on_gpu=True),
    BudgetClass("24 hours on one GPU", 86400.0, on_gpu=True),
)


# ---------------------------------------------------------------- ranking


def why_not(record: Record) -> str:
    """Why a run is not ranked; empty if it is."""
    reasons = []
    if record.verified is None:
        reasons.append("recorded before `daybreak record` existed")
    elif record.verified.last - record.verified.first < min(VERIFIED_STEPS, record.steps):
        reasons.append(f"only its last {record.verified.last - record.verified.first:,} steps were verified")
    if record.verified is not None and record.rules != RULES:
        reasons.append(f"recorded under rules {record.rules}")
    if record.parent:
        reasons.append(f"it starts from {code(record.parent)}")
    if record.void:
        reasons.append(f"void: {record.void}")
    return "; ".join(reasons)


@dataclass(frozen=True)
class Row:
    """The runs of one variant on one machine, which differ only in the seed."""

    runs: list[Filed]
    """Sorted by seed, each seed once."""

    @property
    def losses(self) -> list[float]:
        return [run.record.loss for run in self.runs]

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses)

    @property
    def spread(self) -> float:
        return spread(self.losses)

    @property
    def counts(self) -> bool:
        """Whether it has enough seeds for a place, from 0 on without gaps."""
        seeds = [run.record.seed for run in self.runs]
        return len(seeds) >= CLAIM_SEEDS and seeds == list(range(len(seeds)))


def places(rows: Sequence[Row]) -> list[int | None]:
    """The place of each row, the lowest loss first; None for rows without a place.

    A row shares the place of the best row of that place unless it is behind by more than the larger of the two standard
    deviations. After a shared place, numbers are skipped.
    """
    found: list[int | None] = []
    best, place, passed = None, 0, 0
    for row in rows:
        if row.counts:
            passed += 1
            if best is None or row.loss - best.loss > max(row.spread, best.spread):
                best, place = row, passed
        found.append(place if row.counts else None)
    return found


def rows_of(filed: Iterable[Filed]) -> tuple[list[Row], list[tuple[Filed, str]]]:
    """The rows of one table, the lowest loss first, and runs of repeated seeds with the reason."""
    groups: dict[tuple[object, ...], dict[int, Filed]] = defaultdict(dict)
    again = []
    for run in sorted(filed, key=lambda run: (run.record.machine.started, run.name)):
        one = run.record
        machine = (one.machine.device, one.machine.cores, one.threads, one.processes, one.precision)
        key = (one.variant, *machine, one.machine.torch, one.machine.daybreak)
        first = groups[key].setdefault(one.seed, run)
        if first is not run:
            again.append((run, f"seed {one.seed} was run before, in {code(first.name)}"))
    rows = [Row([runs[seed] for seed in sorted(runs)]) for runs in groups.values()]
    return sorted(rows, key=lambda row: (row.loss, row.runs[0].name)), again


# ---------------------------------------------------------------- the page


def page(filed: Sequence[Filed], *, rules: str, records: str) -> str:
    """The whole page.

    Args:
        rules, records: their names as Markdown, with a link if possible.
    """
    parts = [HEAD.format(rules=rules, records=records)]
    for one in CLASSES:
        parts += [f"## {one.name}", *_class([run for run in filed if one.holds(run.record)])]
    if rest := [run for run in filed if not any(one.holds(run.record) for one in CLASSES)]:
        others = ", ".join(f"{_link(run)} ({code(run.record.budget)})" for run in rest)
        parts += ["## Other budgets", others + "."]
    return "\n\n".join(parts) + "\n"


def _class(filed: Sequence[Filed]) -> list[str]:
    if not filed:
        return ["No record yet."]
    out = [(run, why) for run in filed if (why := why_not(run.record))]
    groups: dict[tuple[str, str, str], list[Filed]] = defaultdict(list)
    for run in filed:
        if not why_not(run.record):
            groups[run.record.data.key].append(run)
    parts = []
    for key in sorted(groups, key=lambda key: (groups[key][0].record.data.names, key)):
        rows, again = rows_of(groups[key])
        parts += [_about(groups[key][0].record), _table(rows)]
        out += again
    if out:
        lines = [f"- {_link(run)}: loss {run.record.loss:.3f}, {_who(run.record)}: {why}." for run, why in out]
        parts.append("\n".join(["Not ranked:", "", *lines]))
    return parts


def _about(record: Record) -> str:
    """The data that the runs of a table share."""
    data = record.data
    names = ", ".join(map(code, data.names))
    more = f" and {data.texts - len(data.names):,} more" if data.texts > len(data.names) else ""
    return (
        f"**Text {code(data.train)}, tokenizer {code(data.tokenizer)}, held out {code(data.heldout)}**: {names}{more}; "
        f"{count(data.train_tokens)} training tokens of {data.train_documents:,} documents, {data.vocabulary:,} "
        f"tokens in the vocabulary; {record.positions:,} positions, unigram baseline {record.unigram_loss:.3f}."
    )


def _table(rows: Sequence[Row]) -> str:
    head = ("place", "loss", "accuracy", "recipe", "parameters", "tokens read", "hardware", "Daybreak", "seeds")
    return table(head, [_cells(row, place) for row, place in zip(rows, places(rows))])


def _cells(row: Row, place: int | None) -> list[str]:
    records = [run.record for run in row.runs]
    one = records[0]
    return [
        str(place or UNKNOWN),
        mean_and_spread(row.losses),
        percent(statistics.fmean(record.accuracy for record in records)),
        code(f"{one.recipe} {one.variant[:8]}"),
        count(one.parameters),
        count(statistics.fmean(record.tokens for record in records)),
        code(f"{one.hardware}, {one.precision}"),
        code(f"{one.machine.daybreak}, torch {one.machine.torch}"),
        " ".join(f"[{run.record.seed}]({run.link})" for run in row.runs),
    ]


def _who(record: Record) -> str:
    return f"{code(record.recipe)} on {code(record.hardware)}"


def _link(run: Filed) -> str:
    return f"[{run.name}]({run.link})"


def code(name: str) -> str:
    """A name as Markdown code."""
    return f"`{' '.join(name.split()).replace('`', chr(39)) or UNKNOWN}`"
