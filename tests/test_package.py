"""What a stranger installs: the wheel holds every module, starts, and has no more than the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import daybreak

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "-m pip wheel --no-deps --no-build-isolation -q -w".split()
    done = subprocess.run([sys.executable, *build, folder, copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    sources = [path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "daybreak").rglob("*.py")]
    tables = ["daybreak/forecasting/law.json", "daybreak/forecasting/tasks.json"]
    templates = [path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("templates/*")]
    assert templates and sorted(names) == sorted([*sources, "daybreak/py.typed", *tables, *templates])
    assert wheel.name.startswith(f"daybreak-{daybreak.__version__}-")


def test_the_command_of_the_wheel_runs_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """The libraries are borrowed from here (they are hundreds of megabytes), Daybreak comes from the wheel alone."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    borrowed = next(path for path in sys.path if (Path(path) / "tyro").is_dir())
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": ""}
    ask = f"import sys; sys.path.append({borrowed!r}); from daybreak.cli import main; main()"
    done = subprocess.run(
        [python, "-c", ask, "recipes", "tiny"], capture_output=True, text=True, cwd=tmp_path, env=clean, check=False
    )
    assert (done.returncode, "ModernEncoder" in done.stdout) == (0, True), done.stdout + done.stderr
    law = "from daybreak.forecasting.law import shipped_law; assert shipped_law().residuals"
    where = f"import sys; sys.path.append({borrowed!r}); {law}; import daybreak; print(daybreak.__file__)"
    told = subprocess.run([python, "-c", where], capture_output=True, text=True, cwd=tmp_path, env=clean, check=True)
    assert str(site) in told.stdout
