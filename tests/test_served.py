"""Exports where users serve them: sentence-transformers, ONNX Runtime, and transformers 4.57."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from needs import needs
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, ModernBertConfig

from daybreak.commands.export import export
from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError
from daybreak.data.sequences.shards import open_shards
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.exporting.onnx import FILE, NEEDED, write_onnx
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.importing import load_pretrained
from daybreak.models.modern import ModernEncoder
from daybreak.training.objectives.finish import embed

LENGTH = 32
SIZES: dict[str, Any] = {"layers": 2, "hidden_size": 32, "heads": 2, "intermediate_size": 64}
SHAPES: dict[str, EncoderConfig] = {
    # Far from every default, so that a key that is not read shows.
    "modern": ModernEncoder(**{**SIZES, "layers": 5}, global_every=2, window=8, global_rope_base=40_000.0,
                            local_rope_base=500.0, pooling="cls"),
    "bert": BertEncoder(**SIZES, positions=LENGTH, next_sentence=True),
    "crammed": CrammedEncoder(**SIZES),
}  # fmt: skip
TEXTS = ["the teacher finds the window.", "near the river", "the sailor hides the old table under the tree. " * 9]
"""The last is longer than LENGTH tokens, and every one is padded or cut beside the others."""

needs_onnx = needs("the extra serve: onnxruntime and onnx", *NEEDED)
needs_sentences = needs("the extra serve: sentence-transformers", "sentence_transformers")
OLD = os.environ.get("DAYBREAK_TEST_ALL", "")
"""A folder in which transformers 4.57 lies; make test-all fills it."""

Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return ``made(kind)``: the folder of a model with random weights, as a run writes it."""

    def make(kind: str, seed: int = 0) -> Path:
        shards, folder = open_shards(data), tmp_path_factory.mktemp(kind) / "model"
        torch.manual_seed(seed)
        model = SHAPES[kind].build(shards.manifest.vocabulary)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        write_model_folder(
            folder, model=model, shape=SHAPES[kind], tokenizer=data / "tokenizer", length=LENGTH,
            special=shards.manifest.special,
        )  # fmt: skip
        return folder

    return make


@pytest.fixture(scope="module")
def modern(made: Made) -> Path:
    """A flagship; where the extra is installed, with its ONNX file. Shared: copy it before changing it."""
    folder = made("modern")
    if all(importlib.util.find_spec(name) for name in NEEDED):
        write_onnx(folder)
    return folder


def our_states(folder: Path, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """[B, L, D] from our own forward pass, which knows nothing of transformers."""
    model = load_pretrained(folder).model.eval()
    with torch.inference_mode():
        return model.states(
            batch["input_ids"],
            attention_mask=batch["attention_mask"].bool(),
            token_type_ids=batch.get("token_type_ids"),
        )


def encoded(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt"))


def run_onnx(folder: Path, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == AutoTokenizer.from_pretrained(folder).model_input_names
    assert [node.name for node in session.get_outputs()] == ["last_hidden_state"]
    (states,) = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    return torch.from_numpy(states)


@needs_sentences
@pytest.mark.parametrize("kind", ["modern", "bert"])
def test_sentence_transformers_gives_the_embeddings_that_the_finish_trains(kind: str, made: Made, modern: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = modern if kind == "modern" else made(kind)
    model = SentenceTransformer(str(folder), device="cpu")
    _, pooling, normalize = model
    assert type(pooling).__name__ == "Pooling" and pooling.get_config_dict()["pooling_mode"] == "mean"
    assert type(normalize).__name__ == "Normalize" and model.similarity_fn_name == "cosine"
    assert model.max_seq_length == LENGTH and model[0].tokenizer.model_max_length == LENGTH
    batch = encoded(folder)
    assert batch["input_ids"].shape[1] == LENGTH and batch["attention_mask"].sum() < 3 * LENGTH
    ours = embed(our_states(folder, batch), batch["attention_mask"].bool())
    theirs = torch.from_numpy(model.encode(TEXTS))
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    alone = torch.from_numpy(model.encode(TEXTS[:1]))
    torch.testing.assert_close(alone, ours[:1], atol=1e-5, rtol=1e-5)


def test_a_folder_with_code_of_its_own_is_no_model_of_sentence_transformers(made: Made) -> None:
    """It would ask for trust_remote_code, which the card says how to give to transformers."""
    assert not (made("crammed") / "modules.json").exists()


@needs_onnx
@pytest.mark.parametrize("kind", SHAPES)
def test_onnx_runtime_computes_what_we_do(kind: str, made: Made, modern: Path) -> None:
    folder = modern if kind == "modern" else made(kind)
    if kind != "modern":
        write_onnx(folder)
    batch = encoded(folder)
    ours, real = our_states(folder, batch), batch["attention_mask"].bool()
    torch.testing.assert_close(run_onnx(folder, batch)[real], ours[real], atol=1e-4, rtol=1e-5)
    one = {name: tensor[1:2, : int(real[1].sum())] for name, tensor in batch.items()}
    torch.testing.assert_close(run_onnx(folder, one)[0], ours[1][real[1]], atol=1e-4, rtol=1e-5)


@needs_onnx
def test_the_command_writes_it_and_the_card_says_what_was_checked(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = export(finished, out=tmp_path / "model", onnx=True)
    assert "ONNX Runtime" in capsys.readouterr().out and [path.name for path in (out / "onnx").iterdir()] == [
        "model.onnx"
    ]
    card = (out / "README.md").read_text("utf-8")
    assert card.startswith((finished / "model" / "README.md").read_text("utf-8").rstrip())
    assert "`onnx/model.onnx` is the encoder without a head: inputs `input_ids`, `attention_mask`" in card
    assert sorted(path.name for path in out.iterdir() if path.name != "onnx") == sorted(
        path.name for path in (finished / "model").iterdir()
    )


@needs_onnx
def test_a_graph_that_computes_something_else_is_not_kept(made: Made, modern: Path, monkeypatch: Any) -> None:
    other = made("modern", seed=1)

    class Wrong:
        def save(self, path: str, external_data: bool) -> None:
            shutil.copyfile(modern / FILE, path)

    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: Wrong())
    with pytest.raises(UserError, match=r"differs from torch by .* so the file was deleted"):
        write_onnx(other)
    assert not (other / "onnx").exists()


def test_what_torch_cannot_write_is_one_sentence_and_the_rest_is_there(
    finished: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The same export without ONNX would find its folder filled."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a page of\ninternals")

    monkeypatch.setattr("daybreak.exporting.onnx.check_onnx_installed", lambda: None)
    monkeypatch.setattr(torch.onnx, "export", fail)
    folder = tmp_path / "model"
    with pytest.raises(UserError, match=r"cannot be written as ONNX \(RuntimeError\). Use the folder without it"):
        export(finished, out=folder, onnx=True)
    assert load_pretrained(folder).model.vocabulary and not (folder / "onnx").exists()


def test_without_the_extra_it_is_one_sentence_before_any_work(finished: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"ONNX needs onnx and onnxscript and onnxruntime. .*pip install 'onnx>=1.19' 'onnxscript"
    ):
        export(finished, out=tmp_path / "model", onnx=True)
    assert not (tmp_path / "model").exists()


NEW_KEYS = {"layer_types", "rope_parameters", "dtype"}
OLD_KEYS = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "reference_compile"}


@given(
    layers=st.integers(1, 9),
    every=st.integers(1, 4),
    window=st.integers(1, 300),
    bases=st.tuples(st.floats(100, 1e6), st.floats(100, 1e6)),
)
def test_the_names_of_4_57_and_of_5_say_the_same(
    layers: int, every: int, window: int, bases: tuple[float, float]
) -> None:
    """transformers 5 itself translates the old names; that must give what ours say under the new ones."""
    shape = ModernEncoder(
        **{**SIZES, "layers": layers}, global_every=every, window=window, global_rope_base=bases[0],
        local_rope_base=bases[1],
    )  # fmt: skip
    written = shape.to_hugging_face(100, LENGTH)
    assert written.keys() >= NEW_KEYS | OLD_KEYS
    both, new, old = (
        ModernBertConfig(**{name: value for name, value in written.items() if name not in left_out})
        for left_out in (set(), OLD_KEYS, NEW_KEYS - {"dtype"})
    )
    for config in (both, new):
        assert config.layer_types == old.layer_types
        assert config.rope_parameters == old.rope_parameters
        assert config.sliding_window == old.sliding_window == window // 2


ASK = """
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
folder, cases, out = sys.argv[1:]
config = transformers.AutoConfig.from_pretrained(folder)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model, loaded = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
with torch.inference_mode():
    logits = model.eval()(**load_file(cases)).logits
save_file({"logits": logits.contiguous()}, out)
names = {str(parameter.dtype) for parameter in model.parameters()}
ids = tokenizer(["near the river", "the old table"])["input_ids"]
special = {name: getattr(tokenizer, name + "_token_id") for name in ("pad", "cls", "sep", "mask")}
local = [layer.attn.local_attention[0] for layer in model.model.layers]
print(json.dumps([transformers.__version__, config.to_dict(), loaded, sorted(names), ids, special, local]))
"""


@pytest.mark.extra
@pytest.mark.skipif(not OLD, reason="needs transformers 4.57: make test-all")
def test_transformers_4_57_reads_the_same_model(modern: Path, tmp_path: Path) -> None:
    batch = {name: tensor.contiguous() for name, tensor in encoded(modern).items()}
    save_file(batch, tmp_path / "cases.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(modern), str(tmp_path / "cases.safetensors"), str(tmp_path / "logits")],
        env={**os.environ, "PYTHONPATH": OLD, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, config, loaded, dtypes, ids, special, local = json.loads(done.stdout.splitlines()[-1])
    assert version.startswith("4.57.")
    assert [found for found in loaded.values() if found] == []
    shape = SHAPES["modern"]
    assert isinstance(shape, ModernEncoder)
    assert config["global_rope_theta"] == shape.global_rope_base and config["local_rope_theta"] == shape.local_rope_base
    assert config["global_attn_every_n_layers"] == shape.global_every and config["local_attention"] == shape.window
    assert local == [-1 if shape.is_global(layer) else shape.window // 2 for layer in range(shape.layers)]
    assert (
        config["classifier_pooling"] == shape.pooling and config["dtype"] == "float32" and dtypes == ["torch.float32"]
    )
    written = json.loads((modern / "config.json").read_text("utf-8"))
    missing = written.keys() - config.keys() - {"tie_word_embeddings", "reference_compile"}
    assert missing == set()
    assert {name: config[name] for name in written.keys() & config.keys()} == {
        name: written[name] for name in written.keys() & config.keys()
    }
    tokenizer, stock = AutoTokenizer.from_pretrained(modern), AutoModelForMaskedLM.from_pretrained(modern).eval()
    assert ids == tokenizer(["near the river", "the old table"])["input_ids"]
    assert special == {name: getattr(tokenizer, f"{name}_token_id") for name in special}
    with torch.inference_mode():
        wanted = stock(**batch).logits
    real = batch["attention_mask"].bool()
    given_logits = load_file(tmp_path / "logits")["logits"]
    tolerance = 1e-4 * max(1.0, wanted.abs().max().item() / 10)  # that of the parity check
    assert np.abs((given_logits - wanted)[real].numpy()).max() <= tolerance
