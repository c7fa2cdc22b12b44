"""Make the record of a finished run: check the run, copy its files, and describe it."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import torch

from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines
from daybreak.core.other_processes import read_loads, why_void
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint, from_dict, to_dict
from daybreak.data.sequences.shards import Shards
from daybreak.evaluation.finetuning.fingerprints import model_digest
from daybreak.exporting.budget_files import bare
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import Recipe
from daybreak.reporting.runs import KINDS, Line
from daybreak.schemas.probes import Probes
from daybreak.schemas.records import NAMED_TEXTS, RULES, DataIdentity, Record, RecordedResult, Verified, tolerance
from daybreak.schemas.run import Change, Decisions, Environment, MachineRecord, Manifest, Retrieval, Summary
from daybreak.schemas.studies import MachineLoad
from daybreak.schemas.tasks import TaskResult
from daybreak.training.clock import read_trace
from daybreak.training.recovery import current_change, moves

SETTLED = 60.0
"""Seconds after which a one-minute load average no longer covers the time before the run."""

# ---------------------------------------------------------------- checks


def refuse_unfit(run: RunFolder) -> None:
    """Raise UserError unless the run finished within its budget with a model that passed the parity check."""
    if not run.recipe.is_file():
        raise UserError(f"'{run.path}' is not a run folder.", "Name one that daybreak pretrain made.")
    if not run.summary.is_file():
        raise UserError(f"The run in '{run.path}' is not finished.", "Give its command again, and record it then.")
    summary = read_json(run.summary, Summary)
    if summary.parity is None or not summary.parity.passed:
        why = summary.parity.failure if summary.parity else None
        raise UserError(
            f"The model of '{run.path}' did not pass the parity check{f' ({why})' if why else ''}: it has no result.",
            "Fix what the check found, and train it again.",
        )
    seconds = Budget.parse(summary.budget).seconds
    late = summary.elapsed - seconds if seconds else 0.0
    if seconds and abs(late) > tolerance(seconds):
        raise UserError(
            f"'{run.path}' ended {abs(late):.1f} s {'after' if late > 0 else 'before'} its budget of {summary.budget}, "
            f"where RULES.md allows {tolerance(seconds):.1f} s.",
            "Run it again with --overwrite.",
        )


def refuse_contradictions(run: RunFolder, verified: Verified) -> None:
    """Raise UserError if the summary and the verified trace differ in steps or time."""
    summary, last = read_json(run.summary, Summary), read_trace(run.trace)[-1]
    if summary.steps != verified.last or summary.elapsed < last.elapsed:
        raise UserError(
            f"'{run.summary}' says {summary.steps:,} steps in {summary.elapsed:.1f} s, but the trace says "
            f"{verified.last:,} steps in {last.elapsed:.1f} s.",
            "Restore the file, or run it again with --overwrite.",
        )


# ---------------------------------------------------------------- copied files


def evidence(run: RunFolder) -> dict[str, Any]:
    """Return the files that a record keeps, as plain values by file name; a list of lines for .jsonl.

    Weights, tokens and files that quote the text (examples.json, corpus.json, report.html) are left out, and so are the
    examples of retrieval.json. All files but the recipe are read into their types, so that no other content is copied.
    Paths become names.
    """
    recipe = read_recipe_file(run.recipe)
    manifest = read_json(run.manifest, Manifest)
    sources = [replace(source, path=PurePath(source.path).name) for source in manifest.sources]
    found: dict[str, Any] = {
        run.recipe.name: without_paths(recipe),
        run.manifest.name: to_dict(replace(manifest, sources=sources)),
        run.metrics.name: _lines(run.metrics),
    }
    kinds = {run.environment: Environment, run.decisions: Decisions, run.summary: Summary}
    optional = {run.results: list[TaskResult], run.probes: Probes}
    for path, kind in [*kinds.items(), *((path, kind) for path, kind in optional.items() if path.is_file())]:
        found[path.name] = to_dict(read_json(path, kind))
    if run.retrieval.is_file():
        found[run.retrieval.name] = to_dict(replace(read_json(run.retrieval, Retrieval), examples=[]))
    if lost := _lines(run.lost_metrics):
        found[run.lost_metrics.name] = lost
    return found


def without_paths(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with names in place of paths; the parent may be a hub name with a slash."""
    plain: dict[str, Any] = bare(recipe)
    if "origin" in recipe:
        plain["origin"] = {**plain["origin"], "parent": recipe["origin"].get("parent", "")}
    return plain


def _records(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield the lines of known types with their type; incomplete lines are skipped."""
    for line in read_json_lines(path, skip_damaged=True):
        if (name := str(line.pop("type", None))) in KINDS:
            yield name, from_dict(KINDS[name], line, path.name)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [{"type": name, **to_dict(record)} for name, record in _records(path)]


# ---------------------------------------------------------------- the record


def fingerprints(recipe: Recipe, shards: Shards, data: Path, *, first: bool = False) -> tuple[str, str]:
    """Return fingerprints of the training shards, and of the held-out sequences with their masks.

    Args:
        first: as for ``heldout_validation``.
    """
    train = shards.manifest.train
    files = [*train.token_files, train.document_ends, *([train.sentence_ends] if train.sentence_ends else [])]
    heldout = hashlib.blake2b(digest_size=8)
    for tensor in heldout_validation(recipe, shards, data, torch.device("cpu"), first=first).cases():
        heldout.update(tensor.contiguous().numpy().tobytes())
    return fingerprint([file.hashes for file in files]), heldout.hexdigest()


def describe(
    run: RunFolder, *, verified: Verified | None = None, text: tuple[str, str] = ("", ""), commit: str = ""
) -> Record:
    """Return the record of a finished run, from its files.

    Args:
        text: the result of ``fingerprints``.
    """
    summary, decisions = read_json(run.summary, Summary), read_json(run.decisions, Decisions)
    # As the file has it: a record of an earlier version keeps its fingerprints.
    machine, recipe = read_json(run.environment, Environment), read_json(run.recipe)
    whole = {name: value for name, value in without_paths(recipe).items() if name != "fingerprint"}
    seen = summary.validation
    # Another number of processes may have resumed the run: the largest is the hardware that it needed.
    used = max((current_change(decisions, 0), *decisions.changes), key=lambda change: change.world_size)
    load, others, void = _load(run, machine, used)
    if moved := moves(decisions):
        void = f"its machine or torch changed at step {moved[0].step} ({moved[0].why})"
    return Record(
        rules=RULES if verified else 0,
        date=datetime.fromtimestamp(machine.started, UTC).date().isoformat(),
        recipe=recipe["name"],
        fingerprint=recipe["fingerprint"],
        variant=fingerprint({name: value for name, value in whole.items() if name != "seed"}),
        seed=recipe["seed"],
        budget=summary.budget,
        seconds=Budget.parse(summary.budget).seconds,
        elapsed=summary.elapsed,
        wall=summary.wall,
        resumes=summary.resumes,
        device=torch.device(decisions.device).type,
        threads=used.threads,
        processes=used.world_size,
        precision=decisions.precision,
        batch=decisions.batch or recipe["batch"],
        machine=machine,
        transformers=summary.parity.transformers if summary.parity else "",
        commit=commit,
        parameters=summary.parameters,
        steps=summary.steps,
        tokens=summary.tokens,
        epochs=summary.epochs,
        tokens_per_second=summary.tokens_per_second,
        loss=seen.loss,
        accuracy=seen.accuracy,
        unigram_loss=seen.unigram_loss,
        positions=seen.positions,
        data=_identity(read_json(run.manifest, Manifest), *text),
        parent=summary.parent,
        verified=verified,
        load=load,
        others=others,
        void=void,
        results=_results(run),
        kilowatt_hours=summary.machine.kilowatt_hours if summary.machine else None,
    )


def _identity(manifest: Manifest, train: str, heldout: str) -> DataIdentity:
    return DataIdentity(
        tokenizer=manifest.tokenizer,
        train=train,
        heldout=heldout,
        vocabulary=manifest.vocabulary,
        train_documents=manifest.train.documents,
        train_tokens=manifest.train.tokens,
        heldout_tokens=manifest.heldout.tokens,
        texts=len(manifest.sources),
        names=[PurePath(source.path).name for source in manifest.sources[:NAMED_TEXTS]],
    )


def _results(run: RunFolder) -> list[RecordedResult]:
    """The scores of the run's own model, without those of other models that were evaluated into its folder."""
    found = read_json(run.results, list[TaskResult]) if run.results.is_file() else []
    own = model_digest(run.model, random=False) if run.model.is_dir() else ""
    return [
        RecordedResult(
            protocol=one.protocol,
            task=one.task,
            model=one.model,
            metric=one.metric,
            mean=one.mean,
            spread=one.spread,
            seeds=len(one.seeds),
        )
        for one in found
        if not own or one.weights in ("", own)
    ]


def _load(run: RunFolder, machine: Environment, used: Change) -> tuple[float | None, float | None, str]:
    """Return the highest one-minute load, the cores that other processes used, and the reason if the run is void.

    The log of a study is used if there is one, otherwise the records of the run.
    """
    place = run.path.resolve()
    loads = read_loads(place.with_name(f"{place.name}.load.jsonl"))
    if not loads:
        seen = [record for _, record in _records(run.metrics) if isinstance(record, MachineRecord)]
        averages = [record.load for record in seen if record.elapsed >= SETTLED]
        if not averages:
            return None, None, "the machine load was not recorded"
        loads = [MachineLoad(before=averages[:1], most=max(averages), mean=sum(averages) / len(averages))]
    threads = used.threads * used.world_size
    voids = [why_void(load, cores=machine.cores, threads=threads) for load in loads]
    counted = [load.others for load in loads if load.others is not None]
    return max(load.most for load in loads), max(counted, default=None), next(filter(None, voids), "")


def commit_of(file: Path) -> str:
    """Return the commit of the checkout that ``file`` belongs to; '' without a checkout.

    It is marked if anything in the folder of ``file`` differs from it.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=file.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # an environment inside another project's checkout is none
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
