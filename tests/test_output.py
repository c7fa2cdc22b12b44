"""Output that cannot be written, and terminals that are too narrow."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from daybreak.cli import run_command
from daybreak.commands.export import export
from daybreak.core.errors import UserError

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def into_full(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with FULL.open("w") as full:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )


@pytest.mark.skipif(shutil.which("script") is None, reason="the command script, which makes a terminal, is missing")
def test_help_has_no_colors_where_none_are_wanted() -> None:
    """https://no-color.org."""
    command = [sys.executable, "-m", "daybreak", "status", "--help"]
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    for more, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        environment = {**plain, "TERM": "xterm-256color", **more}
        script = ["script", "-qec", " ".join(command), "/dev/null"]  # a terminal
        done = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=120, check=True)
        assert ("\x1b[" in done.stdout) == colored


def test_a_closed_output_stops_nothing(tmp_path: Path) -> None:
    """Closed by the shell, as in ``daybreak ... >&-``: sys.stdout is then None."""
    page = tmp_path / "board.md"
    command = f"{sys.executable} -m daybreak leaderboard {Path(__file__).parents[1] / 'records'} --out {page} >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False, timeout=120).returncode == 0
    assert page.is_file()
    script = "import sys; sys.stdout = None; from daybreak.core.terminal import say; say('x'); sys.exit(7)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (7, "")


@needs_full
def test_work_goes_on_where_its_log_is_full() -> None:
    script = "import sys; from daybreak.core.terminal import say\n"
    script += "for _ in range(3): say('x' * 100_000)\nprint('the work is done', file=sys.stderr)"
    done = into_full(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "daybreak: its output cannot be written (no space left on device); it continues without printing.",
        "the work is done",
    ]


@needs_full
@pytest.mark.parametrize("arguments", [("--help",), ("recipes",), ("status", "--help"), ("recipes", "tiny")])
def test_an_answer_that_cannot_be_printed_is_one_sentence(arguments: tuple[str, ...]) -> None:
    done = into_full("import sys; from daybreak.cli import main; main(sys.argv[1:])", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "no space left on device" in done.stderr


@needs_full
@pytest.mark.parametrize("arguments", [("status", "nowhere"), ("nonsense",)])
def test_the_exit_code_stays_where_no_message_can_be_printed(arguments: tuple[str, ...]) -> None:
    """As of a cell of a study, whose log lies on the disk that is full."""
    script = "import sys; from daybreak.cli import main; main(sys.argv[1:])"
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", script, *arguments], stdout=full, stderr=full, timeout=120)
    assert done.returncode == 2


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "caf\\udce9 \u65e5"), ("ascii", "caf\\udce9 \\u65e5")])
def test_what_the_encoding_of_the_terminal_lacks_is_escaped(encoding: str, shown: str) -> None:
    """Such as a file name that is not UTF-8, or search results in Chinese in a terminal of another encoding."""
    script = "from daybreak import cli; from daybreak.core.terminal import say\n"
    script += r"cli.dispatch = lambda _: say('caf\udce9 \u65e5'); cli.main([])"
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (0, f"{shown}\n"), done.stderr


@pytest.mark.parametrize("columns", ["1", "2", "5", "10"])
def test_help_in_a_narrow_terminal_ends(columns: str) -> None:
    script = "from daybreak.cli import main; main(['status', '--help'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "status" in done.stdout


def test_a_model_that_does_not_fit_on_the_disk_leaves_nothing(
    write_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = write_run(), tmp_path / "exported" / "model"
    (run / "model").mkdir(exist_ok=True)
    (run / "model" / "config.json").write_text("{}")
    (run / "model" / "tokenizer.json").write_text("{}")
    save_file({}, run / "model" / "model.safetensors")

    def full(source: Path, target: Path, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(UserError, match="cannot be written to") as refused:
        export(run, out=out)
    assert "Free disk space" in refused.value.remedy
    assert not out.parent.exists()


@pytest.mark.parametrize("error", [errno.EISDIR, errno.ELOOP, errno.EACCES, errno.ENOTDIR])
def test_a_path_that_cannot_be_used_is_one_sentence(
    error: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise OSError(error, os.strerror(error), "some/file")

    monkeypatch.setattr("daybreak.commands.status.main", fail)
    assert run_command(["status", "run"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"daybreak: 'some/file' cannot be used: {os.strerror(error).lower()}. Correct the path or its permissions.\n"
    )


def test_an_error_of_the_system_without_a_path_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("daybreak.commands.status.main", fail)
    assert run_command(["status", "run"]) == 1 and "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "refused"), [("evaluate", True), ("pretrain", True), ("status", False)])
def test_too_small_a_limit_on_memory_is_one_sentence(
    command: str, refused: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With less, the libraries of these commands wait for memory without end while they are imported."""
    monkeypatch.setattr(f"daybreak.commands.{command}.main", lambda _: None)
    monkeypatch.setattr("daybreak.cli.address_space_limit", lambda: 700 << 20)
    assert run_command([command]) == (2 if refused else 0)
    assert ("The address space is limited to 700 MiB" in capsys.readouterr().err) is refused
    monkeypatch.setattr("daybreak.cli.address_space_limit", lambda: None)
    assert run_command([command]) == 0


def test_the_limit_on_memory_is_that_of_the_process() -> None:
    script = "from daybreak.core.process import address_space_limit as limit; import resource; print(limit()); "
    script += "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); print(limit())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == str(1 << 30)
