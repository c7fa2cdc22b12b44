"""Embeddings of queries in numpy against stock transformers, and a search that never imports torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import ModernBertConfig, ModernBertModel

from daybreak.core.files import write_json
from daybreak.models.modern import ModernEncoder
from daybreak.searching.query import open_search
from daybreak.searching.query_encoder import QueryEncoder, supports

VOCABULARY = 60


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 4), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([4, 128]),
    st.lists(st.integers(5, VOCABULARY - 1), max_size=40), st.integers(0, 99),
)  # fmt: skip
def test_embeddings_are_those_of_stock_transformers(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int, heads: int, global_every: int, window: int, words: list[int], seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    shape = ModernEncoder(
        layers=layers, hidden_size=32, heads=heads, intermediate_size=48, global_every=global_every, window=window,
        global_rope_base=16_000.0, init_std=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    weights = shape.export_weights(shape.build(VOCABULARY))
    save_file(weights, folder / "model.safetensors")
    write_json(folder / "config.json", shape.to_hugging_face(VOCABULARY, 64))
    config = ModernBertConfig(**shape.to_hugging_face(VOCABULARY, 64), attn_implementation="eager")
    stock = ModernBertModel(config).eval()
    stock.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()}, strict=False)
    ids = [2, *words, 3]
    with torch.inference_mode():
        mean = stock(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
    assert supports(folder)
    encoder = QueryEncoder(folder)
    for _ in range(2):  # the weights are read once
        found = encoder.embed(ids)
        assert found.dtype == np.float32
        assert found == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)


def test_a_finished_index_is_searched_without_torch(finished: Path, data: Path, tmp_path: Path) -> None:
    """Its import takes longer than everything else."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.copytree(data, run / "data")
    expected = open_search(run).search("the old sailor", top=3)
    script = (
        "import sys; sys.modules['torch'] = None; from daybreak.commands.search import search; "
        f"print([(found.id, round(found.score, 4)) for found in search({str(run)!r}, 'the old sailor', top=3)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = eval(done.stdout.splitlines()[-1])
    assert [id for id, _ in found] == [result.id for result in expected]
    assert [score for _, score in found] == pytest.approx([result.score for result in expected], abs=1e-3)
