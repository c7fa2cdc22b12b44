"""The background of the numbers: export check, machine, measured settings, training text, recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from daybreak.core.formatting import count, percent, significant
from daybreak.core.serialization import flat, to_dict
from daybreak.reporting.blocks import (
    Block,
    card,
    code,
    facts,
    fold,
    grid,
    heading,
    many,
    note,
    run_name,
    section,
    table,
)
from daybreak.reporting.compute import training_flops
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.run import Change, Decisions, Environment, Manifest, Parity

SOURCES_SHOWN = 12


def background(runs: Sequence[RunRecords]) -> Block:
    """A card for each topic; with several runs they are folded behind the run's name, below the differences."""
    if len(runs) == 1:
        return section("Background", _cards(runs[0]), _recipe(runs[0]))
    folds = [fold(run.label, _cards(run), _recipe(run)) for run in runs if run.pretrained_here]
    return section("Background", *_differences(runs), *folds)


def _cards(run: RunRecords) -> Block | None:
    parity = run.summary.parity if run.summary else None
    return grid(
        card("Exported model", *_parity(parity)) if parity else None,
        card("Machine", _environment(run.environment, run.changes)) if run.environment else None,
        card("Measured settings", _decisions(run.decisions)) if run.decisions else None,
        card("Text", text_facts(run.manifest)) if run.manifest else None,
        card("Run", _run(run)),
    )


def _run(run: RunRecords) -> Block:
    summary, record = run.summary, run.validation
    judged = {}
    if record is not None:
        judged["Predictions"] = f"{record.distinct:,} different tokens on {record.positions:,} positions"
        if record.own_loss is not None:
            own = f"{record.own_loss:.3f} nats, {percent(record.own_accuracy or 0.0)}"
            judged["Loss and accuracy with the recipe's own sequences and masks"] = own
        if record.next_accuracy is not None:
            judged["Next-sentence accuracy"] = percent(record.next_accuracy)
    return facts(
        {
            "Recipe": run.name,
            "Seed": run.recipe.get("seed"),
            "Fingerprint": run.recipe.get("fingerprint"),
            "Steps": f"{summary.steps:,}" if summary else None,
            "Steps without an update": f"{run.dropped:,}" if run.dropped else None,
            "Resumed": many(summary.resumes, "time") if summary else None,
            "Wall time of all processes": f"{summary.wall:.1f} s" if summary else None,
            "Training FLOPs": training_flops(run),
            **judged,
        }
    )


def _parity(parity: Parity) -> list[Block]:
    good = parity.passed
    verdict = "loads in stock transformers, same outputs" if good else f"refused: {parity.failure or 'see below'}"
    return [
        note(f"Parity check: {verdict}.", "note" if good else "alarm"),
        facts(
            {
                **{name.replace("_", " "): "passed" if passed else "FAILED" for name, passed in parity.checks.items()},
                "Largest logit difference": f"{parity.largest_logit_difference:.1e} (allowed {parity.tolerance:.1e})",
                "Masked accuracy": f"{100 * parity.masked_accuracy:.2f} %",
                "transformers": parity.transformers,
            }
        ),
    ]


def _environment(environment: Environment, changes: Sequence[Change]) -> Block:
    later = dict.fromkeys(change.machine for change in changes if change.machine)
    return facts(
        {
            "Started": datetime.fromtimestamp(environment.started, UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "Device": environment.device,
            "Later devices": ", ".join(later) or None,
            "Cores": environment.cores,
            "Memory": f"{environment.memory_gib:.1f} GiB",
            "Platform": environment.platform,
            "Python": environment.python,
            "torch": environment.torch,
            "Daybreak": environment.daybreak,
        }
    )


def _decisions(decisions: Decisions) -> Block | None:
    return facts(
        {
            "Device": decisions.device,
            "Devices": decisions.world_size,
            "Threads": decisions.threads,
            "Precision": decisions.precision,
            "Batch size, all devices": f"{decisions.batch:,}" if decisions.batch else None,
            "Microbatch size": decisions.microbatch,
            "torch.compile": "on" if decisions.compiled else None,
            "Learning rate factor for the batch size": (
                significant(decisions.rate_factor) if decisions.rate_factor != 1 else None
            ),
            "Reserved for validation and export": f"{decisions.reserve_seconds:.1f} s",
            "Interim validations": f"{decisions.validation_marks}, of {decisions.validation_rows:,} sequences",
            **{f"Matrix product, {name}": f"{significant(r)} GFLOP/s" for name, r in decisions.matmul_gflops.items()},
        }
    )


def text_facts(manifest: Manifest) -> Block:
    """Counts of the prepared text and its sources."""
    names = [PurePath(source.path).name for source in manifest.sources[:SOURCES_SHOWN]]
    more = len(manifest.sources) - len(names)
    return facts(
        {
            "Training documents": count(manifest.train.documents),
            "Training tokens": count(manifest.train.tokens),
            "Held-out documents": count(manifest.heldout.documents),
            "Held-out tokens": count(manifest.heldout.tokens),
            "Characters": count(manifest.characters),
            "Document boundaries": manifest.document_rule.replace("-", " "),
            "Duplicates removed": f"{manifest.duplicates:,}",
            "Left out": manifest.left_out or "nothing",
            "Tokenizer": f"{manifest.tokenizer_kind}, {manifest.vocabulary:,} tokens",
            "Prepared in": f"{manifest.seconds:.0f} s",
            "Sources": ", ".join(names) + (f" and {more:,} more" if more > 0 else ""),
        }
    )


def _recipe(run: RunRecords) -> Block:
    text = json.dumps(to_dict(run.recipe), indent=2, ensure_ascii=False)
    return fold("The recipe with all resolved values", code(text))


def _differences(runs: Sequence[RunRecords]) -> list[Block]:
    numbers = [number for number, run in enumerate(runs) if run.pretrained_here]
    recipes = [dict(flat(runs[number].recipe)) for number in numbers]
    names = dict.fromkeys(name for values in recipes for name in values if name != "fingerprint")
    different = [name for name in names if len({json.dumps(values.get(name)) for values in recipes}) > 1]
    if not different:
        return [note("The recipes are the same in every value.")]
    rows = [[name, *(str(values.get(name, "-")) for values in recipes)] for name in different]
    head = ["Recipe value", *(run_name(runs, number) for number in numbers)]
    return [heading("Differences between the recipes"), table(head, rows)]
