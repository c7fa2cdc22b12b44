"""A data folder -> a page about its text, in one file that needs nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_text
from daybreak.core.formatting import count, significant
from daybreak.core.terminal import duration
from daybreak.reporting import corpus_parts
from daybreak.reporting.background import text_facts
from daybreak.reporting.corpus_tables import many, share
from daybreak.reporting.markdown import as_markdown
from daybreak.reporting.markup import Markup, note, section, tag
from daybreak.reporting.page import document
from daybreak.reporting.sections import UNKNOWN
from daybreak.schemas.corpus import CORPUS_FILE, CorpusReport
from daybreak.schemas.run import Manifest

MANIFEST = "manifest.json"


def is_data_folder(path: Path) -> bool:
    """Whether ``daybreak prepare`` made this folder. A run folder, which may hold one, is none."""
    return (path / MANIFEST).is_file()


def write_corpus_page(folder: Path, out: Path, *, form: str = "html", text: bool = True) -> Path:
    """Write the page about a data folder and return its path; ``form`` and ``text`` as for ``report``.

    Raises:
        UserError: the folder holds no report on its text or a damaged one, or ``out`` cannot be written.
    """
    if out.is_dir():
        raise UserError(f"'{out}' is a folder.", "Name the file to write, as in `--out corpus.html`.")
    page = corpus_page(folder, text=text)
    make_folder(out.parent)
    write_text(out, as_markdown(page) if form == "md" else page)
    return out


def corpus_page(folder: Path, *, text: bool = True) -> str:
    """Return the page about a data folder.

    Args:
        text: whether examples of what was left out may stand on it.

    Raises:
        UserError: the folder is none, was prepared before there were reports on text, or holds a damaged file.
    """
    if not is_data_folder(folder):
        there = f"holds no {MANIFEST}" if folder.is_dir() else "does not exist"
        raise UserError(f"'{folder}' is no data folder: it {there}.", "Give the folder that `daybreak prepare` wrote.")
    if not (folder / CORPUS_FILE).is_file():
        raise UserError(
            f"'{folder}' holds no {CORPUS_FILE}: an earlier version prepared it.",
            "Prepare the text again, with this one.",
        )
    report = read_json(folder / CORPUS_FILE, CorpusReport)
    if not text:
        report = replace(report, steps=[replace(step, examples=[]) for step in report.steps])
    manifest = read_json(folder / MANIFEST, Manifest)
    name = folder.resolve().name
    body = [
        _headline(report, manifest, name),
        corpus_parts.steps(report),
        corpus_parts.documents(report),
        corpus_parts.sources(report),
        corpus_parts.contamination(report),
        corpus_parts.tokenizer(report),
        section("Background", tag("div", tag("h3", "What it was made into"), text_facts(manifest), class_="card")),
    ]
    return document(f"{name} - Daybreak corpus report", body, "the files of the data folder")


def _headline(report: CorpusReport, manifest: Manifest, name: str) -> Markup:
    unread = [f"{number:,} {reason}" for reason, number in manifest.skipped.items() if number]
    skipped = [note(f"Could not be used while reading: {', '.join(unread)}.", "quiet")] if unread else []
    return tag(
        "header",
        tag("p", "Daybreak corpus report", class_="brand"),
        tag("h1", name, tag("small", f"prepared as {report.preset}")),
        tag("p", corpus_parts.sentence(report), class_="lead"),
        *skipped,
        _tiles(report, manifest),
    )


def _tiles(report: CorpusReport, manifest: Manifest) -> Markup:
    passes = sum(step.passes for step in report.steps)
    read = report.steps[0].documents_in if report.steps else report.documents
    tiles = [
        (count(report.documents), "documents", f"{manifest.heldout.documents:,} held out"),
        (count(report.characters), "characters", many(report.words, "word")),
        (count(report.tokens), "tokens", f"of {_ratio(report.characters, report.tokens)} characters"),
        (share(max(0, read - report.documents), read), "of the documents left out", f"of {count(read)} read"),
    ]
    if math.isfinite(report.seconds):
        tiles.append((duration(report.seconds), "to prepare", f"the text read {many(2 + max(0, passes), 'time')}"))
    written = [
        tag("div", tag("b", big), tag("span", small), tag("em", under), class_="tile") for big, small, under in tiles
    ]
    return tag("div", *written, class_="tiles")


def _ratio(part: int, whole: int) -> str:
    return significant(part / whole) if whole > 0 else UNKNOWN
