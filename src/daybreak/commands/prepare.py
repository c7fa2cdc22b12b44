"""Verb: any text -> tokenizer + token shards, and an account of the text.

The text is read twice, part by part, and never kept: the first reading cleans, evaluates documents, spots copies and
samples text for the tokenizer; the second encodes. (A case of steps may need a further reading, and says so.) What a
part gave lies in a folder beside ``out`` until all is done, so that a preparation that was killed goes on where it was;
for that, disk for the tokens is needed twice. What comes out depends neither on the number of workers nor on kills.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.files import replace_folder, write_json
from daybreak.core.process import usable_cores
from daybreak.core.special_tokens import special_ids
from daybreak.core.terminal import say, working, working_through
from daybreak.data.filters.contamination import EvaluationText
from daybreak.data.filters.filter import Context, DocumentFilter, Filter
from daybreak.data.filters.near_duplicates import NearDuplicates
from daybreak.data.pipeline import encoding, first_pass, resuming
from daybreak.data.pipeline.cluster import Cluster, end_earlier, over_parts_on
from daybreak.data.pipeline.corpus import Corpus, bundled
from daybreak.data.pipeline.corpus_facts import count, quality_on, report
from daybreak.data.pipeline.first_pass import KEPT_BYTES, FirstPass, decide
from daybreak.data.pipeline.preprocessing import AS_IT_IS, Preprocessing, epochs_of
from daybreak.data.pipeline.tokenized import show_beginning, tokenizer_folder
from daybreak.data.pipeline.tokenizer_quality import warn_of_folding
from daybreak.data.pipeline.workers import over_parts, released
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import ByteCounter, find_files, spool_stdin
from daybreak.data.tokenizers.tokenizer import (
    TokenizerConfig,
    load_tokenizer,
    overlap,
    tokenizer_fingerprint,
    vocabulary_size,
)
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.schemas.corpus import CORPUS_FILE
from daybreak.schemas.run import SHARD_FORMAT, Manifest, Source

FEW_HELDOUT = 5
"""Held-out documents below which a loss says little of other text."""


def prepare(
    inputs: Sequence[str | Path],
    out: Path,
    *,
    tokenizer: TokenizerConfig,
    document: str = "auto",
    text_field: str = "text",
    split_sentences: bool = False,
    chunk_characters: int = 0,
    compare: str = "",
    preprocessing: Preprocessing = AS_IT_IS,
    workers: int | Cluster = 0,
) -> Manifest:
    """Make the data folder ``out`` from text; one that was made from the same files and settings is kept.

    Args:
        inputs: files, folders, globs, data sets (``hf://owner/name[@revision][:config/split]``); see ``data/inputs``.
        out: the data folder; absent, empty, or made by an earlier call with the same arguments.
        tokenizer: what to train on the text, or to take over.
        document: what one document of plain text is: auto, file, line or blank-line.
        text_field: the field of a record, or the column of a table, with its text.
        split_sentences: cut prose into sentences, so that their ends are recorded (see ``data/sentences``).
        chunk_characters: cut documents at spaces into documents of about this length; 0 leaves them whole.
        compare: a tokenizer folder; how many pieces the two vocabularies share is said and recorded.
        preprocessing: how the text is cleaned and mixed.
        workers: processes that read parts side by side, 0 for as many as there are cores; or a cluster that does it.

    Raises:
        UserError: the inputs cannot be used, or ``out`` cannot be written or holds something else. Nothing is left.
    """
    started, given, steps = time.monotonic(), [str(one) for one in inputs], preprocessing.all_filters()
    preprocessing.check(len(inputs), trains=isinstance(tokenizer, TrainedTokenizer))
    with ExitStack() as stack:
        final = stack.enter_context(resuming.final_place(Path(out)))
        stdin = spool_stdin(resuming.folder_beside(final, "stdin", stack)) if "-" in given else None
        files = find_files(inputs, stdin)
        preprocessing.check_sources(given, {file.given for file in files})
        rule = choose_rule(files, document)
        of_tokens = tokenizer_folder(files, tokenizer, cut=split_sentences or chunk_characters > 0)
        identity = resuming.identity_of(
            files,
            given,
            tokenizer=tokenizer.identity(),
            document=document,
            text_field=text_field,
            split_sentences=split_sentences,
            chunk_characters=chunk_characters,
            compare=tokenizer_fingerprint(Path(compare)) if compare else "",
            preprocessing=preprocessing.identity(steps),
        )
        if (manifest := resuming.earlier(Path(out), identity)) is not None:
            say(f"Data: {out} is ready ({_figures(manifest)}).")
            return manifest
        show_beginning(files, of_tokens)
        parts = bundled(files, rule, together=not preprocessing.mixes)
        corpus = Corpus(parts, rule, text_field, split_sentences, chunk_characters, of_tokens)
        order = Order(corpus, preprocessing, steps, given, tokenizer, identity, compare, workers or usable_cores())
        manifest = _make_at(final, order, started)
    say(f"Data: {_figures(manifest)}, {manifest.seconds:.1f} s.")
    if manifest.heldout.documents < FEW_HELDOUT:
        say(
            f"Held-out losses will rest on {manifest.heldout.documents} "
            f"document{'s' if manifest.heldout.documents > 1 else ''} alone: give more documents, or cut long ones "
            "with --chunk-characters."
        )
    return manifest


@dataclass(frozen=True)
class Order:
    """What is asked for."""

    corpus: Corpus
    preprocessing: Preprocessing
    steps: tuple[Filter, ...]
    """All that the preprocessing takes."""
    inputs: list[str]
    tokenizer: TokenizerConfig
    identity: str
    compare: str
    workers: int | Cluster


def _make_at(final: Path, order: Order, started: float) -> Manifest:
    beside = final.with_name(f".{final.name}.preparing")
    end_earlier(beside)
    if isinstance(order.workers, Cluster):
        order.workers.check()
    try:
        with resuming.work_folder(beside, order.identity) as work, released():
            manifest = _make(order, work, started)
            replace_folder(work / "data", final)
            return manifest
    except OSError as error:
        if error.errno not in resuming.NO_ROOM:
            raise
        raise UserError(
            f"The disk of '{final}' is full.",
            f"Free some space and give the same command again: what is done is kept in '{beside.name}'.",
        ) from None


def _figures(manifest: Manifest) -> str:
    documents = manifest.train.documents + manifest.heldout.documents
    return (
        f"{documents:,} documents, {manifest.heldout.documents:,} of them held out; "
        f"{manifest.duplicates:,} duplicates left out; {manifest.train.tokens:,} training tokens"
    )


def _make(order: Order, work: Path, started: float) -> Manifest:
    """All of it, stage after stage; each stage finds what an earlier try has left of it."""
    corpus, found = order.corpus, _first_pass(order, work)
    _report(order, found)
    folder, made, shared = _tokenizer(order, found, work)
    vocabulary = vocabulary_size(made)
    quality = quality_on(found, made)  # may refuse it, and does so before the text is read once more
    facts = count(found, order.steps)
    epochs = epochs_of(order.preprocessing, order.inputs, facts.kept)
    job = encoding.EncodingJob(
        corpus=corpus,
        tokenizer=folder,
        special=special_ids(made, folder),
        assignments=found.splits.path,
        offsets=found.offsets,
        first_pass=work / "survey",
        fast=found.characters >= encoding.FAST_CHARACTERS and not corpus.is_tokens,
        epochs=tuple(epochs[corpus.sources(number)[0]] for number in range(len(corpus.parts))),
    )
    encoded = work / "encoded"
    deque(_over_parts(order, "Encoding", partial(encoding.encode_part, job, encoded), encoded), maxlen=0)
    resuming.refuse_changed(corpus.files)
    data = work / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(folder, data / "tokenizer")
    train, heldout, counts, density = encoding.join(
        encoded, len(corpus.parts), data, vocabulary=vocabulary, sentences=corpus.sentences
    )
    if not train.tokens:
        raise UserError("No text is left to train on.", "Give an input that has some an epoch or a weight above 0.")
    seconds = round(time.monotonic() - started, 3)
    told = report(
        order.preprocessing, found, facts, density, epochs, quality=quality,
        config=order.tokenizer, tokens=train.tokens + heldout.tokens, seconds=seconds,
    )  # fmt: skip
    write_json(data / CORPUS_FILE, told)
    if told.advice:
        say(f"Vocabulary: {told.advice.recommended:,} would suit this text. {told.advice.why}")
    manifest = Manifest(
        format=SHARD_FORMAT,
        tokenizer=tokenizer_fingerprint(folder),
        tokenizer_kind=type(order.tokenizer).__name__,
        vocabulary=vocabulary,
        token_bytes=encoding.token_bytes(vocabulary),
        document_rule=corpus.rule_name,
        train=train,
        heldout=heldout,
        unigram_counts=counts,
        sources=[Source(path=one.path, documents=one.documents, characters=one.characters) for one in facts.sources],
        duplicates=found.splits.duplicates,
        skipped=found.skips.counts,
        characters=found.characters,
        seconds=seconds,
        inputs_fingerprint=order.identity,
        special=job.special,
        overlap=shared,
    )
    write_json(data / "manifest.json", manifest)
    return manifest


def _tokenizer(order: Order, found: FirstPass, work: Path) -> tuple[Path, Tokenizer, float | None]:
    """Make it, and say what is to be known of it; return its folder, itself, and what ``compare`` has of its pieces."""
    with working("Making the tokenizer"):
        folder = resuming.made_once(work / "tokenizer", lambda to: order.tokenizer.make(found.sample, to))
    made = load_tokenizer(folder)
    warn_of_folding(made, found.letters, found.sample)
    shared = overlap(made, load_tokenizer(Path(order.compare))) if order.compare else None
    if shared is not None:
        say(f"Tokenizer: {shared:.1%} of its pieces are in '{order.compare}' too.")
    return folder, made, shared


def _first_pass(order: Order, work: Path) -> FirstPass:
    """The first reading; before it another one, where a step needs a tokenizer of the text as it came."""
    corpus, steps = order.corpus, order.steps
    judging = tuple(step for step in steps if isinstance(step, DocumentFilter) and not isinstance(step, EvaluationText))
    evaluation = next((step.index() for step in steps if isinstance(step, EvaluationText)), None)
    # Pairs of sentences need a second document to draw a random one from, also among the held-out ones.
    least = 2 if corpus.sentences else 1
    context = Context()
    if any(step.needs_tokenizer for step in steps):
        before = first_pass.FirstPassJob(corpus=corpus)
        _first_pass_parts(order, "Reading for a first tokenizer", before, work / "before")
        unprocessed = decide(work / "before", len(corpus.parts), least=least)
        with working("Making a first tokenizer"):
            first = resuming.made_once(work / "first", lambda to: order.tokenizer.make(unprocessed.sample, to))
        context = Context(tokenizer=first)
    job = first_pass.FirstPassJob(
        corpus=corpus,
        filters=judging,
        context=context,
        evaluation=evaluation,
        remove=order.preprocessing.remove_evaluation,
        near=work / "near" if any(isinstance(step, NearDuplicates) for step in steps) else None,
        show_text=order.preprocessing.show_text,
        keep=0 if corpus.sentences or corpus.has_tokens else KEPT_BYTES // max(1, len(corpus.parts)),
    )
    _first_pass_parts(order, "Reading", job, work / "survey")
    items = evaluation.counts if evaluation else ()
    return decide(work / "survey", len(corpus.parts), least=least, signatures=job.near, evaluation_items=items)


def _first_pass_parts(order: Order, label: str, job: first_pass.FirstPassJob, folder: Path) -> None:
    with closing(_over_parts(order, label, partial(first_pass.first_pass_part, job, folder), folder)) as parts:
        first_pass.keep_tidy(folder, parts)


def _over_parts(order: Order, label: str, task: Callable[[ByteCounter, int], int], results: Path) -> Generator[int]:
    """Do ``task`` for every part, into ``results``, and say how far it is; yield the parts as they are done."""
    parts, byte_counter = order.corpus.parts, ByteCounter()
    of_file = Counter(part.file for bundle in parts for part in bundle)
    sizes = [sum(part.file.bytes / of_file[part.file] for part in bundle) for bundle in parts]
    done, todo, numbers, workers = [0.0], partial(task, byte_counter), range(len(parts)), order.workers
    if isinstance(workers, Cluster):
        found = over_parts_on(workers, todo, numbers, results)
    else:
        found = over_parts(todo, numbers, workers, results.parent)
    # Worker processes count in copies of ``byte_counter``.
    with working_through(label, sum(sizes), lambda: max(done[0], byte_counter.bytes)):
        for number in found:
            done[0] += sizes[number]
            yield number


def _report(order: Order, found: FirstPass) -> None:
    meaning = {
        "file": "one document a file",
        "line": "one document a line",
        "blank-line": "documents parted by blank lines",
        "record": "one document a record",
        "page": "one document a page",
        "article": "one document an article",
        "document": "documents as their index parts them",
    }
    rules = " and ".join(meaning[name] for name in order.corpus.rule_name.split(" and "))
    size = order.corpus.chunk_characters
    cut = f", in chunks of about {size:,} characters" if size else ""
    say(f"Text: {found.offsets[-1]:,} documents ({rules}{cut}), {found.characters:,} characters.")
    for reason, skipped in found.skips.counts.items():
        say(f"Left out: {skipped:,} {reason}, the first in {found.skips.first[reason]}.")
