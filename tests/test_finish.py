"""Runs with an embedding finish: stopped, resumed, verified and exported; and the recipe that is nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import exit_code, stopped_at
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.recipe import load_recipe
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import SecondPhase

FINISH = "--finish.start 0.6 --finish.length 32 --finish.shortest 6 --finish.longest 30".split()
pytestmark = pytest.mark.usefixtures(
    "every_step_on_the_cpu", "ungated"
)  # the bits of the CPU are those that are compared


def test_a_run_that_was_stopped_in_its_finish_goes_on_and_verifies(
    data: Path, shape: list[str], tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    # Half of the sequences at a time, so that each is looked at twice.
    command = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", "40steps", "--microbatch", 4, *shape]

    with stopped_at(30):
        assert exit_code(*command, *FINISH) == 143
    assert exit_code(*command, *FINISH) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert said.count("Finish from 60% on: a contrastive loss on pairs of spans is added to the masked loss.") == 1
    steps = [line for line in read_json_lines(run / "metrics.jsonl") if line["type"] == "step"]
    assert [line["contrastive"] is not None for line in steps] == [False] * 24 + [True] * 16
    # A step of four sequences may hold no pair.
    losses = [line["contrastive"] for line in steps[24:]]
    assert all(0 <= loss < 10 for loss in losses) and sum(loss > 0 for loss in losses) >= 4
    assert {line["stage"] for line in steps[24:]} == {"masked"}
    assert exit_code("verify", run, "--data", data) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert f"Verified: steps 0 to 40 of '{run}' are equal bit for bit (40 recorded gradient norms" in said
    AutoModelForMaskedLM.from_pretrained(run / "model")
    if importlib.util.find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(run / "model"), device="cpu")
        assert model.max_seq_length == read_json(run / "model" / "tokenizer_config.json")["model_max_length"]
        assert model.encode(["the teacher finds the window."]).shape == (1, 32)


@pytest.mark.parametrize("family", ["modern", "bert"])
def test_the_recipe_embed_adapts_a_model_that_is_there(family: str, finished: Path, data: Path, tmp_path: Path) -> None:
    parent, run = finished, tmp_path / "run"
    if family == "bert":
        parent = tmp_path / "bert"
        vocabulary = load_tokenizer(data / "tokenizer").get_vocab_size()
        torch.manual_seed(0)
        BertForMaskedLM(
            BertConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                       intermediate_size=32, max_position_embeddings=64, pad_token_id=0)
        ).save_pretrained(parent)  # fmt: skip
        for file in (data / "tokenizer").iterdir():
            (parent / file.name).write_bytes(file.read_bytes())
    sizes = "--length 64 --batch 8 --finish.length 32 --finish.longest 30 --budget 25steps".split()
    assert exit_code("pretrain", "embed", "--init", parent, "--data", data, "--out", run, *sizes) == 0
    steps = [line for line in read_json_lines(run / "metrics.jsonl") if line["type"] == "step"]
    losses = [line["contrastive"] for line in steps]
    assert len(losses) == 25 and None not in losses
    assert read_json(run / "model" / "modules.json")[2]["path"] == "2_Normalize"
    assert read_json(run / "summary.json")["tokens"] == 25 * 8 * 64


def test_embed_without_a_model_is_refused(data: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    said = refused("pretrain", "embed", "--data", data, "--out", tmp_path / "run")
    assert "adapts a pretrained model" in said and "--init" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": CausalThenMasked(causal_fraction=0.8)}, "before masked language modeling does"),
        ({"objective": Masked(next_sentence=True)}, "[Nn]ext-sentence prediction"),
        ({"phase2": SecondPhase(start=0.9)}, "before the second phase"),
        ({"phase2": SecondPhase(start=0.5)}, "with or before the second phase"),
    ],
)
def test_a_finish_that_does_not_fit_the_recipe_is_refused(changes: dict[str, Any], said: str) -> None:
    recipe = replace(load_recipe("tiny"), finish=Finish(start=0.5))
    recipe.check()
    with pytest.raises(UserError, match=said):
        replace(recipe, **changes).check()


def test_recipes_from_before_have_none(tmp_path: Path) -> None:
    plain = read_json(Path(__file__).with_name("golden") / "daybreak-tiny.json")
    del plain["finish"], plain["fingerprint"]
    (tmp_path / "recipe.json").write_text(json.dumps(plain))
    assert not load_recipe(tmp_path).finish.enabled
