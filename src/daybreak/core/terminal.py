"""Terminal output while a command works: a live line on a terminal, plain lines in a log or a pipe."""

from __future__ import annotations

import errno
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.style import Style
from rich.table import Column
from rich.text import Text

PLAIN_INTERVAL = 10.0
"""Minimum seconds between two plain lines about the same work."""
SHOW_SECONDS = 0.5
WIDE_COLUMNS = 100
"""Columns of a terminal from which on the bar is drawn in full width."""
MIN_COLUMN = 20
"""Least width of a column of words; below, they are not put into a column."""


class _Console(Console):
    """A console that reports a closed output to its caller; rich's own ends the program without a word."""

    @property
    def is_terminal(self) -> bool:
        """Whether the output is a terminal. For rich, FORCE_COLOR makes a terminal of a pipe, and kernels of notebooks
        set it."""
        return super().is_terminal and bool(getattr(self.file, "isatty", bool)())

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = _Console(soft_wrap=True, highlight=False)


def is_first_process() -> bool:
    """Whether this is the first process of a run, or the only one."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def say(line: str = "", command: str = "") -> None:
    """Print one line for the user; of several processes of one run only the first prints.

    A terminal gets line breaks between words, a log or a pipe none. A log on a full or broken disk does not stop the
    work: output is disabled, and stderr reports this once.

    Args:
        command: what follows the line and is copied from the terminal, so it gets no line breaks.

    Raises:
        BrokenPipeError: the reader of the output is gone.
    """
    if not is_first_process():
        return
    try:
        whole = f"{line} {command}" if command else line
        if console.is_jupyter:  # a page breaks lines itself, but not in the frame that rich makes for each line
            if not console.quiet:
                print(whole)
        elif not console.is_terminal:
            console.print(Text(whole))
        else:
            console.print(Text("\n".join(_between_words(line, console.width))))
            if command:
                console.print(Text(command))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        console.quiet = True
        discard_output()
        with suppress(OSError):
            why = os.strerror(error.errno or errno.EIO).lower()
            print(f"daybreak: its output cannot be written ({why}); it continues without printing.", file=sys.stderr)


def hanging(head: str, words: str) -> str:
    """Return ``head`` and ``words`` in one line; on a terminal, lines of words in a column beside the head."""
    indent = cell_len(head)
    if not console.is_terminal or console.width - indent < MIN_COLUMN:
        return head + words
    return head + f"\n{'':{indent}}".join(_between_words(words, console.width - indent))


def _between_words(text: str, width: int) -> list[str]:
    """Break ``text`` into lines of at most ``width`` characters; a longer word, such as a path, stays whole."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [part for line in text.split("\n") for part in wrapper.wrap(line) or [""]]


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
    if not is_first_process():
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


class _Parts:
    """The parts of a note, separated by two spaces, as many of them as fit."""

    def __init__(self, note: str):
        self._note = note

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, cell_len(self._note))).with_maximum(options.max_width)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._note
        while "  " in shown and cell_len(shown) > options.max_width:
            shown = shown.rpartition("  ")[0]
        yield Text(shown, no_wrap=True, overflow="ellipsis")


class _NoteColumn(ProgressColumn):
    """The note of a piece of work, the only column that gives way if the terminal is narrow."""

    def render(self, task: Task) -> _Parts:
        return _Parts(task.fields["note"])


class Work:
    """The progress of one piece of work: a bar of ``bars``, without them a line every PLAIN_INTERVAL seconds.

    In a notebook, the line replaces the one before.
    """

    def __init__(self, label: str, bars: Progress | None = None):
        self._label, self._bars = label, bars
        self._line: Any = None
        self._task = bars.add_task(label, total=None, note="") if bars is not None else TaskID(0)
        self._next = time.monotonic() + PLAIN_INTERVAL

    def show(self, fraction: float, note: str = "") -> None:
        """Show the progress: ``fraction`` in [0, 1] and a note, whose parts are separated by two spaces.

        The most important part comes first; a narrow terminal shows only the first ones.
        """
        if self._bars is not None:
            self._bars.update(self._task, total=1.0, completed=fraction, note=note)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_INTERVAL
            line = f"{self._label}: {fraction:4.0%}  {note}"
            if console.is_jupyter and not console.quiet:
                self._show_in_notebook(line)
            else:
                say(line)

    def _show_in_notebook(self, line: str) -> None:
        from IPython.display import display

        if self._line is None:
            self._line = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._line.update({"text/plain": line}, raw=True)


@contextmanager
def working(label: str) -> Iterator[Work]:
    """Show the progress of one piece of work within the context; a terminal shows also that its end is unknown."""
    if not console.is_terminal or not is_first_process():
        yield Work(label)
        return
    columns = (
        SpinnerColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False),
        BarColumn(24 if console.width >= WIDE_COLUMNS else 12, table_column=Column(no_wrap=True)),
        TaskProgressColumn("{task.percentage:3.0f}%", style="none", table_column=Column(no_wrap=True)),
        _NoteColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
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
