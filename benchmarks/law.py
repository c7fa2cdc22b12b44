"""Fit the scaling law on finished runs, and measure how well it forecasts runs that it was not fitted to.

    python benchmarks/law.py --data data/wiki --runs runs/a studies/rate/cells/* --keep law-runs-wiki.json
    python benchmarks/law.py --data data/wiki --again records/2026-11-24-law-runs-wiki.json --keep law-runs-wiki.json
    python benchmarks/law.py --study studies/text --keep law-runs-text.json
    python benchmarks/law.py --records records --law src/daybreak/forecasting/law.json --out law.json
    python benchmarks/law.py --check runs/a runs/b --out forecasts.json

The first form writes a record with the features of each run on these data: sizes, losses and training curve. The second
takes the runs of an earlier record instead, and measures the difficulty of their text again. The third does the same as
the first for all cells of a study-data. The fourth fits all such records (*law-runs*.json), and the held-out losses
during the runs that are recorded as folders. It writes the law that ships with the package, and measures it on runs
left out of the fit: a fifth of them, all of one text, all of one size. The fifth compares the forecasts that this
version makes at the start and during finished runs with the losses that they reached.
Runs of other recipes than the flagship's are skipped with a message.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from scipy import optimize

from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.forecasting.difficulty import BIGRAM_WEIGHT, measures
from daybreak.forecasting.law import (
    CENTRE,
    RunSpec,
    course_means,
    effective_tokens,
    gradient,
    inner_parameters,
    log_fraction,
    shipped_law,
    why_not,
)
from daybreak.forecasting.live import ForecastMonitor
from daybreak.models.importing import load_pretrained
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import load_recipe
from daybreak.reporting.studies import data_variant
from daybreak.schemas.forecast import Course, Drop, Forecast, ForecastLog, Law, Residual, UsualLoss
from daybreak.schemas.run import PLATEAU_MARGIN, Decisions, Manifest, StepRecord, Summary, ValidationRecord
from daybreak.schemas.studies import DATA_STUDY_FILE, DataStudy
from daybreak.studies.cell_runner import slug
from daybreak.training.calibration import pace_of

FOLDS = 5
PROGRESS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Points of a run from which the rest of its way is measured."""
NEEDED = ("recipe.json", "data.json", "summary.json", "metrics.jsonl")
MARKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Points of a run at which its training loss is compared with the typical loss."""
UNEVEN = 0.12
"""How far the fraction of its tokens that half of a run reads may be from a half."""
EXPECTED = (math.log(0.15), math.log(0.2), 0.34, math.log(0.3), 0.28, 1.0, 0.0)
UNSURE = (0.5, 0.7, 0.1, 0.7, 0.1, 1.0, 0.5)
"""Prior mean and standard deviation of the coefficients: the exponents of Hoffmann et al. (arXiv:2203.15556, eq. 10),
a floor near that of large models, a million tokens until the loss falls, and no effect of copy heads. The prior matters
only for what the runs leave open, such as the gain of much larger models."""
NOISE = 0.02
"""Initial standard deviation of a run's log loss, which weighs the runs against the prior."""
LINE_NOISE = 0.01
"""Standard deviation of a run around the course of its held-out loss, for the weights of the runs."""
OTHER_WEIGHTS = (0.0, 1.0, 2.0, 4.0, 6.0)
"""Weights of the bigram model whose errors are recorded beside those of the one in use; 0 leaves the compressor."""
FEWEST = 8
"""Fewest runs for a fit, and for the usual loss at a mark."""
FEWEST_COURSES = 16
"""Fewest held-out courses of runs with copy heads, or without, that are measured alone. Of the records, eight gave late
intervals that were too narrow, and twelve, from two lengths and three texts, much wider ones than all runs together."""


# ---------------------------------------------------------------- runs


@dataclass(frozen=True, kw_only=True)
class LawRun:
    """A finished run as input to the fit of the scaling law."""

    name: str
    text: str = ""
    """Word after "law-runs-" in the name of the record: texts of one word are left out of the fit together."""
    inner: int
    """Parameters outside the embedding."""
    tokens: int
    """Training tokens."""
    unique: int
    """Tokens of the training text; fewer than ``tokens`` if it was read more than once."""
    unigram_loss: float
    compression: float
    bigram: float
    """The measures of the difficulty of the text, see ``forecasting.difficulty``."""
    loss: float
    """Final loss on all held-out sequences."""
    copy_heads: bool = False
    course: list[float | None]
    """Mean training loss just before each of MARKS, of the objective at that point; None if nothing was logged."""


def law_run(run: RunFolder, name: str, of_text: tuple[float, float]) -> LawRun:
    """Return a finished run as input of the fit.

    Args:
        run: a run folder or its record: recipe.json, data.json, summary.json and metrics.jsonl.
        of_text: the ``measures`` of the difficulty of the text.
    """
    summary, data = read_json(run.summary, Summary), read_json(run.manifest, Manifest)
    steps, recipe = steps_of(run), read_recipe_file(run.recipe)
    means = course_means([line["progress"] for line in steps], [line["loss"] for line in steps], MARKS)
    return LawRun(
        name=name,
        inner=inner_parameters(summary.parameters, data.vocabulary, recipe["model"]["hidden_size"]),
        tokens=summary.tokens,
        unique=data.train.tokens,
        unigram_loss=round(summary.validation.unigram_loss, 5),
        compression=of_text[0],
        bigram=of_text[1],
        loss=round(summary.validation.loss, 5),
        copy_heads=planted(recipe),
        course=[None if mean is None else round(mean, 5) for mean in means],
    )


def planted(recipe: Mapping[str, Any]) -> bool:
    """Whether the model of a recipe in plain values starts with copy heads; earlier recipes have no such field."""
    return bool(recipe["model"].get("copy_heads"))


def measures_of(shards: Shards) -> tuple[float, float]:
    compression, bigram = measures(shards.train, shards.heldout, shards.unigram_counts)
    return round(compression, 5), round(bigram, 5)


def is_even(run: RunFolder) -> bool:
    """Return whether half of the run read about half of its tokens.

    If the machine stalled, the phases of a timed run cover other fractions of the text than the law assumes.
    """
    steps = steps_of(run)
    half = next((line["tokens"] for line in steps if line["progress"] >= 0.5), math.inf)
    return bool(steps) and abs(half / steps[-1]["tokens"] - 0.5) <= UNEVEN


def steps_of(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that describe steps."""
    return [line for line in read_json_lines(run.metrics) if line["type"] == "step"]


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
    of_text = measures_of(shards)
    for folder in folders:
        if missing := [name for name in NEEDED if not (folder / name).is_file()]:
            print(f"{folder.name}: passed over, it has no {missing[0]}")
            continue
        run = RunFolder(folder)
        unknown = why_not(to_dict(load_recipe(folder)), flagship)
        loss, unigram = heldout(run, data)
        one = replace(law_run(run, folder.name, of_text), loss=round(loss, 5), unigram_loss=round(unigram, 5))
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


def again(records: list[Path], data: Path) -> list[LawRun]:
    """The runs of ``records`` with the difficulty of their text, ``data``, as this version measures it."""
    shards = open_shards(data)
    compression, bigram = measures_of(shards)
    found: list[LawRun] = []
    for path in records:
        for run in read_json(path)["runs"]:
            if run["unique"] != shards.manifest.train.tokens:
                sys.exit(f"{run['name']} of {path} was trained on other data.")
            found.append(from_dict(LawRun, {**run, "compression": compression, "bigram": bigram}))
    return found


def recorded(folder: Path) -> list[LawRun]:
    """The runs of all records."""
    found: list[LawRun] = []
    for path in sorted(folder.glob("*law-runs*.json")):
        text = path.stem.partition("law-runs-")[2].partition("-")[0]
        found += [from_dict(LawRun, {**run, "text": text}) for run in read_json(path)["runs"]]
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


@dataclass(frozen=True, kw_only=True)
class HeldoutCourse:
    """The held-out losses of a finished run, as logarithms of the relative loss."""

    text: float
    """The unigram baseline, which differs from one text or vocabulary to another."""
    copy_heads: bool
    tokens: int
    progress: list[float]
    losses: list[float]
    """At ``progress``; the last one is the final loss, on all positions."""
    positions: tuple[int, int]
    """Of the interim and of the final validation."""
    final_on_interim: float | None
    """The final loss on the positions of the interim validations; None if the run has not stored it."""


def heldout_course(run: RunFolder) -> HeldoutCourse | None:
    """Return the held-out losses of a finished run; None without interim validations."""
    lines = [line for line in read_json_lines(run.metrics) if line["type"] == "validation"]
    if len(lines) < 3 or not lines[-1]["final"]:
        return None
    *_, last, final = lines
    on_interim = final.get("interim_loss")
    return HeldoutCourse(
        text=round(final["unigram_loss"], 3),
        copy_heads=planted(read_recipe_file(run.recipe)),
        tokens=final["tokens"],
        progress=[line["progress"] for line in lines],
        losses=[math.log(line["loss"] / line["unigram_loss"]) for line in lines],
        positions=(last["positions"], final["positions"]),
        final_on_interim=math.log(on_interim / last["unigram_loss"]) if on_interim else None,
    )


def recorded_courses(folder: Path) -> list[HeldoutCourse]:
    """The held-out losses of all recorded runs that the law applies to."""
    flagship, found = to_dict(load_recipe("mini")), []
    for path in sorted(folder.glob("*/recipe.json")):
        run = RunFolder(path.parent)
        fits = not why_not(to_dict(load_recipe(path.parent)), flagship)
        if fits and all((path.parent / name).is_file() for name in NEEDED):
            found += [course] if (course := heldout_course(run)) else []
    return found


# ---------------------------------------------------------------- the fit


def fit(runs: Sequence[LawRun], courses: Sequence[HeldoutCourse], weight: float = BIGRAM_WEIGHT) -> Law:
    """Fit the law, the usual course and the course of the held-out loss.

    Args:
        runs: at least FEWEST runs that left the unigram plateau.
        courses: of at least FEWEST runs.
        weight: of the bigram model in the difficulty.
    """
    if min(len(runs), len(courses)) < FEWEST:
        raise UserError(
            f"{len(runs)} runs and {len(courses)} held-out courses are too few to fit a law on.",
            f"Name at least {FEWEST} of each.",
        )
    facts = facts_of(runs, weight)
    theta, covariance, spread, freedom = coefficients_of(facts, log_losses(runs))
    expected, noise = log_fraction(theta, *facts), noise_of(courses)
    return Law(
        coefficients=[round(float(value), 6) for value in theta],
        covariance=[[float(f"{value:.4g}") for value in row] for row in covariance],
        spread=round(max(spread, spread_on_new_text(runs, weight)), 6),
        freedom=freedom,
        inner=(min(run.inner for run in runs), max(run.inner for run in runs)),
        tokens=(min(run.tokens for run in runs), max(run.tokens for run in runs)),
        epochs=round(max(run.tokens / run.unique for run in runs), 2),
        difficulty=(round(float(facts[2].min()), 5), round(float(facts[2].max()), 5)),
        course=fit_course(False, runs, expected, courses, noise),
        copy_heads_course=fit_course(True, runs, expected, courses, noise),
        noise=round(noise, 4),
        residuals=[
            Residual(name=run.name, loss=round(run.loss, 4), fitted=round(run.unigram_loss * math.exp(at), 4))
            for run, at in zip(runs, expected)
        ],
    )


def fit_course(
    copy_heads: bool,
    runs: Sequence[LawRun],
    expected: np.ndarray,
    courses: Sequence[HeldoutCourse],
    noise: float,
) -> Course:
    """Return the course of the runs with or without copy heads."""
    kind = of_kind(copy_heads, runs, FEWEST)
    seen = [courses[number] for number in of_kind(copy_heads, courses, FEWEST_COURSES)]
    return Course(
        usual=usual_losses([runs[number] for number in kind], expected[kind]),
        drops=drops_of(seen, noise),
        tokens=(min(course.tokens for course in seen), max(course.tokens for course in seen)),
    )


def of_kind(copy_heads: bool, found: Sequence[LawRun | HeldoutCourse], fewest: int) -> list[int]:
    """Return the indices of the runs with or without copy heads, or of all runs if fewer than ``fewest`` are such."""
    kind = [number for number, one in enumerate(found) if one.copy_heads == copy_heads]
    return kind if len(kind) >= fewest else list(range(len(found)))


def facts_of(runs: Sequence[LawRun], weight: float = BIGRAM_WEIGHT) -> np.ndarray:
    """Return N, D, the difficulty and whether there are copy heads, of each run [4, R]."""
    facts = [
        (
            run.inner,
            effective_tokens(run.tokens, run.unique),
            run.compression + weight * run.bigram,
            run.copy_heads,
        )
        for run in runs
    ]
    return np.array(facts, dtype=float).T


def log_losses(runs: Sequence[LawRun]) -> np.ndarray:
    """Return the logarithm of the relative final loss of each run [R]."""
    return np.array([math.log(run.loss / run.unigram_loss) for run in runs])


def coefficients_of(facts: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Return the coefficients [7], their covariance, the residual deviation and the degrees of freedom.

    Uses Huber's loss, as in Hoffmann et al. (section 3.3), so that an outlier has little effect.
    """
    start, width = np.array(EXPECTED), np.array(UNSURE)
    noise = NOISE
    for _ in range(20):  # the weight of the runs and their spread depend on each other

        def errors(theta: np.ndarray, noise: float = noise) -> np.ndarray:
            return np.concatenate([(log_fraction(theta, *facts) - z) / noise, (theta - start) / width])

        found = optimize.least_squares(errors, start, loss="huber", f_scale=1.5)
        apart = found.fun[: len(z)] * noise
        # Degrees of freedom that the coefficients take from the runs rather than from the prior.
        curvature = found.jac.T @ found.jac
        taken = float(np.trace(np.linalg.solve(curvature, curvature - np.diag(width**-2.0))))
        freedom = max(1, round(len(z) - taken))
        spread = math.sqrt(float(apart @ apart) / freedom)
        if abs(spread - noise) < 1e-4 * noise:
            break
        noise = max(spread, 1e-4)
    return found.x, np.linalg.inv(curvature), spread, freedom


def spread_on_new_text(runs: Sequence[LawRun], weight: float) -> float:
    """Return the standard deviation of runs around a law that was fitted without their text; 0 with too few texts.

    Together with the uncertainty of the coefficients, it gives the errors their expected size. Each text has the same
    weight, because a user's text is a new one.
    """
    errors, variances, weights = [], [], []
    for left, theta, covariance in fits_without(runs, [run.text for run in runs], weight):
        facts = facts_of(left, weight)
        slopes = gradient(theta, *facts)
        errors += list(log_losses(left) - log_fraction(theta, *facts))
        variances += list(np.einsum("ir,ij,jr->r", slopes, covariance, slopes))
        weights += [1.0 / len(left)] * len(left)
    if not errors:
        return 0.0
    squares, known_part, share = np.square(errors), np.array(variances), np.array(weights) / sum(weights)

    def excess(spread: float) -> float:
        return float(share @ (squares / (known_part + spread**2))) - 1.0

    return float(optimize.brentq(excess, 1e-4, 10.0)) if excess(1e-4) > 0 else 0.0


def drops_of(courses: Sequence[HeldoutCourse], noise: float) -> list[Drop]:
    """Return how far the held-out loss still falls from each point of PROGRESS."""
    more = np.array([math.log(course.tokens / CENTRE[1]) for course in courses])
    sampling = noise**2 * np.array([1.0 / part - 1.0 / whole for part, whole in (each.positions for each in courses)])
    falls = np.array(
        [np.interp(PROGRESS, each.progress, each.losses, left=math.nan) - each.losses[-1] for each in courses]
    )
    found = []
    for at, column in zip(PROGRESS, falls.T):
        there = np.flatnonzero(~np.isnan(column))
        if len(there) < FEWEST:
            continue
        texts = np.array([courses[number].text for number in there])
        line = weighted_line(more[there], column[there], sampling[there])
        apart = [
            column[left] - np.polyval(weighted_line(more[known], column[known], sampling[known]), more[left])
            for known, left in ((there[texts != text], there[texts == text]) for text in dict.fromkeys(texts))
            if len(known) >= FEWEST
        ] or [column[there] - np.polyval(line, more[there])]
        # Each text has the same weight, as in spread_on_new_text; what the small samples add is not of the runs.
        spread = math.sqrt(max(1e-6, np.mean([np.mean(rest**2) for rest in apart]) - sampling[there].mean()))
        numbers = {"mean": line[1], "slope": line[0], "spread": spread}
        found.append(Drop(at=at, **{name: round(float(value), 6) for name, value in numbers.items()}))
    return found


def weighted_line(x: np.ndarray, y: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    """Return slope and intercept of y over x, where values measured on few positions have less weight."""
    return np.polyfit(x, y, 1, w=1.0 / np.sqrt(LINE_NOISE**2 + sampling))


def noise_of(courses: Sequence[HeldoutCourse]) -> float:
    """Return the standard deviation of the log loss on one position, from final losses on a part of the positions."""
    squares = [
        (course.final_on_interim - course.losses[-1]) ** 2 / (1.0 / course.positions[0] - 1.0 / course.positions[1])
        for course in courses
        if course.final_on_interim is not None and course.positions[0] < course.positions[1]
    ]
    return math.sqrt(np.mean(squares)) if squares else 1.0


def usual_losses(runs: Sequence[LawRun], expected: np.ndarray) -> list[UsualLoss]:
    """Return the usual loss at each mark that enough runs have."""
    found = []
    for place, at in enumerate(MARKS):
        fractions = {
            number: math.log(loss / run.unigram_loss)
            for number, run in enumerate(runs)
            if (loss := run.course[place]) is not None
        }
        if len(fractions) < FEWEST:
            continue
        there, seen = list(fractions), np.array(list(fractions.values()))
        design = np.stack([np.ones(len(there)), expected[there]], axis=1)
        (offset, slope), *_ = np.linalg.lstsq(design, seen, rcond=None)
        above = seen - design @ (offset, slope)
        numbers = {
            "offset": float(offset),
            "slope": float(slope),
            "spread": math.sqrt(float(above @ above) / (len(there) - 2)),
        }
        found.append(UsualLoss(at=at, **{name: round(value, 6) for name, value in numbers.items()}))
    return found


def leave_out(runs: Sequence[LawRun], groups: Sequence[Hashable], weight: float = BIGRAM_WEIGHT) -> list[Residual]:
    """Forecast each run by a law fitted without its group; groups that leave too few runs are skipped."""
    found = []
    for left, theta, _ in fits_without(runs, groups, weight):
        for run, z in zip(left, log_fraction(theta, *facts_of(left, weight))):
            found.append(Residual(name=run.name, loss=run.loss, fitted=run.unigram_loss * math.exp(float(z))))
    return found


def fits_without(
    runs: Sequence[LawRun], groups: Sequence[Hashable], weight: float
) -> Iterator[tuple[list[LawRun], np.ndarray, np.ndarray]]:
    """Yield the runs of each group, and the coefficients and covariance of a law fitted without them.

    Groups that leave too few runs are skipped.
    """
    for group in dict.fromkeys(groups):
        known = [run for run, other in zip(runs, groups) if other != group]
        if len(known) >= FEWEST:
            theta, covariance, *_ = coefficients_of(facts_of(known, weight), log_losses(known))
            yield [run for run, other in zip(runs, groups) if other == group], theta, covariance


def judged(runs: list[LawRun], groups: list[Any], weight: float = BIGRAM_WEIGHT) -> dict[str, Any]:
    """Error of each run under a law fitted without it."""
    apart = [each.fitted / each.loss - 1.0 for each in leave_out(runs, groups, weight)]
    if not apart:
        return {"runs": 0}
    return {
        "runs": len(apart),
        "mean_error": float(np.mean(np.abs(apart))),
        "largest_error": float(np.max(np.abs(apart))),
        "bias": float(np.mean(apart)),
    }


def replayed(run: RunFolder, law: Law) -> list[Forecast]:
    """Return the forecasts that ``law`` makes during a finished run, from its stored forecast and metrics."""
    log, summary = read_json(run.forecast, ForecastLog), read_json(run.summary, Summary)
    data, decisions = read_json(run.manifest, Manifest), read_json(run.decisions, Decisions)
    recipe = read_recipe_file(run.recipe)
    if log.difficulty is None:
        sys.exit(f"{run.path} was forecast by a version that measured the difficulty of a text differently.")
    about = RunSpec(
        inner=inner_parameters(summary.parameters, data.vocabulary, recipe["model"]["hidden_size"]),
        tokens=log.forecasts[0].tokens,
        unique=data.train.tokens,
        unigram_loss=summary.validation.unigram_loss,
        difficulty=log.difficulty,
        copy_heads=planted(recipe),
    )
    timed = Budget.parse(summary.budget).unit == "seconds"
    with tempfile.TemporaryDirectory() as folder:
        monitor = ForecastMonitor(
            law, about, summary.validation.positions, pace_of(decisions).covered if timed else None,
            Path(folder) / "forecast.json",
        )  # fmt: skip
        for line in sorted(read_json_lines(run.metrics), key=lambda line: line.get("progress", 0.0)):
            kind = line.pop("type")
            if kind == "step":
                monitor.on_step(from_dict(StepRecord, line))
            elif kind == "validation":
                monitor.on_validation(from_dict(ValidationRecord, line))
    return monitor.forecasts


def check(run: RunFolder, law: Law) -> dict[str, Any]:
    """Compare the forecasts of ``law`` with the loss of a finished run; each is made at a fraction ``share`` of it."""
    summary = read_json(run.summary, Summary)
    loss = summary.validation.loss
    return {
        "run": run.path.name,
        "recipe": read_recipe_file(run.recipe)["name"],
        "budget": summary.budget,
        "tokens": summary.tokens,
        "loss": round(loss, 4),
        "forecasts": [
            {
                "share": each.made_at,
                "tokens": round(each.tokens),
                "loss": round(each.loss, 4),
                "low": round(each.low, 4),
                "high": round(each.high, 4),
                "inside": each.low <= loss <= each.high,
                "error": round(each.loss / loss - 1.0, 4),
            }
            for each in replayed(run, law)
        ],
    }


# ---------------------------------------------------------------- command line


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="run folders whose facts are kept")
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare that they were trained on")
    parser.add_argument("--again", type=Path, nargs="+", default=[], help="records of other runs on these data")
    parser.add_argument("--study", type=Path, help="folder of a daybreak study-data whose cells are kept")
    parser.add_argument("--keep", type=Path, help="where they are kept")
    parser.add_argument("--records", type=Path, help="folder of records to fit on")
    parser.add_argument("--check", type=Path, nargs="+", default=[], help="finished runs whose forecasts are checked")
    parser.add_argument("--law", type=Path, help="where the law goes that the package carries")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.records = measure.ROOT / "records"
    if (chosen.runs or chosen.again) and not chosen.data:
        parser.error("name the text of the runs with --data")
    if chosen.runs or chosen.again or chosen.study:
        runs = (
            runs_of_study(chosen.study)
            if chosen.study
            else again(chosen.again, chosen.data) + runs_in(chosen.runs, chosen.data)
        )
        write_json(chosen.keep or Path("law-runs.json"), {**measure.record("law runs", {}), "runs": runs})
        print(f"{len(runs)} runs kept")
    if chosen.check:
        checks = [check(RunFolder(folder), shipped_law()) for folder in chosen.check]
        measure.finish({**measure.record("forecasts", {}), "runs": checks}, chosen.out)
        for when, place in (("At the start", 0), ("At the last interim validation", -1)):
            inside = sum(one["forecasts"][place]["inside"] for one in checks)
            print(f"{when}: {inside} of {len(checks)} losses are inside the 90 % interval.")
    if not chosen.records:
        return
    runs = recorded(chosen.records)
    if not runs:
        sys.exit(f"'{chosen.records}' holds no run that the law speaks of.")
    law = fit(runs, recorded_courses(chosen.records))
    groups: dict[str, list[Any]] = {
        "a fifth": [number % FOLDS for number in range(len(runs))],
        "a text": [run.text for run in runs],
        "a size": [run.inner for run in runs],
    }
    found = {what: judged(runs, each) for what, each in groups.items()}
    weights = {
        str(weight): {what: judged(runs, each, weight) for what, each in groups.items()} for weight in OTHER_WEIGHTS
    }
    record = {**measure.record("law", {"folds": FOLDS, "weight": BIGRAM_WEIGHT}), "left_out": found}
    measure.finish({**record, "other_weights": weights, "law": law}, chosen.out)
    if chosen.law:
        write_json(chosen.law, law)
    rows = [
        [one.name, f"{one.loss:.3f}", f"{one.fitted:.3f}", f"{one.fitted / one.loss - 1:+.1%}"] for one in law.residuals
    ]
    print(measure.table(["run", "loss", "law", "apart"], rows))
    for weight, each in weights.items():
        errors = [f"{what} {seen['mean_error']:.1%}" for what, seen in each.items() if seen["runs"]]
        print(f"Mean errors with weight {weight}: {', '.join(errors)}.")
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
