"""``daybreak export MODEL``: a published checkpoint comes out in our layout, with the same logits, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from daybreak.commands.export import export
from daybreak.core.errors import UserError
from daybreak.data.tokenizers.tokenizer import WordPiece, save_tokenizer
from daybreak.exporting import parity
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.exporting.parity import REFUSED
from daybreak.models.crammed import CrammedEncoder

WORDS = "the river was quiet that evening and nobody spoke of the long way home under the old stone bridge".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))] * 20
    save_tokenizer(WordPiece(vocabulary=300).train(texts), folder)
    return folder


def ids(tokenizer: Path) -> int:
    return len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])


def test_a_stock_bert_comes_out_with_the_same_logits(tokenizer: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=ids(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=40, initializer_range=0.2,
    )  # fmt: skip
    stock = BertForMaskedLM(config).eval()
    stock.save_pretrained(tmp_path / "stock")
    for file in tokenizer.iterdir():
        (tmp_path / "stock" / file.name).write_bytes(file.read_bytes())
    out = export(tmp_path / "stock", out=tmp_path / "out")
    assert not (out / REFUSED).exists()
    rows = torch.randint(5, ids(tokenizer), (3, 30))
    again = AutoModelForMaskedLM.from_pretrained(out).eval()
    assert (again(rows).logits - stock(rows).logits).abs().max() < 1e-4
    with pytest.raises(UserError, match="applies to a crammed BERT"):
        export(tmp_path / "stock", out=tmp_path / "other", attend_padding=True)


def test_a_crammed_model_attends_to_padding_by_choice(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    shape = CrammedEncoder(
        layers=1, hidden_size=16, heads=2, intermediate_size=12, head="square", longest_row=24, attend_padding=True
    )
    source = tmp_path / "legacy"
    model = shape.build(ids(tokenizer))
    write_model_folder(source, model=model, shape=shape, tokenizer=tokenizer, length=24, vocabulary=ids(tokenizer))
    judged: list[Path] = []
    gate = parity.check_parity

    def watching(folder: Path, **facts: object) -> object:
        judged.append(folder)
        return gate(folder, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(parity, "check_parity", watching)
    for choice, kept in ((None, True), (False, False)):
        out = export(source, out=tmp_path / f"out-{choice}", attend_padding=choice)
        assert json.loads((out / "config.json").read_text())["attend_padding"] is kept
        assert (out / "modeling_crammed.py").is_file() and not (out / REFUSED).exists()
    assert len(judged) == 2


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run folder nor a model"):
        export(tmp_path, out=tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="'gpt2'"):
        export(tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
