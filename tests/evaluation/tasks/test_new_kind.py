"""A numeric kind that only its class and the table of kinds know: everything else follows from ``numeric``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from daybreak.evaluation.baselines.bag_of_words import bag_of_words
from daybreak.evaluation.probes.layer_probes import check_probed, rates_pairs
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks.kinds import KINDS, kind_of, load_task, task_type
from daybreak.evaluation.tasks.sequences import Regression
from daybreak.evaluation.tasks.task_file import read_task_file


class Stars(Regression):
    name: ClassVar[str] = "stars"


class Nothing(Regression):
    """Neither numeric nor one of several classes."""

    name: ClassVar[str] = "nothing"
    numeric = False


def written(folder: Path, kind: str) -> Path:
    rows = "\n".join(f"{'good ' * (n % 4)}film,a{n} film,{n % 4}" for n in range(60))
    (folder / "rows.csv").write_text(f"text,other,stars\n{rows}\n")
    path = folder / f"{kind}.toml"
    path.write_text(
        f'train = "rows.csv"\ntext = ["text", "other"]\nlabel = "stars"\nkind = "{kind}"\nsymmetric = true\n'
    )
    return path


def test_a_numeric_kind_is_treated_as_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "stars", Stars())
    found = {}
    for kind in ("stars", "regression"):
        task = read_task_file(written(tmp_path, kind))
        data = load_task(task)
        check_probed(task)
        assert data.labels == () and set(data.train.targets) == {0.0, 1.0, 2.0, 3.0}
        assert task_type(task) == "number" and PROTOCOLS["small"].head_of(task) == "segments" and rates_pairs(task)
        found[kind] = bag_of_words(kind_of(task), data, data.train)
    assert found["stars"] is not None and found["regression"] is not None
    np.testing.assert_array_equal(found["stars"].scored_rows["dev"], found["regression"].scored_rows["dev"])


def test_a_kind_that_the_bag_of_words_cannot_answer_has_none(tmp_path: Path) -> None:
    data = load_task(read_task_file(written(tmp_path, "regression")))
    assert bag_of_words(Nothing(), data, data.train) is None
