"""Effect of pretraining: results with it beside results of the same shape without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from daybreak.core.formatting import listed, score
from daybreak.schemas.tasks import CLAIM_SEEDS, ROUNDING, TaskResult

DESCRIBED = 3
"""Maximum number of encoders that have a sentence each."""
NAMED = 5
"""Maximum number of names in a sentence."""
ONE_SEED = "one seed, standard deviation unknown"
"""Verdict of a pair with one seed on one side."""
BEYOND_SPREAD = "more than the standard deviation over seeds"
WITHIN_SPREAD = "within the standard deviation over seeds"
"""Verdicts of the other complete pairs."""
TASKS_WITH_FIGURES = 2
"""Maximum number of lost tasks whose scores the sentence gives."""


@dataclass(frozen=True, kw_only=True)
class TaskPair:
    """One task and model under one protocol, with and without pretraining; either side may be missing."""

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
    def seeds(self) -> tuple[list[int], list[int]]:
        """The seeds of both sides, with pretraining first."""
        return (self.pretrained.seeds if self.pretrained else [], self.untrained.seeds if self.untrained else [])

    @property
    def gain(self) -> float | None:
        """Difference of the means of the headline metric, in its own unit; None if one side is missing."""
        if self.pretrained is None or self.untrained is None:
            return None
        return self.pretrained.mean - self.untrained.mean

    @property
    def verdict(self) -> str:
        """Comparison of the gain with the standard deviation over seeds, in words; empty if one side is missing."""
        if self.gain is None or self.pretrained is None or self.untrained is None:
            return ""
        if min(map(len, self.seeds)) < 2:
            return ONE_SEED
        spread = max(self.pretrained.spread, self.untrained.spread)
        return BEYOND_SPREAD if abs(self.gain) > spread + ROUNDING else WITHIN_SPREAD


def pair_results(results: Iterable[TaskResult]) -> list[TaskPair]:
    """Pair the two results of each task and model, in the order of their first appearance.

    Results on other files or numbers of examples, or with another headline metric, are apart: the task changed between
    them.
    """
    found: dict[tuple[str, str, str, str, str, int, int, int], dict[str, TaskResult]] = {}
    for result in results:
        measured = result.metric, result.files, result.train_rows, result.unlabeled_rows, result.reported_rows
        found.setdefault((result.protocol, result.task, result.model_name, *measured), {})[result.model] = result
    return [
        TaskPair(
            protocol=protocol,
            task=task,
            model_name=name,
            pretrained=sides.get("pretrained"),
            untrained=sides.get("untrained"),
        )
        for (protocol, task, name, *_), sides in found.items()
        if "pretrained" in sides or "untrained" in sides
    ]


def baseline_sentences(encoders: Mapping[str, Sequence[TaskResult]]) -> str:
    """Return ``baseline_sentence`` of each encoder by its name; one sentence for all if there are many."""
    found = {name: [result for result in each if result.model == "pretrained"] for name, each in encoders.items()}
    found = {name: each for name, each in found.items() if each}
    if len(found) <= DESCRIBED:
        return " ".join(baseline_sentence(each, name) for name, each in found.items())
    results = [result for each in found.values() for result in each]
    repeated = any(len({result.task for result in each}) < len(each) for each in found.values())
    things, where = ("Results in", "in") if repeated else ("Tasks on", "on")
    beaten = [f"{name} {where} {sum(r.beats_baseline for r in each)} of {len(each)}" for name, each in found.items()]
    notes = [f"{things} which an encoder beats its baselines: {', '.join(beaten)}."]
    if any(not result.bag_of_words for result in results):
        notes.append("Some results have no bag-of-words baseline.")
    if any(result.bag_of_words_part for result in results):
        notes.append("Some bags of words were fitted on a part of the training rows.")
    if any(result.leaks for result in results):
        notes.append("Some dev or test rows are also training rows.")
    if any(len(result.seeds) < CLAIM_SEEDS for result in results):
        notes.append(f"Some results have fewer than {CLAIM_SEEDS} seeds, too few for a claim.")
    return " ".join(notes)


def baseline_sentence(results: Iterable[TaskResult], who: str = "") -> str:
    """Return sentences that say on which tasks the encoder beats its baselines; empty without results.

    Up to TASKS_WITH_FIGURES tasks are named with their scores. The encoder beats the baselines on a task where its
    mean, less the standard deviation over seeds, is above the better of the bag of words and the constant answer, and
    the 95 % interval of the difference is above 0.
    Caveats follow: tasks without a bag of words, or with one that was fitted on a part of the training rows, tasks
    whose dev or test rows are also training rows, and tasks with fewer than CLAIM_SEEDS seeds.

    Args:
        results: those of untrained networks are left out; each of several models has sentences of its own.
        who: the subject of the sentence; "This encoder" if it is empty.
    """
    found = [result for result in results if result.model == "pretrained"]
    if not found:
        return ""
    by_name: dict[str, list[TaskResult]] = {}
    for result in found:
        by_name.setdefault(", ".join(filter(None, (who, result.model_name))), []).append(result)
    if len(by_name) > 1:
        return baseline_sentences(by_name)
    who = who or "This encoder"
    names = _names(found)
    constant_alone = [result for result in found if not result.bag_of_words]
    baselines = "the constant answer" if len(constant_alone) == len(found) else "its baselines"
    lost = [result for result in found if not result.beats_baseline]
    things = "tasks" if len({result.task for result in found}) == len(found) else "results"
    figures = len(lost) <= TASKS_WITH_FIGURES
    against = listed([names[each.key] + (f" ({_against(each)})" if figures else "") for each in lost], NAMED)
    if not lost:
        which = names[found[0].key] if len(found) == 1 else f"all {len(found)} {things}"
        sentence = f"{who} beats {baselines} on {which}."
    elif len(lost) == len(found) and not figures:
        sentence = f"{who} does not beat {baselines} on any of {len(found)} {things}."
    elif len(lost) == len(found):
        sentence = f"{who} does not beat {baselines} on {against}."
    else:
        sentence = (
            f"{who} beats {baselines} on {len(found) - len(lost)} of {len(found)} {things}, but not on {against}."
        )
    few = [names[result.key] for result in found if len(result.seeds) < CLAIM_SEEDS]
    notes = []
    if lost and (combined := [result for result in found if result.combined]):
        above = [names[result.key] for result in combined if result.combined_beats_baseline]
        notes.append(
            f"Averaged with the bag of words, its predictions beat the baselines on {_count(above, combined, things)}."
        )
    if constant_alone:
        which = listed([names[each.key] for each in constant_alone], NAMED)
        notes.append(f"There is no bag-of-words baseline for {which}.")
    if partial := [names[result.key] for result in found if result.bag_of_words_part]:
        notes.append(f"The bag of words was fitted on a part of the training rows of {listed(partial, NAMED)}.")
    notes += [
        f"{result.leaked_rows:,} of the {result.reported_rows:,} {result.reported} rows of {names[result.key]} are "
        "also training rows."
        for result in found
        if result.leaks
    ]
    if few:
        which = f"Each of the {things}" if len(few) == len(found) > 1 else listed(few, NAMED)
        has = "has" if len(few) == 1 or len(few) == len(found) else "have"
        notes.append(f"{which} {has} fewer than {CLAIM_SEEDS} seeds, too few for a claim.")
    return " ".join([sentence, *notes])


def _count(above: Sequence[str], of: Sequence[TaskResult], things: str) -> str:
    if len(of) == 1:
        return above[0] if above else "no task"
    return f"{len(above)} of {len(of)} {things}" if above else f"none of {len(of)} {things}"


def _names(results: Sequence[TaskResult]) -> dict[tuple[str, str, str, str], str]:
    """The name of each result: its task, with the protocol if there are several."""
    several = len({each.protocol for each in results}) > 1
    return {each.key: each.task + (f" under {each.protocol}" if several else "") for each in results}


def _against(result: TaskResult) -> str:
    name, best = result.best_baseline
    spread = f" +- {score(result.spread)}" if len(result.seeds) > 1 else ""
    seeds = f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
    unsure = f", a lead that {result.reported_rows:,} rows and {seeds} do not show" if result.above_baseline else ""
    return f"{score(result.mean)}{spread} against {score(best)} for the {name}{unsure}"


def several_models(pairs: Iterable[TaskPair]) -> bool:
    """Whether the pairs belong to more than one model, so that each must be named."""
    return len({pair.model_name for pair in pairs}) > 1
