"""A folder in which the pages of the documentation can be played: under each name that they use lies something small.

``write_world`` makes all of it once; ``furnish`` copies from it what some commands name.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_commands import ROOT, SNIPPETS
from small_texts import WHAT, WHO, small_text

from daybreak import cli
from daybreak.evaluation.glue_server.submission import FILES
from daybreak.evaluation.tasks.known_tasks import ENTITIES, GLUE, TEXTS

SHAPE = {"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 32}
"""Of every model here."""
ROWS = 16
"""In each file of a task: a batch of every protocol, or half of one."""

TEXT_FOLDERS = "my_texts papers corpus web crawl hindi finnish swedish TEXT GENERAL_TEXT GENERAL".split()
RUNS = "pretrain_your_own/run runs/mine runs/mini runs/tiny runs/other runs/a runs/b RUN RUN1 RUN2 A B".split()
LIES = {
    **dict.fromkeys(RUNS, "run"),
    **dict.fromkeys(("data/mine", "DATA", "pretrain_your_own/data"), "data"),
    "FOLDER": "data/tokenizer",
    **dict.fromkeys(("glue", "GLUE"), "glue"),
    **{name: f"texts/{name}" for name in TEXT_FOLDERS},
    **{name: name for name in ("MODEL", "PUBLISHED", "SCIBERT", "logs", "task", "docs")},
}
"""Name on the pages -> where it lies in the world that was written. Single files are in every copy."""
OTHERWISE = {
    "docs/mission.md": {"A": "texts/papers", "B": "texts/web"},  # sources of a study; elsewhere they are runs
    **{key: {"data/mine": "", "runs/mine": ""} for key in ("README.md", "docs/reference.md")},  # made there, in Python
}
"""Names that mean something else on a page, or nothing that is there before."""


def furnish(world: Path, folder: Path, page: str, commands: Sequence[str]) -> None:
    """Lay into ``folder`` all single files of the world, and those of its folders that the commands name."""
    for file in world.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    told = "\n".join(commands)
    for name, place in {**LIES, **OTHERWISE.get(page, {})}.items():
        if place and re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", told):
            shutil.copytree(world / place, folder / name)


def write_world(folder: Path) -> None:
    """Write everything; a real preparation and a real run of some steps are among it."""
    chance = random.Random(7)
    for name in TEXT_FOLDERS:
        path = folder / "texts" / name / "tales.txt"
        path.parent.mkdir(parents=True)
        path.write_text(sentences(chance, 300))
    _write_files(folder, chance)
    _write_tasks(folder, chance)
    cli.dispatch(words("prepare", folder / "texts" / "my_texts", "--out", folder / "data"))
    run = folder / "run"
    cli.dispatch(words("pretrain", "mini", "--data", folder / "data", "--out", run))
    cli.dispatch(words("evaluate", run, "--tasks", folder / "my_task.toml"))
    shutil.copytree(folder / "data", run / "data")  # as ``daybreak run`` leaves it
    _write_models(folder)


def words(*given: object) -> list[str]:
    return [str(word) for word in given]


def prose(chance: random.Random, count: int) -> list[str]:
    """Sentences as people write them."""
    return [small_text(chance, 1).replace(" .", ".").capitalize() for _ in range(count)]


def sentences(chance: random.Random, documents: int) -> str:
    """A sentence a line, a blank line between documents: what BERT's recipes ask for, and any other takes."""
    return "\n".join("\n".join([*prose(chance, 8), ""]) for _ in range(documents))


def _write_table(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([*([names] if names else []), *rows])


# ---------------------------------------------------------------- text in other forms


def _write_files(folder: Path, chance: random.Random) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [" ".join(prose(chance, 8)) for _ in range(300)]
    (folder / "wiki.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:200]))
    (folder / "heldout.txt").write_text(sentences(chance, 100))
    (folder / "old.txt").write_bytes("caf\xe9\n".encode("cp1252"))
    _write_table(folder / "notes.csv", ["text"], [[text] for text in texts[:50]])
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[50:100]}), folder / "table.parquet")
    pages = "".join(
        f"<page><title>T</title><ns>0</ns><id>1</id><revision><id>2</id><text>{text}</text></revision></page>\n"
        for text in texts
    )
    dump = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">\n{pages}</mediawiki>'
    (folder / "enwiki-latest-pages-articles.xml.bz2").write_bytes(bz2.compress(dump.encode()))
    (folder / "logs").mkdir()
    for number in range(2):
        part = "\n\n".join(texts[number * 150 : number * 150 + 150]) + "\n\n"
        (folder / "logs" / f"{number}.gz").write_bytes(gzip.compress(part.encode()))
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "log.md", folder / "docs")
    recipe, _schedule = [one.text for one in SNIPPETS if one.page == "docs/recipes.md"]
    (folder / "my_recipe.py").write_text(recipe)
    (folder / "lid.176.bin").write_bytes(b"a model of languages")


# ---------------------------------------------------------------- tasks


def _write_tasks(folder: Path, chance: random.Random) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (task,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (folder / "my_task.toml").write_text(task)
    rows = [(text, ("day", "night")[at % 2]) for at, text in enumerate(prose(chance, 48))]
    for path in ("train.csv", "dev.csv", "task/dev.csv", "task/test.csv"):
        _write_table(folder / path, ["sentence", "topic"], rows)
    for name in [name for name in GLUE if not name.endswith("-subset")]:
        _write_glue(folder / "glue", name, chance)
    for entities in ENTITIES.values():
        for part in (entities.train, entities.dev, entities.test):
            _write_entities(folder / "SCIBERT" / str(part), chance)
    for text in TEXTS.values():
        for part in (text.train, text.dev, text.test):
            place = folder / "SCIBERT" / str(part)
            place.parent.mkdir(parents=True, exist_ok=True)
            told = [{"text": line, "label": "xy"[at % 2]} for at, line in enumerate(prose(chance, ROWS))]
            place.write_text("".join(json.dumps(row) + "\n" for row in told))


def _write_glue(folder: Path, name: str, chance: random.Random) -> None:
    """A task of GLUE as it is distributed; the unlabeled files of the two tasks that have the fewest rows."""
    task: Any = GLUE[name]
    answers = [value for value, _ in task.labels] or ["1.5", "3.0"]
    for part in filter(None, (task.train, task.dev, task.mismatched)):
        lines = [prose(chance, len(task.text)) for _ in range(ROWS)]
        rows = [[*texts, answers[at % len(answers)]] for at, texts in enumerate(lines)]
        if name == "cola":  # no header, and the text last
            rows = [["gj04", row[1], "", row[0]] for row in rows]
        _write_table(folder / part, [*task.text, task.label] if task.header else [], rows, "\t")
    for hidden in task.unlabeled if name in ("cola", "wnli") else ():
        asked = [[str(at), *prose(chance, len(hidden.text))] for at in range(FILES[hidden.name].rows)]
        _write_table(folder / hidden.path, ["index", *hidden.text], asked, "\t")


def _write_entities(path: Path, chance: random.Random) -> None:
    """CoNLL, as SciBERT's files are: word, two columns that are not read, tag; who and what are entities."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        [f"{word} NN O {'B-Entity' if word in WHO + WHAT else 'O'}" for word in small_text(chance, 1).split()]
        for _ in range(ROWS)
    ]
    path.write_text("".join("\n".join(line) + "\n\n" for line in lines))


# ---------------------------------------------------------------- models of others


def _write_models(folder: Path) -> None:
    """A stock BERT, and a crammed BERT, with the tokenizer of the data."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from daybreak.core.files import read_json
    from daybreak.exporting.hugging_face import write_model_folder
    from daybreak.models.crammed import CrammedEncoder
    from daybreak.schemas.run import Manifest

    torch.manual_seed(0)
    tokenizer = folder / "data" / "tokenizer"
    pieces = read_json(folder / "data" / "manifest.json", Manifest).vocabulary
    config = BertConfig(
        vocab_size=pieces, hidden_size=SHAPE["hidden_size"], num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"], intermediate_size=SHAPE["intermediate_size"],
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder / "MODEL")
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / "MODEL")
    shape = CrammedEncoder(**SHAPE)  # type: ignore[arg-type]
    write_model_folder(folder / "PUBLISHED", model=shape.build(pieces), shape=shape, tokenizer=tokenizer, length=128)
