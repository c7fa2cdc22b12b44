"""A very small encoder with its tokenizer, as stock transformers writes them, and a task that it can learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_tasks import FILLER, RAINY, SUNNY, VOCABULARY, evaluation_of, weather_rows

from daybreak.evaluation.finetuning.jobs import FinetuningJob
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.tasks.task_file import read_task_file

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for another one on a busy machine makes a fast test slow."""
    torch.set_num_threads(1)
    monkeypatch.setattr("daybreak.evaluation.finetuning.parallel.usable_cores", lambda: 1)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ModernBertForMaskedLM of one layer x 32 with random weights, and its tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    letters = [mark + chr(code) for mark in ("", "##") for code in range(ord("a"), ord("z") + 1)]
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *letters, *SUNNY, *RAINY, *FILLER])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    config = ModernBertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        layer_types=["full_attention"],
        classifier_pooling="mean",
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
    )
    torch.manual_seed(7)
    ModernBertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(encoder: Path) -> Any:
    """That of ``encoder``. Shared: copy it before changing it."""
    from daybreak.evaluation.finetuning.classifier import load_tokenizer

    return load_tokenizer(encoder)


WriteCrammed = Callable[..., Path]


@pytest.fixture(scope="session")
def write_crammed(encoder: Path) -> WriteCrammed:
    """Return ``write(folder, ...)``: an export of a small crammed encoder with the tokenizer of ``encoder``."""
    from daybreak.models.crammed import CrammedEncoder

    def write(folder: Path, **changes: Any) -> Path:
        shutil.copytree(encoder, folder)
        shape = CrammedEncoder(**{"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 32, **changes})
        torch.manual_seed(0)
        weights = shape.export_weights(shape.build(VOCABULARY))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(shape.to_hugging_face(VOCABULARY, 64)))
        for name, source in shape.modelling_files().items():
            shutil.copyfile(source, folder / name)
        return folder

    return write


@pytest.fixture(params=["bert", "crammed"])
def family(request: pytest.FixtureRequest, encoder: Path, write_crammed: WriteCrammed, tmp_path: Path) -> Path:
    """A stock encoder that knows token types, and one of ours that brings its code, with the toy tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path / request.param
    if request.param == "crammed":
        return write_crammed(folder, classifier_width=32)
    shutil.copytree(encoder, folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    BertForMaskedLM(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


WriteTask = Callable[..., Path]


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Return ``write(train rows, dev rows, extra TOML)`` that writes a .tsv task and returns the path of its TOML."""

    def write(
        train: list[tuple[str, ...]], dev: list[tuple[str, ...]] | None = None, more: str = "", name: str = "weather"
    ) -> Path:
        columns = [f"text{i}" for i in range(len(train[0]) - 1)]
        for split, rows in (("train", train), ("dev", dev)):
            if rows is not None:
                lines = ["\t".join(row) for row in [(*columns, "label"), *rows]]
                (tmp_path / f"{name}-{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = ", ".join(f'"{column}"' for column in columns)
        described = f'train = "{name}-train.tsv"\ntext = [{text}]\nlabel = "label"\n{more}\n'
        described += f'dev = "{name}-dev.tsv"\n' if dev is not None else ""
        path = tmp_path / f"{name}.toml"
        path.write_text(described, encoding="utf-8")
        return path

    return write


@pytest.fixture
def weather(write_task: WriteTask) -> Path:
    return write_task(weather_rows(640, seed=1), weather_rows(101, seed=2))


@pytest.fixture
def jobs(encoder: Path, write_task: WriteTask, tmp_path: Path) -> list[FinetuningJob]:
    """Four short fine-tunings."""
    rows = [("sun", "a"), ("rain", "b")] * 10
    task, protocol = read_task_file(write_task(rows, rows[:7])), PROTOCOLS["quick"].changed(epochs=2)
    return list(evaluation_of(encoder, task, tmp_path / "cells", protocol=protocol, seeds=4).all_jobs())


class Notes:
    """Stands for what the user sees."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def show(self, share: float, note: str = "") -> None:
        assert 0 <= share <= 1
        self.notes.append(note)


@pytest.fixture
def notes() -> Notes:
    return Notes()
