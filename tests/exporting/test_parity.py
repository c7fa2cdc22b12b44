"""The exported folder in stock transformers, and the gate that must notice when it is not the trained model."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.run_folder import REFUSED
from daybreak.core.serialization import to_dict
from daybreak.data.sequences.sampler import StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.exporting import parity
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.exporting.parity import check_parity, verdict
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import Parity, SpecialIds
from daybreak.training.clock import Tick
from daybreak.training.validation import Validation

TEXT = "The teacher finds the window near the river."
LENGTH = 32
SIZES = {"layers": 2, "hidden_size": 32, "heads": 2, "intermediate_size": 64}
SHAPES: dict[str, EncoderConfig] = {
    "modern": ModernEncoder(**{**SIZES, "layers": 3}, global_every=2, window=8),
    "bert": BertEncoder(**SIZES, positions=64, next_sentence=True, dropout=0.1, attention_dropout=0.1),
    "crammed": CrammedEncoder(**SIZES),
    "attends-padding": CrammedEncoder(**SIZES, attend_padding=True, head="square"),
}
RENUMBERED = "attends-padding"
"""The kind that is exported with a tokenizer whose special tokens have other ids."""


@dataclass
class Export:
    """A model with random weights as a run that had just ended would hold and have written it."""

    folder: Path
    shape: EncoderConfig
    model: Encoder
    validation: Validation
    tokenizer: Path

    def write(self, folder: Path, tokenizer: Path, length: int = LENGTH) -> None:
        """Write the model once more."""
        self.tokenizer = tokenizer
        write_model_folder(folder, model=self.model, shape=self.shape, tokenizer=tokenizer, length=length)

    def judged(self) -> Parity:
        seen = self.validation.measure(
            self.model.eval(), rows=self.validation.rows, step=0, tokens=0, tick=Tick(0.0, 1.0), final=False
        )
        self.model.train()  # as training leaves it: the gate must not measure with dropout
        return check_parity(
            self.folder, model=self.model, shape=self.shape, length=LENGTH, validation=self.validation,
            accuracy=seen.accuracy, tokenizer=self.tokenizer, text=TEXT,
        )  # fmt: skip


def made(kind: str, data: Path, folder: Path) -> Export:
    shards = open_shards(data)
    torch.manual_seed(0)
    shape, special = SHAPES[kind], shards.manifest.special
    model = shape.build(shards.manifest.vocabulary)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # far from what a default could hide behind
    batch = StreamRows().build(shards.heldout, LENGTH, 0, special).at(np.arange(16))
    tokenizer = data / "tokenizer"
    if kind == RENUMBERED:
        tokenizer, table = renumbered(tokenizer, folder.with_name("tokenizer"))
        special = SpecialIds(**{name: int(table[i]) for name, i in to_dict(special).items()})
        batch = replace(batch, input_ids=table[batch.input_ids], special=special)
    write_model_folder(folder, model=model, shape=shape, tokenizer=tokenizer, length=LENGTH, special=special)
    return Export(folder, shape, model, Validation(batch, shards.unigram_counts, torch.device("cpu")), tokenizer)


def renumbered(tokenizer: Path, out: Path) -> tuple[Path, np.ndarray]:
    """The same tokenizer with its special tokens last, in another order; and old id -> new id."""
    shutil.copytree(tokenizer, out)
    plain = json.loads((out / "tokenizer.json").read_text())
    size = len(plain["model"]["vocab"])
    table = np.array([i - 5 if i > 4 else size - 1 - i for i in range(size)])
    plain["model"]["vocab"] = {piece: int(table[i]) for piece, i in plain["model"]["vocab"].items()}
    for token in plain["added_tokens"]:
        token["id"] = int(table[token["id"]])
    for token in plain["post_processor"]["special_tokens"].values():
        token["ids"] = [int(table[i]) for i in token["ids"]]
    (out / "tokenizer.json").write_text(json.dumps(plain))
    return out, table


@pytest.fixture
def export(data: Path, tmp_path: Path) -> Callable[[str], Export]:
    return lambda kind: made(kind, data, tmp_path / "model")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in this process, which has loaded transformers, except for models with code of their own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_MODULES_CACHE", "")
    run = subprocess.run

    def in_process(command: list[str], **options: Any) -> Any:
        _, flag, script, folder, _ = command
        assert flag == "-I"
        if list(Path(folder).glob("*.py")):
            return run(command, **options)
        monkeypatch.setattr(sys, "argv", command[2:])
        runpy.run_path(script, run_name="__main__")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("daybreak.exporting.parity.subprocess.run", in_process)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", SHAPES)
def test_a_good_export_passes_and_loses_an_old_mark(kind: str, export: Callable[[str], Export]) -> None:
    given = export(kind)
    (given.folder / REFUSED).write_text("of an earlier export")
    found = given.judged()
    assert found.passed, found.failure
    assert (
        found.failure is None and all(found.checks.values()) and ("next sentence" in found.checks) == (kind == "bert")
    )
    assert 0 <= found.largest_logit_difference <= found.tolerance
    assert not (given.folder / REFUSED).exists()
    assert "the same logits" in verdict(found)


@pytest.mark.usefixtures("here")
def test_the_check_computes_in_float32_whatever_the_environment_asks_for(export: Callable[[str], Export]) -> None:
    given = export("modern")
    torch.set_float32_matmul_precision("high")
    try:
        assert given.judged().passed
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("kind", "told"), [("modern", '{"do_lower_case": true}'), ("bert", None)])
def test_a_tokenizer_that_does_not_name_its_special_tokens_passes(
    kind: str, told: str | None, data: Path, tmp_path: Path, export: Callable[[str], Export]
) -> None:
    """As taken over from a folder of BERT's first releases, or of one that the tokenizers library wrote."""
    given, tokenizer = export(kind), Path(shutil.copytree(data / "tokenizer", tmp_path / "taken"))
    (tokenizer / "tokenizer_config.json").unlink()
    if told:
        (tokenizer / "tokenizer_config.json").write_text(told)
    given.write(given.folder, tokenizer)
    found = given.judged()
    assert found.passed, found.failure


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("told", [{"model_max_length": 512}, {"tokenizer_class": "PreTrainedTokenizerFast"}])
def test_a_tokenizer_of_another_kind_and_with_one_segment_passes(
    told: dict[str, Any], tmp_path: Path, export: Callable[[str], Export]
) -> None:
    """As RoBERTa's: byte-level BPE, both texts of a pair in the first segment, and often no class in its files."""
    given, taken = export("bert"), tmp_path / "taken"
    special, letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], sorted({*TEXT.replace(" ", "\u0120")})
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate([*special, *letters])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    taken.mkdir()
    tokenizer.save(str(taken / "tokenizer.json"))
    (taken / "tokenizer_config.json").write_text(json.dumps(told))
    given.write(given.folder, taken)
    found = given.judged()
    assert found.passed, found.failure
    loaded = AutoTokenizer.from_pretrained(given.folder)
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    assert loaded(TEXT, TEXT)["input_ids"] == tokenizer.encode(TEXT, TEXT).ids


@pytest.mark.usefixtures("here")
def test_a_class_of_transformers_does_not_replace_the_tokenizer_of_training(
    data: Path, tmp_path: Path, export: Callable[[str], Export]
) -> None:
    """As BertTokenizerFast(tokenizer_object=...) saves it. The class would keep capitals."""
    given, tokenizer = export("bert"), Path(shutil.copytree(data / "tokenizer", tmp_path / "taken"))
    told = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": False,
        "auto_map": {"AutoTokenizer": ["own.Own", None]},
    }
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(told))
    given.write(given.folder, tokenizer)
    found = given.judged()
    assert found.passed, found.failure
    ids = AutoTokenizer.from_pretrained(given.folder)(TEXT.upper())["input_ids"]
    assert ids == load_tokenizer(tokenizer).encode(TEXT).ids


@pytest.mark.usefixtures("here")
def test_a_tokenizer_whose_template_adds_no_tokens_passes(
    data: Path, tmp_path: Path, export: Callable[[str], Export]
) -> None:
    """As that of crammed-bert."""
    given, tokenizer = export("crammed"), Path(shutil.copytree(data / "tokenizer", tmp_path / "taken"))
    plain = json.loads((tokenizer / "tokenizer.json").read_text())
    (tokenizer / "tokenizer.json").write_text(json.dumps(plain | {"post_processor": None}))
    given.write(given.folder, tokenizer)
    found = given.judged()
    assert found.passed, found.failure


def test_a_damaged_tokenizer_is_named_and_nothing_is_written(
    data: Path, tmp_path: Path, export: Callable[[str], Export]
) -> None:
    given, tokenizer = export("modern"), Path(shutil.copytree(data / "tokenizer", tmp_path / "taken"))
    (tokenizer / "tokenizer_config.json").write_text("{torn")
    with pytest.raises(UserError, match=r"tokenizer_config.json' cannot be read as JSON"):
        given.write(tmp_path / "out", tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "taken"]


def alter_settings(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["full_attention"]["rope_theta"] = 160_000.0
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def alter_class(folder: Path) -> None:
    """transformers' class reads only the vocabulary of tokenizer.json, and lowercases or not by its own setting."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def alter_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"][3, 5] += 0.5
    weights["cls.seq_relationship.bias"][0] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": LENGTH + 1}))


def alter_code(folder: Path) -> None:
    path = folder / "modeling_crammed.py"
    path.write_text(path.read_text() + "\nopen('run-by-the-gate', 'w')\n")


def add_code(folder: Path) -> None:
    (folder / "more.py").write_text("open('run-by-the-gate', 'w')\n")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("kind", "alter", "named"),
    [
        ("modern", alter_settings, ["logits", "tokenizer"]),
        ("bert", alter_class, ["tokenizer"]),
        ("bert", alter_weights, ["logits", "next sentence", "trained length"]),
        ("crammed", alter_code, ["not run"]),
        ("modern", add_code, ["'more.py' is not the modeling code"]),
    ],
)
def test_an_altered_export_is_refused_and_marked(
    kind: str, alter: Callable[[Path], None], named: list[str], export: Callable[[str], Export]
) -> None:
    given = export(kind)
    alter(given.folder)
    found = given.judged()
    assert not found.passed and all(name in (found.failure or "") for name in named)
    assert named[0] in (given.folder / REFUSED).read_text()
    assert verdict(found).startswith("REFUSED") and not Path("run-by-the-gate").exists()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TIMEOUT_SECONDS", 0.01, "did not end within"),
        ("sys.executable", "/bin/false", "the check stopped with an error"),
    ],
)
def test_a_check_that_does_not_work_refuses_too(
    name: str, value: object, said: str, export: Callable[[str], Export], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = export("modern")
    monkeypatch.setattr(f"daybreak.exporting.parity.{name}", value)
    monkeypatch.setattr("daybreak.exporting.parity.SLOWEST", 1e30)
    found = given.judged()
    assert not found.passed and said in (found.failure or "") and (given.folder / REFUSED).exists()


def test_a_large_model_has_more_time(export: Callable[[str], Export], monkeypatch: pytest.MonkeyPatch) -> None:
    given, timeouts = export("modern"), []

    def checked(*_: object, timeout: float, **__: object) -> subprocess.CompletedProcess[str]:
        timeouts.append(timeout)
        return subprocess.CompletedProcess([], 1, "", "no message")

    monkeypatch.setattr("daybreak.exporting.parity.SLOWEST", 1.0)
    monkeypatch.setattr("daybreak.exporting.parity.subprocess.run", checked)
    given.judged()
    masked = given.validation.cases()[0]
    assert timeouts == [2 * given.model.parameter_count() * masked.numel()]


@pytest.mark.parametrize("kind", ["modern", "bert"])
def test_the_folder_is_a_stock_one(kind: str, export: Callable[[str], Export]) -> None:
    given = export(kind)
    names = "config.json model.safetensors tokenizer.json tokenizer_config.json".split()
    names += "1_Pooling 2_Normalize config_sentence_transformers.json modules.json sentence_bert_config.json".split()
    assert sorted(path.name for path in given.folder.iterdir()) == sorted(names)
    stock, info = AutoModelForMaskedLM.from_pretrained(given.folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    # What a masked-LM class does not read of a BERT export: the pooler and the next-sentence head.
    assert all("pooler" in name or "seq_relationship" in name for name in info["unexpected_keys"])
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    assert tokenizer.model_max_length == LENGTH
    assert stock.config.max_position_embeddings == {"modern": LENGTH, "bert": 64}[kind]
    assert len(tokenizer) == stock.config.vocab_size
    segments = ["token_type_ids"] if kind == "bert" else []
    assert tokenizer.model_input_names == ["input_ids", *segments, "attention_mask"]
    encoded = tokenizer("The teacher finds the [MASK] .", "A river.", return_tensors="pt")
    assert encoded["input_ids"][0, [0, -1]].tolist() == [2, 3] and 4 in encoded["input_ids"]


def test_an_export_replaces_the_one_before_and_a_full_disk_does_not(
    data: Path, export: Callable[[str], Export], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = export("modern")
    out, tokenizer = given.folder, data / "tokenizer"
    (out / "mine.txt").write_text("of the first export")
    before = (out / "model.safetensors").read_bytes()
    given.write(out, tokenizer, length=16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert not (out / "mine.txt").exists()
    assert len({path.stat().st_mode for path in out.rglob("*.*")}) == 1, "whoever reads the config reads the weights"
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 16
    assert before == (out / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("daybreak.exporting.hugging_face.save_file", full)
    with pytest.raises(UserError, match="No space left"):
        given.write(out, tokenizer, length=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert (out / "model.safetensors").read_bytes() == before


@pytest.fixture
def round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], bool]:
    """What the script says of a tokenizer and a text; it reads its arguments and sets the environment at its import."""
    monkeypatch.setattr(sys, "argv", ["parity_check.py", "MODEL", str(tmp_path)])
    for name in ("HF_HUB_OFFLINE", "HF_MODULES_CACHE"):
        monkeypatch.setenv(name, "1")  # put back at the end
    script = Path(parity.__file__).with_name("parity_check.py")
    check_tokenizer = runpy.run_path(str(script))["check_tokenizer"]
    model = SimpleNamespace(config=SimpleNamespace(pad_token_id=0, vocab_size=9))

    def passes(tokenizer: Any, text: str) -> bool:
        facts = {"text": text, "ids": tokenizer(text)["input_ids"], "special": {"unk": 0, "pad": 0}}
        return bool(check_tokenizer(tokenizer, model, facts)["tokenizer round trip"])

    return passes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"did": 3, "n": 4, "'": 5, "t": 6}, "did n ' t"),  # decoding would join them
        ({"the": 3, "##he": 4, "t": 5}, "the thx"),  # an unknown word is left out
        ({"the": 3}, ""),
    ],
)
def test_the_round_trip_is_that_of_the_pieces(
    words: dict[str, int], text: str, round_trip: Callable[[Any, str], bool]
) -> None:
    """Spaces before contractions are those of SST-2; transformers 4 saved tokenizers that remove them."""
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, **words}, unk_token="[UNK]"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[UNK]",
        clean_up_tokenization_spaces=True,
    )  # fmt: skip
    assert round_trip(tokenizer, text)


def test_a_unigram_tokenizer_that_lacks_letters_passes_the_round_trip(
    round_trip: Callable[[Any, str], bool],
) -> None:
    """Without its unknown letter, what is left of the word has other pieces."""
    pieces = Tokenizer(
        models.Unigram(
            [("[UNK]", -9.0), ("\u2581", -3.0), ("he", -3.0), ("\u2581he", -1.0)], unk_id=0, byte_fallback=False
        )
    )
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]", pad_token="[UNK]")
    ids = tokenizer("The he")["input_ids"]
    assert 0 in ids
    again = tokenizer(tokenizer.decode(ids, skip_special_tokens=True))["input_ids"]
    assert again != [one for one in ids if one], "as the check compared them"
    assert round_trip(tokenizer, "The he")
