"""End of a run: validation and export inside the budget; parity check, examples, summary and card after it."""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.core.terminal import duration, say
from daybreak.core.world import World
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.evaluation.probes.context_use import measure_context_use
from daybreak.evaluation.probes.fill_mask import fill_mask
from daybreak.evaluation.probes.retrieval import HELD_OUT_TOKENS, measure_retrieval, retrieval_line
from daybreak.exporting.card import write_card
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.exporting.parity import check_parity, verdict
from daybreak.pretraining.setup import PretrainingJob, heldout_losses, sample_text
from daybreak.recipe import smaller_than
from daybreak.schemas.run import (
    ContextUse,
    Decisions,
    Forgetting,
    MachineRecord,
    MachineUse,
    Parity,
    Summary,
    ValidationRecord,
)
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Tick
from daybreak.training.loop import save, validate
from daybreak.training.monitoring.journal import Journal
from daybreak.training.monitoring.monitors import plateau_advice
from daybreak.training.step import Training

EXAMPLE_TOKENS = 200_000
"""Held-out tokens that are searched for fill-mask sentences."""
CLEARLY = 0.05
"""Nats by which an interim validation must beat the final one on the same sequences for its checkpoint to be kept."""


def finish(job: PretrainingJob, training: Training, progress: Progress, price: float | None) -> Summary:
    """Validate and export the model (inside the budget); then check parity, write examples, summary and card.

    A run that was stopped after its export does only the rest, which takes none of its budget.
    """
    run, length = job.run, job.recipe.longest_read(second=progress.second_from is not None)
    summary = exported(run, progress)
    if summary is None:
        final = _validate_and_export(job, training, progress, length)
        summary = _summarize(job, training, progress, final, price)
        write_json(run.exported, summary)
    elif training.average:
        training.average.put_in(training.model)
    final = summary.validation
    say(_headline(summary))
    if final.on_plateau:
        say(f"This model is not clearly better than the unigram baseline. {plateau_advice(smaller_than(job.recipe))}")
    warn_of_communication(summary, training.world)
    _keep_best(run, job.data, progress, final)
    parity = _parity(job, training, final, length)
    say(verdict(parity))
    forgetting = _forgetting(job, training, final)
    context = _probe(job, training, final)
    summary = replace(summary, parity=parity, parity_seconds=parity.seconds, forgetting=forgetting, context_use=context)
    write_json(run.summary, summary)
    write_card(run, [])
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    run.heartbeat.unlink(missing_ok=True)
    run.exported.unlink(missing_ok=True)
    return summary


def exported(run: RunFolder, progress: Progress) -> Summary | None:
    """The summary of a run that was stopped after its export at this step, else None."""
    if not (run.exported.exists() and run.model.is_dir()):
        return None
    summary: Summary = read_json(run.exported, Summary)
    return summary if summary.steps == progress.step else None


def _validate_and_export(job: PretrainingJob, training: Training, progress: Progress, length: int) -> ValidationRecord:
    save(training, progress)  # a kill before the summary is written must not lose the last steps
    _refuse_deleted(job.data)
    if training.average:
        training.average.put_in(training.model)
    with closing(Journal(job.run)) as journal:
        training = replace(training, journal=journal)
        tick = Tick(training.clock.elapsed(), 1.0)
        final = validate(training, progress, tick, rows=training.validation.rows, final=True)
    started = time.monotonic()
    write_model_folder(
        job.run.model,
        model=training.model,
        shape=job.recipe.model,
        tokenizer=job.data / "tokenizer",
        length=length,
        special=job.shards.manifest.special,
    )
    training.time_by_category["export"] += time.monotonic() - started
    return final


def _parity(job: PretrainingJob, training: Training, final: ValidationRecord, length: int) -> Parity:
    return check_parity(
        job.run.model,
        model=training.model,
        shape=job.recipe.model,
        length=length,
        validation=training.validation,
        accuracy=final.accuracy,
        tokenizer=job.data / "tokenizer",
        text=sample_text(job.shards, job.data),
    )


def _probe(job: PretrainingJob, training: Training, final: ValidationRecord) -> ContextUse | None:
    """Write fill-mask examples and retrieval scores on held-out text; return how the model uses a second segment."""
    heldout, run = job.shards.heldout, job.run
    tokenizer = load_tokenizer(job.data / "tokenizer")
    special, longest = job.shards.manifest.special, job.recipe.model.longest
    examples = heldout.read(0, min(EXAMPLE_TOKENS, len(heldout)))
    write_json(run.examples, fill_mask(training.model, tokenizer, examples, special=special, longest=longest))
    stream, ends = heldout.read(0, min(HELD_OUT_TOKENS, len(heldout))), heldout.document_ends()
    context = measure_context_use(training.model, stream, ends, special=special, longest=longest)
    if context and not final.on_plateau:
        say(context_line(context))
    retrieval = measure_retrieval(training.model, tokenizer, stream, ends, special=special, longest=longest)
    if retrieval:
        write_json(run.retrieval, retrieval)
        say(retrieval_line(retrieval))
    return context


def _refuse_deleted(data: Path) -> None:
    """Raise UserError if the prepared data, whose tokenizer the model needs, were deleted since the run started."""
    if not (data / "tokenizer" / "tokenizer.json").is_file():
        raise UserError(
            f"The data in '{data}' were deleted while the run trained; its last checkpoint is saved.",
            "Prepare the same text there again, as daybreak run does by itself; the same command then ends the run.",
        )


def context_line(context: ContextUse) -> str:
    """One line that says whether the model attends across segments; a model on the unigram plateau does not."""
    losses = (
        f"Loss on masked tokens: {context.alone:.2f} nats without a copy of the text in the sequence, "
        f"{context.copy:.2f} with a copy, {context.noisy_copy:.2f} with a noisy copy"
    )
    if context.attends_across_segments:
        return f"{losses}: the model compares segments."
    return (
        f"{losses}. Warning: the model does not compare segments yet, so results on sentence pairs will be near "
        "chance. Train longer; the recipes tiny, mini, small and base learn it earlier than others."
    )


def _keep_best(run: RunFolder, data: Path, progress: Progress, final: ValidationRecord) -> None:
    """Keep the best interim checkpoint only if the final model is clearly worse on the same sequences.

    Args:
        data: prepared data of the run, which the printed command names unless it finds them by itself.
    """
    end = final.loss if final.interim_loss is None else final.interim_loss
    if progress.best is not None and progress.best < end - CLEARLY and checkpoint.any_in(run.best):
        option = "" if data == run.path / "data" else f" --data {shlex.quote(str(data))}"
        say(
            f"An earlier checkpoint has a lower loss on the same held-out sequences ({progress.best:.3f}, now "
            f"{end:.3f}): daybreak export {shlex.quote(str(run.path))} --best{option} --out DIR exports it."
        )
    else:
        shutil.rmtree(run.best, ignore_errors=True)


def _forgetting(job: PretrainingJob, training: Training, final: ValidationRecord) -> Forgetting | None:
    """Held-out losses before and after continued pretraining, on the run's own text and on general text."""
    if not job.recipe.origin.init:
        return None
    after, before = heldout_losses(job, training), training.decisions.before
    message = f"Continued pretraining: held-out loss from {before['own']:.3f} to {final.loss:.3f} on its own text"
    if "general" in after:
        message += f", from {before['general']:.3f} to {after['general']:.3f} on general text"
    say(message + ".")
    return Forgetting(
        own_before=before["own"],
        own_after=after["own"],
        general_before=before.get("general"),
        general_after=after.get("general"),
    )


def _summarize(
    job: PretrainingJob, training: Training, progress: Progress, final: ValidationRecord, price: float | None
) -> Summary:
    used = training.time_by_category
    stepping = max(used["train"] + used["data"] + used["communicate"], 1e-9)
    elapsed = training.clock.elapsed()
    return Summary(
        budget=job.recipe.budget,
        elapsed=round(elapsed, 3),
        wall=round(max(elapsed, time.time() - read_json(job.run.environment)["started"]), 3),
        time_by_category={use: round(seconds, 3) for use, seconds in used.items()},
        steps=progress.step,
        tokens=progress.tokens,
        rows=progress.rows,
        epochs=round(training.epochs(progress), 4),
        parameters=training.model.parameter_count(),
        resumes=progress.resumes,
        tokens_per_second=round(progress.tokens / stepping, 1),
        steps_per_second=round(progress.step / stepping, 4),
        rows_per_second=round(progress.rows / stepping, 2),
        validation=final,
        parent=job.recipe.origin.parent or PurePath(job.recipe.origin.branch).name,
        dropped=progress.health.dropped,
        changes=read_json(job.run.decisions, Decisions).changes,
        machine=_machine_use(job.run, hours=elapsed / 3600, price=price),
    )


def _machine_use(run: RunFolder, *, hours: float, price: float | None) -> MachineUse | None:
    """Utilization of the machine over all processes of the run, lost work included; ``price`` is per hour."""
    lines = chain(*(read_json_lines(path, skip_damaged=True) for path in (run.metrics, run.lost_metrics)))
    records = (from_dict(MachineRecord, line) for line in lines if line.pop("type", "") == "machine")
    return MachineUse.of(records, cost=None if price is None else hours * price)


def warn_of_communication(summary: Summary, world: World) -> None:
    """Report the measured fraction of communication, and warn if one device would be faster (BERT-GPU, issue 3)."""
    stepping = summary.time_by_category["train"] + summary.time_by_category["communicate"]
    fraction = summary.time_by_category["communicate"] / max(stepping, 1e-9)
    if world.size > 1:
        say(
            f"{summary.steps_per_second:.2f} optimizer steps and {summary.rows_per_second:.1f} sequences a second on "
            f"{world.size} devices; {fraction:.0%} of the time is communication."
        )
    if fraction > (world.size - 1) / world.size > 0:
        say(f"{world.size} devices are slower than one: use fewer devices, or a larger batch on each.")


def _headline(summary: Summary) -> str:
    final = summary.validation
    gap = final.unigram_loss - final.loss
    plural = "s" if final.distinct > 1 else ""
    training = summary.time_by_category["train"] + summary.time_by_category["communicate"]
    return (
        f"Trained {summary.steps:,} steps, {summary.tokens / 1e6:.2f}M tokens in {duration(summary.elapsed)} "
        f"({training / max(summary.elapsed, 1e-9):.0%} of it training, "
        f"{summary.tokens_per_second / 1000:.1f}k tok/s). Held-out loss {final.loss:.3f}, "
        f"{abs(gap):.2f} nats {'better' if gap > 0 else 'worse'} than the unigram baseline; "
        f"masked accuracy {final.accuracy:.1%}, {final.distinct:,} distinct prediction{plural}."
    )
