"""The release workflow, dry: its commands exist, its tools are pinned, its Pythons are those of the package."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_commands import called, words_of

import daybreak

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
COMMANDS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
OWN = [command for command in COMMANDS if command.startswith("daybreak")]


def test_publishing_comes_after_the_tests_and_only_for_tags() -> None:
    assert JOBS["test"]["needs"] == "build" and JOBS["publish"]["needs"] == "test"
    assert JOBS["publish"]["if"].startswith("startsWith(github.ref, 'refs/tags/v') && ")
    assert WORKFLOW["permissions"] == {"contents": "read"}
    may_sign = [name for name, job in JOBS.items() if job.get("permissions", {}).get("id-token") == "write"]
    assert may_sign == ["publish"]


def test_the_pythons_are_those_of_the_package() -> None:
    versions = JOBS["test"]["strategy"]["matrix"]["python"]
    declared = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert versions == declared and PROJECT["requires-python"] == f">={versions[0]}"


def test_every_tool_is_pinned() -> None:
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    for command in COMMANDS:
        words = shlex.split(command)
        if words[:4] == ["python", "-m", "pip", "install"]:
            assert words[4:6] == ["-c", "constraints.txt"], command
            assert all(word in pins or word == "dist/*.whl" for word in words[6:]), command
        elif words[0] == "python":
            assert words[1] == "-m" and words[2] in {*pins, "pip"}, command
        else:
            assert words[0] in ("daybreak", "ls"), command


def test_there_are_commands_of_daybreak() -> None:
    assert len(OWN) >= 4


@pytest.mark.parametrize("command", OWN)
def test_each_command_of_daybreak_exists(
    command: str, daybreak: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(command)
    if words[0] == "run" and "--help" not in words:
        called(command, tmp_path, monkeypatch)
        return
    monkeypatch.chdir(tmp_path)
    done = daybreak(*words)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize(("tag", "code"), [(f"v{daybreak.__version__}", 0), ("v0.0.1", 2)])
def test_a_tag_that_is_not_the_version_stops_the_release(tag: str, code: int, tmp_path: Path) -> None:
    (command,) = [step["run"] for step in JOBS["build"]["steps"] if "tag" in step.get("name", "")]
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"daybreak-{daybreak.__version__}-py3-none-any.whl").touch()
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == code


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([\d.]+)\]", changelog, re.MULTILINE)[0] == daybreak.__version__
