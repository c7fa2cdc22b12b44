"""What the model cannot do, or what nobody looked at: said from the records, not by rote."""

from __future__ import annotations

from collections.abc import Sequence

from daybreak.core.formatting import count, significant
from daybreak.core.task_pairs import TaskPair, pair_results
from daybreak.core.terminal import duration
from daybreak.exporting.card_text import line
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import Environment, Summary
from daybreak.schemas.tasks import CLAIM_SEEDS, TaskResult
from daybreak.training.calibration import MANY_EPOCHS


def limits(
    summary: Summary | None,
    results: Sequence[TaskResult],
    environment: Environment,
    corpus: CorpusReport | None,
    longest: int,
) -> str:
    """A list of what the records give reason to say.

    Args:
        longest: positions of the longest row of training.
    """
    found = [
        *(_of_training(summary, environment) if summary else []),
        *_of_tasks(pair_results(results)),
        "It knows the kind of text listed above, and may repeat its errors and its prejudice.",
        *_of_text(corpus),
        f"Rows of more than {longest:,} tokens were never trained on.",
        "It fills gaps and makes features; it does not generate text, and its guesses are not facts.",
        "The licence is not decided by the program: the owner of the training text and of this folder must set it.",
    ]
    return "\n".join(["## Limits", "", *(f"- {sentence}" for sentence in found)])


def _of_training(summary: Summary, environment: Environment) -> list[str]:
    found = [
        f"It read {count(summary.tokens)} tokens in {duration(summary.elapsed)} on {line(environment.device)}: expect "
        "of it what that buys. One run, one seed: another may come out otherwise."
    ]
    if summary.validation.on_plateau:
        found.append("It knows how frequent words are, and hardly anything else.")
    elif summary.context_use and not summary.context_use.attends_across_segments:
        found.append("It does not compare two segments of text: expect results near chance on sentence pairs.")
    if summary.parity is not None and not summary.parity.passed:
        found.append("It failed its parity gate: do not use it.")
    if summary.epochs >= MANY_EPOCHS:
        times = significant(summary.epochs, 2)
        found.append(f"It read its text {times} times over, and may know parts of it by heart: think of what is in it.")
    if summary.parent:
        found.append(f"What it was continued from, {line(summary.parent)}, left it limits that no record here tells.")
    return found


def _of_tasks(pairs: Sequence[TaskPair]) -> list[str]:
    if not pairs:
        return ["It was not fine-tuned on any task yet, so nothing is known of how it does on one."]
    found = []
    moved = [pair for pair in pairs if pair.verdict == "more than the seed spread"]
    harmed = [pair for pair in moved if (pair.gain or 0.0) < 0]
    none = [pair for pair in pairs if pair.verdict == "within the seed spread"]
    alone = [pair for pair in pairs if pair.pretrained is not None and pair.untrained is None]
    few = [pair for pair in pairs if any(len(side.seeds) < CLAIM_SEEDS for side in _sides(pair))]
    if harmed:
        found.append(f"On {_names(harmed)} it does worse than the same network without pretraining.")
    if none:
        found.append(f"On {_names(none)} pretraining made no difference beyond the spread of the seeds.")
    if alone:
        found.append(f"On {_names(alone)} no network without pretraining stands beside it.")
    if few:
        found.append(f"On {_names(few)} a side has fewer than {CLAIM_SEEDS} seeds: no claim rests on it.")
    return found


def _sides(pair: TaskPair) -> list[TaskResult]:
    return [side for side in (pair.pretrained, pair.untrained) if side is not None]


def _names(pairs: Sequence[TaskPair]) -> str:
    names = list(dict.fromkeys(line(f"{pair.task} ({pair.protocol})") for pair in pairs))
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _of_text(corpus: CorpusReport | None) -> list[str]:
    if corpus is None:
        return []
    met = [found for found in corpus.contamination if found.items_found and not found.removed]
    if met:
        return ["Evaluation text stands in what it read (see above): scores on it may be too good."]
    unlooked = not corpus.contamination
    return ["Whether evaluation text stands in what it read was not looked at."] if unlooked else []
