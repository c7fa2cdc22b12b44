"""The address of a file on the screen, the browser, and an output that is closed."""

from __future__ import annotations

import io
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from daybreak.core import terminal

NOTE = "1m 02s left  masked loss 6.284  held-out 6.133  6.2k tok/s  0.15 below the unigram baseline"


@pytest.mark.parametrize("linked", [True, False])
def test_the_address_is_a_link_on_a_terminal_and_a_plain_uri_elsewhere(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, screen = tmp_path / "my report.html", io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color" if linked else "dumb")
    screen_console = Console(file=screen, force_terminal=linked, soft_wrap=True, color_system="truecolor")
    monkeypatch.setattr(terminal, "console", screen_console)
    terminal.say_link("Report  ", path)
    shown, uri = screen.getvalue(), path.as_uri()
    assert "my%20report.html" in uri
    if linked:
        assert "\x1b]8;" in shown and shown.count(uri) == 2
    else:
        assert shown == f"Report  {uri}\n"


@pytest.mark.parametrize("there", [True, False])
def test_the_browser_opens_the_file_or_its_lack_is_said(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: asked.append(uri) or there)
    terminal.open_in_browser(tmp_path / "report.html")
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert ("No browser could be opened" in capsys.readouterr().out) != there


class Closed(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError


def test_a_closed_output_is_reported_to_who_prints_and_ends_the_progress_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: list[object] = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    monkeypatch.setattr(terminal.console, "_file", Closed())
    monkeypatch.setattr(terminal, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "PLAIN_INTERVAL", 0.0)
    shown = threading.Event()

    def done() -> float:
        shown.set()
        return 1.0

    with pytest.raises(BrokenPipeError):
        terminal.say("a line")
    with terminal.working_through("Reading", 2.0, done):
        assert shown.wait(60)
    assert faults == [] and not terminal.console.quiet


# ---------------------------------------------------------------- a terminal of some width

LINE = "The model is not clearly better than the unigram baseline yet; more time and a smaller model help most."


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 40 columns gets, without colors."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, soft_wrap=True, width=40, color_system=None)
    monkeypatch.setattr(terminal, "console", console)
    return shown


def test_a_terminal_breaks_lines_between_words_and_leaves_commands_and_paths_whole(screen: io.StringIO) -> None:
    path, command = f"/{'folder/' * 8}", f"daybreak evaluate {'run/' * 10} --save classifier"
    terminal.say(LINE)
    terminal.say(f"It is in {path} now. To save it:", command)
    lines = screen.getvalue().splitlines()
    assert " ".join(line.strip() for line in lines[:3]) == LINE and all(len(line) <= 40 for line in lines[:3])
    assert [line.strip() for line in lines[3:]] == ["It is in", path, "now. To save it:", command]


def test_a_log_has_one_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=log, soft_wrap=True, width=40))
    terminal.say(LINE, "daybreak run")
    assert log.getvalue() == f"{LINE} daybreak run\n"
    assert terminal.hanging("head  ", LINE) == f"head  {LINE}"


def test_a_pipe_is_no_terminal_where_a_notebook_forces_colors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    pipe = io.StringIO()
    monkeypatch.setattr(terminal, "console", type(terminal.console)(file=pipe, soft_wrap=True))
    with terminal.working("Reading") as work:
        work.show(0.5)
        terminal.say(LINE)
    assert pipe.getvalue() == f"{LINE}\n"


def test_words_beside_a_head_stay_in_their_column(screen: io.StringIO) -> None:
    first, *others = terminal.hanging("head    ", LINE).splitlines()
    assert first.startswith("head    The") and len(others) > 1
    assert all(line[:8] == " " * 8 and line[8] != " " and len(line) <= 40 for line in others)
    assert " ".join(line[8:].strip() for line in (first, *others)) == LINE
    assert terminal.hanging(30 * "h", LINE) == 30 * "h" + LINE


@pytest.mark.parametrize(("width", "shown"), [(80, "1m 02s left  masked loss 6.284  held-out 6.133"), (140, NOTE)])
def test_a_narrow_terminal_shows_the_label_the_percentage_and_the_first_parts_of_a_note(
    width: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, soft_wrap=True, width=width, color_system=None)
    monkeypatch.setattr(terminal, "console", console)
    with terminal.working("Training") as work:
        work.show(0.43, NOTE)
    frame = re.split(r"\r|\x1b\[[0-9;?]*[A-Za-z]|\n", screen.getvalue())
    (line,) = {line.rstrip() for line in frame if "43%" in line}
    assert "Training" in line and line.endswith(f"43% {shown}") and len(line) <= width


def test_in_a_notebook_the_progress_is_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        lines.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: lines.__setitem__(-1, data["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(terminal, "console", Console(force_jupyter=True))
    monkeypatch.setattr(terminal, "PLAIN_INTERVAL", 0.0)
    for label in ("Reading", "Training"):
        with terminal.working(label) as work:
            work.show(0.1)
            work.show(0.5, "1m 02s left")
    terminal.say(LINE)
    assert capsys.readouterr().out == f"{LINE}\n"
    assert lines == ["Reading:  50%  1m 02s left", "Training:  50%  1m 02s left"]


def test_a_bar_whose_end_is_unknown_has_no_percentage(screen: io.StringIO) -> None:
    with terminal.working("Making notes[draft].txt"):
        pass
    assert "Making notes[draft].txt" in screen.getvalue() and "%" not in screen.getvalue()
