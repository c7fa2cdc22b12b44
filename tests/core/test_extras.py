"""The table of extras is that of pyproject.toml, and hints never name a package on the index that is not ours."""

from __future__ import annotations

import tomllib
from pathlib import Path

from daybreak.core.extras import EXTRAS, REQUIRED, install_hint

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(REQUIRED) == project["dependencies"]
    declared = project["optional-dependencies"]
    assert {name: list(packages) for name, (_, packages) in EXTRAS.items()} == {name: declared[name] for name in EXTRAS}


def test_a_hint_names_the_packages() -> None:
    assert install_hint("hub", "pyarrow") == "Install what is missing: pip install 'pyarrow>=18'."
    assert "'onnx>=1.19' 'onnxscript>=0.5' 'onnxruntime>=1.22'." in install_hint("serve", "onnx")


def test_no_message_installs_by_the_name_daybreak() -> None:
    sources = (ROOT / "src" / "daybreak").rglob("*.py")
    assert not [path for path in sources if "daybreak[" in path.read_text(encoding="utf-8")]
