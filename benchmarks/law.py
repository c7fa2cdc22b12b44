"""Fit the scaling law on finished runs, and measure how well it forecasts runs that it was not fitted to.

    python benchmarks/law.py --data data/wiki --runs runs/a studies/rate/cells/* --keep law-runs-wiki.json
    python benchmarks/law.py --study studies/text --keep law-runs-text.json
    python benchmarks/law.py --records records --law src/daybreak/forecasting/law.json --out law.json

The first form writes a record with the features of each run on these data: sizes, losses and training curve. The second
does the same for all cells of a study-data. The third fits all such records (*law-runs*.json), writes the law that
ships with the package, and measures it on runs left out of the fit: a fifth of them, all of one text, all of one size.
Runs of other recipes than the flagship's are skipped with a message.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.sequences.shards import open_shards
from daybreak.forecasting.difficulty import compression
from daybreak.forecasting.fitting import fit, leave_out
from daybreak.forecasting.runs import is_even, law_run, why_not
from daybreak.models.importing import load_pretrained
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import load_recipe
from daybreak.reporting.studies import data_variant
from daybreak.schemas.forecast import LawRun
from daybreak.schemas.run import PLATEAU_MARGIN, Decisions, Summary
from daybreak.schemas.studies import DATA_STUDY_FILE, DataStudy
from daybreak.studies.cell_runner import slug

FOLDS = 5
NEEDED = ("recipe.json", "data.json", "summary.json", "metrics.jsonl")


def heldout(run: RunFolder, data: Path) -> tuple[float, float]:
    """Return the held-out loss of a finished run and the unigram loss, in nats, on the positions of this version.

    Runs until 2026-11-23 were measured on the first held-out sequences, which all come from the first source of a text.

    A record has no model: its losses are those that it states.
    """
    stated = read_json(run.summary, Summary).validation
    if not run.model.is_dir() or not read_json(run.decisions, Decisions).first_heldout:
        return stated.loss, stated.unigram_loss
    validation = heldout_validation(load_recipe(run.recipe), open_shards(data), data, torch.device("cpu"))
    found = validation.evaluate(load_pretrained(run.model).model)
    print(
        f"{run.path.name}: loss {stated.loss:.3f} on the first held-out sequences, {found.loss:.3f} all over the text"
    )
    return found.loss, found.unigram_loss


def runs_in(folders: list[Path], data: Path) -> list[LawRun]:
    """The runs on ``data`` that the law applies to."""
    flagship, shards, found = to_dict(load_recipe("mini")), open_shards(data), []
    difficulty = compression(shards.train, shards.heldout, shards.unigram_counts)
    for folder in folders:
        if missing := [name for name in NEEDED if not (folder / name).is_file()]:
            print(f"{folder.name}: passed over, it has no {missing[0]}")
            continue
        run = RunFolder(folder)
        unknown = why_not(to_dict(load_recipe(folder)), flagship)
        loss, unigram = heldout(run, data)
        one = replace(law_run(run, folder.name, difficulty), loss=round(loss, 5), unigram_loss=round(unigram, 5))
        if not unknown and one.loss > one.unigram_loss - PLATEAU_MARGIN:
            unknown = "it is on the unigram plateau"
        if not unknown and one.unique != shards.manifest.train.tokens:
            unknown = "it was trained on other data"
        if not unknown and not is_even(run):
            unknown = "its speed changed too much on the way"
        if unknown:
            print(f"{folder.name}: passed over, {unknown}")
        else:
            found.append(one)
    return found


def recorded(folder: Path) -> list[LawRun]:
    """The runs of all records."""
    found: list[LawRun] = []
    for path in sorted(folder.glob("*law-runs*.json")):
        found += [from_dict(LawRun, run) for run in read_json(path)["runs"]]
    return found


def runs_of_study(folder: Path) -> list[LawRun]:
    """The cells of a ``daybreak study-data``, each with its training text."""
    study: DataStudy = read_json(folder / DATA_STUDY_FILE, DataStudy)
    found: list[LawRun] = []
    for text in study.texts:
        name = slug(data_variant(text.source, text.preprocessing))
        cells = sorted(path for path in (folder / "cells").glob(f"{name}-seed-*") if path.is_dir())
        found += runs_in(cells, folder / "data" / text.folder)
    return found


def judged(runs: list[LawRun], groups: list[Any]) -> dict[str, Any]:
    """Error of each run under a law fitted without it."""
    apart = [each.fitted / each.loss - 1.0 for each in leave_out(runs, groups)]
    if not apart:
        return {"runs": 0}
    return {
        "runs": len(apart),
        "mean_error": float(np.mean(np.abs(apart))),
        "largest_error": float(np.max(np.abs(apart))),
        "bias": float(np.mean(apart)),
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="run folders whose facts are kept")
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare that they were trained on")
    parser.add_argument("--study", type=Path, help="folder of a daybreak study-data whose cells are kept")
    parser.add_argument("--keep", type=Path, help="where they are kept")
    parser.add_argument("--records", type=Path, help="folder of records to fit on")
    parser.add_argument("--law", type=Path, help="where the law goes that the package carries")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.records = measure.ROOT / "records"
    if chosen.runs or chosen.study:
        runs = runs_of_study(chosen.study) if chosen.study else runs_in(chosen.runs, chosen.data)
        write_json(chosen.keep or Path("law-runs.json"), {**measure.record("law runs", {}), "runs": runs})
        print(f"{len(runs)} runs kept")
    if not chosen.records:
        return
    runs = recorded(chosen.records)
    if not runs:
        sys.exit(f"'{chosen.records}' holds no run that the law speaks of.")
    law = fit(runs)
    found = {
        "a fifth": judged(runs, [number % FOLDS for number in range(len(runs))]),
        "a text": judged(runs, [round(run.unigram_loss, 1) for run in runs]),
        "a size": judged(runs, [run.inner for run in runs]),
    }
    measure.finish({**measure.record("law", {"folds": FOLDS}), "left_out": found, "law": law}, chosen.out)
    if chosen.law:
        write_json(chosen.law, law)
    rows = [
        [one.name, f"{one.loss:.3f}", f"{one.fitted:.3f}", f"{one.fitted / one.loss - 1:+.1%}"] for one in law.residuals
    ]
    print(measure.table(["run", "loss", "law", "apart"], rows))
    for what, seen in found.items():
        told = (
            "too few others"
            if not seen["runs"]
            else (
                f"{seen['runs']} of {len(runs)} runs, mean error {seen['mean_error']:.1%}, "
                f"largest {seen['largest_error']:.1%}, bias {seen['bias']:+.1%}"
            )
        )
        print(f"Forecasts without {what}: {told}.")


if __name__ == "__main__":
    main()
