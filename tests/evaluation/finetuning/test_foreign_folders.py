"""Model folders from elsewhere: what cannot be used safely is refused in one sentence, and foreign code never runs."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_models import copied_code
from transformers import AutoModelForSequenceClassification

from daybreak.commands.evaluate import evaluate
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.evaluation.finetuning.classifier import (
    build_classifier,
    check_save_folder,
    load_config,
    load_tokenizer,
    parameter_count,
    save_classifier,
)
from daybreak.evaluation.finetuning.finetune import set_dropout
from daybreak.evaluation.tasks.kinds import KINDS, kind_of, load_task
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.models.crammed import MODELLING_FILES

LABELS = ("rainy", "sunny")


class _Runs:
    """A pickle of this writes a file when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.fixture
def folder(encoder: Path, tmp_path: Path) -> Path:
    """A model folder that a test may damage."""
    return shutil.copytree(encoder, tmp_path / "model")


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refused(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        build_classifier(folder, KINDS["classification"], LABELS, 0, untrained=False)
    assert str(folder) in caught.value.sentence and "\n" not in caught.value.sentence
    return caught.value


@pytest.mark.parametrize("hostile", [False, True])
def test_weights_in_a_pickle_are_refused(hostile: bool, folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if hostile:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(trace)))
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    error = refused(folder)
    assert "are a Python pickle" in error.sentence and "save_pretrained()" in error.remedy and not trace.exists()


def test_weights_in_another_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    names = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", tmp_path / "secret.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "name the file '../secret.safetensors', which is not in that folder" in refused(folder).sentence


def test_results_are_not_written_through_a_link_of_the_folder(folder: Path, weather: Path, tmp_path: Path) -> None:
    """Files of each fine-tuning go to MODEL/cells, which a folder from elsewhere may have as a link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "cells").symlink_to(outside)
    with pytest.raises(UserError, match="is a link that leads out of"):
        evaluate(folder, [str(weather)], seeds=1)
    assert not list(outside.iterdir())


LARGER = [{"num_hidden_layers": 10**12}, {"hidden_size": 2**40}, {"vocab_size": 2**40}, {"intermediate_size": 2**40}]
ODD = [
    {"num_attention_heads": "many"}, {"hidden_size": [32]}, {"vocab_size": None}, {"layer_types": 3},
    {"max_position_embeddings": {"a": 1}}, {"num_hidden_layers": -1}, {"hidden_activation": "nonsense"},
]  # fmt: skip


@pytest.mark.parametrize("changes", [*({**larger, "layer_types": None} for larger in LARGER), *ODD])
def test_an_odd_config_is_one_sentence_and_does_not_fill_the_memory(changes: dict[str, object], folder: Path) -> None:
    change_config(folder, **changes)
    refused(folder)


def test_a_link_that_leads_nowhere_is_one_sentence(folder: Path, weather: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("nowhere")
    with pytest.raises(UserError, match=r"Cannot read '.*model\.safetensors': No such file or directory\."):
        evaluate(folder, [str(weather)], out=tmp_path / "out")
    assert parameter_count(folder) == 0
    refused(folder)


# ---------------------------------------------------------------- code that a model brings


TRAP = "raise SystemExit('foreign code ran')\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[Path]:
    """Where transformers puts a copy of code before it runs it."""
    with copied_code(tmp_path / "modules") as place:
        yield place


@pytest.fixture
def crammed(write_crammed: Callable[..., Path], tmp_path: Path) -> Path:
    return write_crammed(tmp_path / "crammed")


def test_our_export_is_fine_tuned_saved_and_loaded_again(
    crammed: Path, weather: Path, tmp_path: Path, modules: Path
) -> None:
    data = load_task(read_task_file(weather))
    kind = kind_of(data.task)
    model = build_classifier(crammed, kind, data.labels, 0, untrained=False).eval()
    assert build_classifier(crammed, kind, data.labels, 0, untrained=True).config.num_labels == 2
    batch = load_tokenizer(crammed)(["the sun", "cold rain in winter"], padding=True, return_tensors="pt")
    save_classifier(model, crammed, tmp_path / "saved", {"length": 64, "most_train_rows": None, "texts": 1})
    assert not modules.exists()
    set_dropout(model.train(), 0.0)
    quiet = model(**batch).logits
    torch.testing.assert_close(quiet, model.eval()(**batch).logits)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", trust_remote_code=True).eval()
    assert type(again).__module__.startswith("transformers_modules.")
    with torch.inference_mode():
        torch.testing.assert_close(again(**batch).logits, model(**batch).logits)
    assert again.config.id2label == {0: "rainy", 1: "sunny"}


def test_only_a_saved_classifier_is_replaced_by_another(crammed: Path, tmp_path: Path) -> None:
    """The config of a pretrained crammed model names classes of classifiers, too."""
    model = build_classifier(crammed, KINDS["classification"], LABELS, 0, untrained=True)
    save_classifier(model, crammed, tmp_path / "saved", {"length": 64, "most_train_rows": None, "texts": 1})
    earlier = shutil.copytree(tmp_path / "saved", tmp_path / "earlier")
    change_config(earlier, fine_tuning=None)
    check_save_folder(tmp_path / "saved", "weather", False)
    (tmp_path / "looked at").mkdir()
    (tmp_path / "looked at" / ".DS_Store").touch()
    check_save_folder(tmp_path / "looked at", "weather", False)
    change_config(
        tmp_path / "saved", fine_tuning={**read_json(tmp_path / "saved/config.json")["fine_tuning"], "untrained": False}
    )
    check_save_folder(tmp_path / "saved", "weather", False)
    with pytest.raises(UserError, match="holds the classifier of a model with pretraining"):
        check_save_folder(tmp_path / "saved", "weather", True)
    for other in (crammed, earlier):
        with pytest.raises(UserError, match="is not empty and holds no classifier saved by this version"):
            check_save_folder(other, "weather", False)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_task_has_a_head_on_our_encoder(name: str, crammed: Path, modules: Path) -> None:
    kind = KINDS[name]
    for untrained in (False, True):
        model = build_classifier(crammed, kind, ("rainy", "sunny"), 0, untrained)
        assert type(model).__name__ == f"Crammed{kind.head}"
    assert not modules.exists()


@pytest.mark.parametrize("name", MODELLING_FILES)
def test_changed_code_is_not_run(name: str, crammed: Path, modules: Path) -> None:
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
    assert not modules.exists()


def test_foreign_code_is_not_run(folder: Path, modules: Path) -> None:
    (folder / "trap.py").write_text(TRAP)
    code = {"AutoConfig": "trap.Config", "AutoModelForSequenceClassification": "trap.Model"}
    change_config(folder, auto_map=code, model_type="trap")
    with pytest.raises(UserError, match="which Daybreak does not run"):
        load_config(folder)
    # A stock model may carry code for older versions of transformers; the stock class is taken.
    change_config(folder, model_type="modernbert")
    assert load_config(folder).model_type == "modernbert"
    load_tokenizer(folder)
    assert not modules.exists()
