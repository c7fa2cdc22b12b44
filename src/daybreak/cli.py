"""The command line: finds the command, prints help and errors, and returns the exit code.

Each command declares and parses its options itself, in ``commands/``, and is imported when it is called.
"""

import errno
import io
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from daybreak import __version__
from daybreak.commands import COMMANDS, main_of, with_current_flags
from daybreak.core.errors import Interrupted, PeerLost, UserError
from daybreak.core.process import address_space_limit
from daybreak.core.serialization import nearest

MIN_COLUMNS = 20
"""Least width of a terminal."""

UNUSABLE = (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS)
"""Errors of the file system that a user causes: a folder in place of a file, a link to itself, no permission."""

LEAST_ADDRESS_SPACE = 1536 << 20
"""Bytes of address space that torch, transformers and scipy need. With less, their libraries wait for memory without
end (OpenBLAS) or abort."""
WITHOUT_TORCH = ("prepare", "status", "report", "recipes", "leaderboard", "check-submission", "init-task", "doctor")
"""Commands that need less."""

FULL_MEMORY = ("out of memory", "can't allocate memory", "can't start new thread")
"""Parts of the messages of a RuntimeError where the memory of a GPU or of the machine is full."""
NO_GPU_CODE = "no kernel image is available"
"""Part of CUDA's message at the first operation on a GPU of a generation that torch is not built for."""

SPINS = "2000"
"""How often a thread asks for its next work before it sleeps. Without end, threads starve each other when other
processes run; much less, and an idle machine wakes sleeping threads all the time (docs/log.md)."""

RESUMABLE = ("run", "prepare", "pretrain", "evaluate", "study", "study-data")
"""Commands that continue where they stopped. Several processes of torchrun share only a pretraining."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``daybreak COMMAND ...`` and exit with 0 (done), 1 (a bug), 2 (a user error), 130 or 143 (a signal)."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # libgomp reads this when torch is imported
    widen_narrow_terminal()
    for name in ("stdout", "stderr"):  # None where the shell closed it with >&-
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Like stderr, print characters that the terminal cannot encode as escapes, not as a UnicodeEncodeError.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run_command(list(sys.argv[1:] if arguments is None else arguments))
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # gloo's threads sometimes abort while the interpreter shuts down, which would replace the exit code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def widen_narrow_terminal() -> None:
    """Use at least MIN_COLUMNS columns: tyro's help layout does not terminate in fewer."""
    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)


def _resumes(arguments: list[str], again: str) -> str:
    return f"; the {again} resumes" if arguments and arguments[0] in RESUMABLE else ""


def run_command(arguments: list[str]) -> int:
    """Run a command, print what goes wrong, and return the exit code."""
    again = "same command without --overwrite" if {"--overwrite", "--fresh"} & set(arguments) else "same command"
    try:
        try:
            dispatch(arguments)
        finally:
            sys.stdout.flush()
    except UserError as error:
        return _complain(str(error))
    except PeerLost as lost:
        return _complain(f"{lost} The {again} {'resumes' if arguments[0] in RESUMABLE else 'starts again'}.")
    except Interrupted as stop:
        return _complain(f"stopped{_resumes(arguments, again)}.", stop.exit_code)
    except KeyboardInterrupt:
        return _complain(f"stopped{_resumes(arguments, again)}.", 130)
    except MemoryError:
        return _report_full_memory(arguments, again)
    except BrokenPipeError:
        if arguments and arguments[0] in RESUMABLE and not {"-h", "--help"} & {*arguments}:
            _complain(f"stopped, because its output was closed; the {again} resumes.")
        return 1
    except OSError as error:
        if error.filename and error.errno in UNUSABLE:
            why = os.strerror(error.errno).lower()
            return _complain(f"'{error.filename}' cannot be used: {why}. Correct the path or its permissions.")
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            return _report_bug()
        path = f" to '{error.filename}'" if error.filename else ""
        reason = os.strerror(error.errno).lower()
        _complain(f"cannot write{path}: {reason}. Free disk space and run the same command again.")
        from daybreak.core.terminal import discard_output

        discard_output()
        return 2
    except Exception as error:
        if NO_GPU_CODE in str(error):
            return _complain(
                "this torch has no code for this GPU, which is too old or too new for it. Install the torch build that "
                "fits the GPU, or set CUDA_VISIBLE_DEVICES= to use the CPU."
            )
        if isinstance(error, RuntimeError) and any(part in str(error) for part in FULL_MEMORY):
            return _report_full_memory(arguments, again)
        return _report_bug()
    return 0


def _complain(message: str, code: int = 2) -> int:
    """Print a message to standard error, and return the exit code, also where that is a log on a full disk."""
    try:
        print(f"daybreak: {message}", file=sys.stderr, flush=True)
    except OSError:
        with suppress(OSError, ValueError):  # so that Python does not fail to flush it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


def _report_full_memory(arguments: list[str], again: str) -> int:
    resumes = f" The {again} resumes." if arguments and arguments[0] in RESUMABLE else ""
    return _complain(f"out of memory. Close other programs, or lower --workers or --microbatch.{resumes}")


def _report_bug() -> int:
    """Print the traceback of an unexpected exception."""
    with suppress(OSError):
        traceback.print_exc()
    return _complain("this is a bug in Daybreak; please report the lines above.", 1)


def dispatch(arguments: list[str]) -> None:
    """Call the ``main`` of the command that ``arguments`` name."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
    elif arguments[0] in ("--version", "version"):
        print(f"daybreak {__version__}")
    elif arguments[0] in COMMANDS:
        refuse_small_address_space(arguments[0])
        refuse_several_processes(arguments[0])
        command, options = arguments[0], with_current_flags(*arguments)
        module, function = main_of(command)
        getattr(import_module(module), function)(options)
    else:
        raise UserError(
            f"There is no command '{arguments[0]}'.{nearest(arguments[0], COMMANDS)}", "See daybreak --help."
        )


def refuse_small_address_space(command: str) -> None:
    """Raise UserError if the shell allows less address space than the libraries of a command need."""
    limit = address_space_limit()
    if limit is not None and limit < LEAST_ADDRESS_SPACE and command not in WITHOUT_TORCH:
        raise UserError(
            f"The address space is limited to {limit >> 20:,} MiB, and daybreak {command} needs more than "
            f"{LEAST_ADDRESS_SPACE >> 20:,} MiB.",
            "Raise the limit with ulimit -v.",
        )


def refuse_several_processes(command: str) -> None:
    """Raise UserError if torchrun starts a command several times that would work on the same files."""
    if command in RESUMABLE and command != "pretrain" and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            f"daybreak {command} is a single process, but WORLD_SIZE is {os.environ['WORLD_SIZE']}.",
            "Start it without torchrun. For several devices, use daybreak prepare, then torchrun -m daybreak pretrain.",
        )


def usage() -> str:
    """Return the text of ``daybreak --help``."""
    width = max(map(len, COMMANDS))
    columns = max(2 * width, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(columns, subsequent_indent=" " * (width + 4), break_on_hyphens=False)
    commands = "\n".join(wrapper.fill(f"  {command:{width}}  {summary}") for command, summary in COMMANDS.items())
    return (
        "Daybreak pretrains a text encoder from your text within a time budget.\n\n"
        f"  daybreak COMMAND ...\n\n{commands}\n\n"
        "daybreak run             trains a small model on this machine's docstrings\n"
        "daybreak run mini --corpus TEXT --budget 15m\n"
        "daybreak COMMAND --help  lists the options of a command\n"
        "daybreak --version"
    )
