"""Zero-shot similarity equals a loop over single sentences with stock transformers and scipy; what is refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaForMaskedLM

from daybreak.core.errors import UserError
from daybreak.evaluation.probes.frozen import load_encoder, load_masked_model, longest_row, pooled_states
from daybreak.evaluation.probes.layer_probes import cosines, probe_similarity, rates_pairs
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task_file import read_task_file

WriteTask = WriteCrammed = Callable[..., Path]
WORDS = "the day was very and it will be sun warm bright rain cold dark".split()


def rated_pairs(count: int, seed: int) -> list[tuple[str, ...]]:
    """Pairs that share some of their words, and how many; some sentences stand in several pairs."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        one = chance.choices(WORDS, k=chance.randint(1, 9))
        other = [word if chance.random() < 0.5 else chance.choice(WORDS) for word in one]
        rows.append((" ".join(one), " ".join(other), str(sum(a == b for a, b in zip(one, other)) / len(one))))
    return [*rows, (rows[0][0], rows[1][1], "0.25")]


@pytest.fixture
def pairs(write_task: WriteTask) -> Path:
    return write_task(rated_pairs(8, 1), rated_pairs(60, 2), 'kind = "regression"', name="pairs")


def test_similarities_equal_a_loop_over_single_sentences(encoder: Path, pairs: Path) -> None:
    data = load_task(read_task_file(pairs))
    shares: list[float] = []
    found = probe_similarity(load_encoder(encoder), data, 64, shares.append)
    model, tokenizer = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)

    def states(text: str) -> list[np.ndarray]:
        with torch.no_grad():
            outputs = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        return [state[0].double().mean(0).numpy() for state in outputs.hidden_states]

    read = {text: states(text) for texts in data.dev.texts for text in texts}
    assert [score.layer for score in found.layers] == [0, 1]
    for layer, score in enumerate(found.layers):
        middle = np.mean([layers[layer] for layers in read.values()], axis=0)
        for shift, told in ((0 * middle, score.spearman), (middle, score.centred)):
            near = [
                round(1 - cosine(read[one][layer] - shift, read[other][layer] - shift), 9)
                for one, other in data.dev.texts
            ]
            assert told == pytest.approx(spearmanr(near, data.dev.targets).statistic, abs=2e-3)
    assert (found.task, found.pairs) == ("pairs", 61)
    assert shares[-1] == pytest.approx(1.0) and shares == sorted(shares)
    assert found.layers[0].spearman > 0.5, "shared words are shared embeddings"


@pytest.mark.parametrize("shape", [{}, {"attend_padding": True}, {"positions": "learned", "longest_row": 64}])
def test_pooled_states_of_a_crammed_export_equal_its_own_class_on_single_texts(
    write_crammed: WriteCrammed, tmp_path: Path, shape: dict[str, object]
) -> None:
    from daybreak.models.modeling_crammed import CrammedModel

    folder = write_crammed(tmp_path / "crammed", layers=2, **shape)
    frozen = load_encoder(folder)
    texts = ["sun", "cold rain in winter", "the day was very warm", "cold rain in summer"]
    found = pooled_states(frozen, texts, 64)
    assert found.shape == (3, 4, 32)
    stock = CrammedModel.from_pretrained(folder).eval()
    for number, text in enumerate(texts):
        with torch.no_grad():
            outputs = stock(**frozen.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        wanted = np.stack([state[0].mean(0).numpy() for state in outputs.hidden_states])
        np.testing.assert_allclose(found[:, number], wanted, atol=1e-5)
    np.testing.assert_array_equal(pooled_states(frozen, ["sun " * 90], 8), pooled_states(frozen, ["sun " * 6], 64))


def test_a_model_whose_states_end_before_its_last_norm_is_read_behind_it(encoder: Path) -> None:
    frozen = load_encoder(encoder)
    with torch.no_grad():
        wanted = frozen.model(**frozen.tokenizer("warm sun", return_tensors="pt")).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(pooled_states(frozen, ["warm sun"], 64)[-1, 0], wanted.numpy(), atol=1e-6)


@given(arrays(np.float64, (3, 4), elements=st.floats(-9, 9)), arrays(np.float64, (3, 4), elements=st.floats(-9, 9)))
def test_cosines_lie_between_minus_one_and_one_and_do_not_see_scale(one: np.ndarray, other: np.ndarray) -> None:
    found = cosines(one, other)
    assert np.all(np.abs(found) <= 1 + 1e-9)
    np.testing.assert_array_equal(found, cosines(other, one))
    np.testing.assert_allclose(found, cosines(4 * one, other), atol=1e-9)


def test_only_numbers_for_pairs_are_similarities(pairs: Path, weather: Path, write_task: WriteTask) -> None:
    single = write_task([("sun", "1"), ("rain", "2")], None, 'kind = "regression"', name="single")
    assert [rates_pairs(read_task_file(path)) for path in (pairs, weather, single)] == [True, False, False]


def bert(encoder: Path, folder: Path) -> Path:
    """A BertModel without any head, with a table of 40 positions."""
    shutil.copytree(encoder, folder)
    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=40,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


def test_the_longest_row_is_what_config_tokenizer_and_table_allow(
    encoder: Path, write_crammed: WriteCrammed, tmp_path: Path
) -> None:
    assert longest_row(load_encoder(encoder).model) is None, "rotary positions have no table"
    frozen = load_encoder(bert(encoder, tmp_path / "bert"))
    assert (longest_row(frozen.model), frozen.length, frozen.layers) == (40, 40, 2)
    learned = load_encoder(write_crammed(tmp_path / "learned", layers=2, positions="learned", longest_row=50))
    assert (longest_row(learned.model), learned.length) == (50, 50)
    config = RobertaConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=34, pad_token_id=1,
    )  # fmt: skip
    assert longest_row(RobertaForMaskedLM(config)) == 32, "its positions begin behind the padding id"


def test_what_cannot_be_loaded_is_said_in_one_sentence(encoder: Path, tmp_path: Path) -> None:
    headless = bert(encoder, tmp_path / "bert")
    with pytest.raises(UserError, match=r"lack \d+ tensors of the encoder or its masked-LM head, such as 'cls"):
        load_masked_model(headless)
    torn = tmp_path / "torn"
    shutil.copytree(encoder, torn)
    weights = load_file(torn / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.0.attn" not in name}
    save_file(kept, torn / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 2 tensors of the encoder, such as 'layers\.0\.attn"):
        load_encoder(torn)
    (torn / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"describes [\d,]+ parameters, but its weights are 4 bytes"):
        load_encoder(torn)
    (torn / "model.safetensors").unlink()
    with pytest.raises(UserError, match="transformers cannot load the model in"):
        load_masked_model(torn)
