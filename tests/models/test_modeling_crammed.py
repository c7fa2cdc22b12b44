"""The files that travel with a crammed export: they open in stock transformers, and their heads learn.

test_encoders.py compares the logits of every layout. The heads are the same for all but for their pooling.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import encoder_layouts
import pytest
import torch
from encoder_layouts import LENGTH, ROWS, VOCABULARY, built, padding, tokens
from safetensors.torch import load_file, save_file
from small_models import assert_close, copied_code
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.loss.loss_utils import ForQuestionAnsweringLoss
from warm_python import SERVERS

from daybreak.core.errors import UserError
from daybreak.models.crammed import Crammed, CrammedEncoder

LAYOUTS = {
    name.removeprefix("crammed, "): replace(shape, classifier_width=32)
    for name, shape in encoder_layouts.LAYOUTS.items()
    if name.startswith("crammed")
}


@pytest.fixture(autouse=True, scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code that travels with a model is copied there before it runs, instead of into the user's cache."""
    with copied_code(tmp_path_factory.mktemp("modules")):
        yield


def exported(shape: CrammedEncoder, folder: Path) -> Crammed:
    """Write what an export writes, without a tokenizer."""
    model = built(shape)
    (folder / "config.json").write_text(json.dumps(shape.to_hugging_face(VOCABULARY, LENGTH)))
    save_file(shape.export_weights(model), folder / "model.safetensors", metadata={"format": "pt"})
    for name, source in shape.modelling_files().items():
        (folder / name).write_bytes(source.read_bytes())
    return model


@pytest.mark.parametrize("name", ["version 2", "simple"])
@torch.inference_mode()
def test_the_exported_folder_gives_our_logits(name: str, tmp_path: Path) -> None:
    model = exported(LAYOUTS[name], tmp_path)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert type(theirs).__module__.startswith("transformers_modules.")
    ids, attention_mask = tokens(), padding()
    masked = theirs(input_ids=ids, attention_mask=attention_mask.long(), token_type_ids=torch.zeros_like(ids)).logits
    assert_close(model.logits(ids, attention_mask=attention_mask), masked)


def test_the_modelling_files_know_only_each_other_torch_and_transformers() -> None:
    files = LAYOUTS["version 2"].modelling_files()
    assert set(files) == {"modeling_crammed.py", "modeling_crammed_layers.py", "layers.py"}
    imported = set()
    for source in files.values():
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module
                imported.add("." * node.level + node.module.split(".")[0])
        assert "daybreak." not in source.read_text()
    assert imported == {"__future__", "math", "torch", "transformers", "typing", ".modeling_crammed_layers", ".layers"}


@pytest.mark.parametrize("name", ["version 2", "simple"])
def test_saving_keeps_the_code_and_the_tie(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    exported(LAYOUTS[name], first)
    model = AutoModelForMaskedLM.from_pretrained(first, trust_remote_code=True).eval()
    model.save_pretrained(second)
    for code in LAYOUTS[name].modelling_files():
        assert (second / code).read_bytes() == (first / code).read_bytes()
    assert sorted(load_file(second / "model.safetensors")) == sorted(load_file(first / "model.safetensors"))
    assert json.loads((second / "config.json").read_text())["auto_map"]["AutoModel"] == "modeling_crammed.CrammedModel"
    again = AutoModelForMaskedLM.from_pretrained(second, trust_remote_code=True).eval()
    assert again.decoder.weight is again.model.embedding.weight
    with torch.inference_mode():
        assert torch.equal(model(tokens()).logits, again(tokens()).logits)


@torch.inference_mode()
def test_rows_may_be_longer_than_trained_unless_positions_are_learned(tmp_path: Path) -> None:
    long = tokens(rows=1, length=150)
    model = exported(LAYOUTS["version 2"], tmp_path)
    encoder = AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert_close(model.logits(long), encoder(long).logits)
    assert model.shape.longest is None
    simple = exported(LAYOUTS["simple"], tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    with pytest.raises(ValueError, match=r"^A sequence of 150 tokens is longer than the 32 positions .*\.$"):
        encoder(long)
    with pytest.raises(UserError, match="longer than the 32 learned"):
        simple.logits(long)
    assert simple.shape.longest == 32


@torch.inference_mode()
def test_the_encoder_alone_shows_its_layers_and_runs_in_half_precision(tmp_path: Path) -> None:
    model = exported(LAYOUTS["version 2"], tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path, trust_remote_code=True).eval()
    output = encoder(tokens(), output_hidden_states=True)
    assert_close(output.last_hidden_state, model.states(tokens()))
    assert len(output.hidden_states) == 3 and output.hidden_states[-1] is output.last_hidden_state
    assert encoder(tokens()).hidden_states is None
    encoder = AutoModel.from_pretrained(tmp_path, trust_remote_code=True, output_hidden_states=True).eval()
    assert len(encoder(tokens()).hidden_states) == 3
    assert encoder(tokens(), output_hidden_states=False).hidden_states is None
    half = encoder.bfloat16()(tokens(), padding().long()).last_hidden_state
    assert half.dtype == torch.bfloat16 and half.isfinite().all()


def learn(model: torch.nn.Module, **asked: Tensor | None) -> float:
    """Return the loss without dropout after training with it, by default on three rows, two of them padded."""
    rows = {"input_ids": tokens(), "attention_mask": padding().long(), **asked}
    optimizer = torch.optim.Adam(model.train().parameters(), lr=2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(**rows).loss.backward()
        optimizer.step()
    return model.eval()(**rows).loss.item()


SEQUENCE_LABELS = {
    "classes": (3, None, torch.tensor([0, 1, 2])),
    "regression": (1, None, torch.tensor([0.5, -1.0, 2.0])),
    "regression of integers": (1, "regression", torch.tensor([0, 1, 2])),
    "several at once": (2, None, torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])),
}


@pytest.mark.parametrize(
    ("name", "labels"),
    [*((name, "classes") for name in LAYOUTS), *(("version 2", kind) for kind in list(SEQUENCE_LABELS)[1:])],
)
def test_sequence_labels_are_learned_by_heart(name: str, labels: str, tmp_path: Path) -> None:
    """Issue 35 of the original: its heads disagree on a width."""
    count, kind, answers = SEQUENCE_LABELS[labels]
    exported(LAYOUTS[name], tmp_path)
    torch.manual_seed(0)
    model, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, trust_remote_code=True, num_labels=count, problem_type=kind, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"pool.weight", "pool.bias", "classifier.weight", "classifier.bias"}
    assert model.pool.weight.shape == (32, model.config.hidden_size) and model.dropout.p == 0.1
    assert learn(model, labels=answers) < 0.1


def test_token_labels_are_learned_by_heart(tmp_path: Path) -> None:
    """Issue 40 of the original."""
    exported(LAYOUTS["version 2"], tmp_path)
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path, trust_remote_code=True, num_labels=4)
    labels = torch.where(padding(), tokens() % 4, -100)
    assert model(input_ids=tokens()).logits.shape == (ROWS, LENGTH, 4)
    assert learn(model, labels=labels) < 0.1


def test_spans_are_learned_by_heart(tmp_path: Path) -> None:
    exported(LAYOUTS["version 2"], tmp_path)
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path, trust_remote_code=True)
    starts, ends = torch.tensor([3, 0, 6]), torch.tensor([9, 0, 6])
    assert learn(model, start_positions=starts, end_positions=ends) < 0.1
    output = model(tokens(), padding().long())
    assert output.start_logits.argmax(1).tolist() == [3, 0, 6] and output.end_logits.argmax(1).tolist() == [9, 0, 6]
    assert output.loss is None


@torch.inference_mode()
def test_the_loss_of_spans_is_that_of_stock_heads(tmp_path: Path) -> None:
    exported(LAYOUTS["version 2"], tmp_path)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path, trust_remote_code=True).eval()
    plain = model(tokens())
    # A position that lies behind the row is not asked.
    for starts, ends in ((torch.tensor([3, 0, 6]), torch.tensor([9, 0, 6])), (torch.tensor([3, 20, 99]),) * 2):
        ours = model(tokens(), start_positions=starts, end_positions=ends).loss
        theirs = ForQuestionAnsweringLoss(plain.start_logits, plain.end_logits, starts, ends)
        torch.testing.assert_close(ours, theirs)


@torch.inference_mode()
def test_each_choice_is_a_sequence_of_its_own(tmp_path: Path) -> None:
    exported(LAYOUTS["one layer"], tmp_path)  # a mean over positions, without padding
    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path, trust_remote_code=True).eval()
    single = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True, num_labels=1).eval()
    single.load_state_dict(model.state_dict())
    ids, attention_mask = tokens(rows=6).view(3, 2, -1), torch.cat([padding(), padding().flip(0)]).view(3, 2, -1).long()
    token_type_ids = torch.zeros_like(ids)
    output = model(ids, attention_mask, token_type_ids, labels=torch.tensor([0, 1, 1]))
    assert output.logits.shape == (3, 2)
    expected = single(ids.flatten(0, 1), attention_mask.flatten(0, 1)).logits
    assert_close(output.logits.flatten(), expected.flatten())
    assert_close(model(ids).logits.flatten(), single(ids.flatten(0, 1)).logits.flatten())
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(output.logits, torch.tensor([0, 1, 1])))


def test_choices_are_learned_by_heart(tmp_path: Path) -> None:
    exported(LAYOUTS["version 2"], tmp_path)
    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path, trust_remote_code=True)
    ids, labels = tokens(rows=6).view(3, 2, -1), torch.tensor([1, 0, 1])
    assert learn(model, input_ids=ids, attention_mask=None, labels=labels) < 0.1


@torch.inference_mode()
def test_the_mean_leaves_padding_out_unless_it_is_attended_to(tmp_path: Path) -> None:
    ids, attention_mask = tokens(), padding().long()
    for name, apart in (("one layer", False), ("version 1", True)):
        exported(LAYOUTS[name], tmp_path)
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True).eval()
        together, alone = model(ids, attention_mask).logits[2:], model(ids[2:, :7]).logits
        assert torch.allclose(together, alone, atol=1e-4) is not apart


HEADS = ["", *(f"For{task}" for task in (
    "MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering"
))]  # fmt: skip
OPENING = """
import os, sys
import transformers

folder, code, *heads = sys.argv[1:]
transformers.dynamic_module_utils.HF_MODULES_CACHE = code
for head, other in zip(heads, [*heads[1:], heads[0]]):
    model = getattr(transformers, f"AutoModel{head}").from_pretrained(folder, trust_remote_code=True)
    assert type(model).__name__ == (f"Crammed{head}" if head else "CrammedModel"), type(model)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    again = os.path.join(folder, f"saved-{head}")
    model.save_pretrained(again)
    source = getattr(transformers, f"AutoModel{other}")
    source.from_pretrained(again, trust_remote_code=True, ignore_mismatched_sizes=True)
assert not any(name.startswith("daybreak") for name in sys.modules)
print("all opened")
"""


def test_every_head_opens_where_daybreak_is_not_and_what_it_saves_opens_with_another(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    exported(LAYOUTS["version 2"], folder)
    done = SERVERS["bare"].run(["-c", OPENING, folder, tmp_path / "code", *HEADS])
    assert done.stdout == "all opened\n", done.stderr
