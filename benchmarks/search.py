"""Search in the text of a run: how long the index takes, how long an answer, and how much memory.

    python benchmarks/search.py RUN --data DATA --out search.json

The index is built by the command in a new process, unless --index names one that is complete. An answer is timed in
two ways: in a process that has the index open already (median over the queries, each asked once before), and as the
whole command in a new process. Memory is the highest resident set of each process; it counts pages of the memory-mapped
index that were read. No text goes into the record.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json
from daybreak.core.process import most_resident, peak_bytes
from daybreak.schemas.search import SearchIndex
from daybreak.searching.index import STATE

QUERIES = (
    "how to sort an array", "open a file for reading", "the history of the war", "a function that returns a string",
    "temperature and pressure", "connect to a server over the network", "the king and his army",
    "convert text to lower case", "the number of people living in the city", "an error is raised if the value is wrong",
)  # fmt: skip
METHODS = ("bm25", "dense", "hybrid")


def build(run: Path, data: Path, index: Path, work: Path) -> dict[str, float]:
    """Build the index in a new process; seconds and the peak memory of the largest process that ended here."""
    words = measure.daybreak("search", str(run), "--data", str(data), "--index", str(index))
    seconds = measure.run(words, work / "log.txt")
    return {"seconds": seconds, "peak_bytes": most_resident(resource.RUSAGE_CHILDREN)}


def answer(run: Path, data: Path, index: Path, method: str) -> dict[str, Any]:
    """Seconds of each query with the index open, all of them asked once before; called in a new process."""
    from daybreak.searching.query import open_search

    begun = time.monotonic()
    searcher = open_search(run, data=data, index=index, method=method)
    opened = time.monotonic() - begun
    first = _timed(searcher, QUERIES[0], method)
    for query in QUERIES:
        searcher.search(query, method=method)
    seconds = [_timed(searcher, query, method) for query in QUERIES]
    found = {"open_seconds": opened, "first_seconds": first, "seconds": seconds, "median": statistics.median(seconds)}
    return {**found, "peak_bytes": peak_bytes()}


def _timed(searcher: Any, query: str, method: str) -> float:
    begun = time.monotonic()
    searcher.search(query, method=method)
    return time.monotonic() - begun


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="a finished run; a toy with --short")
    parser.add_argument("--data", type=Path, help="its prepared data; RUN/data by default")
    parser.add_argument("--index", type=Path, help="keep the index here; one that is complete is used as it is")
    chosen = parser.parse_args()
    if not chosen.run and not chosen.short:
        sys.exit("Name a finished run, or try the script with --short.")
    watch = measure.Watch()
    with measure.work_folder(chosen.work) as work:
        run, data = _source(chosen, work)
        index = chosen.index or work / "index"
        found = measure.record("search", {"methods": METHODS, "queries": len(QUERIES)})
        found["environment"] = measure.thread_settings()
        if not (index / STATE).is_file():
            found["build"] = build(run, data, index, work)
        state: SearchIndex = read_json(index / STATE, SearchIndex)
        manifest = read_json(data / "manifest.json")
        found["index"] = {
            "passages": state.passages,
            "hidden_size": state.hidden_size,
            "precision": state.precision,
            "bytes": sum(path.stat().st_size for path in index.rglob("*") if path.is_file()),
            "characters": manifest["characters"],
            "tokens": manifest["train"]["tokens"] + manifest["heldout"]["tokens"],
        }
        found["answers"] = {}
        for method in METHODS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                answers = pool.apply(answer, (run, data, index, method))
            words = ["search", str(run), QUERIES[0], "--data", str(data), "--index", str(index), "--method", method]
            command = [measure.run(measure.daybreak(*words), work / "log.txt") for _ in range(3)]
            found["answers"][method] = {**answers, "command_seconds": statistics.median(command)}
            found |= watch.facts(found["environment"]["threads"])
            measure.finish(found, chosen.out)
    rows = [
        [name, *(f"{seen[key]:.3f}" for key in ("median", "open_seconds", "command_seconds"))]
        + [f"{seen['peak_bytes'] / 2**20:,.0f}"]
        for name, seen in found["answers"].items()
    ]
    print(f"{state.passages:,} passages, {found['index']['bytes'] / 1e6:,.0f} MB on disk")
    if "build" in found:
        print(f"Index: {found['build']['seconds']:.1f} s, {found['build']['peak_bytes'] / 2**20:,.0f} MiB")
    print(measure.table(["answer", "median s", "open s", "whole command s", "peak MiB"], rows))
    if found["void"]:
        print("The machine was busy: void.")


def _source(chosen: argparse.Namespace, work: Path) -> tuple[Path, Path]:
    """The run and its data; with --short a run of some steps on toy data."""
    if chosen.run:
        return chosen.run, chosen.data or chosen.run / "data"
    measure.use_one_thread()
    data, run = toy.data_folder(chosen, work), work / "run"
    flags = f"{measure.SHORT_FLAGS} --length 32"
    measure.run(measure.pretrain_command("tiny", data, run, "20steps", flags), work / "log.txt")
    return run, data


if __name__ == "__main__":
    main()
