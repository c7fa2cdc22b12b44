"""Damage the files that Daybreak opens at random, and check that each command still ends properly.

    python benchmarks/fuzz.py --minutes 60 --seed 0 --work fuzz --out fuzz.json
    python benchmarks/fuzz.py --minutes 5 --only run/summary.json --work fuzz

The world is a small corpus in every format, prepared data, a finished run, a stopped run, a study, a task and a saved
classifier. Each try damages one of its files (bytes, JSON values, table cells, tensors, or the file itself becomes a
folder or a link), runs one command that reads it in a child process, and checks the end: exit code 0, or exit code 2
with one message of Daybreak and no traceback. A crash, a hang and any other exception is a finding. Findings with the
same last line of Daybreak's code count once; their damaged input is kept in --work/findings.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.errors import UserError
from daybreak.core.files import read_json_lines, write_json
from daybreak.schemas.forecast import Forecast, ForecastLog
from daybreak.schemas.run import RankerScore, Retrieval, RetrievalExample

SHAPE = (
    "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 32 "
    "--length 32 --batch 8 --precision float32"
)
"""Options that make the recipe so small that a step takes milliseconds."""
SECONDS = 180
"""A command that takes longer than this is a finding."""
MEMORY = 6 << 30
"""Bytes of address space that a try may use beyond those of this process."""

# ---------------------------------------------------------------- damage

ODD: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 10**30, lambda: -(2**63),
    lambda: 2**31, lambda: 0.5, lambda: -0.5, lambda: 1e308, lambda: float("nan"), lambda: float("inf"), lambda: "",
    lambda: "x", lambda: "7", lambda: "a" * 5000, lambda: "\ud800", lambda: "../../outside", lambda: "\0", lambda: [],
    lambda: [[]], lambda: [1], lambda: ["x"], lambda: {}, lambda: {"x": 1}, lambda: {"kind": "Component"},
    lambda: [None],
]  # fmt: skip
"""Values that a field of a JSON file may be replaced by."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [inner for key, item in items for inner in places(item, (*path, key))]


def damage_value(value: Any, rng: random.Random) -> Any:
    """Replace, remove, repeat or rename one value inside a JSON value."""
    paths = places(value)[1:]
    if not paths or rng.random() < 0.03:
        return rng.choice(ODD)()
    # Choose a depth first, so that long lists do not hide the other fields.
    depth = rng.choice(sorted({len(path) for path in paths}))
    *outer, last = rng.choice([path for path in paths if len(path) == depth])
    parent = value
    for key in outer:
        parent = parent[key]
    how = rng.randrange(8)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, dict):
        parent[f"{last}_"] = parent.pop(last)
    elif how == 2 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), parent[last])
    elif how == 3:
        parent[last] = [parent[last]]
    elif how == 4 and isinstance(parent[last], (int, float)):
        parent[last] = rng.choice([-parent[last], parent[last] * 10**6, parent[last] + 1, str(parent[last])])
    else:
        parent[last] = rng.choice(ODD)()
    return value


def as_json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode("utf-8", "surrogatepass")


def damage_json(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return (rng.choice(["[", '{"a":']) * 100_000).encode()
    value = json.loads(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = damage_value(value, rng)
    return as_json(value)


def damage_lines(content: bytes, rng: random.Random) -> bytes:
    """Damage the order or the number of lines, or one line; a JSON line is damaged as JSON."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return b"\n"
    at, how = rng.randrange(len(lines)), rng.randrange(5)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    elif how == 2:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif how == 3:
        lines[at] = damage_bytes(lines[at], rng)
    else:
        try:
            lines[at] = json.dumps(damage_value(json.loads(lines[at]), rng)).encode("utf-8", "surrogatepass") + b"\n"
        except ValueError:
            lines[at] = (
                lines[at].rstrip(b"\n") + rng.choice([b"\t", b",", b'"', b"\0", b"[", b"]", b"=", b"\xff"]) + b"\n"
            )
    return b"".join(lines)


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, flip, repeat, overwrite or insert bytes anywhere."""
    held = bytearray(content)
    how, at = rng.randrange(9), rng.randrange(len(held) + 1)
    length = min(len(held) - at, rng.choice([1, 1, 2, 8, 100, 4096]))
    if how == 0:
        return bytes(held[:at])
    if how == 1:
        return b""
    if how == 2:
        del held[at : at + length]
    elif how == 3:
        held[at:at] = rng.randbytes(length or 1)
    elif how == 4:
        held[at : at + length] = bytes(length)
    elif how == 5:
        held[at:at] = held[at : at + length]
    elif how == 6:
        held[at:at] = rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\0", b"\x1a", b"\r", b"\xe2\x80\xa8"])
    else:
        for _ in range(1 if how == 7 else 1 + len(held) // 50):
            if held:
                held[rng.randrange(len(held))] ^= 1 << rng.randrange(8)
    return bytes(held)


def damage_digits(content: bytes, rng: random.Random) -> bytes:
    """Replace one word of a text file by an odd value: a number of a table, a value of a TOML file."""
    words = list(re.finditer(rb"[^\s,\t\"=]+", content))
    if not words:
        return damage_bytes(content, rng)
    word = rng.choice(words)
    new = rng.choice(
        [b"", b"nan", b"-1", b"1e999", b"9" * 30, b'"', b"[", b"true", b"\xc3", b"a\tb,c", b"''", b"\0", b"[1]", b"/"]
    )
    return content[: word.start()] + new + content[word.end() :]


def damage_tensors(content: bytes, rng: random.Random) -> bytes:
    """Damage the header or the numbers of a safetensors file."""
    length = struct.unpack("<Q", content[:8])[0]
    header, numbers = json.loads(content[8 : 8 + length]), content[8 + length :]
    how = rng.randrange(4)
    if how == 0:
        return struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, length - 1])) + content[8:]
    if how == 1:
        flood = struct.pack("<f", rng.choice([float("nan"), float("inf"), 1e38, -0.0]))
        return content[: 8 + length] + flood * (len(numbers) // 4)
    names = [name for name in header if name != "__metadata__"]
    if how == 2 and names:  # a tensor less, or two that change places
        one, other = rng.choice(names), rng.choice(names)
        header[one], header[other] = header[other], header[one]
        if one == other:
            header[f"{one}.other"] = header.pop(one)
    else:
        header = damage_value(header, rng)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + numbers


def damage_content(path: Path, rng: random.Random) -> None:
    """Damage the content of a file, in a way that fits its format or in any way."""
    content = path.read_bytes()
    fitting = {
        ".json": damage_json, ".jsonl": damage_lines, ".toml": damage_digits, ".csv": damage_digits,
        ".tsv": damage_digits, ".txt": damage_lines, ".conll": damage_digits, ".safetensors": damage_tensors,
    }.get(path.suffix, damage_bytes)  # fmt: skip
    damage = rng.choice([fitting, fitting, fitting, damage_bytes, damage_lines])
    if path.suffix == ".gz" and rng.random() < 0.5:
        path.write_bytes(gzip.compress(damage_bytes(gzip.decompress(content), rng)))
        return
    try:
        path.write_bytes(damage(content, rng))
    except ValueError:  # the content was not in its format before
        path.write_bytes(damage_bytes(content, rng))


def replace_file(path: Path, rng: random.Random) -> None:
    """Remove a file, or put a folder, a dangling or circular link, or a link out of the folder in its place."""
    how, outside = rng.randrange(6), path.with_name(f"{path.name}.elsewhere")
    if how == 5:
        shutil.move(path, outside)
        path.symlink_to(outside.name)
        return
    path.unlink()
    if how == 1:
        path.mkdir()
    elif how == 2:
        path.mkdir()
        (path / "x").write_bytes(b"x")
    elif how == 3:
        path.symlink_to("nowhere")
    elif how == 4:
        path.symlink_to(path.name)


def damage(path: Path, rng: random.Random) -> None:
    """Damage one file."""
    (replace_file if rng.random() < 0.1 else damage_content)(path, rng)


# ---------------------------------------------------------------- what reads the files


@dataclass(frozen=True)
class Reader:
    """A command, or a function of the package, and the files of the world that it reads."""

    name: str
    files: tuple[str, ...]
    """Glob patterns."""
    act: tuple[str, ...] | Callable[[], object]
    """Arguments of ``daybreak``, or a function; both run in the copy of the world."""
    copies: tuple[str, ...]
    """Folders and files of the world that it needs."""
    trains: bool = False
    """Whether it trains or fine-tunes: torch's threads do not survive a fork, so it starts an interpreter."""


RUN = (
    "run/*.json", "run/*.jsonl", "run/heartbeat", "run/model/config.json", "run/model/tokenizer.json",
    "run/model/tokenizer_config.json", "run/model/model.safetensors", "run/before-end/*/*", "run/cells/*.json",
    "run/model/modules.json", "run/model/*/*.json",
)  # fmt: skip
STOPPED = ("stopped/*.json", "stopped/*.jsonl", "stopped/heartbeat", "stopped/checkpoints/*/*")
DATA = ("data/*.json", "data/*.bin", "data/tokenizer/*")
MODEL = ("model/*",)
TASKS = ("tasks/*",)
SMALL = ("--tokenizer.vocabulary", "400", "--workers", "1")
TEXTS = ("texts/*",)


def read_texts() -> None:
    """Read every text of ``texts`` as ``prepare`` does, without a tokenizer."""
    from daybreak.data.readers.documents import choose_rule, read_documents
    from daybreak.data.readers.file_range import Skips
    from daybreak.data.readers.inputs import ByteCounter, find_files

    for path in sorted(Path("texts").iterdir()):
        files = find_files([path])
        skips = Skips()
        for document in read_documents(files, choose_rule(files, "auto"), "text", skips, ByteCounter()):
            assert document.text.encode()
        skips.evaluate()


def load_tasks() -> None:
    """Read the task files and the rows of their tables."""
    from daybreak.evaluation.tasks.kinds import load_task
    from daybreak.evaluation.tasks.task_file import read_task_file

    for path in sorted(Path("tasks").glob("*.toml")):
        load_task(read_task_file(path))


def load_data() -> None:
    """Open prepared data and read all of its tokens and its tokenizer."""
    from daybreak.data.sequences.shards import open_shards
    from daybreak.data.tokenizers.tokenizer import load_tokenizer

    shards = open_shards(Path("data"))
    for split in (shards.train, shards.heldout):
        split.read(0, len(split))
    load_tokenizer(Path("data/tokenizer"))


def import_model() -> None:
    from daybreak.models.importing import load_pretrained

    load_pretrained(Path("model"))


def import_tokenizer() -> None:
    from daybreak.data.tokenizers.tokenizer_import import Existing

    Existing(folder="model").make([], Path("made"))


def load_classifier() -> None:
    from daybreak.evaluation.finetuning.classifier import build_classifier
    from daybreak.evaluation.tasks.kinds import KINDS

    build_classifier(Path("model"), KINDS["classification"], ("a", "b"), 0, untrained=False)


def load_recipe_json() -> None:
    from daybreak.recipe import load_recipe

    load_recipe(Path("run")).check()


def read_checkpoints() -> None:
    from daybreak.training import checkpoint

    checkpoint.read_newest(Path("stopped/checkpoints"))
    checkpoint.read_newest(Path("run/before-end"))


def read_results_file() -> None:
    from daybreak.evaluation.finetuning.results import read_results

    read_results(Path("run/results.json"))


VARIANT = f"tiny {SHAPE}"
STUDY = ("study", f"a={VARIANT}", f"b={VARIANT} --optimizer.lr 1e-3", "--data", "data", "--out", "study", "--budget",
         "20steps", "--seeds", "1", "--threads", "1")  # fmt: skip
FINISHED = ("pretrain", "tiny", "--data", "data", "--out", "run", "--budget", "40steps", *SHAPE.split())
STOPPING = ("pretrain", "tiny", "--data", "data", "--out", "stopped", "--budget", "60steps", *SHAPE.split())
FINETUNING = ("--tasks", "tasks/toy-task.toml", "--seeds", "1", "--rows", "32", "--epochs", "1", "--workers", "1")
PREPARING = ("prepare", "toy.jsonl", "--out", "data", *SMALL)

QUICK = (
    Reader("status", RUN, ("status", "run"), ("run",)),
    Reader("status of a stopped run", STOPPED, ("status", "stopped"), ("stopped",)),
    Reader("recipe.json", ("run/recipe.json",), load_recipe_json, ("run",)),
    Reader("results.json", ("run/results.json",), read_results_file, ("run",)),
    Reader("checkpoints", ("stopped/checkpoints/*/*", "run/before-end/*/*"), read_checkpoints, ("stopped", "run")),
    Reader("data", DATA, load_data, ("data",)),
    Reader("texts", TEXTS, read_texts, ("texts",)),
    Reader("tasks", TASKS, load_tasks, ("tasks",)),
    Reader("import of a model", MODEL, import_model, ("model",)),
    Reader("import of a tokenizer", MODEL, import_tokenizer, ("model",)),
    Reader("classifier", MODEL, load_classifier, ("model",)),
)
"""Readers that take milliseconds."""
SLOW = (
    Reader("report", RUN, ("report", "run"), ("run",)),
    Reader("report of a stopped run", STOPPED, ("report", "stopped"), ("stopped",)),
    Reader("report of a study's runs", ("study/cells/*/*.json*",),
           ("report", "study/cells/a-seed-0", "study/cells/b-seed-0"), ("study",)),
    Reader("finished study", ("study/*.json", "study/cells/*.json", "study/cells/*/*.json*", *DATA), STUDY,
           ("study", "data"), trains=True),
    Reader("record of a study", ("study/*.json", "study/cells/*/*.json*"), ("record", "study", "--out", "filed"),
           ("study", "data"), trains=True),
    Reader("leaderboard", ("records/*/*.json*",), ("leaderboard", "records"), ("records",)),
    Reader("finished run", RUN, FINISHED, ("run", "data")),
    Reader("resume", (*STOPPED, *DATA), STOPPING, ("stopped", "data"), trains=True),
    Reader("verify", (*RUN, *DATA), ("verify", "run", "--data", "data", "--last", "5"), ("run", "data"), trains=True),
    Reader("export", RUN, ("export", "run", "--data", "data", "--out", "exported"), ("run", "data")),
    Reader("export of a stopped run", (*STOPPED, *DATA), ("export", "stopped", "--data", "data", "--out", "exported"),
           ("stopped", "data"), trains=True),
    Reader("--init", (*MODEL, *DATA),
           ("pretrain", "tiny", "--init", "model", "--data", "data", "--out", "new", "--budget", "20steps", "--length",
            "32", "--batch", "8"), ("model", "data"), trains=True),
    Reader("--from", (*RUN, "run/before-decay/*/*"), ("pretrain", "--from", "run", "--extend", "60steps", "--data",
                                                      "data", "--out", "new"), ("run", "data"), trains=True),
    Reader("evaluate", (*RUN, *TASKS), ("evaluate", "run", *FINETUNING), ("run", "tasks"), trains=True),
    Reader("evaluate a model", MODEL, ("evaluate", "model", *FINETUNING), ("model", "tasks"), trains=True),
    Reader("probe", (*RUN, *TASKS), ("probe", "run", "--tasks", "tasks/toy-task.toml", "--rows", "32"),
           ("run", "tasks"), trains=True),
    Reader("search", ("run/search/*", *RUN, *DATA), ("search", "run", "a question", "--data", "data"),
           ("run", "data"), trains=True),
    Reader("init-task", ("tasks/*.csv", "tasks/*.jsonl", "tasks/*.tsv"), ("init-task", "tasks/rows.csv"), ("tasks",)),
    Reader("prepare", TEXTS, ("prepare", "texts", "--out", "new", *SMALL), ("texts",)),
    Reader("prepare again", DATA, PREPARING, ("data", "toy.jsonl")),
    Reader("plan", DATA, ("plan", "--data", "data", "--budget", "2m"), ("data",)),
    Reader("record", RUN, ("record", "run", "--out", "filed", "--data", "data"), ("run", "data"), trains=True),
)  # fmt: skip
"""Readers that take a second or more."""


def files_of(reader: Reader, world: Path) -> list[str]:
    """The files of the world that the reader opens."""
    found = {path for pattern in reader.files for path in world.glob(pattern) if path.is_file()}
    return sorted(str(path.relative_to(world)) for path in found)


def copy_world(reader: Reader, world: Path, to: Path) -> None:
    """Copy what the reader needs."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in reader.copies:
        if (world / name).is_dir():
            shutil.copytree(world / name, to / name)
        elif (world / name).exists():
            (to / name).symlink_to((world / name).resolve())  # a manifest names the path of its text


# ---------------------------------------------------------------- a try


def run_reader(reader: Reader) -> int:
    """Run a reader in the current folder and return its exit code; a function's errors are printed as a command's."""
    if not callable(reader.act):
        from daybreak.cli import run_command

        return run_command(list(reader.act))
    try:
        reader.act()
    except UserError as error:
        print(f"daybreak: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("daybreak: out of memory.", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def complaint(code: int, output: str) -> str:
    """What is wrong with the end of a command: its last line of Daybreak's code; empty if it ended properly."""
    if "Traceback (most recent call last)" in output or code not in (0, 2):
        frames = re.findall(r'File "[^"]*/(?:src/daybreak|benchmarks)/([^"]+)", line \d+, in (\S+)', output)
        frames = [frame for frame in frames if frame[0] != "fuzz.py"] or frames
        errors = re.findall(r"^([\w.]+(?:Error|Exception|Interrupt|Exit|Warning)\b)", output, re.MULTILINE)
        where = " in ".join(reversed(frames[-1])) if frames else "no frame"
        return f"{errors[-1] if errors else f'exit code {code}'}: {where}"
    if code == 2:
        messages = re.findall(r"^daybreak: (.+)", output, re.MULTILINE)
        usage = re.search(r"^(?:usage|╭─ .*error|.*Parsing error)", output, re.MULTILINE | re.IGNORECASE)
        if not messages and not usage:
            return "exit code 2 without a message"
        if messages and not output.rstrip().endswith((".", "?")) and not usage:
            return "a message without a full stop"
    return ""


def try_in_child(reader: Reader, folder: Path, log: Path) -> tuple[int, str]:
    """Run a reader in a child process in ``folder``; return its exit code (minus the signal) and its output."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.setsid()
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(folder)
            if reader.trains:
                assert not callable(reader.act)
                paths = os.pathsep.join([str(measure.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
                command = measure.daybreak(*reader.act)
                os.execve(command[0], command, {**os.environ, "PYTHONPATH": paths})
            code = run_reader(reader)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    until = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGALRM, f"longer than {SECONDS} seconds"
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started
    return os.waitstatus_to_exitcode(status), log.read_text(encoding="utf-8", errors="replace")


# ---------------------------------------------------------------- the world


def write_texts(folder: Path, count: int = 60) -> None:
    """The toy text in every format that ``prepare`` reads."""
    import bz2
    import csv

    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    lines = toy.toy_text(folder, documents=count).read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    paragraphs = [" ".join(text.split()[:40]) for text in texts]
    (folder / "a.txt").write_text("\n\n".join(paragraphs))
    (folder / "b.md").write_text("\n\n".join(f"# {text[:20]}\n\n{text} [link](x.html)" for text in paragraphs))
    (folder / "c.html").write_text(
        "<html><body>" + "".join(f"<p>{text}</p>\n" for text in paragraphs) + "</body></html>"
    )
    with (folder / "d.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(paragraphs)])
    with (folder / "e.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["id", "text"], *enumerate(paragraphs)])
    pyarrow.parquet.write_table(pyarrow.table({"text": paragraphs}), folder / "f.parquet")
    (folder / "g.txt.gz").write_bytes(gzip.compress("\n\n".join(paragraphs).encode()))
    (folder / "h.jsonl.bz2").write_bytes(bz2.compress("\n".join(lines).encode() + b"\n"))
    pages = "".join(
        f"<page><title>T {at}</title><ns>0</ns><id>{at}</id><revision><id>2</id><text>'''{text}''' [[a|b]] {{{{c}}}}"
        "</text></revision></page>\n"
        for at, text in enumerate(paragraphs)
    )
    dump = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">\n{pages}</mediawiki>'
    (folder / "enwiki-1-pages-articles.xml").write_text(dump)
    (folder / "enwiki-2-pages-articles.xml.bz2").write_bytes(bz2.compress(dump.encode()))


def write_tasks(folder: Path) -> None:
    """A task of every kind of table."""
    folder.mkdir()
    toy.toy_task(folder)
    words = toy.toy_words()
    rows = [[f"{words[at]} {words[at + 1]}", f"{words[at + 2]}", "xy"[at % 2], f"{at % 5}.5"] for at in range(60)]
    for suffix, mark in (("csv", ","), ("tsv", "\t")):
        lines = [mark.join(row) for row in [["first", "second", "label", "score"], *rows]]
        (folder / f"rows.{suffix}").write_text("\n".join(lines) + "\n")
    (folder / "pairs.toml").write_text('train = "rows.csv"\ntext = ["first", "second"]\nlabel = "label"\n')
    (folder / "scores.toml").write_text('train = "rows.tsv"\ntext = "first"\nlabel = "score"\nkind = "regression"\n')
    sentences = [
        "".join(f"{words[7 * at + i]} NN O {'B-X' if i == 2 else 'O'}\n" for i in range(5)) for at in range(40)
    ]
    (folder / "tags.conll").write_text("\n".join(sentences))
    (folder / "tags.toml").write_text(
        'train = "tags.conll"\ndev = "tags.conll"\nkind = "tokens"\ntext = 0\nlabel = 3\n'
    )
    asked = [
        {"id": str(at), "question": f"{words[at]}?", "answers": [{"text": words[at + 3], "answer_start": 0}]}
        for at in range(20)
    ]
    paragraphs = [
        {"context": f"{words[at + 3]} {words[at]} {words[at + 1]}.", "qas": [one]} for at, one in enumerate(asked)
    ]
    squad = {"version": "1.1", "data": [{"title": "T", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(squad))
    (folder / "squad.toml").write_text('train = "squad.json"\ndev = "squad.json"\nkind = "qa"\n')


def stop_run(command: Sequence[str], run: Path, log: Path) -> None:
    """Start a run and stop it with SIGTERM after its 25th step."""
    process = measure.start(command, log)
    while process.poll() is None and len(list(read_json_lines(run / "trace.jsonl"))) < 25:
        time.sleep(measure.POLL_SECONDS)
    process.send_signal(signal.SIGTERM)
    if process.wait() != 143:
        sys.exit(f"The run in {run} did not stop:\n{log.read_text()[-2000:]}")


def write_world(world: Path, log: Path, quick: bool) -> None:
    """Write everything that the readers open, with real commands."""
    world.mkdir()
    toy.toy_text(world, documents=300)
    write_texts(world / "texts")
    write_tasks(world / "tasks")
    with contextlib.chdir(world):
        commands = [PREPARING, FINISHED]
        if not quick:
            commands += [
                ("evaluate", "run", *FINETUNING),
                ("probe", "run", "--tasks", "tasks/toy-task.toml", "--rows", "32"),
                ("search", "run", "a question", "--data", "data"),
                ("record", "run", "--data", "data", "--out", "records"),
                STUDY,
            ]
        for command in commands:
            measure.run(measure.daybreak(*command), log)
        stop_run(measure.daybreak(*STOPPING), Path("stopped"), log)
    write_forecasts(world / "run")
    shutil.copytree(world / "run" / "model", world / "model")


def write_forecasts(run: Path) -> None:
    """Write the two files that a run of so small a model lacks."""
    forecasts = [Forecast(made_at=at, tokens=1e6, loss=5.4, low=5.2, high=5.6) for at in (0.0, 0.1, 0.2)]
    write_json(run / "forecast.json", ForecastLog(forecasts=forecasts, usual=forecasts[1:], difficulty=-0.75))
    intervals = {"mrr": [0.2, 0.4], "recall_1": [0.1, 0.3], "recall_10": [0.3, 0.5]}
    scores = dict.fromkeys(intervals, 0.3)
    rankers = [
        RankerScore(ranker=name, scores=scores, intervals=intervals, above_bm25={} if name == "bm25" else intervals)
        for name in ("bm25", "dense", "hybrid")
    ]
    example = RetrievalExample(query="a question", passage="its answer", rank=2, first="another answer")
    write_json(run / "retrieval.json", Retrieval(passages=100, rankers=rankers, seconds=1.0, examples=[example]))


# ---------------------------------------------------------------- the command


@dataclass(frozen=True, kw_only=True)
class Try:
    """One damaged file and the reader of it."""

    reader: Reader
    file: str
    seed: int


def save_finding(work: Path, one: Try, folder: Path, why: str, output: str) -> None:
    """Keep the damaged file, and what is needed to repeat the try."""
    place = work / "findings" / f"{one.seed}-{one.reader.name.replace(' ', '-')}"
    place.mkdir(parents=True, exist_ok=True)
    broken = folder / one.file
    if broken.is_file():
        shutil.copy(broken, place / broken.name)
    (place / "output.txt").write_text(output, encoding="utf-8")
    found = {"why": why, "reader": one.reader.name, "file": one.file, "seed": one.seed}
    (place / "try.json").write_text(json.dumps(found, indent=2) + "\n")


def tries(readers: Sequence[Reader], world: Path, only: str, seed: int) -> Iterator[Try]:
    """Yield random tries without end: a reader, one of its files, and the seed of the damage."""
    rng = random.Random(seed)
    named = [(reader, files_of(reader, world)) for reader in readers]
    chosen = [(reader, [file for file in files if only in file]) for reader, files in named]
    chosen = [(reader, files) for reader, files in chosen if files]
    if not chosen:
        sys.exit(f"None of the readers opens a file called '{only}'.")
    while True:
        reader, files = rng.choice(chosen)
        yield Try(reader=reader, file=rng.choice(files), seed=rng.getrandbits(48))


def warm_up(readers: Sequence[Reader], world: Path, folder: Path) -> None:
    """Run every reader once on the undamaged files: those in this process leave their imports for its children.

    The parity check of an export in this process, which starts an interpreter, is replaced by one that passes.
    """
    from daybreak.exporting import parity
    from daybreak.pretraining import run_end
    from daybreak.schemas.run import Parity

    passed = Parity(
        passed=True, checks={}, largest_logit_difference=0.0, tolerance=1.0, masked_accuracy=0.0, transformers="",
        seconds=0.0,
    )  # fmt: skip
    for module in (parity, run_end):
        module.check_parity = lambda *_, **__: passed  # type: ignore[assignment]
    for reader in readers:
        copy_world(reader, world, folder)
        if reader.trains:
            code, output = try_in_child(reader, folder, folder.with_suffix(".txt"))
        else:
            printed = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = run_reader(reader)
            output = printed.getvalue()
        if code:
            sys.exit(f"The reader '{reader.name}' fails on undamaged files:\n{output[-2000:]}")


def fuzz(
    work: Path, minutes: float, seed: int, *, most: int, only: str, quick: bool, names: Collection[str]
) -> dict[str, Any]:
    """Damage files and run their readers until the time is over."""
    world, folder, log = work / "world", work / "try", work / "try.txt"
    if not world.exists():
        write_world(world, work / "world.txt", quick)
    readers = [one for one in (QUICK if quick else (*QUICK, *SLOW)) if not names or one.name in names]
    warm_up(readers, world, folder)
    counts, ends, findings = Counter[str](), Counter[str](), dict[str, dict[str, Any]]()
    begun = time.monotonic()
    for one in tries(readers, world, only, seed):
        if time.monotonic() - begun > 60 * minutes or sum(counts.values()) >= most:
            break
        copy_world(one.reader, world, folder)
        damage(folder / one.file, random.Random(one.seed))
        code, output = try_in_child(one.reader, folder, log)
        why = complaint(code, output)
        counts[one.reader.name] += 1
        ends["finding" if why else "done" if code == 0 else "message"] += 1
        if why.endswith("no frame"):
            why += f", {one.reader.name}"
        if why and why in findings:
            findings[why]["count"] += 1
        elif why:
            findings[why] = {"count": 1, "reader": one.reader.name, "file": one.file, "seed": one.seed}
            save_finding(work, one, folder, why, output)
            print(f"{why} ({one.reader.name}, {one.file}, seed {one.seed})", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "tries": sum(counts.values()),
        "seconds": round(time.monotonic() - begun, 1),
        "ends": dict(ends),
        "by_reader": dict(counts),
        "findings": [{"why": why, **found} for why, found in findings.items()],
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tries", type=int, default=10**9, help="stop after this many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="damage only files whose path contains this")
    parser.add_argument("--quick", action="store_true", help="only readers that take milliseconds")
    parser.add_argument("--readers", default="", help="only these: names with commas between them")
    chosen = parser.parse_args()
    measure.use_one_thread()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if chosen.short:
        chosen.minutes, chosen.tries, chosen.quick = 1.0, min(chosen.tries, 40), True
    settings = {name: getattr(chosen, name) for name in ("minutes", "tries", "seed", "only", "quick", "readers")}
    with measure.work_folder(chosen.work) as work:
        found = {**measure.record("fuzz", settings), **fuzz(
            work, chosen.minutes, chosen.seed, most=chosen.tries, only=chosen.only, quick=chosen.quick,
            names=[name for name in chosen.readers.split(",") if name],
        )}  # fmt: skip
    measure.finish(found, chosen.out)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(found["ends"].items()))
    print(f"{found['tries']} tries in {found['seconds']:.0f} s: {ends}; {len(found['findings'])} different findings")


if __name__ == "__main__":
    main()
