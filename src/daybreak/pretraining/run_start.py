"""Start of a run folder, and the checks on a later start: same recipe, same budget, same data."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path, PurePath

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, refuse_not_utf8, write_json
from daybreak.core.process import uptime
from daybreak.core.run_folder import RunFolder, as_argument
from daybreak.data.sequences.shards import Shards
from daybreak.recipe import Recipe, first_difference, load_recipe, of_a_paper, resolved, with_whole_paths
from daybreak.schemas.corpus import CORPUS_FILE, CorpusReport
from daybreak.schemas.run import BlockFile, Decisions, Manifest, Split
from daybreak.training.hardware import probe


def check_folder(run: RunFolder, recipe: Recipe, shards: Shards) -> None:
    """Raise UserError if the run folder belongs to another recipe, another budget or other data."""
    check_recipe(run, recipe)
    if run.recipe.exists():
        refuse_other_data(run, shards)
    elif recipe.origin.branch:
        refuse_other_tokenizer(RunFolder(Path(recipe.origin.branch)), shards)


def check_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Raise UserError if the folder is none of a run, or belongs to another recipe or another budget."""
    if not run.recipe.exists():
        refuse_not_utf8(run.path)
        if run.strange() or has_steps(run):
            raise UserError(f"'{run.path}' holds other files and is not a run folder.", "Choose another --out.")
        return
    different = first_difference(load_recipe(run.recipe), recipe)
    if different == "budget":
        raise UserError(
            f"The run in '{run.path}' was started with a budget of {load_recipe(run.recipe).budget}, "
            f"not {recipe.budget}; its schedule cannot change.",
            "Use that budget to resume it, choose another --out, or start again with --overwrite; "
            f"daybreak pretrain --from {shlex.quote(str(run.path))} --extend 1h --data DATA --out RUN2 "
            "trains a finished run longer.",
        )
    if different:
        raise UserError(
            f"The run folder '{run.path}' belongs to another recipe: '{different}' differs.",
            "Choose another --out, start again with --overwrite, or resume the run with its own recipe: "
            f"daybreak pretrain {shlex.quote(as_argument(run.path))} --data DATA --out {shlex.quote(str(run.path))}.",
        )


def has_steps(run: RunFolder) -> bool:
    """Whether there are checkpoints past step 0, which a new start would delete."""
    return run.checkpoints.is_dir() and any("step-000000000" not in path.name for path in run.checkpoints.iterdir())


def refuse_other_data(
    run: RunFolder, shards: Shards, remedy: str = "Give the --data it was started on, or another --out."
) -> None:
    """Raise UserError if ``shards`` are not the data of the run."""
    if not run.manifest.is_file():
        raise UserError(
            f"The run in '{run.path}' lacks its {run.manifest.name}.",
            "Restore that file, start again with --overwrite, or choose another --out.",
        )
    before = read_json(run.manifest, Manifest)
    now = shards.manifest
    same = (before.tokenizer, before.train.tokens) == (now.tokenizer, now.train.tokens)
    # Runs of earlier versions have no hashes.
    if not same or any(old.hashes not in ([], new.hashes) for old, new in zip(_telling(before), _telling(now))):
        raise UserError(
            f"The run in '{run.path}' was started on other data.",
            remedy,
        )


def _telling(manifest: Manifest) -> tuple[BlockFile, ...]:
    """The small files that tell texts with equal counts apart: by their words, and by the order of their documents."""
    return manifest.unigram_counts, manifest.train.document_ends, manifest.heldout.document_ends


def refuse_other_tokenizer(run: RunFolder, shards: Shards) -> None:
    """Raise UserError if ``run`` was trained with another tokenizer than that of ``shards``."""
    if read_json(run.manifest, Manifest).tokenizer != shards.manifest.tokenizer:
        raise UserError(
            f"The run in '{run.path}' was trained with another tokenizer than these data.",
            "Give the --data it was trained on, or prepare the text with --tokenizer-from.",
        )


def other_tokenizer(recipe: Recipe, manifest: Manifest) -> str:
    """Say which settings of the data's tokenizer differ from the recipe's; empty if none do.

    A tokenizer that was taken over and not trained has no settings and is not compared.
    """
    made, wanted = manifest.tokenizer_settings, recipe.tokenizer.training_settings()
    if not made or not wanted:
        return ""
    kinds = ["kind"] if made["kind"] != wanted["kind"] else []  # the settings of another kind cannot be compared
    names = kinds or [name for name in made if made[name] != wanted.get(name)]
    different = [f"{name} {made[name]} instead of {wanted.get(name)}" for name in names]
    return f"The tokenizer of the data differs from that of {recipe.name}: {', '.join(different)}." if different else ""


def check_tokenizer(recipe: Recipe, manifest: Manifest, *, resumed: bool) -> None:
    """Raise UserError for a new run of a paper's recipe whose data have another tokenizer than it trains.

    Daybreak's own recipes take any tokenizer, and a run that continues a model takes the tokenizer of that model.
    """
    continued = resumed or recipe.origin.has_weights
    if not continued and of_a_paper(recipe) and (sentence := other_tokenizer(recipe, manifest)):
        raise UserError(
            sentence,
            f"Prepare the text with --recipe {recipe.name} (and your --size), or add --accept-tokenizer.",
        )


def write_start(
    run: RunFolder,
    recipe: Recipe,
    decisions: Decisions,
    shards: Shards,
    data: Path,
    device: torch.device,
    started: float,
) -> None:
    """Write the files of a new run; recipe.json and decisions.json last, because they mark the folder as a run.

    Args:
        data: the folder of ``shards``.
        started: ``uptime()`` from which the budget counts.
    """
    write_json(run.environment, probe.describe(device, time.time() - (uptime() - started)))
    write_json(run.manifest, _for_readers(shards.manifest))
    if (data / CORPUS_FILE).is_file():  # older data lack it
        write_json(run.corpus, _without_places(read_json(data / CORPUS_FILE, CorpusReport)))
    write_json(run.recipe, resolved(with_whole_paths(recipe)))
    write_json(run.decisions, decisions)


def _without_places(corpus: CorpusReport) -> CorpusReport:
    """The corpus report without paths of this machine and without examples of the text."""
    return replace(
        corpus,
        steps=[replace(step, examples=[]) for step in corpus.steps],
        sources=[replace(source, path=PurePath(source.path).name) for source in corpus.sources],
        contamination=[replace(each, path=PurePath(each.path).name) for each in corpus.contamination],
    )


def _for_readers(manifest: Manifest) -> Manifest:
    """The manifest without the hashes of text, tokens and sentences, and with file names instead of paths.

    The hashes of ``_telling`` are few, and a resume compares them.
    """

    def bare(split: Split) -> Split:
        ends = replace(split.sentence_ends, hashes=[]) if split.sentence_ends else None
        return replace(split, token_files=[replace(file, hashes=[]) for file in split.token_files], sentence_ends=ends)

    return replace(
        manifest,
        train=bare(manifest.train),
        heldout=bare(manifest.heldout),
        settings_fingerprint="",
        content_fingerprint="",
        sources=[replace(source, path=PurePath(source.path).name) for source in manifest.sources],
    )
