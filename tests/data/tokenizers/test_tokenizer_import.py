from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from daybreak.core.errors import UserError
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.special_tokens import special_ids
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.schemas.run import SpecialIds

PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "cafe", "Caf\u00e9", "##s", "un", "##known"]
TEXT = "Caf\u00e9s, unknown \u6f22 word"


def write_old_bert(folder: Path, **settings: object) -> Path:
    """A folder as BERT was first released: vocab.txt, and perhaps tokenizer_config.json."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_roberta(folder: Path) -> Path:
    """A byte-level tokenizer with other special tokens, padding and truncation left switched on."""
    folder.mkdir()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: id for id, piece in enumerate(names + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(names)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(zip(["cls_token", "pad_token", "sep_token", "unk_token", "mask_token"], names, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    return folder


def test_the_files_stay_as_they_are(tmp_path: Path) -> None:
    source, out = write_roberta(tmp_path / "model"), tmp_path / "out"
    tokenizer = Existing(folder=str(source)).make([], out)
    assert special_ids(tokenizer, out) == SpecialIds(cls=0, pad=1, sep=2, unk=3, mask=4)
    assert sorted(path.name for path in out.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    for path in out.iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()
    assert len(tokenizer.encode("a long text of many bytes").ids) == 25


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
)
def test_a_vocabulary_alone_becomes_the_tokenizer_of_bert(tmp_path: Path, settings: dict[str, bool]) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    source, out = write_old_bert(tmp_path / "model", **settings), tmp_path / "out"
    tokenizer = Existing(folder=str(source)).make([], out)
    theirs = BertTokenizer(vocab={piece: id for id, piece in enumerate(PIECES)}, **settings)
    assert tokenizer.encode(TEXT).ids == theirs(TEXT).input_ids == AutoTokenizer.from_pretrained(out)(TEXT).input_ids
    assert tokenizer.encode(TEXT, TEXT).type_ids.count(1) == len(tokenizer.encode(TEXT).ids) - 1
    assert special_ids(tokenizer, out) == SpecialIds(pad=0, unk=2, cls=3, sep=4, mask=5)
    assert (out / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_tokens_are_numbered_as_the_file_has_them(tmp_path: Path) -> None:
    """As by the tokenizers library: a line ends with a line feed alone, and spaces at its end are none of its piece."""
    folder = write_old_bert(tmp_path / "model")
    odd = ["\u2028", "a\u2028b", "\x85", "c\x0bd", "e\x1cf", "g\rh", "\u3000", "mark \t", "windows\r", "last"]
    (folder / "vocab.txt").write_bytes("\n".join([*PIECES, *odd]).encode() + b"\n")
    theirs = models.WordPiece.read_file(str(folder / "vocab.txt"))
    assert Existing(folder=str(folder)).make([], tmp_path / "out").get_vocab() == theirs
    assert theirs["last"] == len(PIECES) + len(odd) - 1


def test_it_is_known_by_what_it_holds(tmp_path: Path) -> None:
    one = Existing(folder=str(write_old_bert(tmp_path / "a")))
    assert one.identity() == Existing(folder=str(write_old_bert(tmp_path / "b"))).identity()
    assert one.identity() != Existing(folder=str(write_old_bert(tmp_path / "c", do_lower_case=False))).identity()
    assert from_dict(TokenizerConfig, to_dict(one)) == one


@pytest.mark.parametrize("inside", ["tokenizer", "model"])
def test_prepared_text_and_a_run_lend_theirs(tmp_path: Path, inside: str) -> None:
    (tmp_path / "given").mkdir()
    source = write_roberta(tmp_path / "given" / inside)
    whole, part = Existing(folder=str(tmp_path / "given")), Existing(folder=str(source))
    assert whole.identity() == part.identity()
    whole.make([], tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer.json and no vocab.txt in .*nowhere"):
        Existing(folder=str(tmp_path / "nowhere")).make([], tmp_path / "out")
    folder = write_old_bert(tmp_path / "model", do_lower_case=True)
    (folder / "tokenizer_config.json").write_text("{torn")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        Existing(folder=str(folder)).make([], tmp_path / "out")
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(UserError, match=r"has no \[CLS\]. Give the folder of a BERT model"):
        Existing(folder=str(folder)).make([], tmp_path / "out")
    folder = write_roberta(tmp_path / "roberta")
    (folder / "tokenizer_config.json").write_text("{torn")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        Existing(folder=str(folder)).make([], tmp_path / "other")
    assert not (tmp_path / "other").exists()
