"""The address of a file on the screen, the browser, and an output that is closed."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from daybreak.core import terminal


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
