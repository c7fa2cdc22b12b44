"""Whole folders, as stock transformers saves them, read back by type; damaged and foreign ones refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    CamembertConfig,
    CamembertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from daybreak.core.errors import UserError
from daybreak.models import importing
from daybreak.models.bert import BertEncoder
from daybreak.models.importing import load_pretrained
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import SpecialIds

VOCABULARY = 40
NAMES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
SPECIAL = SpecialIds(pad=30, unk=3, cls=4, sep=39, mask=0)


def write_tokenizer(folder: Path, names: dict[str, str] = NAMES, vocabulary: int = VOCABULARY) -> None:
    """A word-level tokenizer as transformers saves it, its special tokens where SPECIAL says."""
    places = {getattr(SPECIAL, kind): token for kind, token in names.items()}
    words = {places.get(id, f"word{id}"): id for id in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=names["unk"]))
    tokens = {f"{kind}_token": token for kind, token in names.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)


def stock_bert() -> BertForPreTraining:
    torch.manual_seed(1)
    shape = BertEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=24, positions=16, next_sentence=True)
    return BertForPreTraining(BertConfig(**shape.to_hugging_face(VOCABULARY, 16))).eval()


def stock_modern() -> ModernBertForMaskedLM:
    torch.manual_seed(2)
    shape = ModernEncoder(layers=3, hidden_size=16, heads=2, intermediate_size=24, global_every=2, window=4)
    return ModernBertForMaskedLM(ModernBertConfig(**shape.to_hugging_face(VOCABULARY, 16))).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stock BERT with a tokenizer of its own special ids."""
    stock_bert().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("shards", [False, True], ids=["whole", "shards"])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
@torch.inference_mode()
def test_a_folder_that_transformers_saved_is_read_exactly(family: str, shards: bool, tmp_path: Path) -> None:
    stock: Any = stock_bert() if family == "bert" else stock_modern()
    stock.save_pretrained(tmp_path, max_shard_size="4KB" if shards else "1GB")
    assert (tmp_path / "model.safetensors").exists() is not shards
    write_tokenizer(tmp_path)
    found = load_pretrained(tmp_path)
    assert type(found.shape) is (BertEncoder if family == "bert" else ModernEncoder)
    assert (found.special, found.tokenizer, found.model.vocabulary) == (SPECIAL, tmp_path, VOCABULARY)
    ids = torch.arange(32).view(2, 16)
    theirs = stock(ids)
    scores = theirs.prediction_logits if family == "bert" else theirs.logits
    torch.testing.assert_close(found.model.eval().logits(ids), scores, rtol=1e-4, atol=1e-5)


SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": VOCABULARY, "pad_token_id": SPECIAL.pad,
}  # fmt: skip
VARIANTS: dict[str, tuple[Any, Any]] = {
    "roberta": (
        RobertaForMaskedLM,
        RobertaConfig(**SMALL | {"pad_token_id": 1}, max_position_embeddings=18, type_vocab_size=1),
    ),
    "xlm-roberta": (XLMRobertaForMaskedLM, XLMRobertaConfig(**SMALL | {"pad_token_id": 1}, max_position_embeddings=18)),
    "camembert": (CamembertForMaskedLM, CamembertConfig(**SMALL | {"pad_token_id": 0}, max_position_embeddings=17)),
    "distilbert": (
        DistilBertForMaskedLM,
        DistilBertConfig(
            vocab_size=VOCABULARY, max_position_embeddings=16, n_layers=2, n_heads=2, dim=16, hidden_dim=24,
            dropout=0.2, pad_token_id=SPECIAL.pad,
        ),
    ),
    "electra": (ElectraForMaskedLM, ElectraConfig(**SMALL, embedding_size=16, max_position_embeddings=16)),
}  # fmt: skip


def stock_variant(family: str) -> Any:
    """A stock model with random weights everywhere, norms and biases too."""
    kind, config = VARIANTS[family]
    torch.manual_seed(4)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize("family", VARIANTS)
@torch.inference_mode()
def test_a_relative_of_bert_gives_the_same_logits_in_our_class_and_in_its_export(family: str, tmp_path: Path) -> None:
    stock = stock_variant(family)
    stock.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    found = load_pretrained(tmp_path)
    assert isinstance(found.shape, BertEncoder) and found.shape.positions == 16 and found.shape.segments == 2
    assert found.shape.finetune_dropout == (0.2 if family == "distilbert" else 0.1)
    ids = torch.randint(4, SPECIAL.pad, (3, 16))  # no padding: RoBERTa would not count it
    logits = stock(ids).logits
    torch.testing.assert_close(found.model.eval().logits(ids), logits, rtol=1e-4, atol=1e-5)
    export = BertForMaskedLM(BertConfig(**found.shape.to_hugging_face(VOCABULARY, 16, SPECIAL))).eval()
    missing, unexpected = export.load_state_dict(found.shape.export_weights(found.model), strict=False)
    assert not unexpected and all("decoder" in name or "position_ids" in name for name in missing)
    export.tie_weights()
    token_type_ids = torch.arange(48).view(3, 16) % 2 if family != "electra" else None
    torch.testing.assert_close(export(ids, token_type_ids=token_type_ids).logits, logits, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_discriminator_of_electra_gets_a_new_head(tmp_path: Path) -> None:
    torch.manual_seed(5)
    stock = ElectraForPreTraining(VARIANTS["electra"][1]).eval()
    stock.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = load_pretrained(tmp_path).model.eval()
    ids = torch.arange(4, 20).view(1, 16)
    states = stock.electra(ids).last_hidden_state
    torch.testing.assert_close(model.states(ids), states, rtol=1e-4, atol=1e-5)
    narrowed = F.layer_norm(F.gelu(states), (16,)) @ stock.electra.embeddings.word_embeddings.weight.T
    torch.testing.assert_close(model.logits(ids), narrowed, rtol=1e-4, atol=1e-5)


def test_a_narrow_electra_is_refused(tmp_path: Path) -> None:
    ElectraForPreTraining(ElectraConfig(**SMALL, embedding_size=8)).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert "embeddings of 8 dimensions and layers of 16" in refused(tmp_path)


def test_special_tokens_go_by_their_usual_names_where_nothing_names_them(folder: Path) -> None:
    write_tokenizer(folder, {kind: f"[{kind.upper()}]" for kind in NAMES})
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_pretrained(folder).special == SPECIAL
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "word7"}}))
    assert load_pretrained(folder).special.mask == 7
    (folder / "tokenizer_config.json").write_text('[["mask_token", "word9"]]')  # says nothing: no object
    assert load_pretrained(folder).special.mask == 7
    (folder / "special_tokens_map.json").unlink()
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')  # all that roberta-base says
    assert load_pretrained(folder).special == SPECIAL


def test_an_old_config_without_a_type_is_a_bert(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert isinstance(load_pretrained(folder).shape, BertEncoder)


# ---------------------------------------------------------------- refusals


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_pretrained(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pickle_is_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle" in refused(folder)


def test_a_folder_without_its_files_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "model"))
        (copy / name).unlink()
        assert name in refused(copy)


def test_a_missing_or_damaged_shard_is_refused(tmp_path: Path) -> None:
    stock_bert().save_pretrained(tmp_path, max_shard_size="4KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:100])
    assert shard.name in refused(tmp_path)
    shard.unlink()
    assert shard.name in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "holds no model.safetensors" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "roberta"}, "which is BERT's"),
        ({"model_type": "deberta-v2"}, "'deberta-v2'"),
        ({"model_type": ["bert"]}, "bert"),
        ({"hidden_size": 32}, "but its config.json says (40, 32)"),
        ({"hidden_size": "wide"}, "does not fit"),
        ({"num_hidden_layers": 3}, "lacks"),
        ({"num_hidden_layers": 10**9}, "says 1,000,000,000 layers"),
        ({"hidden_size": 2**20}, "but its config.json says"),
        ({"num_hidden_layers": 1}, "not part of a BERT"),
        ({"vocab_size": 41}, "but its config.json says (41, 16)"),
    ],
)
def test_a_config_that_does_not_fit_its_weights_is_refused(folder: Path, changes: dict[str, Any], named: str) -> None:
    change_config(folder, **changes)
    assert named in refused(folder)


def test_a_modernbert_config_without_its_sizes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "modernbert"}')
    save_file({"decoder.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert "num_hidden_layers" in refused(tmp_path)


@pytest.mark.parametrize("positions", [["full_attention"], {"full_attention": 3}])
def test_a_modernbert_config_of_another_form_is_refused(positions: object, tmp_path: Path) -> None:
    stock_modern().save_pretrained(tmp_path)
    change_config(tmp_path, rope_parameters=positions)
    assert "does not fit its weights (AttributeError" in refused(tmp_path)


def test_an_error_without_words_is_reported_by_its_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise ValueError

    monkeypatch.setitem(importing.FAMILIES, "bert", silent)
    assert "does not fit its weights (ValueError)" in refused(folder)


def test_a_tokenizer_that_does_not_fit_is_refused(folder: Path) -> None:
    write_tokenizer(folder, {kind: f"({kind})" for kind in NAMES})
    (folder / "tokenizer_config.json").write_text('{"mask_token": "[NONE]"}')
    assert "no [PAD] token" in refused(folder)
    write_tokenizer(folder, vocabulary=VOCABULARY + 2)
    assert "has the id 41" in refused(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert "cannot be read" in refused(folder)


def test_weights_are_those_of_the_file_in_float32(folder: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    model = load_pretrained(folder).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
