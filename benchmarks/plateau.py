"""What is the causal first stage worth? The same recipe with and without it, at the same budget, in turns.

    python benchmarks/plateau.py --data DATA --seeds 3 --out plateau.json
    python benchmarks/plateau.py --data DATA --rates 2e-3,4e-3,8e-3      each arm at several learning rates

Compared is the loss on the fixed held-out positions beside the unigram loss. A stage must not get the credit for a
better learning rate, hence --rates. A claim takes 3 seeds a side and a difference above the larger spread (RULES.md).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import measure
import toy

CLAIM_SEEDS = 3
ARMS = {"causal first": "", "masked only": "--objective.causal-share 0"}


def schedule(arms: list[str], seeds: int) -> list[tuple[int, str]]:
    """(seed, arm) in turns; every other seed goes the other way round, so that no arm is always first."""
    return [(seed, arm) for seed in range(seeds) for arm in (arms if seed % 2 == 0 else arms[::-1])]


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What is compared, from a run's summary."""
    seen = summary["validation"]
    return {
        **{name: seen[name] for name in ("loss", "unigram_loss", "accuracy", "commonest_share", "distinct")},
        "below_unigram": seen["unigram_loss"] - seen["loss"],
        **{name: summary[name] for name in ("steps", "tokens", "epochs", "elapsed", "tokens_per_second")},
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of each arm over its seeds, the best loss first."""
    found = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        same = [run for run in runs if run["arm"] == arm]
        line: dict[str, Any] = {"arm": arm, "causal": same[0]["causal"], "seeds": [run["seed"] for run in same]}
        for name in ("loss", "unigram_loss", "below_unigram", "accuracy", "distinct", "steps", "tokens"):
            line[name], line[f"{name}_spread"] = measure.mean_and_spread([run[name] for run in same])
        found.append(line)
    return sorted(found, key=lambda line: line["loss"])


def verdict(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best arm with the stage against the best without; None while one of the two is missing."""
    best = {causal: next((line for line in lines if line["causal"] is causal), None) for causal in (True, False)}
    with_stage, without = best[True], best[False]
    if with_stage is None or without is None:
        return None
    gain = without["loss"] - with_stage["loss"]
    spread = max(with_stage["loss_spread"], without["loss_spread"])
    enough = min(len(with_stage["seeds"]), len(without["seeds"])) >= CLAIM_SEEDS
    return {
        "with": with_stage["arm"],
        "without": without["arm"],
        "gain_nats": gain,
        "spread": spread,
        "claim": enough and abs(gain) > spread,
    }


def render(lines: list[dict[str, Any]]) -> str:
    """The table of a record."""
    head = ["arm", "seeds", "loss", "unigram", "below", "accuracy", "distinct", "steps", "Mtok"]
    rows = [
        [
            line["arm"],
            str(len(line["seeds"])),
            f"{line['loss']:.3f} +- {line['loss_spread']:.3f}",
            f"{line['unigram_loss']:.3f}",
            f"{line['below_unigram']:+.3f}",
            f"{line['accuracy']:.2%} +- {line['accuracy_spread']:.2%}",
            f"{line['distinct']:.0f}",
            f"{line['steps']:.0f}",
            f"{line['tokens'] / 1e6:.2f}",
        ]
        for line in lines
    ]
    return measure.table(head, rows)


def arms_of(rates: list[str]) -> dict[str, tuple[bool, str]]:
    """Name -> (with the causal stage, flags), for both arms at each rate; the recipe's own rate where none is named."""
    found = {}
    for (name, flags), rate in itertools.product(ARMS.items(), rates or [""]):
        label = f"{name}, lr {rate}" if rate else name
        found[label] = (not flags, f"{flags} --optimizer.lr {rate}" if rate else flags)
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--budget", default="180s")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rates", default="", help="peak learning rates, with commas between; else the recipe's own")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.flags = chosen.flags or measure.SHORT_FLAGS
        chosen.budget, chosen.seeds = "30steps", 1
    arms = arms_of([rate for rate in chosen.rates.split(",") if rate])
    settings = {name: getattr(chosen, name) for name in ("recipe", "flags", "budget", "seeds", "rates")}
    found: dict[str, Any] = {**measure.record("plateau", settings), "runs": []}
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        for number, (seed, arm) in enumerate(schedule(list(arms), chosen.seeds)):
            run = one_run(chosen, data, work / f"plateau-{number}", seed, *arms[arm])
            found["runs"].append({"arm": arm, **run})
            found["arms"] = summarise(found["runs"])
            found["verdict"] = verdict(found["arms"])
            measure.finish(found, chosen.out)
            print(f"{arm}, seed {seed}: loss {run['loss']:.3f}, accuracy {run['accuracy']:.2%}", flush=True)
    print("\n" + render(found["arms"]))
    told = found["verdict"]
    kind = (
        "more than the spread" if told["claim"] else f"no claim ({CLAIM_SEEDS} seeds and more than the spread make one)"
    )
    print(f"\n{told['with']} against {told['without']}: {told['gain_nats']:+.3f} nats gained: {kind}")


def one_run(chosen: Any, data: Path, out: Path, seed: int, causal: bool, flags: str) -> dict[str, Any]:
    """One pretraining and its figures."""
    before = measure.load()
    whole = f"--seed {seed} {flags} {chosen.flags}"
    measure.run(measure.pretrain_command(chosen.recipe, data, out, chosen.budget, whole), out.parent / "log.txt")
    facts = measure.run_facts(out)
    after = measure.load()
    return {
        "seed": seed,
        "causal": causal,
        **figures(facts["summary"]),
        "recipe": facts["recipe"]["fingerprint"],
        "threads": facts["decisions"]["threads"],
        "precision": facts["decisions"]["precision"],
        "load_before": before,
        "load_after": after,
        "void": measure.is_busy(before, after),
    }


if __name__ == "__main__":
    main()
