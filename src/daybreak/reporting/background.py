"""What the numbers rest on: export check, machine, decisions, data, recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from daybreak.core.formatting import count, percent, significant
from daybreak.core.serialization import flat, to_dict
from daybreak.reporting.flops import arithmetic_words
from daybreak.reporting.markup import Markup, facts, fold, join, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import distinct, learning_rate_peak, run_name
from daybreak.schemas.run import Decisions, Environment, Manifest, Parity

SOURCES_SHOWN = 12


def background(runs: Sequence[RunRecords]) -> Markup:
    """One card a run and topic; in an overlay each run's cards lie behind its name, the differences above them."""
    if len(runs) == 1:
        return section("Background", _cards(runs[0]), _recipe(runs[0]))
    folds = [fold(run.label, _cards(run), _recipe(run)) for run in runs if run.pretrained_here]
    return section("Background", _differences(runs), *folds)


def _cards(run: RunRecords) -> Markup:
    summary = run.summary
    cards = [
        ("Exported model", _parity(summary.parity)) if summary and summary.parity else None,
        ("Machine", _environment(run.environment)) if run.environment else None,
        ("Decisions made by measuring", _decisions(run.decisions)) if run.decisions else None,
        ("Text", text_facts(run.manifest)) if run.manifest else None,
        ("Run", _run(run)),
    ]
    written = [tag("div", tag("h3", title), body, class_="card") for title, body in filter(None, cards)]
    return tag("div", *written, class_="pair")


def _run(run: RunRecords) -> Markup:
    summary, seen = run.summary, run.validation
    own = (
        f"{seen.own_loss:.3f} nats, {percent(seen.own_accuracy or 0.0)}" if seen and seen.own_loss is not None else None
    )
    nexts = seen.next_accuracy if seen else None
    return facts(
        {
            "Recipe": run.name,
            "Seed": run.recipe.get("seed"),
            "Fingerprint": run.recipe.get("fingerprint"),
            "Steps": f"{summary.steps:,}" if summary else None,
            "Resumed": f"{summary.resumes} times" if summary else None,
            "Steps without an update": f"{run.dropped:,}" if run.dropped else None,
            "Wall time of all processes": f"{summary.wall:.1f} s" if summary else None,
            "Highest learning rate": learning_rate_peak(run),
            "Optimizer steps a second": significant(summary.steps_per_second) if summary else None,
            "Samples a second": significant(summary.rows_per_second) if summary else None,
            "Arithmetic of training": arithmetic_words(run),
            "Predictions": distinct(run),
            "On the recipe's own rows and masks": own,
            "Next-sentence accuracy": None if nexts is None else percent(nexts),
        }
    )


def _parity(parity: Parity) -> Markup:
    checks = {name.replace("_", " "): "passed" if passed else "FAILED" for name, passed in parity.checks.items()}
    verdict = (
        "loads in plain transformers, same outputs" if parity.passed else f"refused: {parity.failure or 'see below'}"
    )
    return join(
        note(f"Parity gate: {verdict}.", "note" if parity.passed else "alarm"),
        facts(
            {
                **checks,
                "Largest logit difference": f"{parity.largest_logit_difference:.1e} (allowed {parity.tolerance:.1e})",
                "Masked accuracy there": f"{100 * parity.masked_accuracy:.2f} %",
                "transformers": parity.transformers,
                "Seconds": f"{parity.seconds:.1f}",
            }
        ),
    )


def _environment(found: Environment) -> Markup:
    return facts(
        {
            "Started": datetime.fromtimestamp(found.started, UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "Device": found.device,
            "Cores": str(found.cores),
            "Memory": f"{found.memory_gib:.1f} GiB",
            "Platform": found.platform,
            "Python": found.python,
            "torch": found.torch,
            "Daybreak": found.daybreak,
        }
    )


def _decisions(found: Decisions) -> Markup:
    rates = {f"Matrix product, {name}": f"{significant(rate)} GFLOP/s" for name, rate in found.matmul_gflops.items()}
    return facts(
        {
            "Device": found.device,
            "Threads": str(found.threads),
            "Precision": found.precision,
            "Rows of a step, over all devices": f"{found.batch:,}" if found.batch else None,
            "Rows of a step, of each device": f"{found.batch // found.world_size:,}" if found.batch else None,
            "Rows at a time": str(found.microbatch),
            "Blocks": "compiled" if found.compiled else None,
            "Devices": str(found.world_size),
            "Learning rate times, by the rule": significant(found.rate_factor) if found.rate_factor != 1 else None,
            "Kept for validation and export": f"{found.reserve_seconds:.1f} s",
            "Interim validations": f"{found.validation_marks}, of {found.validation_rows:,} rows",
            **rates,
        }
    )


def text_facts(found: Manifest) -> Markup:
    """What the text was made into."""
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in found.skipped.items() if number)
    shown = found.sources[:SOURCES_SHOWN]
    names = {
        PurePath(source.path).name: f"{count(source.documents)} documents, {count(source.characters)} characters"
        for source in shown
    }
    more = len(found.sources) - len(shown)
    return join(
        facts(
            {
                "Training documents": count(found.train.documents),
                "Training tokens": count(found.train.tokens),
                "Held-out documents": count(found.heldout.documents),
                "Held-out tokens": count(found.heldout.tokens),
                "Characters": count(found.characters),
                "One document is": found.document_rule.replace("-", " "),
                "Duplicates removed": f"{found.duplicates:,}",
                "Left out": skipped or "nothing",
                "Tokenizer": f"{found.tokenizer_kind}, {found.vocabulary:,} tokens",
                "Prepared in": f"{found.seconds:.0f} s",
            }
        ),
        fold(
            "Sources" if len(found.sources) > 1 else "Source",
            facts(names),
            *([note(f"and {more} more", "quiet")] if more else []),
        ),
    )


def _recipe(run: RunRecords) -> Markup:
    text = json.dumps(to_dict(run.recipe), indent=2, ensure_ascii=False)
    return fold("The recipe, every value as it was resolved", tag("pre", text))


def _differences(runs: Sequence[RunRecords]) -> Markup:
    told_of = [number for number, run in enumerate(runs) if run.pretrained_here]
    recipes = [dict(flat(runs[number].recipe)) for number in told_of]
    names = list(dict.fromkeys(name for values in recipes for name in values if name != "fingerprint"))
    told = [name for name in names if len({json.dumps(values.get(name)) for values in recipes}) > 1]
    if not told:
        return note("The recipes are the same in every value.")
    rows = [[name, *(str(values.get(name, "-")) for values in recipes)] for name in told]
    head = ["Recipe value", *(run_name(runs, number) for number in told_of)]
    return join(tag("h3", "What differs between the recipes"), table(head, rows))
