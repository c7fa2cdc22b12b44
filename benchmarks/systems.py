"""Train every recipe of the literature at one size, for the same time, on the same text.

    python benchmarks/systems.py --corpus TEXT --budget 8m --parallel 2 --work runs/systems --out systems.json
    python benchmarks/systems.py --corpus TEXT --budget 3m --recipes ladder --work runs/ladder --out ladder.json

Each recipe prepares the text with its own tokenizer and sequences and trains with its own settings at --size. Losses of
different tokenizers are not comparable, so each run is compared with the unigram baseline on its own held-out text.
--parallel runs share the machine, one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.serialization import fingerprint, to_dict
from daybreak.recipe import load_recipe, recipe_names

SYSTEMS = ("bert-2018", "bert-8gb", "crammed", "crammed-legacy", "crammed-8gpu", "bert-gpu", "scibert", "daybreak-mini")
LEFT_PLATEAU = 0.5
"""Nats below the unigram baseline from which on a run counts as having left the plateau for good."""


def chosen_recipes(asked: str) -> list[str]:
    """``systems``, ``ladder``, or names separated by commas."""
    ladder = [name for name in recipe_names() if name.startswith("ladder-")]
    return {"systems": list(SYSTEMS), "ladder": ladder}.get(asked, asked.split(","))


def size_flags(name: str, size: str) -> list[str]:
    """Flags of the size; the flagship has it in its name."""
    return [] if name.startswith("daybreak-") else ["--size", size]


def prepared(name: str, size: str, corpus: list[str], work: Path) -> Path:
    """Data prepared for the recipe; recipes with the same preparation share a folder."""
    recipe = load_recipe(name, size="" if name.startswith("daybreak-") else size)
    folder = work / f"data-{fingerprint({'tokenizer': to_dict(recipe.tokenizer), 'texts': to_dict(recipe.texts)})}"
    sentences = ["--split-sentences"] if type(recipe.rows).__name__ == "SentencePairs" else []
    command = ["prepare", *corpus, "--out", str(folder), "--recipe", recipe.name, *size_flags(name, size), *sentences]
    measure.run(measure.daybreak(*command), work / "prepare.log")
    return folder


def trained(name: str, data: Path, chosen: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Train one recipe and return its line of the table."""
    out, before = work / name, measure.load()
    flags = [*size_flags(name, chosen.size), *shlex.split(chosen.flags)]
    command = measure.pretrain_command(name, data, out, chosen.budget, shlex.join(flags))
    measure.run(command, work / f"{name}.log")
    facts = measure.run_facts(out)
    summary, recipe = facts["summary"], facts["recipe"]
    seen = summary["validation"]
    gap = seen["unigram_loss"] - seen["loss"]
    return {
        "recipe": name,
        "batch": facts["decisions"]["batch"],
        "learning_rate": recipe["optimizer"]["lr"],
        "parameters": summary["parameters"],
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "seconds": summary["elapsed"],
        "loss": round(seen["loss"], 4),
        "unigram_loss": round(seen["unigram_loss"], 4),
        "below_unigram": round(gap, 4),
        "accuracy": round(seen["accuracy"], 4),
        "own_loss": seen.get("own_loss"),
        "own_accuracy": seen.get("own_accuracy"),
        "next_accuracy": seen.get("next_accuracy"),
        "left_plateau": gap >= LEFT_PLATEAU,
        "parity": summary["parity"]["passed"],
        "precision": facts["decisions"]["precision"],
        "load": [before, measure.load()],
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--corpus", nargs="+", default=[], help="the text; toy text with --short")
    parser.add_argument("--recipes", default="systems", help="systems, ladder, or names by comma")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--budget", default="8m")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--flags", default="", help="more flags for daybreak pretrain, in one string")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = chosen_recipes(chosen.recipes)
    with measure.work_folder(chosen.work) as work:
        if chosen.short:
            chosen.size, chosen.budget, names = "tiny", "20steps", ["bert-8gb", "crammed"]
            chosen.flags = "--batch 8 --ramp.fraction 0 --length 32 --model.layers 1"
            chosen.corpus = [str(toy.toy_text(work))]
        if not chosen.corpus:
            sys.exit("Name the text with --corpus, or use --short.")
        data = {name: prepared(name, chosen.size, chosen.corpus, work) for name in names}
        settings = {"budget": chosen.budget, "size": chosen.size, "parallel": chosen.parallel, "flags": chosen.flags}
        found = measure.record("systems", settings | {"corpus": [Path(text).name for text in chosen.corpus]})
        begun = time.monotonic()
        with ThreadPoolExecutor(max(1, chosen.parallel)) as pool:
            waiting = [pool.submit(trained, name, data[name], chosen, work) for name in names]
            for line in waiting:
                found.setdefault("runs", []).append(line.result())
                print(json.dumps(found["runs"][-1]), flush=True)
                measure.finish(found, chosen.out)
        found["seconds"] = round(time.monotonic() - begun, 1)
        measure.finish(found, chosen.out)
        pages = [str(work / name) for name in names]
        measure.run(measure.daybreak("report", *pages, "--out", str(work / "report.html")), work / "report.log")
        print(f"Report: {work / 'report.html'}")


if __name__ == "__main__":
    main()
