"""Run daybreak pretrain once and evaluate its held-out loss at fixed times that are not charged to the run.

    python benchmarks/judged.py --data DATA --recipe mini --budget 15m --marks 20 --work RUN --out curve.json

Used by race.py together with reference.py. The run uses the normal command line; its clock is stopped only during the
additional evaluations on all held-out positions (its own validations are charged as usual). The first point of the
curve is evaluated before the first step, so its time is that of the start.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import torch
import toy

from daybreak import cli
from daybreak.commands import pretrain
from daybreak.core.files import read_json
from daybreak.core.process import uptime
from daybreak.core.run_folder import RunFolder
from daybreak.pretraining import setup
from daybreak.training import loop
from daybreak.training.clock import BudgetClock, Tick
from daybreak.training.step import Training
from daybreak.training.validation import Validation


class Stopwatch:
    """``uptime()`` with pauses."""

    def __init__(self) -> None:
        self._paused = 0.0
        self._since: float | None = None

    def now(self) -> float:
        return (uptime() if self._since is None else self._since) - self._paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        begun = self._since = uptime()
        try:
            yield
        finally:
            self._paused += uptime() - begun
            self._since = None


class Judge:
    """Evaluate a model at fixed times on the positions of Daybreak's validation.

    Args:
        marks: ascending seconds; a mark that is passed while another is judged is left out.
    """

    def __init__(self, validation: Validation, marks: Sequence[float], watch: Stopwatch):
        self._validation, self._marks, self._watch = validation, list(marks), watch
        self.wanted = bool(marks)
        self.curve: list[dict[str, Any]] = []

    def look(self, model: Any, seconds: float, step: int, tokens: int) -> None:
        """Evaluate ``model`` if a mark is reached, and leave it in training mode."""
        if not self._marks or seconds < self._marks[0]:
            return
        self._marks = [mark for mark in self._marks if mark > seconds]
        self.evaluate(model, seconds, step, tokens)

    def evaluate(self, model: Any, seconds: float, step: int, tokens: int) -> None:
        with self._watch.pause():
            model.eval()
            seen = self._validation.measure(
                model, rows=self._validation.rows, step=step, tokens=tokens, tick=Tick(seconds, 0.0), final=False
            )
            model.train()
        self.curve.append(
            {"seconds": round(seconds, 3), "step": step, "tokens": tokens, "loss": seen.loss, "accuracy": seen.accuracy}
        )

    def facts(self) -> dict[str, Any]:
        """The curve and a fingerprint of the evaluated positions; runs with equal ``positions`` are comparable."""
        found = hashlib.blake2b(digest_size=8)
        for tensor in self._validation.cases():
            found.update(tensor.cpu().numpy().tobytes())
        return {
            "positions": found.hexdigest(),
            "unigram_loss": self._validation.unigram_loss,
            "curve": self.curve,
        }


def marks_of(seconds: float, count: int) -> list[float]:
    """The start and ``count`` later times, the last at the end; empty for a count of 0."""
    if count == 0:
        return []
    return [seconds * mark / count for mark in range(count + 1)]


class JudgedClock(BudgetClock):
    """Budget clock that pauses for an evaluation before a step."""

    training: Training | None = None
    evaluate: Judge | None = None

    def __init__(self, *arguments: Any, **settings: Any):
        self.watch = Stopwatch()
        super().__init__(*arguments, **settings, now=self.watch.now)

    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        if self.evaluate and self.training:
            with self.training.pause():
                self.evaluate.look(self.training.model, self.elapsed(), step, tokens)
        return super().tick(step, tokens, stopping=stopping)


@contextmanager
def judging(marks: Sequence[float]) -> Iterator[list[Judge]]:
    """Patch pretraining to use a JudgedClock; the yielded list holds its judge once training starts."""
    judges: list[Judge] = []

    def fit(training: Training, progress: Any) -> Any:
        clock = training.clock
        assert isinstance(clock, JudgedClock)
        judges.append(Judge(training.validation, marks, clock.watch))
        clock.training, clock.evaluate = training, judges[0]
        return loop.fit(training, progress)

    plain = pretrain.fit, setup.BudgetClock
    pretrain.fit, setup.BudgetClock = fit, JudgedClock  # type: ignore[misc]
    try:
        yield judges
    finally:
        pretrain.fit, setup.BudgetClock = plain  # type: ignore[misc]


def judged_run(words: list[str], out: Path, marks: Sequence[float]) -> dict[str, Any]:
    """Pretrain into ``out`` with the command line ``words``; return the curve and the facts of the run."""
    with judging(marks) as judges:
        try:
            cli.main(["pretrain", *words, "--out", str(out)])
        except SystemExit as left:
            if left.code:
                raise
    summary = read_json(RunFolder(out).summary)
    final = {name: summary["validation"][name] for name in ("step", "tokens", "loss", "accuracy")}
    facts = judges[0].facts()
    facts["curve"].append({"seconds": summary["elapsed"], **final})
    names = ("steps", "tokens", "epochs", "parameters", "tokens_per_second", "elapsed", "time_by_category")
    return {**facts, **{name: summary[name] for name in names}, "recipe": read_json(RunFolder(out).recipe)}


def add_judging_flags(to: Any, budget: str = "3m") -> None:
    """Flags of both evaluated runs."""
    measure.add_run_flags(to)
    to.add_argument("--budget", default=budget)
    to.add_argument("--marks", type=int, default=20, help="number of evaluations of the run")
    to.add_argument("--seed", type=int, default=0)
    to.add_argument("--threads", type=int, default=0, help="0 for torch's own choice")


def tell(found: dict[str, Any], out: Path | None) -> None:
    """Write and print the curve of an evaluated run."""
    found["threads"] = torch.get_num_threads()
    if out:
        measure.write_json(out, found)
    for point in found["curve"]:
        print(f"{point['seconds']:8.1f} s  step {point['step']:6d}  loss {point['loss']:.3f}")


def main() -> None:
    parser = measure.parser(__doc__)
    add_judging_flags(parser)
    chosen = parser.parse_args()
    seconds = 20.0 if chosen.short else measure.budget_seconds(chosen.budget)
    if chosen.short:
        measure.use_one_thread()
        chosen.budget, chosen.marks, chosen.flags = "20s", 3, chosen.flags or f"{measure.SHORT_FLAGS} --length 32"
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with measure.work_folder(chosen.work, fresh=True) as work:
        data = toy.data_folder(chosen, work)
        words = [chosen.recipe, "--data", str(data), "--budget", chosen.budget, "--seed", str(chosen.seed)]
        found = judged_run([*words, *shlex.split(chosen.flags)], work / "run", marks_of(seconds, chosen.marks))
    tell(found, chosen.out)


if __name__ == "__main__":
    main()
