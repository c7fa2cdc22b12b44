"""Processes of Python that need not import torch and transformers: forks of a server that has imported them.

A test that starts ``python -m daybreak``, a script or the parity check in a process of its own waits for seconds of
imports otherwise. A fork is a process like any other: with its own number, environment, signals, output and exit
status. A process with other variables that libraries read while they are imported is started as usual. What a fork
starts in turn, the cell of a study for example, is a fork of it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

HEAVY = {
    "parity": (
        "torch transformers.modeling_utils transformers.models.auto.modeling_auto "
        "transformers.models.auto.tokenization_auto transformers.models.bert.modeling_bert "
        "transformers.models.modernbert.modeling_modernbert"
    ).split(),
    "bare": "torch torch.distributed transformers sklearn.linear_model scipy.stats".split(),
    "daybreak": "daybreak.cli torch transformers sklearn.linear_model scipy.stats".split(),
}
"""What each server imports. Only the last one imports Daybreak."""
ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_",
    "DAYBREAK_",
    "COLUMNS",
    "PYTEST_",
    "PYTHONPATH",
    "PRETRAIN_YOUR_OWN",
)
"""Beginnings of the variables that a fork may have of its own, because nothing reads them while it is imported."""


class Process:
    """As much of ``subprocess.Popen`` as tests use, for a fork of a server."""

    def __init__(self, connection: socket.socket, words: Sequence[str], output: Sequence[Any]):
        self.args, self.returncode = list(words), None
        self._answers, self._output = connection.makefile("r"), output
        self._connection = connection
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        for file in self._output:
            file.seek(0)
        out, err = (file.read().decode() for file in self._output)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


PATH: list[str] = []
"""Where this process looked for modules when it began."""
SERVERS: dict[str, Server] = {}
"""Those of this session, by name."""


class Server:
    """A process that listens at ``place``, and imports HEAVY[name] when it is first asked for a fork."""

    def __init__(self, name: str, place: Path, environment: Mapping[str, str], parity: str = ""):
        self.place, self._environment = str(place), dict(environment)
        command = [sys.executable, *(["-I"] if name == "parity" else []), __file__, name, self.place, parity]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=self._environment, start_new_session=True
        )
        assert self._process.stdout and self._process.stdout.readline()  # it listens
        SERVERS[name] = self

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Process | None:
        """A fork that runs ``python words``; None if it would not be as a new process is."""
        names = self._environment.keys() | environment.keys()
        changed = [name for name in names if self._environment.get(name) != environment.get(name)]
        if not all(name.startswith(ENVIRONMENT) for name in changed):
            return None
        return connected(self.place, words, environment)

    def run(self, words: Sequence[object], environment: Mapping[str, str] | None = None) -> Any:
        """``python words`` to its end, with more variables than the server has."""
        process = self.start(list(map(str, words)), {**self._environment, **(environment or {})})
        assert process, "a variable that libraries read while they are imported"
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    def stop(self) -> None:
        self._process.communicate()  # the end of its input ends it


def surroundings(folder: Path, text: str, name: str = "sitecustomize.py") -> dict[str, str]:
    """The environment of a process that finds ``text`` as a module ``name`` before all others."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def connected(place: str, words: Sequence[str], environment: Mapping[str, str]) -> Process:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    output = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 (open until the process is forgotten)
    ignored = [int(number) for number in (signal.SIGHUP,) if signal.getsignal(number) is signal.SIG_IGN]
    cores = sorted(os.sched_getaffinity(0))
    given = json.dumps([list(words), dict(environment), os.getcwd(), ignored, cores]).encode()
    socket.send_fds(connection, [len(given).to_bytes(8)], [file.fileno() for file in output])
    connection.sendall(given)
    return Process(connection, words, output)


def start_python(words: Sequence[str], environment: Mapping[str, str]) -> Any:
    """``python words``, going on: a fork of the server that has imported Daybreak, or a new process where that would
    not be the same."""
    pipe = subprocess.PIPE
    return SERVERS["daybreak"].start(words, environment) or subprocess.Popen(
        [sys.executable, *words], stdout=pipe, stderr=pipe, text=True, env=dict(environment)
    )


def run_parity_checks_at(place: str) -> None:
    """Let ``subprocess.run`` give the script of the parity check to the server that listens at ``place``."""
    true_run, python = subprocess.run, sys.executable

    def run(words: Any, *given: Any, **named: Any) -> Any:
        if words[:2] != [python, "-I"] or not words[2].endswith("parity_check.py"):
            return true_run(words, *given, **named)
        process = connected(place, words[2:], os.environ)
        try:
            out, err = process.communicate(named["timeout"])
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.wait(), out, err)

    subprocess.run = run


# ---------------------------------------------------------------- in the server


def serve(name: str, place: str, parity: str) -> None:
    """Fork for each connection, until the input ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    print("listening", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    imported = False
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not imported:
            for library in HEAVY[name]:
                importlib.import_module(library)
            if name == "daybreak":
                for module in pkgutil.iter_modules(importlib.import_module("daybreak.commands").__path__):
                    importlib.import_module(f"daybreak.commands.{module.name}")
            if name != "parity":
                run_parity_checks_at(parity)
                os.fsync = lambda _: None
                if sys.platform == "linux":  # it reads /proc; elsewhere processes start as usual
                    subprocess.Popen = Nested  # type: ignore[misc]
            gc.freeze()
            imported = True
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return supervise(connection, name)
        connection.close()


def supervise(connection: socket.socket, name: str) -> None:
    """Fork once more, tell the number of that process, and wait for its end."""
    head, files, *_ = socket.recv_fds(connection, 8, 2)
    given = b""
    while len(given) < int.from_bytes(head):
        given += connection.recv(1 << 16)
    process = os.fork()
    if process == 0:
        connection.close()
        return become(json.loads(given), files, name)
    for file in files:
        os.close(file)
    connection.sendall(f"{process}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.sendall(f"{status}\n".encode())
    os._exit(0)


def become(given: list[Any], files: Sequence[int], name: str) -> None:
    """Run the words as a process of their own; the interpreter ends it as it ends any other."""
    words, environment, folder, ignored, cores = given
    os.sched_setaffinity(0, cores)
    for file, number in zip(files, (1, 2)):
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    before = os.environ.get("PYTHONPATH")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if (paths := environment.get("PYTHONPATH")) != before:
        sys.path[:0] = filter(None, (paths or "").split(os.pathsep))
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ImportError):
            importlib.import_module("sitecustomize")
    PATH[:] = sys.path
    if name == "parity":
        # transformers reads the place of its copies of modelling code when it is imported.
        sys.modules["transformers.dynamic_module_utils"].HF_MODULES_CACHE = f"{words[2]}/modules"  # type: ignore[attr-defined]
    run_python(words)


def run_python(words: Sequence[str]) -> None:
    """Do what ``python words`` does: ``-m module``, ``-c code`` or a script, and its arguments."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = list(words)
        if not sys.flags.safe_path:
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


# ---------------------------------------------------------------- what a fork starts in turn


class Nested(subprocess.Popen):  # type: ignore[type-arg]
    """A process that runs Python is a fork of the one that starts it, unless that has several threads."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, *pipes: Any,
    ) -> None:  # fmt: skip
        words = [] if shell or isinstance(args, (str, bytes, os.PathLike)) else list(map(os.fspath, args))
        python = words[:1] == [sys.executable] and len(words) > 1 and (words[1] in ("-m", "-c") or words[1][0] != "-")
        if not python or len(os.listdir("/proc/self/task")) > 1:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *pipes
            )
            return
        to_read, _, _, to_write, _, to_complain, *more = pipes
        new_session = more[5]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            begin_anew((to_read, to_write, to_complain), preexec_fn, pass_fds, new_session)
            os.chdir(cwd or ".")
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            finish_with(words[1:])
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]


def begin_anew(streams: Sequence[int], before: Any, kept: Sequence[int], new_session: bool) -> None:
    """Leave to this fork what a new process would have of the one that started it, and no more."""
    gc.freeze()  # an open file of the other must not close one of ours
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if new_session:
        os.setsid()
    if before:
        before()
    for file, number in zip(streams, range(3)):
        if file != -1:
            os.dup2(file, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the list's own
                os.close(number)
    sys.path[:] = PATH
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    signal.set_wakeup_fd(-1)
    for one in signal.valid_signals():
        if callable(signal.getsignal(one)):
            signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)


def finish_with(words: Sequence[str]) -> NoReturn:
    """Run the words and end this process, whose caller is of another one."""
    status = 1
    try:
        run_python(words)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(*sys.argv[1:])
