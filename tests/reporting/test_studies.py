"""A study as text: its tables."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from fake_studies import cell

from daybreak.reporting.studies import crossed, study_section, table, variants
from daybreak.schemas.studies import (
    NOT_A_NUMBER,
    REFUSED,
    DataStudy,
    Study,
    StudySettings,
    StudySource,
    StudyVariant,
)
from daybreak.training.hardware.probe import describe


def test_a_table_is_one_in_markdown_whatever_stands_in_it() -> None:
    first, line, *rows = table(("a|b", "c"), [("1", "long words"), ("x|y", "")]).splitlines()
    assert {text.count("|") for text in (first, line, *rows)} == {3} and len(
        {len(text) for text in (first, line, *rows)}
    ) == 1


def test_a_cell_without_a_result_is_in_no_row_of_other_texts() -> None:
    names = [StudyVariant(name=name, words="", recipe="0" * 16) for name in ("wiki, raw", "wiki, filtered")]
    settings = StudySettings(
        budget="60s", equal_clock=True, threads=1, cores=2, machine=describe(torch.device("cpu"), 0.0), variants=names
    )  # fmt: skip
    cells = [
        replace(cell("wiki, raw", seed, 3.0, void=void), others={"wiki": loss})
        for seed, (loss, void) in enumerate([(3.0, ""), (99.0, REFUSED), (math.nan, NOT_A_NUMBER)])
    ]
    study = DataStudy(
        question="", settings=settings, order="random", identity="", tokenizer="", seeds=3, finished=True,
        cells=cells, comparisons=[],
        sources=[StudySource(name="wiki", documents=2, heldout_documents=1)], texts=[],
        preprocessings=["raw", "filtered"],
    )  # fmt: skip
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in crossed(study).splitlines() if "|" in line]
    assert rows[2:] == [["wiki, raw", "3.000"]]


def test_a_variant_without_a_result_has_no_place() -> None:
    names = [StudyVariant(name=name, words="", recipe="0" * 16) for name in "abc"]
    settings = StudySettings(
        budget="60s", equal_clock=True, threads=1, cores=2, machine=describe(torch.device("cpu"), 0.0), variants=names
    )  # fmt: skip
    cells = [cell("a", 0, 5.0), cell("a", 1, 1.0, void=REFUSED), cell("b", 0, 2.0, void=REFUSED), cell("c", 0, 4.0)]
    study = Study(
        question="", settings=settings, data="", tokenizer="", train_tokens=1, seeds=2, finished=True, cells=cells,
        comparisons=[],
    )  # fmt: skip
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in variants(study).splitlines()[2:]]
    assert [(row[0], row[2], row[3], row[-1]) for row in rows] == [
        ("c", "1", "4.000", "0"), ("a", "2", "5.000", "1"), ("b", "1", "-", "1"),
    ]  # fmt: skip
    named = [part for part in study_section(study).content["parts"] if part is not None and part.kind == "items"]
    assert named[-1].content["texts"] == [f"a, seed 1: {REFUSED}", f"b, seed 0: {REFUSED}"]
