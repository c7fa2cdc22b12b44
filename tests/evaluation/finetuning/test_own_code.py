"""A model that brings code: Daybreak's own is known and never read from the folder, other code is not run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, dynamic_module_utils

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import build_classifier, load_config, load_tokenizer, save_classifier
from daybreak.evaluation.finetuning.finetune import set_dropout
from daybreak.evaluation.tasks.kinds import KINDS, kind_of, load_task
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.models.crammed import MODELLING_FILES

TRAP = "raise SystemExit('foreign code ran')\n"


@pytest.fixture(autouse=True)
def copied_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where transformers puts a copy of code before it runs it: a new place, and no package of an earlier one."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "transformers_modules").is_dir()])
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    yield tmp_path / "modules"


@pytest.fixture
def crammed(write_crammed: Callable[..., Path], tmp_path: Path) -> Path:
    return write_crammed(tmp_path / "crammed")


def test_our_export_is_fine_tuned_saved_and_loaded_again(
    crammed: Path, weather: Path, tmp_path: Path, copied_code: Path
) -> None:
    data = load_task(read_task_file(weather))
    kind = kind_of(data.task)
    model = build_classifier(crammed, kind, data.labels, 0, untrained=False).eval()
    assert build_classifier(crammed, kind, data.labels, 0, untrained=True).config.num_labels == 2
    batch = load_tokenizer(crammed)(["the sun", "cold rain in winter"], padding=True, return_tensors="pt")
    save_classifier(model, crammed, tmp_path / "saved")
    assert not copied_code.exists()
    set_dropout(model.train(), 0.0)
    quiet = model(**batch).logits
    torch.testing.assert_close(quiet, model.eval()(**batch).logits)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", trust_remote_code=True).eval()
    assert type(again).__module__.startswith("transformers_modules.")
    with torch.inference_mode():
        torch.testing.assert_close(again(**batch).logits, model(**batch).logits)
    assert again.config.id2label == {0: "rainy", 1: "sunny"}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_task_has_a_head_on_our_encoder(name: str, crammed: Path, copied_code: Path) -> None:
    kind = KINDS[name]
    for untrained in (False, True):
        model = build_classifier(crammed, kind, ("rainy", "sunny"), 0, untrained)
        assert type(model).__name__ == f"Crammed{kind.head}"
    assert not copied_code.exists()


@pytest.mark.parametrize("name", MODELLING_FILES)
def test_changed_code_is_not_run(name: str, crammed: Path, copied_code: Path) -> None:
    ours = (crammed / name).read_text()
    for code in (TRAP, ours + "\n", None):
        (crammed / name).unlink()
        if code is not None:
            (crammed / name).write_text(code)
        for load in (load_config, load_tokenizer):
            with pytest.raises(UserError, match="which Daybreak does not run"):
                load(crammed)
        (crammed / name).write_text(ours)
    load_config(crammed)
    assert not copied_code.exists()


def test_foreign_code_is_not_run(encoder: Path, tmp_path: Path, copied_code: Path) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(encoder, folder)
    (folder / "trap.py").write_text(TRAP)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "trap.Config", "AutoModelForSequenceClassification": "trap.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "trap"}))
    with pytest.raises(UserError, match="which Daybreak does not run"):
        load_config(folder)
    # A stock model may carry code for older versions of transformers; the stock class is taken.
    (folder / "config.json").write_text(json.dumps(config))
    assert load_config(folder).model_type == "modernbert"
    load_tokenizer(folder)
    assert not copied_code.exists()
