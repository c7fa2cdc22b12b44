"""A data folder's report on its text, made up, and what the cells of a page say."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

from fake_runs import fake_manifest

from daybreak.core.files import write_json
from daybreak.reporting import corpus
from daybreak.reporting.blocks import Block, templates
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.corpus import (
    Contamination,
    CorpusReport,
    DroppedText,
    Histogram,
    SourceReport,
    StepReport,
    TokenizerQuality,
    VocabularyAdvice,
)


def step(name: str, before: tuple[int, int], after: tuple[int, int], **more) -> StepReport:
    plain = {"name": name, "why": f"What {name} is for.", "passes": 0, "documents_in": before[0]}
    plain |= {"documents_out": after[0], "characters_in": before[1], "characters_out": after[1]}
    return StepReport(**(plain | more))


def quality(vocabulary: int, characters_per_token: float) -> TokenizerQuality:
    return TokenizerQuality(
        vocabulary=vocabulary, characters=400_000, characters_per_token=characters_per_token,
        tokens_per_word=6.1 / characters_per_token, whole_words=0.71, unknown_tokens=0.00012, covered_words=0.9998,
    )  # fmt: skip


def fake_corpus() -> CorpusReport:
    """A web corpus of two sources, as the case ``web`` leaves it."""
    sizes = (1_000, 6_000_000), (900, 5_000_000), (700, 4_500_000), (695, 4_480_000)
    return CorpusReport(
        preset="web", documents=695, characters=4_480_000, words=734_000, tokens=1_060_000, seconds=91.0,
        steps=[
            step("ExactDuplicates", sizes[0], sizes[1], reasons={"the same text": 100}),
            step(
                "GopherQuality", sizes[1], sizes[2], reasons={"too few words": 150, "too many symbols": 50},
                examples=[DroppedText(reason="too few words", text="Log in\n\nSign up")],
            ),
            step("NearDuplicates", sizes[2], sizes[3], passes=1),
        ],
        sources=[
            SourceReport(
                path="/home/someone/web/a.jsonl", documents=800, characters=4_000_000, kept_documents=495,
                kept_characters=2_480_000,
            ),
            SourceReport(
                path="hf://owner/wiki:en", documents=200, characters=2_000_000, kept_documents=200,
                kept_characters=2_000_000, epochs=2.0,
            ),
        ],
        lengths=Histogram(edges=[2.0**n for n in range(5, 12)], counts=[0, 95, 100, 300, 200, 0]),
        compressibility=Histogram(edges=[0.0, 0.15, 0.2, 0.25, 0.3], counts=[0, 400, 225, 70]),
        scripts={"Latin": 0.97, "Greek": 0.0297, "Han": 0.0003},
        languages={"en": 0.9, "fi": 0.1},
        contamination=[
            Contamination(path="glue/rte.txt", items=2_000, items_found=31, documents=12, removed=True),
            Contamination(path="glue/cola.txt", items=900, items_found=9, documents=4, removed=False),
        ],
        tokenizer=quality(8_192, 4.02),
        advice=VocabularyAdvice(
            sizes=[quality(2**n, 2 + math.log2(n)) for n in range(11, 17)], recommended=16_384,
            why="Twice as many pieces would save less than 3 % of the tokens.",
        ),
    )  # fmt: skip


def write_data(folder: Path, report: CorpusReport) -> Path:
    folder.mkdir()
    write_json(folder / "corpus.json", report)
    write_json(folder / "manifest.json", fake_manifest())
    return folder


def html_of(*blocks: Block | None) -> str:
    """The blocks as the page shows them."""
    return str(templates("html").get_template("blocks.html").module.show(blocks))


def words(page: str | Block | None) -> str:
    """A page or a block without scripts and tags."""
    page = page if isinstance(page, str) else html_of(page)
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def rows(*blocks: Block | None) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", html_of(*blocks), re.DOTALL)
    cell = re.compile(r'<td.*?</td>|<th[^>]*scope="row".*?</th>', re.DOTALL)
    return [[words(one).strip() for one in cell.findall(row)] for row in found][1:]


def body_of(report: CorpusReport) -> str:
    """Everything on the page that is made from the report."""
    return corpus.sentence(report) + html_of(*corpus.sections(report))


def run_of(report: CorpusReport | None, label: str = "run") -> RunRecords:
    return RunRecords(path=Path(label), label=label, recipe={"name": "run"}, corpus=report)
