"""Verb: a model -> probes.json, without any fine-tuning: what its layers know, and which words it can guess."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, say, working
from daybreak.data.readers.documents import Skips, choose_rule, read_documents
from daybreak.data.readers.inputs import Meter, find_files
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.tokenizer import tokenizer_fingerprint
from daybreak.evaluation.model_source import find_model, find_tasks
from daybreak.evaluation.probes.frozen import FrozenModel, load_encoder, load_masked_model
from daybreak.evaluation.probes.layer_probes import (
    check_probed,
    probe_layers,
    probe_similarity,
    probed_rows,
    rates_pairs,
)
from daybreak.evaluation.probes.masked_words import (
    MOST_TOKENS,
    HeldOutText,
    masked_positions,
    probe_masked_words,
    token_stream,
)
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows
from daybreak.schemas.probes import BucketScore, LayerProbe, MaskedWords, Probes, SimilarityProbe

USUAL_TASKS = ("glue5",)
"""What is probed where only the folder of the tasks is named."""
LENGTH = 128
"""Tokens of a task's row at most; less where the model takes less."""


def probe(
    model: Path,
    *,
    tasks: Sequence[str] = (),
    task_dir: str | Path | None = None,
    text: Sequence[str] = (),
    out: Path | None = None,
    rows: int = 2000,
) -> Probes:
    """Measure a model as it is, and write ``probes.json``, in place of an earlier one.

    Each task of labels or numbers is read off each layer by a linear model; where pairs are rated, as in STS-B, also
    by the cosine of the two sentences, without training. Held-out text with hidden tokens says which words the model
    can guess. Everything that can be wrong with the input is checked before the first measurement.

    Args:
        model: a Hugging Face folder of an encoder, or a run folder.
        tasks: names of known tasks or lists of them, paths of .toml files; glue5 when only ``task_dir`` is given.
        task_dir: the folder under which the files of tasks by name lie as they are distributed, or hf://owner/name.
        text: held-out text for the masked words: what ``prepare`` reads, or one folder of prepared data, of which the
            held-out split is read. When empty, the data inside the run folder; without these there is no such part.
        out: the folder of ``probes.json``; by default the run folder, or the model's own.
        rows: training rows of each task that the linear models learn from, at most.

    Raises:
        UserError: for anything in the input that the user can mend.
    """
    started = time.monotonic()
    if rows < 1:
        raise UserError(f"{rows} training rows are too few.", "Use at least 1 with --rows; 2000 by default.")
    subject = find_model(model)
    names = tasks or (USUAL_TASKS if task_dir else ())
    jobs = _load_tasks(find_tasks(names, task_dir) if names else [], rows)
    source = _find_text(subject.run, text, subject.folder)
    if not jobs and source is None:
        raise UserError(
            f"There is nothing to probe '{model}' with.", "Name held-out text with --text, or tasks with --task-dir."
        )
    file = RunFolder(make_folder(out or subject.usual)).probes
    encoder = load_encoder(subject.folder) if jobs else None
    masked = load_masked_model(subject.folder) if source else None
    heldout = _held_out(masked, source) if masked and source else None
    if heldout is None:
        say("No held-out text was named with --text, so no words are hidden.")
    layer_probes = [_probe_task(encoder, job) for job in jobs] if encoder else []
    similarity = [_probe_pairs(encoder, job) for job in jobs if rates_pairs(job.data.task)] if encoder else []
    words = _probe_words(masked, heldout) if masked and heldout else None
    loaded = encoder or masked
    assert loaded is not None
    probes = Probes(
        model_name=subject.name,
        layer_count=loaded.layers,
        layer_probes=layer_probes,
        similarity=similarity,
        masked_words=words,
        seconds=round(time.monotonic() - started, 3),
    )
    write_json(file, probes)
    say(f"Probes: {file}, {duration(probes.seconds)}.")
    return probes


@dataclass(frozen=True)
class _Job:
    data: TaskRows
    train: LabelledRows


def _load_tasks(tasks: Sequence[Task], rows: int) -> list[_Job]:
    for task in tasks:
        check_probed(task)
    loaded = [load_task(task) for task in tasks]
    return [_Job(data, probed_rows(data, rows)) for data in loaded]


@dataclass(frozen=True)
class _Source:
    """Where held-out text is found, and what is known of the training text."""

    files: Sequence[str]
    """The text itself; empty where it is the held-out split of the data."""
    data: Shards | None
    """The prepared data of the text, or of the run, whose words the model was trained on."""


def _find_text(run: RunFolder | None, text: Sequence[str], folder: Path) -> _Source | None:
    """None where there is no text.

    Raises:
        UserError: the text is in prepared data that were made with another tokenizer than the model's.
    """
    given = [Path(each) for each in text if (Path(each) / "manifest.json").is_file()]
    if given and len(text) > 1:
        raise UserError(
            f"'{given[0]}' is a folder of prepared data, which cannot be mixed with other text.",
            "Name it alone with --text.",
        )
    files = () if given else text
    own = run.path / "data" if run else None
    data = given[0] if given else own
    if data is None or not (data / "manifest.json").is_file():
        return _Source(files, None) if files else None
    shards = open_shards(data)
    if shards.manifest.tokenizer == tokenizer_fingerprint(folder):
        return _Source(files, shards)
    if files:
        return _Source(files, None)  # what is counted in other tokens says nothing of the model's
    raise UserError(
        f"The data in '{data}' were made with another tokenizer than that of '{folder}'.",
        "Name the text itself, .txt or .jsonl, with --text.",
    )


def _held_out(masked: FrozenModel, source: _Source) -> HeldOutText:
    """The text as ids, checked to be long enough."""
    if source.data is not None and not source.files:
        split = source.data.heldout
        ids = split.read(0, min(MOST_TOKENS, len(split))).astype("int64")
        name = "held-out split of the prepared data"
    else:
        files = find_files(source.files)
        documents = read_documents(files, choose_rule(files, "auto"), "text", Skips(), Meter())
        ids = token_stream(masked.tokenizer, (document.text for document in documents))
        name = ", ".join(Path(each).name for each in source.files)
    masked_positions(ids, masked.tokenizer.all_special_ids)
    return HeldOutText(name, ids, source.data.unigram_counts if source.data else None)


def _probe_task(encoder: FrozenModel, job: _Job) -> LayerProbe:
    with working(f"Layers, {job.data.task.name}") as work:
        found = probe_layers(encoder, job.data, job.train, min(LENGTH, encoder.length), work.show)
    say(
        f"{found.task}: {found.metric} by layer {_row([layer.score for layer in found.layers])}, best "
        f"{found.best.score:.3f} at layer {found.best.layer}; constant answer {found.constant:.3f}, "
        f"{found.train_rows:,} train and {found.dev_rows:,} dev rows"
    )
    return found


def _probe_pairs(encoder: FrozenModel, job: _Job) -> SimilarityProbe:
    with working(f"Similarity, {job.data.task.name}") as work:
        found = probe_similarity(encoder, job.data, min(LENGTH, encoder.length), work.show)
    say(
        f"{found.task}, zero-shot: spearman of cosines by layer {_row([layer.spearman for layer in found.layers])}; "
        f"centred {_row([layer.centred for layer in found.layers])}; {found.pairs:,} pairs"
    )
    return found


def _row(scores: Sequence[float]) -> str:
    return " ".join(f"{score:.3f}" for score in scores)


def _probe_words(masked: FrozenModel, text: HeldOutText) -> MaskedWords:
    with working("Masked words") as work:
        words = probe_masked_words(masked, text, work.show)
    lengths = "; ".join(
        f"{run.length} tokens a row: {run.accuracy:.3f} ({run.low:.3f} to {run.high:.3f}), loss {run.loss:.3f}"
        for run in words.lengths
    )
    say(
        f"Masked words ({words.text}, {words.tokens:,} tokens, {words.lengths[0].count:,} hidden): accuracy at "
        f"{lengths}; most frequent word {words.constant:.3f}"
    )
    ranks = ", ".join(f"{_range(bucket)} {bucket.accuracy:.3f}" for bucket in words.frequency)
    say(f"Accuracy by rank in {words.ranks_from}: {ranks}; calibration error {words.calibration_error:.3f}")
    return words


def _range(bucket: BucketScore) -> str:
    return f"from {bucket.first:,}" if bucket.last is None else f"{bucket.first:,}-{bucket.last:,}"
