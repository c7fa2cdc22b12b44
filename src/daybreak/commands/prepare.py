"""Command ``prepare``: turn text into a tokenizer and token shards, with a report about the text.

The text is read part by part in two passes. Up to 4 GiB of cleaned text, and standard input, are stored on disk
between them. The first pass cleans and scores documents, finds duplicates and samples text for the tokenizer; the
second pass encodes. (A preset may need another pass, and the output says so.) The results of each part are kept in a
folder beside ``out`` until the end, so that a killed preparation resumes; this needs disk space for the tokens twice.
The result depends neither on the number of workers nor on interruptions.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from tokenizers import Tokenizer
from tyro.conf import Positional, arg

from daybreak.commands.options import SizeOptions, keywords, listed, parse, refuse_without, value_of
from daybreak.core.errors import UserError
from daybreak.core.files import replace_folder, write_json
from daybreak.core.process import usable_cores
from daybreak.core.serialization import check_choice, to_dict
from daybreak.core.terminal import duration, say, working, working_through
from daybreak.data.filters.compressibility import FILTER_VOCABULARY
from daybreak.data.filters.contamination import EvaluationText
from daybreak.data.filters.filter import Context, DocumentFilter, Filter
from daybreak.data.filters.near_duplicates import NearDuplicates
from daybreak.data.pipeline import encoding, first_pass, resuming
from daybreak.data.pipeline.cluster import LOCAL, Cluster, Slurm, chosen_workers, end_earlier, map_parts_on
from daybreak.data.pipeline.corpus import Corpus, bundle_files
from daybreak.data.pipeline.corpus_facts import begin_report, complete_report, quality_on
from daybreak.data.pipeline.first_pass import KEPT_BYTES, FirstPass, decide
from daybreak.data.pipeline.preprocessing import AS_IT_IS, Preprocessing, epochs_of
from daybreak.data.pipeline.tokenizer_quality import folding_warning, unknown_warning
from daybreak.data.pipeline.workers import map_parts, workers_ended
from daybreak.data.readers.documents import choose_rule, warn_of_single_documents
from daybreak.data.readers.inputs import ByteCounter, InputFile, addresses, find_files, spool_stdin
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import (
    TokenizerConfig,
    WordPiece,
    load_tokenizer,
    overlap,
    tokenizer_fingerprint,
)
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.schemas.corpus import CORPUS_FILE
from daybreak.schemas.run import Manifest, Source

FEW_HELDOUT = 5
"""Number of held-out documents below which the held-out loss is unreliable."""
MUCH_HELDOUT = 0.1
"""Fraction of the tokens that the held-out documents should not exceed."""
TOKENIZERS: dict[str, type[WordPiece | ByteBPE]] = {"WordPiece": WordPiece, "ByteBPE": ByteBPE}
"""Values of --tokenizer-kind."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How text is read."""

    document: str = "auto"
    """What one document of a text file is: file, line, blank-line or auto. Defaults to the recipe's, else auto."""
    split_sentences: bool = False
    """Split prose into sentences, for recipes that predict the next sentence. Defaults to the recipe's."""
    chunk_characters: int = 0
    """Split documents at spaces into chunks of about this many characters, each a document; 0 keeps them whole.
    Defaults to the recipe's, else 0."""
    text_field: str = "text"
    """Field of a record, or column of a table, that contains the text."""


@dataclass(frozen=True, kw_only=True)
class PreparationOptions(TextOptions):
    """How text is read, filtered and mixed: the options that every command with text as input takes."""

    preprocessing: Annotated[Preprocessing, arg(name="")] = AS_IT_IS
    workers: int = 0
    """Processes that read text in parallel; 0 for one per core. The result does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PreparationOptions, SizeOptions):
    text: Annotated[Positional[tuple[str, ...]], arg(metavar="TEXT [TEXT ...]")]
    """Files, folders or globs: .txt .md .jsonl .csv .tsv .parquet .html, Wikipedia dumps; hf://owner/name; wikipedia,
    c4 or pile-subset; - for standard input."""
    out: Path
    """Folder for the tokenizer and the shards."""
    recipe: str = ""
    """Use the tokenizer, document settings and filter preset of this recipe. The other options override them."""
    tokenizer_kind: str = ""
    """Tokenizer type: WordPiece or ByteBPE. Defaults to the recipe's, else WordPiece."""
    tokenizer: TokenizerConfig = field(default_factory=WordPiece)
    tokenizer_from: str = ""
    """Use the tokenizer of this folder (a model, prepared text or a run) instead of training one."""
    compare: str = ""
    """Tokenizer folder to compare with: prints the fraction of tokens that both vocabularies contain."""
    on: str = LOCAL
    """Where the text is read: local, or as --workers tasks on a ray or slurm cluster with a shared disk."""
    slurm: Slurm = field(default_factory=Slurm)
    push_to_hub: str = ""
    """owner/name of a private data set on the Hugging Face hub to upload the result to; needs --with-text."""
    with_text: bool = False
    """Allow the upload of the text: prepared tokens contain it."""


def main(arguments: Sequence[str]) -> None:
    defaults = PrepareOptions(text=tyro.MISSING, out=tyro.MISSING, **_defaults(arguments))
    options = parse(PrepareOptions, "prepare", arguments, defaults)
    if not options.text:
        raise UserError("No text is given.", "Put the files first: daybreak prepare TEXT... --out DATA.")
    if options.push_to_hub and not options.with_text:
        raise UserError("Prepared tokens contain the text.", "Add --with-text if it may leave this machine.")
    if options.push_to_hub:
        from daybreak.exporting.hub import check_repository, push_to_hub

        check_repository(options.push_to_hub)
    prepare(
        options.text,
        options.out,
        tokenizer=options.tokenizer,
        compare=options.compare,
        workers=chosen_workers(options.on, options.workers, options.slurm),
        preprocessing=options.preprocessing,
        **keywords(options, TextOptions),
    )
    if options.push_to_hub:
        push_to_hub(options.out, options.push_to_hub, kind="dataset", with_text=options.with_text)


def _defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the defaults that --recipe, --tokenizer-kind and --tokenizer-from give to other options."""
    refuse_without(arguments, {"--size": "--recipe", "--faithful": "--recipe"})
    recipe, kind = value_of("--recipe", arguments), value_of("--tokenizer-kind", arguments)
    model = value_of("--tokenizer-from", arguments)
    if kind and model:
        raise UserError("--tokenizer-kind and --tokenizer-from both choose the tokenizer.", "Give one of them.")
    defaults: dict[str, Any] = {}
    if recipe:
        from daybreak.recipe import load_recipe, procedure_of

        found = load_recipe(recipe, size=value_of("--size", arguments), faithful="--faithful" in arguments)
        preprocessing = Preprocessing(preset=procedure_of(found).preset)
        defaults = {"tokenizer": found.tokenizer, "preprocessing": preprocessing, **to_dict(found.texts)}
    if kind:
        check_choice("--tokenizer-kind", kind, TOKENIZERS)
        made, own = TOKENIZERS[kind], defaults.get("tokenizer")
        if not isinstance(own, made):
            defaults["tokenizer"] = made(vocabulary=own.vocabulary) if isinstance(own, TrainedTokenizer) else made()
    if model:
        from daybreak.exporting.hub import local_folder

        defaults["tokenizer"] = Existing(folder=str(local_folder(model)))
    return defaults


def prepare(
    inputs: Sequence[Path | str] | Path | str,
    out: Path | str,
    *,
    tokenizer: TokenizerConfig = WordPiece(),
    document: str = "auto",
    text_field: str = "text",
    split_sentences: bool = False,
    chunk_characters: int = 0,
    compare: str = "",
    preprocessing: Preprocessing = AS_IT_IS,
    workers: int | Cluster = 0,
) -> Manifest:
    """Make the data folder ``out`` from text, unless it was made from the same text and settings before.

    The keywords are the options of ``daybreak prepare``.

    Args:
        inputs: files, folders, globs, data sets (``hf://owner/name[@revision][:config/split]``), or one of them alone;
            see ``data/readers/inputs``.
        out: the data folder; absent, empty, or made by an earlier call with the same arguments.
        compare: a tokenizer folder; the fraction of tokens in both vocabularies is printed and recorded.
        workers: processes that read parts in parallel, 0 for one per core; or a cluster.

    Raises:
        UserError: the inputs cannot be used, or ``out`` cannot be written or contains something else. ``out`` is then
            unchanged.
    """
    if not isinstance(tokenizer, TokenizerConfig):
        raise UserError(
            f"The tokenizer {tokenizer!r} is not a configuration of a tokenizer.",
            'Pass that of a recipe, such as load_recipe("tiny").tokenizer.',
        )
    if not isinstance(preprocessing, Preprocessing):
        raise UserError(
            f"The preprocessing {preprocessing!r} is not one.", 'Pass Preprocessing(preset="web"), for example.'
        )
    tokenizer.check()
    if isinstance(workers, int) and workers < 0:
        raise UserError(f"{workers} workers are too few.", "Use at least 1, or 0 for one per core.")
    inputs, out = listed(inputs), Path(out)
    started, steps = time.monotonic(), preprocessing.all_filters()
    preprocessing.check(len(inputs), trains=isinstance(tokenizer, TrainedTokenizer))
    given = addresses(inputs)
    with ExitStack() as stack:
        final = stack.enter_context(resuming.final_place(out))
        stdin = spool_stdin(resuming.folder_beside(final, "stdin", stack)) if "-" in given else None
        files = find_files(given, stdin)
        preprocessing.check_sources(given, {file.given for file in files})
        rule = choose_rule(files, document)
        settings = dict(
            tokenizer=tokenizer.identity(),
            document=document,
            text_field=text_field,
            split_sentences=split_sentences,
            chunk_characters=chunk_characters,
            compare=tokenizer_fingerprint(Path(compare)) if compare else "",
        )
        identity = resuming.identity_of(files, given, preprocessing=preprocessing.identity(steps), **settings)

        def by_content() -> str:
            how = preprocessing.identity(steps, by_content=True)
            return resuming.settings_of(files, given, preprocessing=how, **settings)

        if (manifest := resuming.earlier(Path(out), identity, by_content, files)) is not None:
            resuming.remove_finished(work_folder_of(final))
            say(f"Data: {out} is ready ({_figures(manifest)}).")
            return manifest
        if document == "auto":
            warn_of_single_documents(files, rule)
        parts = bundle_files(files, rule, together=not preprocessing.mixes)
        corpus = Corpus(parts, rule, text_field, split_sentences, chunk_characters)
        job = Job(
            corpus, preprocessing, steps, files, given, tokenizer, identity, by_content, compare,
            workers or usable_cores(),
        )  # fmt: skip
        manifest = _make_at(final, job, started)
    say(f"Data: {_figures(manifest)}, {duration(manifest.seconds)}.")
    warn_of_few_documents(manifest)
    return manifest


def warn_of_few_documents(manifest: Manifest) -> None:
    """Print a warning if the held-out documents are few; it names their part of the text if that is large."""
    held, tokens = manifest.heldout, manifest.heldout.tokens + manifest.train.tokens
    if held.documents < FEW_HELDOUT:
        many = "s" if held.documents > 1 else ""
        part = f" ({held.tokens / tokens:.0%} of the text)" if held.tokens > MUCH_HELDOUT * tokens else ""
        say(
            f"Warning: held-out losses are unreliable with {held.documents} held-out document{many}{part}. "
            "Add documents, or split long ones with --chunk-characters."
        )


@dataclass(frozen=True)
class Job:
    """Inputs and settings of one preparation."""

    corpus: Corpus
    preprocessing: Preprocessing
    steps: tuple[Filter, ...]
    """The steps of the preprocessing."""
    files: list[InputFile]
    inputs: list[str]
    tokenizer: TokenizerConfig
    identity: str
    by_content: Callable[[], str]
    """Returns ``resuming.settings_of`` the files."""
    compare: str
    workers: int | Cluster

    @property
    def imports_tokenizer(self) -> bool:
        return not isinstance(self.tokenizer, TrainedTokenizer)


def work_folder_of(final: Path) -> Path:
    """Return the folder beside the data folder ``final`` in which it is made."""
    return final.with_name(f".{final.name}.preparing")


def _make_at(final: Path, job: Job, started: float) -> Manifest:
    beside = work_folder_of(final)
    end_earlier(beside)
    if isinstance(job.workers, Cluster):
        job.workers.check()
    try:
        with resuming.work_folder(beside, job.identity) as work, workers_ended():
            manifest = _make(job, work, started)
            replace_folder(work / "data", final)
            return manifest
    except OSError as error:
        if error.errno not in resuming.NO_ROOM:
            raise
        raise UserError(
            f"The disk of '{final}' is full.",
            f"Free disk space and run the same command again: finished parts are kept in '{beside.name}'.",
        ) from None


def _figures(manifest: Manifest) -> str:
    documents = manifest.train.documents + manifest.heldout.documents
    return (
        f"{documents:,} documents, {manifest.heldout.documents:,} of them held out; "
        f"{manifest.duplicates:,} duplicates removed; {manifest.train.tokens:,} training tokens"
    )


def _make(job: Job, work: Path, started: float) -> Manifest:
    """Run all stages; each one reuses the results that an interrupted call left."""
    corpus, found = job.corpus, _first_pass(job, work)
    report = begin_report(job.preprocessing, found, job.steps)
    _report(job, found, report.steps[0].characters_in)
    folder, made, shared = _tokenizer(job, found, work)
    quality = quality_on(found, made)  # may refuse it, and does so before the text is read once more
    if quality and (warning := unknown_warning(quality, imported=job.imports_tokenizer)):
        say(f"Warning: {warning}")
    *by_filters, _duplicates = report.steps
    if reasons := sum((Counter(step.reasons) for step in by_filters), Counter[str]()):
        listed = ", ".join(f"{reason}: {documents:,}" for reason, documents in reasons.most_common())
        read, left = by_filters[0].characters_in, by_filters[-1].characters_out
        fraction = f"{1 - left / read:.1%} of the characters"
        say(f"Removed by filters: {reasons.total():,} documents with {fraction} ({listed}).")
    epochs = epochs_of(job.preprocessing, job.inputs, {one.path: one.kept_characters for one in report.sources})
    of_parts = [epochs[corpus.sources(number)[0]] for number in range(len(corpus.parts))]
    settings = encoding.EncodingJob.after(found, corpus, folder, assignments=found.splits.path, epochs=of_parts)
    encoded = work / "encoded"
    deque(_map_parts(job, "Encoding", partial(encoding.encode_part, settings, encoded), encoded), maxlen=0)
    data = work / "data"
    content = resuming.content_of(job.files)  # before write_shards refuses files that changed
    manifest, density = encoding.write_shards(
        settings, encoded, data, job.tokenizer,
        sources=[Source(path=one.path, documents=one.documents, characters=one.characters) for one in report.sources],
        duplicates=found.splits.duplicates, skipped=found.skips.counts, characters=found.characters,
        seconds=0.0, inputs_fingerprint=job.identity, settings_fingerprint=job.by_content(),
        content_fingerprint=content, overlap=shared,
    )  # fmt: skip
    if not manifest.train.tokens:
        raise UserError(
            "No training text is left.", "Raise --epochs or --weights of an input whose text is not in an earlier one."
        )
    if job.preprocessing.mixes:
        _say_mixture(encoding.training_tokens(settings, encoded), epochs)
    seconds = round(time.monotonic() - started, 3)
    report = complete_report(
        report, found, density, epochs, quality,
        advice_for=job.tokenizer if job.preprocessing.advise else None,
        tokens=manifest.train.tokens + manifest.heldout.tokens, seconds=seconds,
    )  # fmt: skip
    write_json(data / CORPUS_FILE, report)
    if advice := report.advice:
        say(f"Vocabulary: {advice.recommended:,} tokens suit this text. {advice.why}")
    manifest = replace(manifest, seconds=seconds)
    write_json(data / "manifest.json", manifest)
    return manifest


def _say_mixture(tokens: dict[str, int], epochs: dict[str, float]) -> None:
    """Print the fraction of the training text that each input has; whole documents are repeated or left out."""
    total = sum(tokens.values())
    fractions = (f"{count / total:.1%} from '{given}'" for given, count in tokens.items())
    say(f"Training text: {', '.join(fractions)}.")
    for given, count in tokens.items():
        if epochs[given] and not count:
            say(
                f"Warning: no document of '{given}' is in the training text: they are too few for its part of the "
                "mixture, or are in an earlier input."
            )


def _tokenizer(job: Job, found: FirstPass, work: Path) -> tuple[Path, Tokenizer, float | None]:
    """Make the tokenizer; return its folder, itself, and the fraction of its tokens that ``compare`` contains."""
    unused = job.preprocessing.unused(job.inputs)
    sample = found.sample.without(
        [number for number in range(len(job.corpus.parts)) if job.corpus.sources(number)[0] in unused]
    )
    with working("Making the tokenizer"):
        folder = resuming.fill_once(work / "tokenizer", lambda to: job.tokenizer.make(sample, to))
    made = load_tokenizer(folder)
    if warning := folding_warning(made, found.letters, sample, imported=job.imports_tokenizer):
        say(f"Warning: {warning}")
    shared = overlap(made, load_tokenizer(Path(job.compare))) if job.compare else None
    if shared is not None:
        say(f"Tokenizer: {shared:.1%} of its tokens are also in '{job.compare}'.")
    return folder, made, shared


def _first_pass(job: Job, work: Path) -> FirstPass:
    """Run the first pass; before it, one for a tokenizer of the unfiltered text if a step needs it."""
    corpus, steps = job.corpus, job.steps
    per_document = tuple(step for step in steps if isinstance(step, DocumentFilter))
    evaluation = next((step.index() for step in steps if isinstance(step, EvaluationText)), None)
    # Random sentence pairs need a second document, in the held-out split too.
    least = 2 if corpus.sentences else 1
    context = Context()
    if any(step.needs_tokenizer for step in steps):
        unfiltered = first_pass.FirstPassJob(corpus=corpus)
        _first_pass_parts(job, "Reading for a first tokenizer", unfiltered, work / "before")
        unprocessed = decide(work / "before", len(corpus.parts), least=least)
        with working("Making a first tokenizer"):
            config = filter_tokenizer(job.tokenizer)
            first = resuming.fill_once(work / "first", lambda to: config.make(unprocessed.sample, to))
        context = Context(tokenizer=first)
    settings = first_pass.FirstPassJob(
        corpus=corpus,
        filters=per_document,
        context=context,
        evaluation=evaluation,
        remove=job.preprocessing.remove_evaluation,
        near=work / "near" if any(isinstance(step, NearDuplicates) for step in steps) else None,
        show_text=job.preprocessing.show_text,
        keep=0 if corpus.sentences else KEPT_BYTES // max(1, len(corpus.parts)),
    )
    _first_pass_parts(job, "Reading", settings, work / "survey")
    items = evaluation.counts if evaluation else ()
    return decide(work / "survey", len(corpus.parts), least=least, signatures=settings.near, evaluation_items=items)


def _first_pass_parts(job: Job, label: str, settings: first_pass.FirstPassJob, folder: Path) -> None:
    with closing(_map_parts(job, label, partial(first_pass.first_pass_part, settings, folder), folder)) as parts:
        first_pass.keep_tidy(folder, parts)


def filter_tokenizer(config: TokenizerConfig) -> TokenizerConfig:
    """Return the tokenizer that a filter counts with: ``config`` with at least FILTER_VOCABULARY tokens."""
    if isinstance(config, WordPiece | ByteBPE):
        return replace(config, vocabulary=max(config.vocabulary, FILTER_VOCABULARY))
    return config


def _map_parts(job: Job, label: str, task: Callable[[ByteCounter, int], int], results: Path) -> Generator[int]:
    """Run ``task`` on every part, into ``results``, with a progress bar; yield the parts as they finish."""
    parts, meter = job.corpus.parts, ByteCounter()
    of_file = Counter(part.file for bundle in parts for part in bundle)
    sizes = [sum(part.file.bytes / of_file[part.file] for part in bundle) for bundle in parts]
    done, todo, numbers, workers = [0.0], partial(task, meter), range(len(parts)), job.workers
    if isinstance(workers, Cluster):
        found = map_parts_on(workers, todo, numbers, results)
    else:
        found = map_parts(todo, numbers, workers, results.parent)
    with working_through(label, sum(sizes), lambda: max(done[0], meter.bytes)):  # other processes have own meters
        for number in found:
            done[0] += sizes[number]
            yield number


def _report(job: Job, found: FirstPass, characters: int) -> None:
    """Print what was read: the documents and their ``characters`` before filters and without regard to duplicates."""
    meaning = {
        "file": "one document per file",
        "line": "one document per line",
        "blank-line": "documents separated by blank lines",
        "record": "one document per record",
        "page": "one document per page",
        "article": "one document per article",
    }
    rules = " and ".join(meaning[name] for name in job.corpus.rule_name.split(" and "))
    size = job.corpus.chunk_characters
    cut = f", in chunks of about {size:,} characters" if size else ""
    say(f"Text: {found.offsets[-1]:,} documents ({rules}{cut}), {characters:,} characters.")
    for reason, skipped in found.skips.counts.items():
        say(f"Skipped: {skipped:,} {reason}, the first in {found.skips.first[reason]}.")
