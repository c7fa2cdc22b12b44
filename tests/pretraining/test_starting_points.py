"""Training a model on that somebody else made: stock BERT and ModernBERT, their tokenizer or one of the text's own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import bits, command, exit_code, stopped_at
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from daybreak.core.files import read_json
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.models.bert import BertEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.pretraining.setup import heldout_validation, starting_weights
from daybreak.pretraining.starting_points import continue_model
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Decisions, Manifest, SpecialIds, Summary
from daybreak.training.clock import read_trace

pytestmark = pytest.mark.usefixtures("on_the_cpu")

SMALL = ["--length", "32", "--finish.start", "1", "--batch", "8", "--precision", "float32", "--budget", "30steps"]
FAMILIES = ("bert", "modernbert", "roberta", "distilbert")


def write_tokenizer(folder: Path, text: str) -> SpecialIds:
    """A WordPiece tokenizer as transformers saves it: every other word whole, all letters; special tokens last."""
    letters = sorted(set(text.replace(" ", "").replace("\n", "")))
    words = sorted({word for word in text.split() if len(word) > 1})[::2]
    pieces = [*letters, *(f"##{letter}" for letter in letters), *words]
    specials = ["[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]"]
    vocabulary = {piece: id for id, piece in enumerate([*pieces, *specials])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [(token, vocabulary[token]) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    names = {f"{token[1:-1].lower()}_token": token for token in specials}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return SpecialIds(**{token[1:-1].lower(): vocabulary[token] for token in specials})


def words_of(corpus: Path) -> str:
    return " ".join(json.loads(line)["text"] for line in corpus.read_text().splitlines())


@pytest.fixture(scope="session")
def parents(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A stock model of each family, as transformers saves it, with wide weights so that it differs from another."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp("parents") / f"stock-{family}"
        special = write_tokenizer(folder, words_of(corpus))
        assert min(dataclasses.astuple(special)) > 4
        vocabulary = special.unk + 1
        torch.manual_seed(5)
        stock: Any
        if family == "bert":
            ours = BertEncoder(
                layers=1, hidden_size=32, heads=2, intermediate_size=48, positions=40, next_sentence=True, init_std=0.2
            )
            told = ours.to_hugging_face(vocabulary, 40, special)
            stock = BertForPreTraining(BertConfig(**told))
        elif family == "roberta":
            shape = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
            ids = {"pad_token_id": special.pad, "bos_token_id": special.cls, "eos_token_id": special.sep}
            positions = 40 + special.pad + 1  # they are numbered from the padding id on
            config: Any = RobertaConfig(
                vocab_size=vocabulary, max_position_embeddings=positions, initializer_range=0.2, **shape, **ids
            )
            stock = RobertaForMaskedLM(config)
        elif family == "distilbert":
            distilled = {"n_layers": 1, "dim": 32, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 40}
            config = DistilBertConfig(
                vocab_size=vocabulary, pad_token_id=special.pad, initializer_range=0.2, **distilled
            )
            stock = DistilBertForMaskedLM(config)
        else:
            modern = ModernEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=48, init_std=0.2)
            stock = ModernBertForMaskedLM(ModernBertConfig(**modern.to_hugging_face(vocabulary, 64, special)))
        stock.save_pretrained(folder)
        found[family] = folder
    return found


@pytest.fixture(scope="session")
def theirs(parents: dict[str, Path], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corpus``, prepared with the tokenizer of the parents."""
    out = tmp_path_factory.mktemp("prepared") / "theirs"
    command("prepare", corpus, "--out", out, "--tokenizer-from", parents["bert"])
    return out


@torch.inference_mode()
def stock_loss(folder: Path, data: Path, run: Path) -> float:
    """What transformers alone gives on the run's held-out masked rows, nats a position."""
    recipe = load_recipe(run)
    masked, positions, answers = heldout_validation(recipe, open_shards(data), data, torch.device("cpu")).cases()
    model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    logits = model(masked).logits.gather(1, positions[:, :, None].expand(-1, -1, model.config.vocab_size))
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), answers.flatten()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_model_goes_on_with_its_own_tokenizer(
    family: str, parents: dict[str, Path], theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the loss that transformers itself gives, at a tenth of the rate, to a folder that passes the gate."""
    run = tmp_path / "run"
    words = ["pretrain", "daybreak-tiny", "--init", parents[family], "--data", theirs, "--out", run]
    command(*words, "--general", theirs, *SMALL)
    recipe, tiny = load_recipe(run), load_recipe("daybreak-tiny")
    assert recipe.tokenizer == Existing(folder=str(parents[family]))
    assert recipe.optimizer.lr == pytest.approx(tiny.optimizer.lr / 10)
    assert recipe.objective.stage(0.0) == "masked" != tiny.objective.stage(0.0)
    decisions, summary = read_json(run / "decisions.json", Decisions), read_json(run / "summary.json", Summary)
    assert decisions.before["own"] == pytest.approx(stock_loss(parents[family], theirs, run), rel=1e-5)
    assert summary.validation.loss == pytest.approx(stock_loss(run / "model", theirs, run), rel=1e-5)
    assert summary.parity and summary.parity.passed, summary.parity
    forgetting = summary.forgetting
    assert forgetting and forgetting.own_before == decisions.before["own"]
    assert forgetting.own_after < forgetting.own_before
    assert forgetting.own_after == pytest.approx(summary.validation.loss, abs=1e-6)
    # The general text is the run's own here, in shorter rows, so that it too must have become better.
    assert forgetting.general_before and forgetting.general_after
    assert forgetting.general_after < forgetting.general_before == decisions.before["general"]
    assert summary.parent == f"stock-{family}"
    assert f"continued from stock-{family} with masked language modeling" in (run / "model/README.md").read_text()
    assert f"Continued pretraining: held-out loss from {forgetting.own_before:.3f}" in re.sub(
        r"\s+", " ", capsys.readouterr().out
    )
    special = read_json(theirs / "manifest.json", Manifest).special
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["pad_token_id"] == special.pad > 4


@pytest.mark.usefixtures("ungated")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_model_goes_on_with_a_new_vocabulary(
    family: str, parents: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    """It starts from what its old pieces knew, which is not what random weights know."""
    run = tmp_path / "run"
    words = ["pretrain", "daybreak-tiny", "--init", parents[family], "--new-vocabulary", "--data", data, "--out", run]
    command(*words, *SMALL, "--tokenizer.vocabulary", "400")
    recipe = load_recipe(run)
    assert recipe.tokenizer == WordPiece(vocabulary=400)
    shards = open_shards(data)
    model = starting_weights(recipe, data, shards).state_dict()
    old = AutoModelForMaskedLM.from_pretrained(parents[family])
    pieces, known = (
        Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (data / "tokenizer", parents[family])
    )
    table, before = model["embedding.weight"], old.get_input_embeddings().weight
    shared = [piece for piece in pieces.get_vocab() if piece in known.get_vocab()]
    assert len(shared) > 60 and table.shape == (shards.manifest.vocabulary, 32)
    for piece in shared:
        torch.testing.assert_close(table[pieces.token_to_id(piece)], before[known.token_to_id(piece)])
    summary = read_json(run / "summary.json", Summary)
    assert summary.forgetting and summary.forgetting.own_after < summary.forgetting.own_before
    assert summary.forgetting.general_before is None and summary.parent == f"stock-{family}"


@pytest.mark.parametrize("inner", [48, 0], ids=["plain", "as wide as the vocabulary"])
def test_a_model_with_more_ids_than_its_tokenizer_goes_on(
    inner: int, parents: dict[str, Path], theirs: Path, tmp_path: Path
) -> None:
    """Published models are padded to a round number of ids. Nothing else may be taken for the vocabulary either."""
    shards = open_shards(theirs)
    special, vocabulary = shards.manifest.special, shards.manifest.vocabulary
    ours = BertEncoder(
        layers=1, hidden_size=32, heads=2, intermediate_size=inner or vocabulary + 20, positions=40, init_std=0.2
    )
    torch.manual_seed(6)
    stock = BertForMaskedLM(BertConfig(**ours.to_hugging_face(vocabulary + 20, 40, special))).eval()
    stock.save_pretrained(tmp_path)
    write_tokenizer_of(parents["bert"], tmp_path)
    recipe = continue_model(load_recipe("daybreak-tiny"), tmp_path)
    model = starting_weights(recipe, theirs, shards).eval()
    assert model.vocabulary == vocabulary
    ids = torch.randint(vocabulary, (3, 20))
    with torch.inference_mode():
        torch.testing.assert_close(model.logits(ids), stock(ids).logits[..., :vocabulary], rtol=1e-4, atol=1e-4)


def test_the_rate_is_that_of_the_recipe_for_a_model_that_daybreak_trained_from_scratch(
    finished: Path, parents: dict[str, Path], tmp_path: Path
) -> None:
    tiny = load_recipe("daybreak-tiny")

    def factor(folder: Path) -> float:
        return continue_model(tiny, folder).optimizer.lr / tiny.optimizer.lr

    export = Path(shutil.copytree(finished / "model", tmp_path / "export"))
    assert factor(finished) == factor(finished / "model") == factor(export) == 1
    (told,) = export.glob("train_budget_*.json")
    recipe = json.loads(told.read_text())
    told.write_text(json.dumps(recipe | {"origin": {"init": "", "branch": "run", "parent": "published"}}))
    assert factor(export) == pytest.approx(0.1), "extended from a run that continued a published model"
    recipe["origin"]["init"] = "published"
    told.write_text(json.dumps(recipe))
    assert factor(export) == factor(parents["modernbert"]) == pytest.approx(0.1)


def test_a_bert_that_daybreak_trained_keeps_the_dropout_of_the_recipe(parents: dict[str, Path], tmp_path: Path) -> None:
    """Its config.json names the dropout of fine-tuning; that of a published model is its own."""

    def dropouts(recipe: str) -> tuple[float, float]:
        shape = continue_model(load_recipe(recipe), parent).model
        assert isinstance(shape, BertEncoder)
        return shape.dropout, shape.attention_dropout

    parent = Path(shutil.copytree(parents["bert"], tmp_path / "parent"))
    published = dropouts("bert-8gb")
    assert min(published) > 0
    (parent / "train_budget_hours_1.json").write_text('{"origin": {"init": ""}}')
    assert dropouts("bert-8gb") == dropouts("daybreak-tiny") == (0.0, 0.0) and dropouts("bert-2018") == (0.1, 0.1)


def write_tokenizer_of(source: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())


@pytest.mark.usefixtures("ungated")
def test_a_continued_run_that_was_stopped_ends_like_one_that_was_not(
    parents: dict[str, Path], theirs: Path, tmp_path: Path
) -> None:
    general = Path(shutil.copytree(theirs, tmp_path / "general"))
    words = ["pretrain", "daybreak-tiny", "--init", parents["bert"], "--data", theirs, "--general", general, *SMALL]
    command(*words, "--out", tmp_path / "whole")
    run = tmp_path / "run"
    with stopped_at(10):
        assert exit_code(*words, "--out", run) == 143
    assert len(read_trace(run / "trace.jsonl")) == 11
    before = read_json(run / "decisions.json", Decisions).before
    general.rename(tmp_path / "moved")  # it is missed at once, not after the last step
    assert exit_code(*words, "--out", run) == 2 and len(read_trace(run / "trace.jsonl")) == 11
    (tmp_path / "moved").rename(general)
    command(*words, "--out", run)
    whole, ours = (read_json(folder / "summary.json", Summary) for folder in (tmp_path / "whole", run))
    assert (ours.resumes, ours.steps) == (1, 30) and ours.forgetting == whole.forgetting
    assert before == read_json(run / "decisions.json", Decisions).before
    assert bits(run) == bits(tmp_path / "whole")


@pytest.mark.usefixtures("ungated")
def test_resume_and_verify_find_the_same_model_from_another_folder(
    parents: dict[str, Path],
    theirs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, parent = tmp_path / "run", parents["modernbert"]
    words = ["pretrain", "daybreak-tiny", "--data", theirs, "--out", run, *SMALL]
    monkeypatch.chdir(parent.parent)
    with stopped_at(10):
        assert exit_code(*words, "--init", parent.name) == 143
    assert load_recipe(run).origin.init == str(parent)
    monkeypatch.chdir(tmp_path)
    command(*words, "--init", os.path.relpath(parent))
    command("verify", run, "--data", theirs)
    said = capsys.readouterr().out
    assert "the exported model: equal, 30 of 30 steps." in said and "are equal bit for bit" in said


@pytest.mark.usefixtures("ungated")
def test_run_continues_from_text_to_report(parents: dict[str, Path], corpus: Path, tmp_path: Path) -> None:
    """The same command again has nothing left to do."""
    run = tmp_path / "run"
    words = ["run", "daybreak-tiny", "--init", parents["modernbert"], "--corpus", corpus, "--general", corpus]
    command(*words, "--out", run, *SMALL)
    summary = read_json(run / "summary.json", Summary)
    assert summary.parent == "stock-modernbert" and summary.forgetting and summary.forgetting.general_after
    assert read_json(run / "data" / "manifest.json", Manifest).special.pad > 4
    assert (run / "data/tokenizer/tokenizer.json").read_bytes() == (
        parents["modernbert"] / "tokenizer.json"
    ).read_bytes()
    assert "stock-modernbert" in (run / "report.html").read_text()
    command(*words, "--out", run, *SMALL)
    assert read_json(run / "summary.json", Summary) == summary


@pytest.mark.usefixtures("ungated")
@pytest.mark.parametrize("head", [True, False], ids=["pretraining", "masked only"])
def test_a_next_sentence_head_is_kept_or_begun(
    head: bool, parents: dict[str, Path], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = parents["bert"]
    if not head:
        parent = tmp_path / "masked-only"
        BertForMaskedLM.from_pretrained(parents["bert"]).save_pretrained(parent)
        write_tokenizer_of(parents["bert"], parent)
    text, data, run = tmp_path / "tales.txt", tmp_path / "data", tmp_path / "run"
    documents = [json.loads(line)["text"].replace(" .", " .\n") for line in corpus.read_text().splitlines()]
    text.write_text("\n\n".join(documents))
    command("prepare", text, "--out", data, "--recipe", "bert-2018", "--tokenizer-from", parent)
    words = ["--init", parent, "--data", data, "--out", run, "--phase2.start", "1", *SMALL]
    command("pretrain", "bert-2018", *words, "--general", data)
    recipe, summary = load_recipe(run), read_json(run / "summary.json", Summary)
    assert recipe.model.predicts_next and summary.validation.next_accuracy is not None
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert (
        "The model to continue lacks next_head.bias, next_head.weight, pooler.bias, pooler.weight: initialized" in said
    ) is not head


def test_general_text_of_another_tokenizer_is_refused(
    parents: dict[str, Path], theirs: Path, data: Path, tmp_path: Path, refused: Any
) -> None:
    run = tmp_path / "run"
    words = ["pretrain", "daybreak-tiny", "--init", parents["bert"], "--data", theirs, "--out", run, *SMALL]
    said = refused(*words, "--general", data)
    assert "--tokenizer-from" in said and not run.exists()
