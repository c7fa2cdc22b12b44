"""What pretraining was worth: results with it beside results of the same shape without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daybreak.base.amounts import score
from daybreak.base.task_records import TaskResult

NAMED = 5
"""Most tasks that a sentence lists."""


@dataclass(frozen=True, kw_only=True)
class TaskPair:
    """One task and model under one protocol, with and without pretraining; either side may not have been run."""

    protocol: str
    task: str
    model_name: str
    pretrained: TaskResult | None
    untrained: TaskResult | None

    @property
    def either(self) -> TaskResult:
        found = self.pretrained or self.untrained
        assert found is not None
        return found

    @property
    def gain(self) -> float | None:
        """Difference of the means of the headline metric, in its own unit; None where one side is missing."""
        if self.pretrained is None or self.untrained is None:
            return None
        return self.pretrained.mean - self.untrained.mean

    @property
    def verdict(self) -> str:
        """The gain weighed against the seed spread, in words; empty where one side is missing."""
        if self.gain is None or self.pretrained is None or self.untrained is None:
            return ""
        if min(len(self.pretrained.seeds), len(self.untrained.seeds)) < 2:
            return "one seed, spread unknown"
        spread = max(self.pretrained.spread, self.untrained.spread)
        return "more than the seed spread" if abs(self.gain) > spread else "within the seed spread"


def pair_results(results: Iterable[TaskResult]) -> list[TaskPair]:
    """Bring the two results of each task and model together, in the order in which they first appear."""
    found: dict[tuple[str, str, str], dict[str, TaskResult]] = {}
    for result in results:
        found.setdefault((result.protocol, result.task, result.model_name), {})[result.model] = result
    return [
        TaskPair(
            protocol=protocol,
            task=task,
            model_name=name,
            pretrained=sides.get("pretrained"),
            untrained=sides.get("untrained"),
        )
        for (protocol, task, name), sides in found.items()
        if "pretrained" in sides or "untrained" in sides
    ]


def baseline_sentence(results: Iterable[TaskResult]) -> str:
    """Say whether the encoder beats the baselines that need no network, also where it does not; empty without results.

    It beats them on a task where its mean, less the spread over seeds, is above the better of the bag of words and the
    constant answer.
    """
    found = [result for result in results if result.model == "pretrained"]
    if not found:
        return ""
    lost = [result for result in found if not result.beats_baseline]
    won = len(found) - len(lost)
    if not lost:
        which = found[0].task if len(found) == 1 else f"all {len(found)} tasks"
        return f"This encoder beats its baselines on {which}."
    best = [(result, *result.best_baseline) for result in lost[:NAMED]]
    named = [f"{result.task} ({score(result.mean)} against {score(top)} of the {name})" for result, name, top in best]
    more = [f"{len(lost) - NAMED} others"] if len(lost) > NAMED else []
    where = " and ".join(filter(None, [", ".join([*named, *more][:-1]), [*named, *more][-1]]))
    if not won:
        return f"This encoder does not beat its baselines: {where}."
    return f"This encoder beats its baselines on {won} of {len(found)} tasks, and not on {where}."


def several_models(pairs: Iterable[TaskPair]) -> bool:
    """Whether the pairs are of more than one model, so that each must be named."""
    return len({pair.model_name for pair in pairs}) > 1
