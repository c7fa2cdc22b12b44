"""What the doctor says of a machine, and when it says that Daybreak cannot be used."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from daybreak.commands import doctor as clinic
from daybreak.commands.doctor import doctor


@pytest.fixture(autouse=True)
def _no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clinic, "_cards", lambda: ([], ""))
    monkeypatch.setattr(clinic, "nvidia_driver", str)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Let packages seem to be installed in other versions, or not at all."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        found = versions.get(name.replace("-", "_"), real(name) if name.replace("-", "_") not in versions else None)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_machine_that_is_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert doctor(tmp_path)
    said = capsys.readouterr().out
    assert "fault" not in said and said.endswith("Ready.\n")
    for subject in ("python", "torch", "processor", "memory", "gpu", "disk", "extra hub", "extra track"):
        assert f"  {subject} " in said


def test_no_torch_is_imported_until_it_is_asked_for(tmp_path: Path) -> None:
    script = "import sys; from daybreak.cli import main\n"
    script += "try: main(['doctor'])\nfinally: assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode in (0, 2) and "AssertionError" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"torch": "1.13.0"}, "torch 1.13.0 is installed, and Daybreak needs"),
        ({"tokenizers": None}, "tokenizers is not installed. Run: pip install 'tokenizers>=0.22'."),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_a_fault(
    versions: dict[str, str | None], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, **versions)
    assert not doctor()
    said = capsys.readouterr().out
    assert words in said and said.endswith("1 fault: fix it first.\n")


def test_a_missing_extra_is_only_noted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(monkeypatch, pyarrow=None)
    assert doctor()
    said = capsys.readouterr().out
    assert "note   extra hub" in said and "pip install 'pyarrow>=18'\n" in said and "daybreak[" not in said


@pytest.mark.parametrize(("cores", "words"), [(1, "share 1 core."), (2, "share 2 cores.")])
def test_other_load_is_noted(
    cores: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clinic, "usable_cores", lambda: cores)
    monkeypatch.setattr(clinic.os, "getloadavg", lambda: (3.25, 0.0, 0.0))
    doctor()
    assert f"3.2 processes {words} Stop other programs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cards", "torch", "well", "words"),
    [
        (["H100 (70 of 78 GiB free)"], "2.13.0+cu130", True, "H100 (70 of 78 GiB free), driver 580.1."),
        (["H100 (70 of 78 GiB free)"], "2.13.0+cpu", False, "torch 2.13.0+cpu is built for CPUs. Install torch"),
        ([], "2.13.0", True, "No NVIDIA GPU: runs use the CPU."),
    ],
)
def test_what_is_said_of_a_gpu(
    cards: list[str], torch: str, well: bool, words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pretend(monkeypatch, torch=torch)
    monkeypatch.setattr(clinic, "_cards", lambda: (cards, "580.1" if cards else ""))
    assert doctor() == well
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("listed", "words"), [("", "is empty, so"), ("-1", "is -1, so")])
def test_gpus_that_the_user_hides_are_noted(
    listed: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clinic, "_cards", lambda: (["H100 (70 of 78 GiB free)"], "580.1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert doctor()
    assert f"CUDA_VISIBLE_DEVICES {words} runs use the CPU." in capsys.readouterr().out
    monkeypatch.setattr(clinic, "_cards", lambda: ([], ""))
    monkeypatch.setattr(clinic, "nvidia_driver", lambda: "")
    assert doctor()
    assert "No NVIDIA GPU: runs use the CPU." in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not doctor(tmp_path / "file")
    assert "cannot be written: not a directory. Choose another folder for runs." in capsys.readouterr().out


def test_a_folder_that_a_run_would_make_is_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert doctor(str(tmp_path / "runs" / "mine"))
    assert f"GB are free in '{tmp_path}'." in " ".join(capsys.readouterr().out.split())


def test_a_folder_that_was_deleted_is_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert not doctor()
    assert "cannot be written: no such file or directory" in " ".join(capsys.readouterr().out.split())


def test_torch_is_tried_when_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor(torch=True)
    assert "torch multiplies matrices on " in capsys.readouterr().out

    def broken() -> None:
        raise RuntimeError("undefined symbol: xyz")

    monkeypatch.setattr("daybreak.training.hardware.probe.choose_device", broken)
    assert not doctor(torch=True)
    assert "torch cannot compute here: undefined symbol: xyz" in capsys.readouterr().out
