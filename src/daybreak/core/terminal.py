"""Terminal output while a command works: a live line on a terminal, plain lines in a log or a pipe."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.style import Style
from rich.text import Text

PLAIN_INTERVAL = 10.0
"""Minimum seconds between two plain lines about the same work."""
SHOW_SECONDS = 0.5


class _Console(Console):
    """A console that reports a closed output to its caller; rich's own ends the program without a word."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = _Console(soft_wrap=True, highlight=False)


def say(line: str = "") -> None:
    """Print one line for the user; of several processes of one run only the first prints.

    A log on a full or broken disk does not stop the work: output is disabled, and stderr reports this once.

    Raises:
        BrokenPipeError: the reader of the output is gone.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    try:
        console.print(Text(line))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        console.quiet = True
        discard_output()
        with suppress(OSError):
            why = os.strerror(error.errno or errno.EIO).lower()
            print(f"daybreak: its output cannot be written ({why}); it continues without printing.", file=sys.stderr)


def discard_output() -> None:
    """Redirect standard output to the null device, so that Python does not fail to flush its buffer at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def say_link(label: str, path: Path) -> None:
    """Print the address of a file as a file:// URI: a link in terminals that support OSC 8, plain text in all
    others."""
    uri = path.resolve().as_uri()
    if os.environ.get("RANK", "0") != "0":
        return
    if not console.is_terminal or console.is_dumb_terminal:
        say(f"{label}{uri}")
        return
    console.print(Text.assemble(label, (uri, Style(link=uri))))


def open_in_browser(path: Path) -> None:
    """Open a file in the user's browser, or print that there is none."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        say("No browser could be opened here: open the address above in one.")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress output within the context."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def duration(seconds: float) -> str:
    """``75`` -> ``1m 15s``; ``9.4`` -> ``9s``; ``7300`` -> ``2h 2m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Work:
    """The progress of one piece of work: a bar of ``bars``, without them a line every PLAIN_INTERVAL seconds."""

    def __init__(self, label: str, bars: Progress | None = None):
        self._label, self._bars = label, bars
        self._task = bars.add_task(label, total=1.0, note="") if bars is not None else TaskID(0)
        self._next = time.monotonic() + PLAIN_INTERVAL

    def show(self, fraction: float, note: str = "") -> None:
        """Show the progress: ``fraction`` in [0, 1] and a short note such as a rate or a loss."""
        if self._bars is not None:
            self._bars.update(self._task, completed=fraction, note=note)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_INTERVAL
            say(f"{self._label}: {fraction:4.0%}  {note}")


@contextmanager
def working(label: str) -> Iterator[Work]:
    """Show the progress of one piece of work within the context."""
    if not console.is_terminal:
        yield Work(label)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.percentage:3.0f}%"))
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as bars:
        yield Work(label, bars)


@contextmanager
def working_through(label: str, total: float, done: Callable[[], float]) -> Iterator[None]:
    """Show the progress of ``done()`` bytes out of ``total`` within the context; another thread calls ``done``
    repeatedly."""
    started, ended = time.monotonic(), threading.Event()

    def show(work: Work) -> None:
        while not ended.wait(SHOW_SECONDS):
            fraction, passed = min(1.0, done() / max(1.0, total)), time.monotonic() - started
            left = f", {duration(passed / fraction - passed)} left" if fraction > 0 else ""
            try:
                work.show(fraction, f"{fraction * total / 1e6:,.0f} of {total / 1e6:,.0f} MB{left}")
            except BrokenPipeError:  # the main thread notices it at its next line
                return

    with working(label) as work:
        thread = threading.Thread(target=show, args=[work], daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
