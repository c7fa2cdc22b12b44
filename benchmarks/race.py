"""Compare the time to a loss of Daybreak and of a tuned run_mlm, on the same text, tokenizer, positions and clock.

    python benchmarks/race.py --data DATA --recipe mini --work runs/race --stage plan
    python benchmarks/race.py --data DATA --recipe mini --work runs/race --out race.json
    python benchmarks/race.py --data DATA --recipe mini --work runs/race --budgets 2m --seeds 3 --sides free

tune: the reference (reference.py: BertForMaskedLM of the recipe's shape under transformers' Trainer, its schedule
fitted to the clock) at several learning rates without dropout, then the best one with dropout, with half and with twice
the batch. The setting with the lowest held-out loss wins, selected on the evaluated positions, which favors the
reference. race: at each budget the winner (at other budgets than the tuned ones the best of --candidates settings),
Daybreak with as many parameters, Daybreak with the shape of --free-recipe and --free-flags, and Cramming's recipe at
the same shape, in turns, each in a process whose clock starts with it; --sides selects them. report: all finished runs
in --work, with these flags or others.

All sides are evaluated at the same times on Daybreak's validation positions, which is not charged. Daybreak is charged
for its own validations and its export as well; the reference for training alone. Each run is a file in --work: finished
ones are kept, so that an interrupted race resumes. A run during which the machine was too busy is invalid and is
repeated by the next call. Runs of another data folder, recipe or number of threads are refused.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measure
import torch
import toy
from race_report import REFERENCE, render, summarize

from daybreak.cli import SPINS
from daybreak.core.files import read_json, write_json
from daybreak.data.sequences.shards import open_shards
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import load_recipe

OURS = ("env", f"GOMP_SPINCOUNT={SPINS}")
"""What our command line sets before torch is there; the reference has torch's default."""
EQUAL, FREE, CRAMMING = "daybreak, same parameters", "daybreak, free shape", "cramming"
SIDES = {"reference": REFERENCE, "same": EQUAL, "free": FREE, "cramming": CRAMMING}
BESIDE, LOOK = 8.0, 2.5
"""Seconds of a run beside its budget, for the plan: after Daybreak's export, and about one look of the evaluate."""


@dataclass(frozen=True)
class Run:
    """One run of the race or of the tuning."""

    stage: str
    variant: str
    seconds: float
    seed: int
    setting: str
    """The flags that make it what it is."""

    @property
    def name(self) -> str:
        """Name of its file."""
        words = f"{self.stage} {self.variant} {self.seconds:g}s {self.setting} seed {self.seed}"
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())

    def command(self, chosen: argparse.Namespace, data: Path, work: Path) -> list[str]:
        script = "reference.py" if self.variant == REFERENCE else "judged.py"
        words = [*(() if self.variant == REFERENCE else OURS), sys.executable, str(Path(__file__).with_name(script))]
        words += ["--data", str(data), "--budget", f"{self.seconds:g}s", "--seed", str(self.seed)]
        words += ["--marks", str(chosen.marks), "--threads", str(chosen.threads), "--out", str(work / "curve.json")]
        if self.variant == REFERENCE:
            words += ["--recipe", chosen.recipe, "--length", str(chosen.length), "--save", str(work / "model")]
            return [*words, *shlex.split(self.setting)]
        named, _, flags = self.setting.partition(" ")
        return [*words, "--work", str(work), "--recipe", named, "--flags", f"{flags} --length {chosen.length}"]


# ---------------------------------------------------------------- what is run


def reference_setting(rate: str, dropout: float, batch: int) -> str:
    return f"--rate {rate} --dropout {dropout:g} --batch {batch}"


def rates_of(chosen: argparse.Namespace) -> list[Run]:
    """First part of the tuning: learning rates."""
    settings = [reference_setting(rate, 0.0, chosen.batch) for rate in chosen.rates.split(",")]
    return [tuning(chosen, setting) for setting in settings]


def variations_of(chosen: argparse.Namespace, rate: str) -> list[Run]:
    """Second part of the tuning: the best rate with dropout, with half and with twice the batch."""
    changed = [(0.1, chosen.batch), (0.0, chosen.batch // 2), (0.0, chosen.batch * 2)]
    return [tuning(chosen, reference_setting(rate, *each)) for each in changed[: chosen.variations]]


def tuning(chosen: argparse.Namespace, setting: str) -> Run:
    return Run("tune", REFERENCE, measure.budget_seconds(chosen.tune_budget), 0, setting)


def racing(chosen: argparse.Namespace, tuned: list[str], vocabulary: int) -> list[Run]:
    """Runs of --sides in the order of their turns; ``tuned`` holds settings, the best first."""
    found: list[Run] = []
    shape = load_recipe(chosen.recipe).model
    assert isinstance(shape, ModernEncoder)
    inner = equal_inner(shape, vocabulary, chosen.length)
    equal = f"{chosen.recipe} --model.intermediate-size {inner} {chosen.flags}".strip()
    cramming = (
        f"crammed --size {chosen.recipe.removeprefix('daybreak-')} --model.layers {shape.layers} --model.hidden-size "
        f"{shape.hidden_size} --model.heads {shape.heads} "
        f"--model.intermediate-size {shape.intermediate_size} {chosen.cramming_flags}".strip()
    )
    ours = {EQUAL: equal, FREE: f"{chosen.free_recipe or chosen.recipe} {chosen.free_flags}".strip()}
    for budget, seeds in zip(chosen.budgets.split(","), map(int, chosen.seeds.split(","))):
        best = tuned[: 1 if budget == chosen.tune_budget else chosen.candidates]
        settings = [f"{setting} {chosen.reference_flags}".strip() for setting in best]
        sides = [*((REFERENCE, setting) for setting in settings), *ours.items(), (CRAMMING, cramming)]
        sides = [side for side in sides if side[0] in chosen.sides]
        for seed in range(seeds):
            turn = sides if seed % 2 == 0 else sides[::-1]
            found += [Run("race", side, measure.budget_seconds(budget), seed, setting) for side, setting in turn]
    return found


def parameters_of_bert(shape: ModernEncoder, vocabulary: int, length: int) -> int:
    """Number of parameters of stock_trainer.stock_bert."""
    width = shape.hidden_size
    embeddings = (vocabulary + length + 2) * width + 2 * width
    layer = 12 * width * width + 13 * width
    return embeddings + shape.layers * layer + width * width + 3 * width + vocabulary


def parameters_of_ours(shape: ModernEncoder, vocabulary: int) -> int:
    """Number of parameters of shape.build(vocabulary)."""
    width = shape.hidden_size
    layers = shape.layers * (4 * width * width + 3 * width * shape.intermediate_size + 2 * width) - width
    return vocabulary * width + width + layers + width + width * width + width + vocabulary


def equal_inner(shape: ModernEncoder, vocabulary: int, length: int) -> int:
    """Intermediate size, a multiple of 8, whose number of parameters is closest to the reference's."""
    missing = parameters_of_bert(shape, vocabulary, length) - parameters_of_ours(shape, vocabulary)
    return max(8, round((shape.intermediate_size + missing / (3 * shape.layers * shape.hidden_size)) / 8) * 8)


# ---------------------------------------------------------------- running


def done(run: Run, chosen: argparse.Namespace, work: Path) -> dict[str, Any] | None:
    """Valid result of the run, if any."""
    path = work / f"{run.name}.json"
    return kept(path, chosen) if path.exists() else None


def kept(path: Path, chosen: argparse.Namespace) -> dict[str, Any] | None:
    """Result in a file; None if it is invalid."""
    found: dict[str, Any] = read_json(path)
    if found["held"] != chosen.held:
        sys.exit(f"'{path.name}' belongs to another race ({found['held']}, not {chosen.held}): choose another --work.")
    return None if found["void"] and not chosen.short else found


def made(run: Run, chosen: argparse.Namespace, data: Path, work: Path) -> dict[str, Any]:
    """Result of the run; run it now if there is none."""
    if (before := done(run, chosen, work)) is not None:
        return before
    place = work / run.name
    shutil.rmtree(place, ignore_errors=True)  # of a start that was broken off
    place.mkdir(parents=True)
    watch = measure.Watch()
    wall = measure.run(run.command(chosen, data, place), work / "log.txt")
    told = {**read_json(place / "curve.json"), "wall": wall, **watch.facts(chosen.threads)}
    found = {**asdict(run), "held": chosen.held, **told}
    write_json(work / f"{run.name}.json", found)
    end, void = found["curve"][-1], ", machine busy: void" if found["void"] else ""
    print(f"{run.name}: loss {end['loss']:.3f} after {found['steps']:,} steps{void}", flush=True)
    return found


def tuned(chosen: argparse.Namespace, data: Path, work: Path, *, run: bool) -> list[dict[str, Any]] | None:
    """Results of the tuning, the best first; None if some are missing and ``run`` is false."""

    def all_of(runs: list[Run]) -> list[dict[str, Any]] | None:
        found = [made(each, chosen, data, work) if run else done(each, chosen, work) for each in runs]
        there = [each for each in found if each is not None]
        return sorted(there, key=end_loss) if len(there) == len(found) else None

    first = all_of(rates_of(chosen))
    more = first and all_of(variations_of(chosen, rate_in(first[0])))
    return sorted([*first, *more], key=end_loss) if first and more is not None else None


def rate_in(result: dict[str, Any]) -> str:
    return shlex.split(result["setting"])[1]


def end_loss(result: dict[str, Any]) -> float:
    return float(result["curve"][-1]["loss"])


def plan(chosen: argparse.Namespace, vocabulary: int, settings: list[str] | None, work: Path) -> None:
    """Print the planned runs in minutes."""
    tuning_runs = [*rates_of(chosen), *variations_of(chosen, "the-best")]
    unknown = [f"(tuned {place + 1})" for place in range(chosen.candidates)]
    runs = [*(() if settings else tuning_runs), *racing(chosen, settings or unknown, vocabulary)]
    rows, total = [], 0.0
    for run in runs:
        there = (work / f"{run.name}.json").exists() and done(run, chosen, work) is not None
        minutes = 0.0 if there else (run.seconds + BESIDE + LOOK * chosen.marks) / 60
        total += minutes
        rows.append([run.name, "done" if there else f"{minutes:.1f}"])
    print(measure.table(["run", "minutes"], [*rows, ["all that is left", f"{total:.0f}"]]), flush=True)


def parse() -> argparse.Namespace:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser, recipe="mini")
    parser.add_argument("--stage", choices=("all", "plan", "tune", "race", "report"), default="all")
    parser.add_argument("--budgets", default="3m,15m")
    parser.add_argument("--seeds", default="3,1", help="of each budget")
    parser.add_argument("--sides", default=",".join(SIDES), help="who runs")
    parser.add_argument("--tune-budget", default="3m")
    parser.add_argument("--rates", default="5e-4,1e-3,2e-3,3e-3", help="of the reference")
    parser.add_argument("--batch", type=int, default=16, help="of the reference, while its rate is chosen")
    parser.add_argument("--candidates", type=int, default=2, help="tuned settings tried at budgets not tuned at")
    parser.add_argument("--reference-flags", default="", help="of the reference in the race, such as --bf16")
    parser.add_argument("--free-recipe", default="", help="of the free shape; the recipe itself by default")
    parser.add_argument("--free-flags", default="", help="likewise, such as '--model.layers 3'")
    parser.add_argument("--cramming-flags", default="")
    parser.add_argument("--marks", type=int, default=20, help="number of evaluations of each run")
    parser.add_argument("--threads", type=int, default=0, help="of each run; as many as cores by default")
    parser.add_argument("--length", type=int, default=0, help="of a row; the recipe's by default")
    chosen = parser.parse_args()
    chosen.variations = 3
    if chosen.short:
        measure.use_one_thread()
        chosen.recipe, chosen.length, chosen.batch, chosen.marks = "tiny", 32, 4, 3
        chosen.budgets, chosen.tune_budget, chosen.seeds = "30s", "30s", "1"
        chosen.rates, chosen.variations, chosen.candidates = "1e-3", 1, 1
        chosen.flags = chosen.free_flags = chosen.cramming_flags = measure.SHORT_FLAGS
        chosen.cramming_flags += " --ramp.fraction 0"
    elif not chosen.work:
        parser.error("a race takes long: name the folder of its runs with --work, so that it can go on")
    unknown = set(chosen.sides.split(",")) - set(SIDES)
    if unknown:
        parser.error(f"there is no side {', '.join(sorted(unknown))}: --sides takes {', '.join(SIDES)}")
    chosen.sides = [SIDES[side] for side in chosen.sides.split(",")]
    chosen.threads = chosen.threads or torch.get_num_threads()
    chosen.length = chosen.length or load_recipe(chosen.recipe).length
    return chosen


def main() -> None:
    chosen = parse()
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        manifest = open_shards(data).manifest
        chosen.held = f"{chosen.recipe}, {manifest.tokenizer}, {manifest.train.tokens} tokens, {chosen.threads} threads"
        names = "recipe flags budgets seeds sides tune_budget rates batch candidates free_recipe free_flags "
        names += "cramming_flags reference_flags marks threads length held"
        found = measure.record("race", {name: getattr(chosen, name) for name in names.split()})
        best = tuned(chosen, data, work, run=False)
        settings = [result["setting"] for result in best] if best else None
        plan(chosen, manifest.vocabulary, settings, work)
        if chosen.stage == "plan":
            return
        if chosen.stage in ("all", "tune"):
            best = tuned(chosen, data, work, run=True)
        if best is None:
            sys.exit("The reference is not tuned yet: --stage tune does that.")
        runs = racing(chosen, [result["setting"] for result in best], manifest.vocabulary)
        if chosen.stage in ("all", "race"):
            for run in runs:
                made(run, chosen, data, work)
        raced = [result for path in sorted(work.glob("race-*.json")) if (result := kept(path, chosen))]
        found |= {"tuning": best, "race": raced, "summary": summarize(best, raced)}
        measure.finish(found, chosen.out)
        print(render(found["summary"]))


if __name__ == "__main__":
    main()
