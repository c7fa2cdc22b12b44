"""``daybreak run`` with a literature recipe: the filter, tasks and protocol of its paper."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daybreak.cli import main
from daybreak.commands import run
from daybreak.commands.prepare import filter_tokenizer
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.filters.presets import PRESETS
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.evaluation.model_source import tasks_in
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks.known_tasks import KNOWN, SCIBERT, TASK_LISTS, spelled_out
from daybreak.recipe import FAMILY, SIZES, Procedure, load_recipe, procedure_of, recipe_names
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.tasks import TaskResult

GLUE = list(TASK_LISTS["glue"])
CRAMMED = """--size tiny --model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 32
--length 32 --batch 8 --ramp.fraction 0 --precision float32 --tokenizer.vocabulary 400 --workers 1""".split()
"""The recipe crammed so small that a step takes milliseconds."""


def write_cola(folder: Path, parts: tuple[str, ...] = ("train", "dev")) -> None:
    """CoLA as distributed: no header; source, label, mark, sentence."""
    chance = random.Random(5)
    (folder / "CoLA").mkdir(parents=True)
    for part in parts:
        rows = [
            f"gj04\t{label}\t\tThe {chance.choice(('teacher', 'farmer'))} {'walks' if label else 'walk'} here."
            for label in (0, 1) * 16
        ]
        (folder / "CoLA" / f"{part}.tsv").write_text("\n".join(rows) + "\n")


def write_table(path: Path, columns: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(columns + "\n")


def test_each_recipe_follows_its_paper() -> None:
    found = {name: procedure_of(load_recipe(name)) for name in recipe_names()}
    for name, procedure in found.items():
        assert procedure.preset in PRESETS, name
        assert procedure.protocol in PROTOCOLS or not procedure.protocol, name
        assert all(task in KNOWN for task in spelled_out(procedure.tasks)), name
        if name.startswith(FAMILY):
            assert procedure == Procedure()
    expected = {
        "crammed": ("crammed", "cramming", GLUE),
        "crammed-legacy": ("crammed", "cramming", GLUE),
        "crammed-8gpu": ("crammed", "cramming", GLUE),
        "bert-2018": ("plain", "bert", GLUE),
        "bert-8gb": ("plain", "bert-8gb", GLUE),
        "bert-gpu": ("plain", "bert", ["qqp"]),
        "scibert": ("plain", "scibert", list(SCIBERT)),
    }
    for name, wanted in expected.items():
        assert (found[name].preset, found[name].protocol, spelled_out(found[name].tasks)) == wanted, name
    assert "auc" in _metrics("qqp") and "accuracy" in _metrics("qqp")


def _metrics(task: str) -> tuple[str, ...]:
    from daybreak.evaluation.tasks.kinds import kind_of

    return tuple(kind_of(KNOWN[task]).metrics)


def test_a_task_counts_if_its_files_are_there_and_a_subset_stands_for_its_task(tmp_path: Path) -> None:
    write_cola(tmp_path)
    pairs = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    for part in ("train_subset", "dev_subset"):
        write_table(tmp_path / "QQP" / f"{part}.tsv", pairs)
    write_table(tmp_path / "QNLI" / "dev.tsv", "index\tquestion\tsentence\tlabel")
    write_table(tmp_path / "text_classification" / "sci-cite" / "train.txt", "{}")
    assert tasks_in(tmp_path, ("glue",)) == (
        ["cola", "qqp-subset"],
        [name for name in GLUE if name not in ("cola", "qqp")],
    )
    assert tasks_in(tmp_path, ("qqp",)) == (["qqp-subset"], [])
    assert tasks_in(tmp_path, ())[0] == ["cola", "qqp-subset"], "sci-cite lacks its dev file"
    with pytest.raises(UserError, match="contains no training and dev files of bc5cdr"):
        tasks_in(tmp_path, ("scibert",))


def test_prepare_filters_as_the_recipe_did_unless_told_otherwise(corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    noise = json.dumps({"text": "".join(random.Random(1).sample("qxzvkjwyfbghp#@!%&*^~?" * 20, 400))})
    text.write_text(corpus.read_text() + noise + "\n")
    filtered, plain = tmp_path / "filtered", tmp_path / "plain"
    for out, options in ((filtered, []), (plain, ["--preset", "plain"])):
        command = ["prepare", text, "--out", out, "--recipe", "crammed", "--size", "tiny", *options]
        with pytest.raises(SystemExit) as left:
            main([*map(str, command), "--tokenizer.vocabulary", "400", "--workers", "1"])
        assert not left.value.code
    reports = [read_json(out / "corpus.json", CorpusReport) for out in (filtered, plain)]
    assert [[step.name for step in report.steps if step.name == "Compressibility"] for report in reports] == [
        ["Compressibility"],
        [],
    ]


@pytest.mark.usefixtures("ungated")
def test_crammed_evaluates_the_tasks_of_a_folder_under_its_protocol(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cola(tmp_path / "GLUE")
    out = tmp_path / "out"
    command = ["run", "crammed", "--corpus", corpus, "--budget", "30steps", "--preset", "plain", "--out", out]
    with pytest.raises(SystemExit) as left:
        main([*map(str, command), "--task-dir", str(tmp_path / "GLUE"), *CRAMMED])
    printed = " ".join(capsys.readouterr().out.split())
    assert not left.value.code, printed
    results = read_json(out / "results.json", list[TaskResult])
    assert [(one.task, one.model, one.protocol, one.seeds) for one in results] == [
        ("cola", model, "cramming", [0, 1, 2, 3, 4]) for model in ("pretrained", "untrained")
    ]
    assert "Tasks in" in printed and "no files of sst2, mrpc" in printed
    forecast = re.search(r"Evaluation after pretraining: (\d+) fine-tunings under the protocol cramming", printed)
    cells = [path for path in (out / "cells").rglob("*seed-*.json")]
    assert forecast is not None and int(forecast[1]) == len(cells) == 10
    assert printed.index(forecast[0]) < printed.index("2/4 Pretrain")


def test_the_filter_counts_with_the_vocabulary_of_the_paper_at_every_size() -> None:
    for size in SIZES:
        tokenizer = load_recipe("crammed", size=size).tokenizer
        counted = filter_tokenizer(tokenizer)
        assert counted.vocabulary == 32_768
        assert dataclasses.replace(counted, vocabulary=tokenizer.vocabulary) == tokenizer
    existing = Existing(folder="somewhere")
    assert filter_tokenizer(existing) is existing


def test_options_go_before_the_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "run", lambda recipe, **more: received.append(more))
    (tmp_path / "text.txt").write_text("A sentence.\n")
    command = ["run", "crammed", "--corpus", str(tmp_path / "text.txt"), "--budget", "1m"]
    run.main(command[1:])
    run.main([*command[1:], "--preset", "plain", "--protocol", "quick", "--seeds", "1"])
    assert [(one["preprocessing"].preset, one["protocol"], one["seeds"]) for one in received] == [
        ("crammed", "", None),
        ("plain", "quick", 1),
    ]


def test_a_folder_without_the_tasks_or_an_unknown_protocol_is_refused_before_the_text_is_read(
    corpus: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    command = ["run", "bert-gpu", "--corpus", corpus, "--budget", "1m", "--out", tmp_path / "out"]
    write_cola(tmp_path / "GLUE")
    assert "contains no training and dev files of qqp" in refused(*command, "--task-dir", tmp_path / "GLUE")
    assert "There is no protocol 'bird'" in refused(*command, "--protocol", "bird")
    assert not (tmp_path / "out").exists()
