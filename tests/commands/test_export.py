"""A model out of a run that ended or was stopped, and of a published checkpoint; and what is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import stopped_at, train_on_the_cpu
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from daybreak.commands import pretrain
from daybreak.commands.export import export
from daybreak.commands.prepare import prepare
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import REFUSED
from daybreak.data.tokenizers.tokenizer import WordPiece, save_tokenizer
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.exporting import parity
from daybreak.exporting.budget_files import trained_from_scratch
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.models.crammed import CrammedEncoder
from daybreak.recipe import load_recipe, resolved
from daybreak.schemas.run import Summary
from daybreak.training.averaging import Averaging

Refused = Callable[..., str]


@pytest.fixture
def known_parity(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parity check of the run, without repeating it for each export."""
    passed = read_json(run / "summary.json", Summary).parity
    monkeypatch.setattr("daybreak.exporting.parity.check_parity", lambda *_, **__: passed)


def test_a_finished_run_is_copied(finished: Path, tmp_path: Path) -> None:
    out = export(str(finished), out=str(tmp_path / "deep" / "model"))
    model = finished / "model"
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == {
        path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(("name", "left", "fault"), [
    ("config.json", None, "lacks config.json"),
    ("model.safetensors", 100, "model.safetensors' is damaged"),
])  # fmt: skip
def test_a_finished_model_that_lost_a_part_is_not_copied(
    name: str, left: int | None, fault: str, run: Path, refused: Refused, tmp_path: Path
) -> None:
    file = run / "model" / name
    file.write_bytes(file.read_bytes()[:left]) if left else file.unlink()
    assert fault in refused("export", run, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_out_of_the_model_folder_is_not_copied(run: Path, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("a private key")
    (run / "model" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    assert "is a link that leads out of" in refused("export", run, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_failed_its_parity_check_gets_no_onnx(
    run: Path, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.exporting.onnx.check_onnx_installed", lambda: None)
    (run / "model" / REFUSED).write_text("logits differ")
    told = refused("export", run, "--out", tmp_path / "out", "--onnx")
    assert "failed its parity check, so do not use it. Read REFUSED.txt there" in " ".join(told.split())
    assert (tmp_path / "out" / REFUSED).exists() and not (tmp_path / "out" / "onnx").exists()
    assert "do not use it" in " ".join(refused("export", run, "--out", tmp_path / "again").split())


def test_an_export_appears_after_its_parity_check(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the same command can be given again if it is stopped before."""
    out = tmp_path / "out"

    def stop(folder: Path, **_: Any) -> None:
        assert (folder / "model.safetensors").is_file() and not out.exists()
        raise Interrupted("stopped")

    monkeypatch.setattr("daybreak.exporting.parity.check_parity", stop)
    with pytest.raises(Interrupted):
        export(run / "model", out=out)
    assert not list(tmp_path.glob("*out*"))


def test_a_stopped_run_gives_its_newest_checkpoint(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_on_the_cpu(monkeypatch)
    run, out = tmp_path / "run", tmp_path / "model"
    with stopped_at(30), pytest.raises(Interrupted):
        pretrain.pretrain(load_recipe(finished), data=data, out=run)
    export(run, out=out, data=data)
    said = capsys.readouterr().out
    assert "Step 31: held-out loss" in said and "Parity: stock transformers" in said
    assert not (out / "REFUSED.txt").exists()
    stock = AutoModelForMaskedLM.from_pretrained(out)
    ended = AutoModelForMaskedLM.from_pretrained(finished / "model")
    assert stock.config.max_position_embeddings == 64  # the sequences of the finish are longer
    assert trained_from_scratch(out) and trained_from_scratch(export(out, out=tmp_path / "again"))
    apart = (stock.get_input_embeddings().weight - ended.get_input_embeddings().weight).abs().max()
    assert 0 < apart < 0.1  # the same run, nine steps earlier


@pytest.mark.usefixtures("known_parity")
@pytest.mark.parametrize("best", [False, True])
def test_of_a_run_that_averages_its_weights_the_mean_is_given_but_for_the_best(
    best: bool, run: Path, data: Path, tmp_path: Path
) -> None:
    """The end of such a run has the mean; its best checkpoint was judged without."""
    (run / "summary.json").unlink()
    place = run / ("best" if best else "checkpoints")
    shutil.copytree(run / "before-decay", place)
    (kept,) = place.glob("step-*")
    weights = load_file(kept / "model.safetensors")
    means = {f"mean.{name}": tensor + 0.5 for name, tensor in weights.items()}
    save_file({"count": torch.tensor(3), **means}, kept / "average.safetensors")
    recipe = replace(load_recipe(run), average=Averaging(fraction=0.5))
    write_json(run / "recipe.json", resolved(recipe))
    out = export(run, out=tmp_path / "model", data=data, best=best)
    given = load_file(out / "model.safetensors")["model.embeddings.tok_embeddings.weight"]
    assert torch.equal(given, weights["embedding.weight"] + (0.0 if best else 0.5))


@pytest.mark.usefixtures("known_parity")
def test_the_best_checkpoint_can_be_taken_in_place_of_the_end(run: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "before-decay", run / "best")
    out = export(run, out=tmp_path / "model", data=data, best=True)
    (kept,) = (run / "best").glob("step-*/model.safetensors")
    stock = AutoModelForMaskedLM.from_pretrained(out)
    assert torch.equal(stock.get_input_embeddings().weight, load_file(kept)["embedding.weight"])


def test_what_cannot_be_exported_is_refused(run: Path, data: Path, refused: Refused, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert "is neither a run folder nor a model" in refused("export", tmp_path, "--out", out)
    named = refused("export", run, "--out", out, "--push-to-hub", "bad name/x/y")
    assert "'bad name/x/y' is not a name of a repository." in named
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert "is not empty" in refused("export", run, "--out", tmp_path / "full")
    assert "is not a folder" in refused("export", run, "--out", tmp_path / "full" / "thesis.tex")
    assert "has no best checkpoint" in refused("export", run, "--best", "--out", out, "--data", data)
    for flag in (["--best"], ["--data", data]):
        assert f"{flag[0]} applies to runs only" in refused("export", run / "model", "--out", out, *flag)
    assert "is finished, and its model is copied without the data." in " ".join(
        refused("export", run, "--out", out, "--data", data).split()
    )
    (run / "summary.json").unlink()
    assert "no checkpoint yet" in refused("export", run, "--out", out, "--data", data)
    assert "Name their folder with --data." in refused("export", run, "--out", out)
    assert not out.exists()


def test_a_record_without_its_model_is_refused(run: Path, refused: Refused, tmp_path: Path) -> None:
    shutil.rmtree(run / "model")
    assert "is a finished run without its model" in refused("export", run, "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_is_exported_with_the_data_of_its_run_only(
    run: Path, corpus: Path, refused: Refused, tmp_path: Path
) -> None:
    """With another tokenizer of as many pieces it would be another model; with another text, its loss another one."""
    other, out = tmp_path / "other", tmp_path / "model"
    shutil.copytree(run / "before-decay", run / "best")
    (tmp_path / "less.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[:300]))
    prepare([tmp_path / "less.jsonl"], other, tokenizer=WordPiece(vocabulary=400))
    same = tmp_path / "same tokenizer"
    prepare([tmp_path / "less.jsonl"], same, tokenizer=Existing(folder=str(run / "model")))
    for data in (other, same):
        told = " ".join(refused("export", run, "--best", "--out", out, "--data", data).split())
        assert "was started on other data. Give the --data it was started on." in told and not out.exists()


@pytest.mark.usefixtures("known_parity")
@pytest.mark.parametrize("ended", [True, False])
def test_the_model_goes_to_where_a_link_or_a_dot_leads(
    ended: bool, run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ended:
        (run / "summary.json").unlink()
        shutil.copytree(run / "before-decay", run / "checkpoints")
    of_run = {} if ended else {"data": data}
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    export(run, out=tmp_path / "link", **of_run)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "config.json").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export(run, out=".", **of_run)
    assert (tmp_path / "here" / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_an_interrupted_copy_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("daybreak.exporting.hugging_face.replace_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(run, out=tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- a published checkpoint


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
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 40
    settings = json.loads((tmp_path / "stock" / "tokenizer_config.json").read_text())
    (tmp_path / "stock" / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 24}))
    shorter = export(tmp_path / "stock", out=tmp_path / "shorter")  # as a BERT with more positions than it trained
    assert json.loads((shorter / "tokenizer_config.json").read_text())["model_max_length"] == 24
    assert not (shorter / REFUSED).exists()
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
    write_model_folder(source, model=model, shape=shape, tokenizer=tokenizer, length=24)
    judged: list[Path] = []
    gate = parity.check_parity

    def watching(folder: Path, **facts: object) -> object:
        judged.append(folder)
        return gate(folder, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(parity, "check_parity", watching)
    for choice, kept in ((None, True), (False, False)):
        out = export(source, out=tmp_path / f"out-{choice}", attend_padding=choice)
        told = json.loads((out / "config.json").read_text())
        assert (told["attend_padding"], told["max_position_embeddings"]) == (kept, 24)
        assert (out / "modeling_crammed.py").is_file() and not (out / REFUSED).exists()
    assert len(judged) == 2


def test_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="'gpt2'"):
        export(tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
