"""The copies on README and docs: tables from records/, the table of recipes, and the examples.

    make tables             renews them; tests/test_docs.py fails when one is not current

A page holds ``<!-- made from: SOURCE -->`` before a copy and ``<!-- until here -->`` after it. SOURCE is
``tables.NAME`` for a function of this file that returns a table as Markdown, ``daybreak recipes``, or the path of a
file.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "records"
COPY = re.compile(r"<!-- made from: (.+?) -->\n.*?<!-- until here -->", re.DOTALL)
"""A copy on a page, with its source."""
DEFAULT_RUN = "2026-11-28-tiny-3m-copy-heads"
DISTILLED = "2026-11-24-tiny-15000steps-distilled"
ALL_ROWS = {
    "`tiny`, 30 minutes of one thread": "2026-11-25-tiny-30m-all-rows.json",
    "`mini`, two hours of one thread": "2026-11-26-mini-2h-all-rows.json",
    "`mini`, two and a half hours of two threads": "2026-11-27-mini-150m-all-rows.json",
}
CURRENT = {"`tiny`, 15,000 steps": "2026-11-23-tiny-15000steps", "`mini`, 2 hours": "2026-11-24-mini-2h"}
SEEDS = [f"2026-11-28-tiny-8000steps-seed-{seed}" for seed in range(3)]
SEEDS_BEFORE = [f"2026-11-25-tiny-8000steps-seed-{seed}" for seed in range(3)]
"""The same steps before copy heads."""
SEEDS_PLAIN = [f"2026-11-26-tiny-8000steps-plain-seed-{seed}" for seed in range(3)]
COPY_HEADS_30 = [f"2026-11-28-tiny-12625steps-copy-heads-seed-{seed}" for seed in range(3)]
SEEDS_30 = {
    "`tiny`": COPY_HEADS_30,
    "`tiny` without copy heads": [
        "2026-11-25-tiny-30m", "2026-11-26-tiny-12625steps-seed-1", "2026-11-26-tiny-12625steps-seed-2",
    ],
    "`crammed --size tiny`": [
        "2026-11-25-crammed-tiny-30m", "2026-11-26-crammed-tiny-seed-1", "2026-11-26-crammed-tiny-seed-2",
    ],
    "`tiny` without views and finish": [
        "2026-11-25-tiny-30m-plain", "2026-11-27-tiny-11747steps-plain-seed-1",
        "2026-11-27-tiny-11747steps-plain-seed-2",
    ],
    "Trainer, BERT of the shape of `tiny`": [
        "2026-11-25-run-mlm-tiny-30m.json", "2026-11-26-run-mlm-tiny-30m-seed-1.json",
        "2026-11-27-run-mlm-tiny-30m-seed-2.json",
    ],
}  # fmt: skip
"""Pretraining seeds after 30 minutes of one thread, or after as many tokens."""
LONGER_COPY_HEADS = "2026-11-28-mini-17438steps-copy-heads"
HOURS = {
    ("`tiny`", 28): SEEDS,
    ("`tiny`", 30): COPY_HEADS_30,
    ("`tiny` without copy heads", 30): SEEDS_30["`tiny` without copy heads"],
    ("`mini` without copy heads", 45): ["2026-11-24-mini-45m"],
    ("`mini`", 100): [LONGER_COPY_HEADS],
    ("`mini`", 110): ["2026-11-28-mini-110m"],
    ("`mini` without copy heads", 120): ["2026-11-25-mini-2h", "2026-11-24-mini-2h"],
    ("`mini` without copy heads", 300): ["2026-11-27-mini-150m"],
}
"""Runs of the flagship on general text, by recipe and minutes of one core."""
VIEWS_RECORD = "2026-11-27-study-views"
VIEWS = {
    "as in the flagship": "views",
    "none": "none",
    "as in the flagship, no causal stage": "no-causal",
    "0.35 of the sequences instead of 0.7": "third",
    "until half of the run instead of a quarter": "half",
    "no token dropped": "clean",
    "longer: 32 to 62 tokens": "long",
}
"""Variants of the sequences of views, and the names of their cells."""
BESIDE_ALL = {
    "`tiny`": "2026-11-25-tiny-30m",
    "`tiny` without views and finish": "2026-11-25-tiny-30m-plain",
    "`crammed --size tiny`": "2026-11-25-crammed-tiny-30m",
    "Trainer, BERT of the shape of `tiny`": "2026-11-25-run-mlm-tiny-30m.json",
}
SEARCHED = {
    "docstrings of the default run": ("2026-11-27-search-docstrings", "2026-11-27-search-docstrings"),
    "text of 478 million characters": ("2026-11-25-search", "2026-11-27-search"),
}
"""By text, the records of the making of the index and of the answers."""
SEARCHES = {
    "general": BESIDE_ALL["`tiny`"],
    "research": "2026-11-26-tiny-science-30m",
    "mixed": "2026-11-26-tiny-mixed-30m",
}
"""Searches in held-out text, by the kind of text that the model has read."""
TEXTS = {
    "wiki": "Wikipedia",
    "books": "books",
    "arxiv": "arXiv abstracts",
    "medquad": "medical questions",
    "articles": "biomedical papers",
}
GPU = "2026-11-26-gpu-h100"
"""Of one call of benchmarks/gpu.py: this name with endings."""
GPU_LATER = "2026-11-27-gpu-h100"
"""Of a second machine: five minutes without compilation, all of ``glue5``, speed beside the Trainer, a killed run."""
GENERAL = "2026-11-26-tiny-12625steps-seed-1"
GENERAL_DOCSTRINGS = "2026-11-26-tiny-general-docstrings-search.json"
LARGER = "2026-11-27-mini-150m"
TWO_PARTS = [f"2026-11-28-tiny-two-parts-wikipedia-seed-{seed}" for seed in range(3)]
"""Two parts of the text are Wikipedia, one is books and one abstracts."""
SEARCH_SEEDS = {
    "`tiny`, 52 million tokens": [f"{record}-search.json" for record in COPY_HEADS_30],
    "`tiny`, 52 million tokens of Wikipedia, books and abstracts": [f"{record}-search.json" for record in TWO_PARTS],
    "`tiny` without copy heads, 52 million tokens": [
        f"{BESIDE_ALL['`tiny`']}/probes.json",
        "2026-11-27-tiny-12625steps-seed-1-search.json",
        "2026-11-27-tiny-12625steps-seed-2-search.json",
    ],
    "`mini`, 35 million tokens": ["2026-11-28-mini-110m-search.json"],
    "`mini`, 71 million tokens": [f"{LONGER_COPY_HEADS}-search.json"],
    "`mini` without copy heads, 71 million tokens": [f"{LARGER}-search.json"],
}
"""Searches in general text by pretraining seeds of the models."""
FIELDS = {
    "arXiv abstracts, biomedical papers": ("science", ("sci-cite", "citation_intent"), "heldout-arxiv"),
    "docstrings of Python packages": ("python", ("packages",), "held-out split"),
    "writing of the US government": ("government", (), "heldout-usgov"),
}
"""Texts of a field: the ending of the records, its tasks and its held-out text."""
BESIDE_CRAMMING = {"`mini`": "2026-11-25-mini-2h", "`crammed --size mini`": "2026-11-25-crammed-mini-2h"}
BESIDE_BERT = {"`mini`": "2026-11-24-mini-2h", "`bert-2018 --size mini`": "2026-11-25-bert-2018-mini-2h"}
OFF_THE_PLATEAU = {
    "crammed": "2026-11-23-crammed-mini-8m",
    "crammed-legacy": "2026-11-26-crammed-legacy-mini-9m",
    "bert-2018": "2026-11-25-bert-2018-mini-2h",
    "bert-8gb": "2026-11-26-bert-8gb-mini-14m",
    "bert-gpu": "2026-11-26-bert-gpu-mini-12m",
    "scibert": "2026-11-26-scibert-mini-8m",
}
CLEARLY_BELOW = 0.5
"""Nats below the unigram baseline at which a run counts as off the plateau."""
FORECASTS = (
    "2026-11-27-forecasts-validations.json",
    "2026-11-28-forecasts-copy-heads.json",
    "2026-11-28-forecasts-copy-heads-later.json",
)
LAW = "2026-11-28-law.json"
EARLIER_LAW = "2026-11-26-law.json"
TASK_LINES = "2026-11-28-task-forecasts.json"
SPEED = "2026-11-27-throughput.json"
SPEED_FLOAT32 = "2026-11-27-throughput-xeon.json"
UNLABELED = "2026-11-27-tiny-3500steps-unlabeled.json"
UNLABELED_SEEDS = [f"2026-11-27-tiny-15m-seed-{seed}-unlabeled.json" for seed in range(3)]
"""Other pretraining seeds and other runs than that of UNLABELED."""
UNLABELED_TASKS = {
    "sst2": "SST-2 accuracy",
    "sci-cite": "sci-cite macro F1",
    "mrpc": "MRPC F1 of different pairs",
    "cola": "CoLA mcc",
}
RACE = "2026-11-22-race"
RACERS = {
    ("reference", 900): "Trainer, BERT of the shape of `mini`, best of seven settings",
    ("reference", 1800): "the same",
    ("cramming", 360): "Cramming's recipe in the shape of `mini`",
    ("daybreak, free shape", 120): "`tiny`, AdamW",
    ("daybreak, same parameters", 180): "`mini`, AdamW",
    ("daybreak, same parameters", 900): "`mini`, AdamW",
}
GLUE = {
    "cola": "CoLA mcc",
    "sst2": "SST-2 accuracy",
    "mrpc": "MRPC F1",
    "stsb": "STS-B Spearman",
    "rte": "RTE accuracy",
}
GLUE_RUNS = {
    "2026-11-21-tiny-wiki-8m/": "`tiny`, AdamW, 8 minutes",
    "2026-11-21-mini-wiki-20m/": "`mini`, AdamW, 20 minutes",
    "2026-11-22-muon-tiny-15m-tasks.json": "`tiny`, Muon, 15 minutes of one thread",
}


def read(name: str) -> Any:
    return json.loads((RECORDS / name).read_text(encoding="utf-8"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:], ""])


def score(result: Mapping[str, Any], decimals: int = 1) -> str:
    """Mean and spread of a result over its fine-tuning seeds, times 100."""
    spread = f" +- {100 * result['spread']:.{decimals}f}" if len(result["seeds"]) > 1 else ""
    return f"{100 * result['mean']:.{decimals}f}{spread}"


def both(result: Mapping[str, Any]) -> str:
    """Mean over the seeds of the score of encoder and bag of words together, times 100; older records have none."""
    return f"{100 * statistics.fmean(result['combined']):.1f}" if "combined" in result else "-"


def constant(result: Mapping[str, Any]) -> str:
    """Score of the constant answer, times 100."""
    return f"{100 * result['baseline']:.1f}"


def bag_of_words(result: Mapping[str, Any]) -> str:
    """Score of the bag of words, times 100."""
    return f"{100 * result['bag_of_words'][result['metric']]:.1f}"


def losses(summary: Mapping[str, Any]) -> dict[str, str]:
    """Held-out loss, accuracy and use of context of a run, by their names in a table."""
    final, context = summary["validation"], summary["context_use"]
    return {
        "held-out loss": f"{final['loss']:.3f}",
        "masked accuracy, %": f"{100 * final['accuracy']:.1f}",
        "loss on masked tokens, without a copy": f"{context['alone']:.2f}",
        "loss on masked tokens, with a copy": f"{context['copy']:.2f}",
    }


def default_run() -> str:
    """The default run beside its baselines on its own task."""
    results = {result["model"]: result for result in read(f"{DEFAULT_RUN}/results.json")}
    ours = results["pretrained"]
    rows = [
        ["constant answer", constant(ours)],
        ["the same network without pretraining", score(results["untrained"])],
        ["bag of words (TF-IDF and logistic regression)", bag_of_words(ours)],
        ["`tiny`, three minutes", f"**{score(ours)}**"],
        ["averaged with the bag of words", both(ours)],
    ]
    return table([f"{ours['train_rows']:,} training rows", f"{ours['metric']} x 100"], rows)


def gpu() -> str:
    """Six minutes of ``base`` on one GPU: speed, losses, search and two tasks."""
    run = read(f"{GPU}.json")["stages"]["flagship"]
    summary, shown = run["summary"], losses(run["summary"])
    found = {one["ranker"]: f"{100 * one['scores']['recall_10']:.1f}" for one in read(f"{GPU}-search.json")["rankers"]}
    tasks = {result["task"]: result for result in read(f"{GPU}-tasks.json")}
    rows = [
        ["text, millions of tokens", f"{run['data']['train']['tokens'] / 1e6:.1f}"],
        ["tokens read, millions", f"{summary['tokens'] / 1e6:.1f}"],
        ["seconds before the first step, with compilation", f"{summary['time_by_category']['start']:.0f}"],
        ["tokens per second after it", f"{summary['tokens_per_second']:,.0f}"],
        ["peak memory of the GPU, GiB", f"{summary['machine']['device_memory'] / 2**30:.0f}"],
        ["unigram baseline", f"{summary['validation']['unigram_loss']:.3f}"],
        *([name, value] for name, value in shown.items()),
        ["search in held-out text, recall at 10: BM25", found["bm25"]],
        ["the same: embeddings", found["dense"]],
        ["the same: both", found["hybrid"]],
    ]
    for task, result in tasks.items():
        rows += [
            [f"{GLUE[task]}, `quick`", score(result)],
            ["the same: bag of words", bag_of_words(result)],
            ["the same: averaged with the bag of words", both(result)],
        ]
    return table(["`base`, six minutes of one H100", f"[record](../records/{GPU}.json)"], rows)


def gpu_tasks() -> str:
    """The tasks of ``glue5`` after five minutes of ``base`` on one GPU, beside their baselines."""
    rows = [
        [GLUE[result["task"]], score(result), both(result), bag_of_words(result), constant(result)]
        for result in read(f"{GPU_LATER}-tasks.json")
    ]
    columns = ["2,000 training rows", "`base`, five minutes", "averaged with the bag of words", "bag of words"]
    return table([*columns, "constant answer"], rows)


def gpu_speed() -> str:
    """Throughput and memory of ``base`` on one GPU beside the Trainer."""
    (cell,) = read(f"{GPU_LATER}.json")["stages"]["speed"]["cells"]
    sides = {
        "Daybreak": "daybreak, recipe",
        "Trainer, BERT of the same shape": "transformers BERT",
        "Trainer, ModernBERT of as many parameters": "transformers ModernBERT",
    }
    variants = cell["variants"]
    ours = variants["daybreak, recipe"]["tokens_per_second"]
    rows = []
    for name, variant in sides.items():
        speed = variants[variant]["tokens_per_second"]
        memory = variants[variant.replace("recipe", "masked")]["device_peak_gib"]
        rows.append([name, f"{speed:,.0f}", f"{ours / speed:.2f}", f"{memory:.0f}"])
    return table(["`base`", "tokens a second", "Daybreak is faster, times", "peak memory of the GPU, GiB"], rows)


def gpu_text() -> str:
    """How much text some budgets read on the recorded GPU, once and four times."""
    run = read(f"{GPU}.json")["stages"]["flagship"]
    data, speed = run["data"], run["summary"]["tokens_per_second"]
    characters = data["characters"] / (data["train"]["tokens"] + data["heldout"]["tokens"])
    rows = []
    for hours in (1, 8, 24):
        tokens = speed * hours * 3600
        once = tokens * characters / 1e9
        rows.append([f"{hours} h", f"{tokens / 1e9:.1f}", f"{once:.0f}", f"{once / 4:.0f}"])
    return table(["time", "tokens, billions", "GB of English text, read once", "GB of text, read four times"], rows)


def speed(record: str = SPEED) -> str:
    """Throughput on CPU beside the Trainer and, if the record has it, the step of an earlier commit."""
    sides = {"the BERT": "transformers BERT", "the ModernBERT": "transformers ModernBERT"}
    found = read(record)
    if "other_commit" in found:
        sides["the earlier step"] = "other commit, recipe"
    rows = []
    for cell in found["cells"]:
        rates = {name: variant["tokens_per_second"] for name, variant in cell["variants"].items()}
        ours = rates["daybreak, recipe"]
        ratios = (f"{ours / rates[name]:.{2 if 'other' in name else 1}f}" for name in sides.values())
        rows.append([f"`{cell['recipe']}`", f"{cell['vocabulary']:,}", f"{ours:,.0f}", *ratios])
    return table(["recipe", "vocabulary", "tokens a second", *(f"times {side}" for side in sides)], rows)


def speed_float32() -> str:
    """As ``speed``, on a processor without bfloat16 instructions."""
    return speed(SPEED_FLOAT32)


def race() -> str:
    """Final held-out losses of the race, on the same positions."""
    runs = read(f"{RACE}.json")["race"]
    rows = []
    for (side, seconds), name in RACERS.items():
        losses = [run["curve"][-1]["loss"] for run in runs if (run["contender"], run["seconds"]) == (side, seconds)]
        spread = f" +- {statistics.stdev(losses):.2f}" if len(losses) > 1 else ""
        rows.append([name, f"{seconds // 60} minutes", f"{statistics.fmean(losses):.2f}{spread}", str(len(losses))])
    return table(["run", "time", "loss", "seeds"], rows)


def glue() -> str:
    """GLUE scores of runs of minutes on Wikipedia."""
    rows = []
    for name, what in GLUE_RUNS.items():
        results = read(name if name.endswith(".json") else f"{name}results.json")
        labels = {"pretrained": f"[{what}](../records/{name})", "untrained": "the same without pretraining"}
        for model, label in labels.items():
            found = {result["task"]: result for result in results if result["model"] == model}
            if set(GLUE) <= set(found):
                rows.append([label, *(score(found[task]) for task in GLUE)])
                answers = [constant(found[task]) for task in GLUE]
    return table(["model", *GLUE.values()], [["constant answer", *answers], *rows])


def glue_current() -> str:
    """GLUE scores of the current flagship under ``small`` and ``distilled``, beside its baselines."""
    scores = {
        name: {(result["task"], result["model"]): result for result in read(f"{record}/results.json")}
        for name, record in CURRENT.items()
    }
    tiny = scores["`tiny`, 15,000 steps"]
    ours = [tiny[task, "pretrained"] for task in GLUE]
    rows = [
        ["constant answer", *map(constant, ours)],
        ["`tiny` without pretraining", *(score(tiny[task, "untrained"]) for task in GLUE)],
        ["bag of words", *map(bag_of_words, ours)],
    ]
    for name, record in CURRENT.items():
        cells = (score(scores[name][task, "pretrained"]) for task in GLUE)
        rows.append([f"[{name}](../records/{record}/)", *cells])
    results = [result for result in read(f"{DISTILLED}/results.json") if result["protocol"] == "distilled"]
    found = {(result["task"], result["model"]): result for result in results}
    for model, name in (
        ("untrained", "`tiny` without pretraining, `distilled`"),
        ("pretrained", f"[`tiny`, 15,000 steps, `distilled`](../records/{DISTILLED}/)"),
    ):
        rows.append([name, *(score(found[task, model]) for task in GLUE)])
        rows.append(["averaged with the bag of words", *(both(found[task, model]) for task in GLUE)])
    return table(["model", *GLUE.values()], rows)


def pretraining_seeds() -> str:
    """GLUE of three pretraining seeds: mean over the seeds of their means, and its standard deviation."""
    first = {result["task"]: result for result in small_results(SEEDS[0])}
    rows = [
        ["constant answer", *(constant(first[task]) for task in GLUE)],
        ["bag of words", *(bag_of_words(first[task]) for task in GLUE)],
    ]
    for protocol in ("quick", "small"):
        for records, when in ((SEEDS_BEFORE, " without copy heads"), (SEEDS, "")):
            found = [{result["task"]: result for result in small_results(record, protocol)} for record in records]
            seeds = [[one[task] for one in found] for task in GLUE]
            rows.append([f"`{protocol}`{when}", *(over_seeds([one["mean"] for one in task]) for task in seeds)])
            together = (over_seeds([statistics.fmean(one["combined"]) for one in task]) for task in seeds)
            rows.append([f"`{protocol}`{when}, averaged with the bag of words", *together])
    return table(["`tiny`, 8,000 steps, three pretraining seeds", *GLUE.values()], rows)


def hours() -> str:
    """GLUE scores under ``small`` by the time that a run had, beside the baselines."""
    rows = []
    for (recipe, minutes), records in HOURS.items():
        for record in records:
            found = {result["task"]: result for result in small_results(record)}
            tokens = f"{summary_of(record)['tokens'] / 1e6:.0f}"
            cells = [f"[{recipe}](../records/{record}/)", str(minutes), tokens]
            rows.append([*cells, *(f"{score(found[task])} ({both(found[task])})" for task in GLUE)])
    before = without_pretraining()
    rows.insert(0, ["`tiny` without pretraining", "0", "0", *(score(before[task]) for task in GLUE)])
    rows.append(["bag of words", "-", "-", *(bag_of_words(found[task]) for task in GLUE)])
    return table(["recipe", "minutes of one core", "tokens read, millions", *GLUE.values()], rows)


def without_pretraining() -> dict[str, Any]:
    """Results of ``tiny`` with random weights under ``small``, by task."""
    results = read(f"{CURRENT['`tiny`, 15,000 steps']}/results.json")
    return {result["task"]: result for result in results if result["model"] == "untrained"}


def summary_of(record: str) -> Any:
    """The summary of a run: from the folder of its record, or from the file of a run of benchmarks/reference.py."""
    if not record.endswith(".json"):
        return read(f"{record}/summary.json")
    run = read(record)
    return run | {"validation": run["curve"][-1]}


def small_results(record: str, protocol: str = "small") -> list[Any]:
    """Results of the model of a run under a protocol; those that are younger than its record lie beside it."""
    name = record.removesuffix(".json")
    files = [f"{record}/results.json", f"{name}-tasks.json", f"{name}-quick.json"]
    results = [result for name in files if (RECORDS / name).is_file() for result in read(name)]
    return [result for result in results if (result["protocol"], result["model"]) == (protocol, "pretrained")]


def seeds_at_equal_time() -> str:
    """Recipes after equal time, over pretraining seeds."""
    columns = []
    for records in SEEDS_30.values():
        measured = [losses(summary_of(record)) for record in records]
        results = [{result["task"]: result for result in small_results(record)} for record in records]
        links = (f"[{seed}](../records/{record}{'' if '.' in record else '/'})" for seed, record in enumerate(records))
        column = {"pretraining seeds": ", ".join(links)}
        for name in measured[0]:
            values, digits = [float(each[name]) for each in measured], 1 if "%" in name else 2
            column[name] = f"{statistics.fmean(values):.{digits}f} +- {statistics.stdev(values):.{digits}f}"
        for task, name in GLUE.items():
            column[name] = over_seeds([each[task]["mean"] for each in results])
        for task, name in GLUE.items():
            combined = [statistics.fmean(each[task]["combined"]) for each in results]
            column[f"{name}, both averaged"] = over_seeds(combined)
        stock = [{result["task"]: result["mean"] for result in small_results(record, "quick")} for record in records]
        kept = [each for each in stock if each]
        seeds = "" if len(kept) == len(stock) else f" ({len(kept)} seeds)"
        for task, name in GLUE.items():
            column[f"{name}, `quick`"] = over_seeds([each[task] for each in kept]) + seeds if kept else "-"
        columns.append(column)
    bag = {result["task"]: bag_of_words(result) for result in small_results(SEEDS[0])}
    without = {name: bag[task] for task, name in GLUE.items()}
    rows = [[name, *(column[name] for column in columns), without.get(name, "-")] for name in columns[0]]
    return table(["after 30 minutes of one thread", *SEEDS_30, "bag of words"], rows)


def all_rows() -> str:
    """GLUE scores with all training rows, beside the baselines; the untrained network is that of the first model."""
    found = {
        name: {(result["task"], result["model"]): result for result in read(record)}
        for name, record in ALL_ROWS.items()
    }
    first = next(iter(found.values()))
    same = [first[task, "pretrained"] for task in GLUE]
    rows = [
        ["training rows", *(f"{result['train_rows']:,}" for result in same)],
        ["constant answer", *map(constant, same)],
        ["bag of words", *map(bag_of_words, same)],
        ["`tiny` without pretraining, one seed", *(score(first[task, "untrained"]) for task in GLUE)],
    ]
    for name, results in found.items():
        ours = [results[task, "pretrained"] for task in GLUE]
        rows.append([f"[{name}](../records/{ALL_ROWS[name]})", *map(score, ours)])
        rows.append(["averaged with the bag of words", *map(both, ours)])
    return table(["`distilled`, all training rows", *GLUE.values()], rows)


def unlabeled() -> str:
    """Scores of one model on tasks with 2,000 labeled rows, with and without rows without labels."""
    found = {(result["task"], result["model"]): result for result in read(UNLABELED)}

    def results(model: str, ending: str = "") -> list[Any]:
        return [found.get((f"{task}-2000{ending}", model)) for task in UNLABELED_TASKS]

    plain, more = results("pretrained"), results("pretrained", "-unlabeled")
    rows = [
        ["unlabeled rows", *(f"{result['unlabeled_rows']:,}" for result in more)],
        ["constant answer", *map(constant, plain)],
        ["bag of words", *map(bag_of_words, plain)],
        ["`tiny`", *map(score, plain)],
        ["`tiny`, with unlabeled rows", *map(score, more)],
        ["averaged with the bag of words", *map(both, plain)],
        ["averaged, with unlabeled rows", *map(both, more)],
    ]
    for name, ending in (("without pretraining", ""), ("without pretraining, with unlabeled rows", "-unlabeled")):
        rows.append([name, *(score(result) if result else "-" for result in results("untrained", ending))])
    return table(["`distilled`, 2,000 labeled rows", *UNLABELED_TASKS.values()], rows)


def unlabeled_seeds() -> str:
    """The same for several pretraining seeds on two tasks."""
    seeds = [{result["task"]: result for result in read(name)} for name in UNLABELED_SEEDS]
    names = list(UNLABELED_TASKS)[:2]
    rows = [["bag of words", *(bag_of_words(seeds[0][f"{task}-2000"]) for task in names)]]
    for number, found in enumerate(seeds):
        for ending, words in (("", ""), ("-unlabeled", ", with unlabeled rows")):
            scores = (score(found[f"{task}-2000{ending}"]) for task in names)
            rows.append([f"`tiny`, seed {number}{words}", *scores])
    return table(["`distilled`, 2,000 labeled rows", *(UNLABELED_TASKS[task] for task in names)], rows)


def over_seeds(values: Sequence[float]) -> str:
    """Mean and standard deviation, times 100."""
    return f"{100 * statistics.fmean(values):.1f} +- {100 * statistics.stdev(values):.1f}"


def pretraining_losses() -> str:
    """Losses of the same runs, and of three without sequences of views and without the embedding finish."""
    recipes = {
        "`tiny`": SEEDS,
        "`tiny` without copy heads": SEEDS_BEFORE,
        "`tiny` without copy heads, views and finish": SEEDS_PLAIN,
    }
    columns = [
        {
            "recipe": recipe,
            "seed": f"[{seed}](../records/{record}/)",
            **losses(read(f"{record}/summary.json")),
        }
        for recipe, records in recipes.items()
        for seed, record in enumerate(records)
    ]
    return table(list(columns[0]), [list(column.values()) for column in columns])


def views() -> str:
    """Variants of the sequences of views: losses with and without a copy of the text, and task scores."""
    rows = []
    for variant, name in VIEWS.items():
        cells = sorted((RECORDS / VIEWS_RECORD / "cells").glob(f"{name}-seed-*"))
        summaries = [read(f"{VIEWS_RECORD}/cells/{cell.name}/summary.json") for cell in cells]
        scores = [
            {
                (one["protocol"], one["task"]): one["mean"]
                for one in read(f"{VIEWS_RECORD}/cells/{cell.name}/results.json")
            }
            for cell in cells
        ]
        nats = [[each["validation"]["loss"] for each in summaries]]
        nats += [[each["context_use"][which] for each in summaries] for which in ("alone", "copy", "noisy_copy")]
        means = [f"{statistics.fmean(values):.2f}" for values in nats]
        for key in (("quick", "stsb"), ("quick", "mrpc"), ("small", "stsb"), ("small", "sst2")):
            means.append(f"{100 * statistics.fmean(each[key] for each in scores):.1f}")
        rows.append([variant, str(len(cells)), *means])
    header = ["views", "seeds", "held-out loss", "masked tokens alone", "beside a copy", "beside a noisy copy"]
    return table([*header, "STS-B, `quick`", "MRPC F1, `quick`", "STS-B, `small`", "SST-2, `small`"], rows)


def beside_all() -> str:
    """The flagship, itself without two of its parts, Cramming's recipe and the Trainer after equal time."""
    return beside("30 minutes", BESIDE_ALL, quick=True)


def search() -> str:
    """Recall at 10 of search in held-out texts, with the 95 % interval of the gain of both together over BM25."""
    rows = []
    for kind, record in SEARCHES.items():
        for found in read(f"{record}/probes.json")["search"]:
            scores = {ranker["ranker"]: ranker for ranker in found["rankers"]}
            low, high = (100 * end for end in scores["hybrid"]["above_bm25"]["recall_10"])
            recalls = [f"{100 * scores[name]['scores']['recall_10']:.1f}" for name in ("bm25", "dense", "hybrid")]
            name = TEXTS[found["text"].removeprefix("heldout-").partition(".")[0]]
            link = f"[{kind}](../records/{record}/)"
            rows.append([link, name, str(found["passages"]), *recalls, f"{low:.1f} to {high:.1f}"])
    header = [
        "text read", "held-out text", "passages", "BM25", "dense", "hybrid", "hybrid minus BM25, 95 % interval",
    ]  # fmt: skip
    return table(header, rows)


def search_seeds() -> str:
    """Recall at 10 over pretraining seeds; for hybrid also the union of the 95 % intervals of its gain over BM25."""

    def ranked(probes: str, ranker: str, text: str) -> dict[str, Any]:
        (found,) = (one for one in read(probes)["search"] if one["text"].startswith(f"heldout-{text}."))
        (scores,) = (one for one in found["rankers"] if one["ranker"] == ranker)
        return dict(scores)

    def recalls(probes: str, ranker: str, text: str) -> float:
        return float(ranked(probes, ranker, text)["scores"]["recall_10"])

    def gains(seeds: Sequence[str], text: str) -> str:
        ends = [ranked(seed, "hybrid", text)["above_bm25"]["recall_10"] for seed in seeds]
        return f"{100 * min(low for low, _ in ends):.1f} to {100 * max(high for _, high in ends):.1f}"

    texts = ("wiki", "books", "arxiv")
    first = next(iter(SEARCH_SEEDS.values()))[0]
    rows = [["BM25", "-", *(f"{100 * recalls(first, 'bm25', text):.1f}" for text in texts)]]
    for model, seeds in SEARCH_SEEDS.items():
        for ranker in ("dense", "hybrid"):
            found = [[recalls(seed, ranker, text) for seed in seeds] for text in texts]
            cells = [over_seeds(values) if len(values) > 1 else f"{100 * values[0]:.1f}" for values in found]
            rows.append([f"{model}: {ranker}", str(len(seeds)), *cells])
        rows.append(["hybrid minus BM25", str(len(seeds)), *(gains(seeds, text) for text in texts)])
    return table(["recall at 10", "seeds", *(TEXTS[text] for text in texts)], rows)


def from_scratch() -> str:
    """Three texts of a field: the general model, the same continued at two rates, and one from scratch."""
    return by_field(
        {
            "general model": lambda _: (f"{GENERAL}/results.json", [f"{GENERAL}/probes.json", GENERAL_DOCSTRINGS]),
            "continued, 0.1 of the rate": of_record("2026-11-26-tiny-continued"),
            "continued, full rate": of_record("2026-11-26-tiny-fullrate"),
            "from scratch": of_record("2026-11-26-tiny-scratch"),
        }
    )


def from_larger_general() -> str:
    """The same three texts: a larger and longer trained general model, the same continued, and one from scratch."""
    return by_field(
        {
            "general `mini`": lambda ending: (f"{LARGER}-{ending}-tasks.json", [f"{LARGER}-{ending}-search.json"]),
            "continued `mini`": of_record("2026-11-27-mini-continued"),
            "`tiny` from scratch": of_record("2026-11-26-tiny-scratch"),
        }
    )


OfField = Callable[[str], tuple[str, list[str]]]
"""Returns the file of results and those of probes for the ending of a field."""


def of_record(start: str) -> OfField:
    """The files of the records whose names begin with ``start`` and end with the field."""
    return lambda ending: (f"{start}-{ending}/results.json", [f"{start}-{ending}/probes.json"])


def by_field(columns: Mapping[str, OfField]) -> str:
    """Scores and searches by field; the columns by name."""
    rows = []
    for field, (ending, tasks, text) in FIELDS.items():
        files = [of_field(ending) for of_field in columns.values()]
        for task in tasks:
            ours = [{one["task"]: one for one in read(results)}[task] for results, _ in files]
            measure = f"`{task}`, {ours[0]['metric'].replace('_', ' ')}"
            rows.append([field, measure, bag_of_words(ours[0]), *map(score, ours)])
            rows.append(["", "averaged with the bag of words", "-", *map(both, ours)])
            field = ""
        searches = [
            next(one for name in probes for one in read(name)["search"] if one["text"].startswith(text))
            for _, probes in files
        ]
        found = [{one["ranker"]: 100 * one["scores"]["recall_10"] for one in each["rankers"]} for each in searches]
        rows.append([field, "search: embeddings", "-", *(f"{each['dense']:.1f}" for each in found)])
        rows.append(
            ["", "search: BM25 and embeddings", f"{found[0]['bm25']:.1f}", *(f"{each['hybrid']:.1f}" for each in found)]
        )
    return table(["text", "measured", "without a model", *columns], rows)


def search_cost() -> str:
    """Time and memory of two search indexes."""
    columns = []
    for making, answering in SEARCHED.values():
        found, answers = read(f"{making}.json"), read(f"{answering}.json")["answers"]
        seconds = found["build"]["seconds"]
        columns.append(
            {
                "passages": f"{found['index']['passages']:,}",
                "index, time": f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min",
                "index, peak memory": f"{found['build']['peak_bytes'] / 1e9:.1f} GB",
                "index on disk": f"{found['index']['bytes'] / 1e6:.0f} MB",
                **{f"answer by `{method}`": f"{1000 * answers[method]['median']:.0f} ms" for method in answers},
                "whole command, `bm25`": f"{answers['bm25']['command_seconds']:.1f} s",
                "whole command, `hybrid`": f"{answers['hybrid']['command_seconds']:.1f} s",
                "memory while answering": f"{answers['hybrid']['peak_bytes'] / 1e6:.0f} MB",
            }
        )
    links = [f"[{name}](../records/{answering}.json)" for name, (_, answering) in SEARCHED.items()]
    return table(["", *links], [[name, *(column[name] for column in columns)] for name in columns[0]])


def beside_cramming() -> str:
    """The flagship and Cramming's recipe after equal time."""
    return beside("2 hours", BESIDE_CRAMMING)


def beside_bert() -> str:
    """The flagship and BERT's recipe after equal time."""
    return beside("2 hours", BESIDE_BERT)


def beside(time: str, records: dict[str, str], quick: bool = False) -> str:
    """Runs of one thread side by side: losses, and GLUE under the protocol ``small``.

    Args:
        records: name of the run -> folder of its record, or the JSON file of a run of ``benchmarks/reference.py`` with
            its tasks in NAME-tasks.json.
        quick: whether the scores under the protocol ``quick`` stand there as well.
    """
    columns, links = [], []
    for name, record in records.items():
        summary = summary_of(record)
        if record.endswith(".json"):
            results, device = read(record.replace(".json", "-tasks.json")), summary["machine"]["device"]
        else:
            results, device = read(f"{record}/results.json"), read(f"{record}/environment.json")["device"]
        found, stock = (
            {result["task"]: result for result in results if result["protocol"] == protocol}
            for protocol in ("small", "quick")
        )
        columns.append(
            {
                "processor": device.replace("(R)", "").removesuffix(" Processor"),
                "tokens read, millions": f"{summary['tokens'] / 1e6:.1f}",
                **losses(summary),
                **{name: score(found[task]) for task, name in GLUE.items()},
                **{f"{name}, both averaged": both(found[task]) for task, name in GLUE.items()},
                **{
                    f"{name}, `quick`": score(stock[task]) if task in stock else "-"
                    for task, name in GLUE.items()
                    if quick
                },
            }
        )
        links.append(f"[{name}](../records/{record}{'' if record.endswith('.json') else '/'})")
    words = {name: bag_of_words(found[task]) for task, name in GLUE.items()}
    rows = [[name, *(column[name] for column in columns), words.get(name, "-")] for name in columns[0]]
    return table([f"after {time} of one thread", *links, "bag of words"], rows)


def off_the_plateau() -> str:
    """When the recipe of each system left the unigram plateau, interpolated between two validations."""
    rows = []
    for name, record in OFF_THE_PLATEAU.items():
        lines = (RECORDS / record / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        validations = [each for each in map(json.loads, lines) if each["type"] == "validation"]
        last, seconds = validations[-1], 0.0
        above = [each["loss"] - each["unigram_loss"] + CLEARLY_BELOW for each in validations]
        position = next(number for number, nats in enumerate(above) if nats <= 0)
        after = validations[position]
        if position:
            before = validations[position - 1]
            share = above[position - 1] / (above[position - 1] - above[position])
            seconds = before["elapsed"] + share * (after["elapsed"] - before["elapsed"])
        rows.append(
            [
                f"[`{name}`](../records/{record}/)",
                f"{seconds / 60:.1f}" if position else f"before {after['elapsed'] / 60:.1f}",
                read(f"{record}/summary.json")["budget"],
                f"{last['loss']:.2f}",
                f"{last['unigram_loss']:.2f}",
                f"{last['tokens'] / 1e6:.1f}",
            ]
        )
    header = ["`--size mini`", "minutes to leave the plateau", "budget", "final held-out loss", "unigram baseline"]
    return table([*header, "tokens read, millions"], rows)


def forecasts() -> str:
    """Forecasts at the start, half-way and after the last interim validation, beside the loss that runs reached."""
    rows = []
    for run in (run for record in FORECASTS for run in read(record)["runs"]):
        first, *_, last = run["forecasts"]
        half = max((each for each in run["forecasts"] if each["share"] <= 0.5), key=lambda each: each["share"])
        rows.append(
            [
                run["run"],
                f"{run['tokens'] / 1e6:.1f}",
                f"{run['loss']:.2f}",
                *(f"{each['loss']:.2f} ({each['low']:.2f} to {each['high']:.2f})" for each in (first, half, last)),
            ]
        )
    header = ["run", "tokens, millions", "loss", "forecast at the start, 90 % interval", "half-way"]
    return table([*header, "after the last validation"], rows)


def law_left_out() -> str:
    """Errors of laws that were fitted without a part of the runs."""
    names = {
        "a fifth": "a fifth of the runs",
        "a size": "all runs of the same size",
        "a text": "all runs on the same text",
    }
    found = read(LAW)["left_out"]
    rows = [
        [
            name,
            str(found[what]["runs"]),
            *(f"{100 * found[what][error]:.1f} %" for error in ("mean_error", "largest_error")),
        ]
        for what, name in names.items()
    ]
    return table(["left out of the fit", "runs forecast", "mean error", "largest error"], rows)


def task_lines() -> str:
    """The lines of task scores, and the error of each run forecast from the others."""
    record = read(TASK_LINES)
    tested = record["left_out"]
    rows = [
        [
            GLUE.get(line["task"], line["task"]),
            f"{100 * line['slope']:+.1f}",
            f"{100 * line['spread']:.1f}",
            f"{tested[line['task']]['inside']} of {tested[line['task']]['runs']}",
            f"{100 * tested[line['task']]['mean_error']:.1f}",
        ]
        for line in record["table"]["lines"]
    ]
    header = ["task", "points for one nat", "standard deviation", "inside the 90 % interval", "mean error, points"]
    return table(header, rows)


def law_weights() -> str:
    """Mean errors of laws whose measure of difficulty weighs the bigram model differently."""
    record = read(EARLIER_LAW)
    weights = {float(weight): found for weight, found in record["other_weights"].items()}
    weights[record["settings"]["weight"]] = record["left_out"]
    groups = ["a fifth", "a size", "a text"]
    rows = [
        [f"{weight:g}", *(f"{100 * weights[weight][what]['mean_error']:.1f} %" for what in groups)]
        for weight in sorted(weights)
    ]
    return table(["weight of the bigram model", *(f"without {what}" for what in groups)], rows)


def renewed(text: str) -> str:
    """Return a page with current copies."""
    return COPY.sub(lambda found: f"<!-- made from: {found[1]} -->\n{copied(found[1])}<!-- until here -->", text)


def copied(source: str) -> str:
    """Return what a page copies: a table of this file, the table of recipes, or a file as a code block."""
    if source == "daybreak recipes":
        return recipes_table()
    if source.startswith("tables."):
        return str(globals()[source.removeprefix("tables.")]())
    language = {".py": "python"}.get(Path(source).suffix, Path(source).suffix[1:])
    return f"```{language}\n{(ROOT / source).read_text(encoding='utf-8')}```\n"


def linked(path: re.Match[str]) -> str:
    """A link to a record: a folder or a JSON file."""
    return f"[the record](../{path[0]}{'' if path[0].endswith('.json') else '/'})"


def recipes_table() -> str:
    """What ``daybreak recipes`` prints, with the results in full and their records linked."""
    from daybreak.commands.recipes import catalogue, results  # needs an installed Daybreak, the other tables do not

    lines = catalogue().splitlines()
    rows = ["| recipe | what it is | from | results |", "|---|---|---|---|"]
    for first, second in zip(lines[::2], lines[1::2]):
        name, what = first.split(maxsplit=1)
        source, _, standing = second.strip().rpartition("; ")
        stated = results(name)
        assert stated.lower().startswith(standing), name
        stated = re.sub(r"(records/[\w.-]*\w)", linked, stated)
        rows.append(f"| `{name}` | {what} | {source} | {stated} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
