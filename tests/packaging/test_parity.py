"""The exported folder in stock transformers, and the gate that must notice when it is not the trained model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from daybreak.base.encoder import Encoder
from daybreak.base.errors import UserError
from daybreak.base.files import read_json
from daybreak.base.records import Parity, Summary
from daybreak.data.sampler import RowSampler
from daybreak.data.shards import open_shards
from daybreak.models.modern_import import from_hugging_face
from daybreak.packaging.hugging_face import write_model_folder
from daybreak.packaging.parity import REFUSED, check_parity, verdict
from daybreak.recipe import load_recipe
from daybreak.training.validation import Validation

TEXT = "the teacher finds the window near the river."


@pytest.fixture(scope="module")
def model(finished: Path) -> Encoder:
    """What the trainer held when it exported ``finished``."""
    folder = finished / "model"
    return from_hugging_face(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def validation(data: Path) -> Validation:
    shards = open_shards(data)
    rows = RowSampler(shards.heldout, 32, 0)
    return Validation(rows.in_order(rows.rows_per_epoch), shards.unigram_counts, torch.device("cpu"))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "model", tmp_path / "model"))


def judged(folder: Path, finished: Path, model: Encoder, validation: Validation) -> Parity:
    accuracy = read_json(finished / "summary.json", Summary).validation.accuracy
    return check_parity(folder, model=model, validation=validation, accuracy=accuracy, text=TEXT)


def test_a_good_export_passes_and_loses_an_old_mark(
    folder: Path, finished: Path, model: Encoder, validation: Validation
) -> None:
    (folder / REFUSED).write_text("of an earlier export")
    found = judged(folder, finished, model, validation)
    assert found.passed and found.failure is None and all(found.checks.values())
    assert 0 <= found.largest_logit_difference <= found.tolerance
    assert not (folder / REFUSED).exists()
    assert "the same logits" in verdict(found)


def alter_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.Wo.weight"][3, 5] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def alter_theta(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["full_attention"]["rope_theta"] = 160_000.0
    (folder / "config.json").write_text(json.dumps(config))


def alter_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (alter_weight, "logits"),
        (alter_theta, "logits"),
        (alter_tokenizer, "tokenizer round trip"),
    ],
)
def test_an_altered_export_is_refused_and_marked(
    alter: object, named: str, folder: Path, finished: Path, model: Encoder, validation: Validation
) -> None:
    assert callable(alter)
    alter(folder)
    found = judged(folder, finished, model, validation)
    assert not found.passed and named in (found.failure or "")
    assert named in (folder / REFUSED).read_text()
    assert verdict(found).startswith("REFUSED")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("TIMEOUT_SECONDS", 0.01, "did not end within"), ("sys.executable", "/bin/false", "the check itself stopped")],
)
def test_a_check_that_does_not_work_refuses_too(
    name: str, value: object, said: str, folder: Path, finished: Path, model: Encoder, validation: Validation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(f"daybreak.packaging.parity.{name}", value)
    found = judged(folder, finished, model, validation)
    assert not found.passed and said in (found.failure or "") and (folder / REFUSED).exists()


def test_the_folder_is_a_stock_one(finished: Path) -> None:
    folder = finished / "model"
    names = "README.md config.json model.safetensors tokenizer.json tokenizer_config.json".split()
    assert sorted(path.name for path in folder.iterdir()) == names
    stock, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 32 == stock.config.max_position_embeddings
    assert len(tokenizer) == stock.config.vocab_size
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    encoded = tokenizer("The teacher finds the [MASK] .", return_tensors="pt")
    assert encoded["input_ids"][0, [0, -1]].tolist() == [2, 3] and 4 in encoded["input_ids"]
    with torch.inference_mode():
        assert torch.isfinite(stock(**encoded).logits).all()


def test_an_export_replaces_the_one_before_and_a_full_disk_does_not(
    finished: Path, data: Path, model: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(finished)
    out = tmp_path / "model"
    parts = {"model": model, "shape": recipe.model, "tokenizer": data / "tokenizer"}
    write_model_folder(out, **parts, length=32, vocabulary=model.vocabulary)
    (out / "mine.txt").write_text("of the first export")
    write_model_folder(out, **parts, length=16, vocabulary=model.vocabulary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert not (out / "mine.txt").exists()
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 16
    before = (out / "model.safetensors").read_bytes()
    assert before == (finished / "model" / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("daybreak.packaging.hugging_face.save_file", full)
    with pytest.raises(UserError, match="No space left"):
        write_model_folder(out, **parts, length=8, vocabulary=model.vocabulary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert (out / "model.safetensors").read_bytes() == before
