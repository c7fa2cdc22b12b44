"""Model folders from elsewhere: what cannot be used safely is refused in one sentence."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from daybreak.commands.evaluate import evaluate
from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import build_classifier
from daybreak.evaluation.tasks.kinds import KINDS

LABELS = ("rainy", "sunny")


class _Runs:
    """A pickle of this writes a file when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("hostile", [False, True])
def test_weights_in_a_pickle_are_refused(hostile: bool, encoder: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(encoder, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if hostile:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(trace)))
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="are a Python pickle") as refused:
        build_classifier(folder, KINDS["classification"], LABELS, 0, untrained=False)
    assert "save_pretrained()" in refused.value.remedy and not trace.exists()


def test_weights_in_another_folder_are_refused(encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    names = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", tmp_path / "secret.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"name the file '../secret.safetensors', which is not in that folder"):
        build_classifier(folder, KINDS["classification"], LABELS, 0, untrained=False)


def test_results_are_not_written_through_a_link_of_the_folder(encoder: Path, weather: Path, tmp_path: Path) -> None:
    """Files of each fine-tuning go to MODEL/cells, which a folder from elsewhere may have as a link."""
    folder, outside = Path(shutil.copytree(encoder, tmp_path / "model")), tmp_path / "outside"
    outside.mkdir()
    (folder / "cells").symlink_to(outside)
    with pytest.raises(UserError, match="is a link that leads out of"):
        evaluate(folder, [str(weather)], seeds=1)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "larger",
    [{"num_hidden_layers": 10**12}, {"hidden_size": 2**40}, {"vocab_size": 2**40}, {"intermediate_size": 2**40}],
)
def test_a_config_of_a_few_bytes_does_not_fill_the_memory(
    larger: dict[str, int], encoder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **larger, "layer_types": None}))
    with pytest.raises(UserError) as refused:
        build_classifier(folder, KINDS["classification"], LABELS, 0, untrained=False)
    assert str(folder) in refused.value.sentence


@pytest.mark.parametrize(
    "odd",
    [
        {"num_attention_heads": "many"},
        {"hidden_size": [32]},
        {"vocab_size": None},
        {"layer_types": 3},
        {"max_position_embeddings": {"a": 1}},
        {"num_hidden_layers": -1},
        {"hidden_activation": "nonsense"},
    ],
)
def test_an_odd_config_is_one_sentence(odd: dict[str, object], encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | odd))
    with pytest.raises(UserError) as refused:
        build_classifier(folder, KINDS["classification"], LABELS, 0, untrained=False)
    assert str(folder) in refused.value.sentence and "\n" not in refused.value.sentence
