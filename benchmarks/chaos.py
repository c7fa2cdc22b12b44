"""Disturb Daybreak's commands at random, repeat them, and compare what they make with undisturbed results.

    OMP_NUM_THREADS=1 python benchmarks/chaos.py --runs 10 --minutes 60 --seed 0 --out chaos.json

Each run repeats one command (prepare, pretrain, run, evaluate or study, on toy text, with a budget in steps) until its
plan of faults is used up, and then once undisturbed. A fault is one of: SIGKILL to the command alone or with all of its
processes, SIGTERM, SIGINT, SIGSTOP with SIGCONT some seconds later, a full disk, little memory, a wall clock that jumps
by a day, and, between two starts, one file of the output cut at a random place. Faults come at a random fraction of the
processor time that the undisturbed command takes, so that a busy machine changes little.

It checks that every start ends by itself, by the fault's signal, or with exit code 2 and one message, never with a
traceback; that the last start succeeds, where needed after a file that a message names was restored; and that the
result equals the undisturbed one: the bytes of the weights and token files, the scores, the losses.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json

SHAPE = (
    "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 32 "
    "--length 32 --batch 8 --precision float32"
)
"""Options that make the recipe so small that a step takes milliseconds."""
STEPS = 600
PATIENCE = 600.0
"""Seconds after which a start counts as stuck; also one that takes ten times the usual processor time."""
DISK_MEGABYTES = 400
"""Size of the file system that is filled."""
SIGNALS = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
ENDING = ("kill", "kill", "kill one", "terminate", "interrupt", "disk", "memory")
"""Faults that end a command before its work is done, as a rule."""
GENTLE = ("pause", "clock")
"""Faults that a command survives."""
STARTS = ("memory", "clock")
"""Faults that a command starts with."""
SITE = """
import importlib.abc, importlib.util, sys, time
class Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "daybreak.training.loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.CHECKPOINT_SECONDS, module.CHECKPOINT_FRACTION = 0.5, 1.0
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Patching())
true, started = time.time, time.time()
if {jump}:
    time.time = lambda: true() + {jump} * (true() - started > {after})
"""
"""A sitecustomize: checkpoints each half second, because these runs are short, and a wall clock that is set."""
CLOCK_SECONDS = 2.0
"""Seconds after the start at which the wall clock is set."""


@dataclass(frozen=True)
class Fault:
    """One disturbance of one start."""

    kind: str
    at: float
    """When, as a fraction of the undisturbed command's processor time; for a cut, the part that stays."""
    size: float
    """Uniform in [0, 1): how long the pause is, how little the memory, which file is cut."""


def plan(seed: int, number: int, commands: tuple[str, ...]) -> tuple[str, list[Fault]]:
    """The command of a run, and its faults in order; always the same for a seed."""
    rng = random.Random(f"{seed}/{number}")
    kinds: list[str] = []
    for _ in range(rng.randint(1, 4)):
        kinds += [rng.choice(ENDING)] + ["cut"] * (rng.random() < 0.35)
    kinds += [rng.choice(GENTLE)] * (rng.random() < 0.5)
    return commands[number % len(commands)], [Fault(kind, rng.uniform(0.02, 0.98), rng.random()) for kind in kinds]


# ---------------------------------------------------------------- the commands


@dataclass(frozen=True)
class Subject:
    """A command that is disturbed, and what is compared at its end."""

    words: Callable[[Path, Path], list[str]]
    """Arguments of ``daybreak``, from the folder with the inputs and the output folder."""
    facts: Callable[[Path], Any]
    """What must be equal, from the output folder."""


def bytes_of(*patterns: str) -> Callable[[Path], dict[str, str]]:
    """Return a function that hashes the files of the patterns."""

    def facts(out: Path) -> dict[str, str]:
        import hashlib

        files = sorted(file for pattern in patterns for file in out.glob(pattern))
        return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    return facts


def task_scores(out: Path) -> list[Any]:
    return [[one["task"], one["model"], one["scores"], one["seeds"]] for one in read_json(out / "results.json")]


def cell_losses(out: Path) -> list[Any]:
    found = read_json(out / "study.json")
    return [found["finished"], *([one["variant"], one["seed"], one["loss"], one["steps"]] for one in found["cells"])]


VARIANT = f"tiny {SHAPE}"
SMALL = ["--seeds", "2", "--rows", "32", "--epochs", "1", "--workers", "1"]
VOCABULARY = ["--tokenizer.vocabulary", "400"]
SUBJECTS = {
    "prepare": Subject(
        lambda given, out: ["prepare", str(given / "toy.jsonl"), "--out", str(out), *VOCABULARY, "--workers", "2"],
        bytes_of("*.bin", "tokenizer/tokenizer.json"),
    ),
    "pretrain": Subject(
        lambda given, out: ["pretrain", "tiny", "--data", str(given / "data"), "--out", str(out), "--budget",
                            f"{STEPS}steps", *SHAPE.split()],
        bytes_of("model/model.safetensors"),
    ),
    "run": Subject(
        lambda given, out: ["run", "tiny", "--corpus", str(given / "toy.jsonl"), "--out", str(out), "--budget",
                            f"{STEPS}steps", *SHAPE.split(), *VOCABULARY, "--workers", "1"],
        bytes_of("model/model.safetensors", "data/*.bin"),
    ),
    "evaluate": Subject(
        lambda given, out: ["evaluate", str(given / "model"), "--tasks", str(given / "toy-task.toml"), "--out",
                            str(out), *SMALL],
        task_scores,
    ),
    "study": Subject(
        lambda given, out: ["study", f"a={VARIANT}", f"b={VARIANT} --optimizer.lr 1e-3", "--data",
                            str(given / "data"), "--out", str(out), "--budget", "20steps", "--seeds", "1",
                            "--threads", "1"],
        cell_losses,
    ),
}  # fmt: skip


# ---------------------------------------------------------------- a start


def processes_of(group: int) -> list[int]:
    """Process ids of a session, the leader first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == group and fields[0] not in "ZX":
                found.append(int(folder.name))
    return sorted(found, key=lambda one: (one != group, one))


def processor_seconds(process: int) -> float:
    """Processor time of a process and of its children that have ended, plus that of the living ones of its session."""
    ticks = 0
    for one in processes_of(process):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Ended:
    """How a start ended."""

    code: int
    output: str
    seconds: float
    processor: float
    memory: int
    """Largest address space of the first process in bytes."""
    hit: bool = False
    """Whether the fault took place before the end."""


def address_space(process: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def start(command: list[str], log: Path, more: dict[str, str], *, memory: int = 0) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with at most ``memory`` bytes of address space."""
    paths = [*filter(None, [more.get("PYTHONPATH")]), str(measure.ROOT / "src")]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}

    def limit() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True, preexec_fn=limit
        )


def fill(folder: Path) -> Path:
    """Fill the file system of ``folder`` to its last byte; return the file that takes the room."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return ballast


def strike(process: subprocess.Popen[bytes], fault: Fault, folder: Path) -> None:
    """Do to a running command what the fault says."""
    if fault.kind == "kill":
        os.killpg(process.pid, signal.SIGKILL)
    elif fault.kind == "kill one":
        os.kill(random.Random(fault.size).choice(processes_of(process.pid) or [process.pid]), signal.SIGKILL)
    elif fault.kind in SIGNALS:
        process.send_signal(SIGNALS[fault.kind])
    elif fault.kind == "pause":
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.5 + 3 * fault.size)
        os.killpg(process.pid, signal.SIGCONT)
    elif fault.kind == "disk":
        fill(folder)


def site(folder: Path, fault: Fault | None) -> dict[str, str]:
    """The environment of a process with a checkpoint each half second, and a clock that jumps if the fault says so."""
    jump = 0.0
    if fault and fault.kind == "clock":
        jump = 86400.0 if fault.size < 0.5 else -86400.0
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE.format(jump=jump, after=CLOCK_SECONDS))
    return {"PYTHONPATH": str(folder)}


def play(command: list[str], log: Path, folder: Path, fault: Fault | None, usual: Ended | None) -> Ended:
    """Start a command, disturb it as the fault says, and wait for its end."""
    memory = int(usual.memory * (0.5 + 0.5 * (fault.size if fault else 0))) if usual else 0
    more = site(log.parent / "site", fault)
    begun = time.monotonic()
    process = start(command, log, more, memory=memory if fault and fault.kind == "memory" else 0)
    ended, waiting = Ended(0, "", 0.0, 0.0, 0), bool(fault and usual and fault.kind not in STARTS)
    ended.hit = fault is not None and fault.kind in STARTS
    while process.poll() is None:
        ended.processor = max(ended.processor, processor_seconds(process.pid))
        ended.memory = max(ended.memory, address_space(process.pid))
        if waiting and fault and usual and ended.processor >= fault.at * usual.processor:
            waiting, ended.hit = False, True
            with contextlib.suppress(ProcessLookupError):
                strike(process, fault, folder)
        stuck = usual is not None and ended.processor > 60 + 10 * usual.processor
        if stuck or time.monotonic() - begun > PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended.code, ended.output, ended.seconds = -signal.SIGALRM, "it did not end", time.monotonic() - begun
            return ended
        time.sleep(0.05)
    ended.code, ended.seconds = process.returncode, time.monotonic() - begun
    (folder / "ballast").unlink(missing_ok=True)
    until = time.monotonic() + 20
    while (left := processes_of(process.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    for one in left:  # its own processes end with it within seconds, so this is a finding
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    ended.output = log.read_text(encoding="utf-8", errors="replace")
    if left:
        ended.output += "\nTraceback (most recent call last): processes stayed behind."
    return ended


def wrong_end(ended: Ended, fault: Fault | None) -> str:
    """What is wrong with the end of a start; empty if nothing is."""
    if "Traceback (most recent call last)" in ended.output:
        last = [line for line in ended.output.splitlines() if re.match(r"[\w.]+(Error|Exception|Lost)\b", line)]
        return f"a traceback: {last[-1] if last else ended.output[-300:]}"
    killed = {"kill": [-signal.SIGKILL], "kill one": [-signal.SIGKILL, 1, 2]}
    allowed = {0, 2, *killed.get(fault.kind if fault else "", [])}
    if fault and fault.kind in SIGNALS:
        allowed |= {128 + SIGNALS[fault.kind], -SIGNALS[fault.kind]}  # before Python handles signals
    if ended.code not in allowed:
        return f"exit code {ended.code}: {ended.output[-300:]}"
    if ended.code == 2 and not message_of(ended):
        return "exit code 2 without a message"
    return ""


def resumed_at(output: str) -> int | None:
    """The step at which a start resumed; None if it did not."""
    found = re.search(r"Resuming at step\s+([\d,]+)", output)
    return int(found[1].replace(",", "")) if found else None


def message_of(ended: Ended) -> str:
    """The last message of the command; empty if there is none."""
    found = re.findall(r"^daybreak: (.+(?:\n(?!daybreak: ).+)*)", ended.output, re.MULTILINE)
    return re.sub(r"\s+", " ", found[-1]).strip() if found else ""


# ---------------------------------------------------------------- a run


def cut(out: Path, fault: Fault) -> tuple[Path, bytes] | None:
    """Cut one file of the output at a random place; return it with its content, None if there is no file."""
    files = sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size)
    if not files:
        return None
    file = files[int(fault.size * len(files))]
    content = file.read_bytes()
    os.truncate(file, int(fault.at * len(content)))
    return file, content


def disturbed(name: str, faults: list[Fault], given: Path, place: Path, usual: Ended, expected: Any) -> dict[str, Any]:
    """One run: all faults, a last start, and the comparison."""
    # The log does not lie on the disk that is filled.
    subject, out, log = SUBJECTS[name], place / "out", place.parent.parent / f"{place.name}.txt"
    place.mkdir(parents=True)
    command = measure.daybreak(*subject.words(given, out))
    starts: list[dict[str, Any]] = []
    findings: list[str] = []
    damaged: tuple[Path, bytes] | None = None

    def attempt(fault: Fault | None) -> Ended:
        ended = play(command, log, place, fault, usual)
        message = message_of(ended).replace(str(place), "PLACE").replace(str(given), "GIVEN")
        starts.append({
            "fault": asdict(fault) if fault else None, "hit": ended.hit, "code": ended.code, "message": message,
            "seconds": round(ended.seconds, 1), "resumed_at": resumed_at(ended.output),
        })  # fmt: skip
        if why := wrong_end(ended, fault):
            findings.append(f"{fault.kind if fault else 'undisturbed'}: {why}")
            shutil.copy(log, log.with_name(f"{place.name}-finding-{len(findings)}.txt"))
        return ended

    for fault in faults:
        if fault.kind == "cut":
            # One file at a time is cut, because only one is kept for its restoration.
            done = None if damaged else cut(out, fault)
            starts.append(
                {"fault": asdict(fault), "hit": bool(done), "cut": str(done[0].relative_to(out)) if done else ""}
            )
            damaged = damaged or done
            continue
        if attempt(fault).code == 2 and damaged:  # the file may be what it complains of
            restore(*damaged)
            damaged = None
    ended = attempt(None)
    if ended.code == 2 and damaged:
        restore(*damaged)
        ended = attempt(None)
    if ended.code:
        findings.append(f"the last start ended with {ended.code}: {message_of(ended)}")
    else:
        found = subject.facts(out)
        if found != expected:
            findings.append(f"the result differs: {json.dumps(found)[:300]} instead of {json.dumps(expected)[:300]}")
    return {"command": name, "starts": starts, "equal": not ended.code and found == expected, "findings": findings}


def restore(file: Path, content: bytes) -> None:
    """Write a cut file back, as messages advise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


# ---------------------------------------------------------------- the measurement


@contextlib.contextmanager
def small_disk(work: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a folder on a small file system of its own, and True; without the right to mount, ``work`` and False."""
    folder = work / "disk"
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "daybreak", str(folder)]
    able = os.geteuid() == 0 and shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    try:
        yield folder, bool(able)
    finally:
        if able:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def write_inputs(work: Path, commands: tuple[str, ...]) -> Path:
    """Make what the commands read: text, prepared data, a task and a model."""
    given = work / "given"
    if given.exists():
        return given
    given.mkdir()
    log = work / "given.txt"
    toy.toy_text(given, documents=300)
    toy.toy_task(given)
    measure.run(measure.daybreak(*SUBJECTS["prepare"].words(given, given / "data")), log)
    if "evaluate" in commands:
        measure.run(measure.daybreak(*SUBJECTS["pretrain"].words(given, work / "parent")), log)
        shutil.copytree(work / "parent" / "model", given / "model")
    return given


def undisturbed(name: str, given: Path, place: Path) -> tuple[Ended, Any]:
    """Run a command once without a fault; exits if that fails."""
    place.mkdir(parents=True)
    command = measure.daybreak(*SUBJECTS[name].words(given, place / "out"))
    ended = play(command, place.parent / f"{place.name}.txt", place, None, None)
    if ended.code:
        sys.exit(f"daybreak {name} fails without any fault:\n{ended.output[-2000:]}")
    return ended, SUBJECTS[name].facts(place / "out")


def chaos(work: Path, runs: int, minutes: float, seed: int, commands: tuple[str, ...]) -> dict[str, Any]:
    """Disturb runs until the number or the time is reached."""
    begun, found = time.monotonic(), []
    given = write_inputs(work, commands)
    references: dict[str, tuple[Ended, Any]] = {}
    with small_disk(work) as (folder, able):
        for number in range(runs):
            if time.monotonic() - begun > 60 * minutes:
                break
            name, faults = plan(seed, number, commands)
            if not able:  # filling the disk of this machine would disturb others
                faults = [fault for fault in faults if fault.kind != "disk"]
            if name not in references:
                references[name] = undisturbed(name, given, work / f"usual-{name}")
            place = folder / f"{number:03d}"
            one = disturbed(name, faults, given, place, *references[name])
            found.append({"number": number, **one})
            shutil.rmtree(place, ignore_errors=True)
            kinds = ", ".join(fault.kind for fault in faults)
            verdict = "; ".join(one["findings"]) or "equal"
            print(f"{number} {name} ({kinds}): {verdict}", flush=True)
    starts = [start for one in found for start in one["starts"]]
    return {
        "runs": found,
        "seconds": round(time.monotonic() - begun, 1),
        "faults": dict(Counter(start["fault"]["kind"] for start in starts if start["fault"] and start["hit"])),
        "starts": len([start for start in starts if "code" in start]),
        "resumes": sum(bool(start.get("resumed_at")) for start in starts),
        "messages": dict(Counter(start["message"] for start in starts if start.get("code") == 2)),
        "equal": sum(one["equal"] for one in found),
        "findings": [finding for one in found for finding in one["findings"]],
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0, help="no run starts after this time")
    parser.add_argument("--seed", type=int, default=0, help="of the plans")
    parser.add_argument("--commands", default=",".join(SUBJECTS), help="which commands are disturbed, in turns")
    chosen = parser.parse_args()
    measure.use_one_thread()
    if chosen.short:
        chosen.runs, chosen.commands = 1, "prepare"
    commands = tuple(chosen.commands.split(","))
    if unknown := set(commands) - set(SUBJECTS):
        sys.exit(f"There is no command '{min(unknown)}'. Choose some of {', '.join(SUBJECTS)}.")
    settings = {name: getattr(chosen, name) for name in ("runs", "minutes", "seed", "commands")}
    found = measure.record("chaos", settings)
    with measure.work_folder(chosen.work, fresh=True) as work:
        found |= chaos(work, chosen.runs, chosen.minutes, chosen.seed, commands)
    measure.finish(found, chosen.out)
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(found["faults"].items()))
    print(f"{len(found['runs'])} runs, {found['starts']} starts, {found['seconds']:.0f} s; {faults}")
    print(f"{found['equal']} of {len(found['runs'])} equal the undisturbed result; {len(found['findings'])} findings")


if __name__ == "__main__":
    main()
