"""Command ``probe``: measure the layers, the masked-word predictions and the search of a model, without fine-tuning."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import CommaSeparated, TaskDirOptions, keywords, listed, parse
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, say, working
from daybreak.data.readers.documents import Skips, choose_rule, read_documents
from daybreak.data.readers.inputs import ByteCounter, find_files
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.tokenizer import tokenizer_fingerprint
from daybreak.schemas.probes import BucketScore, LayerProbe, MaskedWords, Probes, SimilarityProbe
from daybreak.schemas.run import Retrieval

if TYPE_CHECKING:
    from daybreak.evaluation.probes.frozen import FrozenModel
    from daybreak.evaluation.probes.masked_words import HeldOutText
    from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows

DEFAULT_TASKS = ("glue5",)
"""Tasks if only the folder of the task files is given."""
LENGTH = 128
"""Most tokens of an example; fewer if the model takes fewer."""
SEARCHED_CHARACTERS = 20_000_000
"""Most characters of a text that are read for its passages."""
DATA_NAME = "held-out split of the prepared data"


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(TaskDirOptions):
    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """Hugging Face folder or run folder."""
    tasks: CommaSeparated = ()
    """Tasks that a linear model predicts from each layer. Defaults to glue5 if only --task-dir is given."""
    text: tuple[str, ...] = ()
    """Held-out text, or one folder of prepared data. Search is measured in each text separately. Defaults to the
    run's own data."""
    rows: int = 2000
    """Largest number of training rows per task."""
    out: Path | None = None
    """Folder for probes.json. Defaults to the model's folder."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(ProbeOptions, "probe", arguments))
    probe(options.pop("model"), **options)


def probe(
    model: Path | str,
    *,
    tasks: Sequence[Path | str] | Path | str = (),
    task_dir: Path | str | None = None,
    text: Sequence[Path | str] | Path | str = (),
    out: Path | str | None = None,
    rows: int = 2000,
) -> Probes:
    """Measure a model without fine-tuning and write ``probes.json``, replacing an earlier one.

    For each classification or regression task, a linear model is fitted on the outputs of each layer. Tasks that rate
    pairs, such as STS-B, are also scored by the cosine of the two sentences, without training. On held-out text, tokens
    are masked and predicted, and passages are searched. The input is checked before the first measurement.

    The keywords are the options of ``daybreak probe``.

    Raises:
        UserError: an argument cannot be used, or there is neither a task nor held-out text.
    """
    from daybreak.evaluation.model_source import find_model, find_tasks
    from daybreak.evaluation.probes.frozen import load_encoder, load_masked_model
    from daybreak.evaluation.probes.layer_probes import rates_pairs

    started = time.monotonic()
    if rows < 1:
        raise UserError(f"{rows} training rows are too few.", "Use at least 1 with --rows; the default is 2000.")
    source = find_model(Path(model))
    names = [str(task) for task in listed(tasks)] or (DEFAULT_TASKS if task_dir else ())
    jobs = _load_tasks(find_tasks(names, task_dir) if names else [], rows)
    text_source = _find_text(source.run, [str(one) for one in listed(text)], source.folder)
    if not jobs and text_source is None:
        raise UserError(
            f"There is nothing to probe '{model}' with.", "Give held-out text with --text, or tasks with --task-dir."
        )
    file = RunFolder(make_folder(Path(out or source.usual))).probes
    masked = load_masked_model(source.folder) if text_source else None
    encoder = replace(masked, model=masked.model.base_model) if masked else load_encoder(source.folder)
    heldout = _held_out(masked, text_source) if masked and text_source else None
    if heldout is None:
        say("Masked tokens are not probed: there is no held-out text. Give some with --text.")
    layer_probes = [_probe_task(encoder, data, train) for data, train in jobs]
    similarity = [_probe_pairs(encoder, data) for data, _ in jobs if rates_pairs(data.task)]
    words = _probe_words(masked, heldout) if masked and heldout else None
    probes = Probes(
        model_name=source.name,
        layer_count=encoder.layers,
        layer_probes=layer_probes,
        similarity=similarity,
        masked_words=words,
        search=_probe_search(encoder, text_source) if text_source else [],
        seconds=round(time.monotonic() - started, 3),
    )
    write_json(file, probes)
    say(f"Probes: {file}, {duration(probes.seconds)}.")
    return probes


def _load_tasks(tasks: Sequence[Task], rows: int) -> list[tuple[TaskRows, LabeledRows]]:
    """Return the data of each task, and the rows that its linear models are fitted on."""
    from daybreak.evaluation.probes.layer_probes import check_probed, probed_rows
    from daybreak.evaluation.tasks.kinds import load_task

    for task in tasks:
        check_probed(task)
    loaded = [load_task(task) for task in tasks]
    return [(data, probed_rows(data, rows)) for data in loaded]


@dataclass(frozen=True)
class _TextSource:
    """Held-out text, and the prepared data with the token counts of the training text."""

    files: Sequence[str]
    """Text files; empty if the text is the held-out split of the data."""
    data: Shards | None
    """Prepared data that contain the text, or the run's own."""


def _find_text(run: RunFolder | None, text: Sequence[str], folder: Path) -> _TextSource | None:
    """Return the held-out text, or None if there is none."""
    given = [Path(each) for each in text if (Path(each) / "manifest.json").is_file()]
    if given and len(text) > 1:
        raise UserError(
            f"'{given[0]}' is a folder of prepared data, which cannot be combined with other text.",
            "Give it alone with --text.",
        )
    files = () if given else text
    own = run.path / "data" if run else None
    data = given[0] if given else own
    if data is None or not (data / "manifest.json").is_file():
        return _TextSource(files, None) if files else None
    shards = open_shards(data)
    if shards.manifest.tokenizer == tokenizer_fingerprint(folder):
        return _TextSource(files, shards)
    if files:
        return _TextSource(files, None)  # the counts of another tokenizer do not apply
    raise UserError(
        f"The data in '{data}' were made with another tokenizer than that of '{folder}'.",
        "Give the text itself (.txt or .jsonl) with --text.",
    )


def _held_out(masked: FrozenModel, source: _TextSource) -> HeldOutText:
    """Return the text as token ids."""
    from daybreak.evaluation.probes.masked_words import MOST_TOKENS, HeldOutText, masked_positions, token_stream

    if source.data is not None and not source.files:
        split = source.data.heldout
        ids = split.read(0, min(MOST_TOKENS, len(split))).astype("int64")
        name = DATA_NAME
    else:
        ids = token_stream(masked.tokenizer, _read(source.files))
        name = ", ".join(Path(each).name for each in source.files)
    masked_positions(ids, masked.tokenizer.all_special_ids)
    return HeldOutText(name, ids, source.data.unigram_counts if source.data else None)


def _probe_task(encoder: FrozenModel, data: TaskRows, train: LabeledRows) -> LayerProbe:
    from daybreak.evaluation.probes.layer_probes import probe_layers

    with working(f"Layers, {data.task.name}") as work:
        found = probe_layers(encoder, data, train, min(LENGTH, encoder.length), work.show)
    say(
        f"{found.task}: {found.metric} by layer {_row([layer.score for layer in found.layers])}, best "
        f"{found.best.score:.3f} at layer {found.best.layer}; constant answer {found.constant:.3f}, "
        f"{found.train_rows:,} train and {found.dev_rows:,} dev rows"
    )
    return found


def _probe_pairs(encoder: FrozenModel, data: TaskRows) -> SimilarityProbe:
    from daybreak.evaluation.probes.layer_probes import probe_similarity

    with working(f"Similarity, {data.task.name}") as work:
        found = probe_similarity(encoder, data, min(LENGTH, encoder.length), work.show)
    say(
        f"{found.task}, zero-shot: spearman of cosines by layer {_row([layer.spearman for layer in found.layers])}; "
        f"centred {_row([layer.centred for layer in found.layers])}; {found.pairs:,} pairs"
    )
    return found


def _probe_search(encoder: FrozenModel, source: _TextSource) -> list[Retrieval]:
    """Measure search in each text; texts with too few documents are left out."""
    from daybreak.evaluation.probes.frozen import embeddings
    from daybreak.evaluation.probes.retrieval import FEWEST, MOST_TOKENS, PAIR_WORDS, rank_passages, retrieval_line

    length = min(MOST_TOKENS, encoder.length)
    found = []
    for name, texts in _documents(encoder, source):
        with working(f"Search, {name}"):
            measured = rank_passages(lambda texts: embeddings(encoder, texts, length), texts, name)
        if measured is None:
            say(f"Search in {name} is not measured: it needs {FEWEST} passages of {PAIR_WORDS} words.")
            continue
        say(retrieval_line(measured))
        found.append(replace(measured, examples=[]))  # records contain no text
    return found


def _documents(encoder: FrozenModel, source: _TextSource) -> Iterator[tuple[str, list[str]]]:
    """Yield each text's name and documents, at most SEARCHED_CHARACTERS of them."""
    from daybreak.evaluation.probes.retrieval import HELD_OUT_TOKENS, document_texts

    if source.data is not None and not source.files:
        split = source.data.heldout
        stream = split.read(0, min(HELD_OUT_TOKENS, len(split)))
        yield DATA_NAME, document_texts(encoder.tokenizer, stream, split.document_ends(), source.data.manifest.special)
    for each in source.files:
        found, characters = [], 0
        for text in _read([each]):
            found.append(text)
            characters += len(text)
            if characters > SEARCHED_CHARACTERS:
                break
        yield Path(each).name, found


def _read(given: Sequence[str]) -> Iterator[str]:
    files = find_files(given)
    for document in read_documents(files, choose_rule(files, "auto"), "text", Skips(), ByteCounter()):
        yield document.text


def _row(scores: Sequence[float]) -> str:
    return " ".join(f"{score:.3f}" for score in scores)


def _probe_words(masked: FrozenModel, text: HeldOutText) -> MaskedWords:
    from daybreak.evaluation.probes.masked_words import probe_masked_words

    with working("Masked tokens") as work:
        words = probe_masked_words(masked, text, work.show)
    lengths = "; ".join(
        f"{run.length} tokens per sequence: {run.accuracy:.3f} ({run.low:.3f} to {run.high:.3f}), loss {run.loss:.3f}"
        for run in words.lengths
    )
    say(
        f"Masked tokens ({words.text}, {words.tokens:,} tokens, {words.lengths[0].count:,} masked): accuracy at "
        f"{lengths}; most frequent token {words.constant:.3f}"
    )
    ranks = ", ".join(f"{_range(bucket)} {bucket.accuracy:.3f}" for bucket in words.frequency)
    say(f"Accuracy by rank in {words.ranks_from}: {ranks}; calibration error {words.calibration_error:.3f}")
    return words


def _range(bucket: BucketScore) -> str:
    return f"from {bucket.first:,}" if bucket.last is None else f"{bucket.first:,}-{bucket.last:,}"
