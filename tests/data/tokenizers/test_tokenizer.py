from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from language_texts import language_texts
from tokenizers import Tokenizer, models, pre_tokenizers

from daybreak.core.errors import UserError
from daybreak.core.serialization import to_dict
from daybreak.core.special_tokens import special_ids
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    WordPiece,
    continuation_table,
    load_tokenizer,
    overlap,
    save_tokenizer,
    tokenizer_fingerprint,
)
from daybreak.data.tokenizers.tokenizer_making import MANY_DOCUMENTS
from daybreak.schemas.run import SpecialIds

TRAIN = """
import sys, pathlib, json
from daybreak.core.serialization import from_dict
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import TokenizerConfig, save_tokenizer
texts, config = json.loads(pathlib.Path(sys.argv[1]).read_text())
save_tokenizer(from_dict(TokenizerConfig, config).train(texts), pathlib.Path(sys.argv[2]))
"""


def write_texts(documents: int = 300) -> list[str]:
    """English-like babble: words of syllables, a few of them common, some with capitals, accents and marks."""
    rng = random.Random(7)
    syllables = [a + b for a in "b c d f g k l m n p r s t st tr".split() for b in "a e i o u an er in".split()]
    words = ["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3)))) for _ in range(3000)]
    words[5:9] = ["Caf\u00e9", "it's", "1999,", "\u6f22\u5b57"]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=200)) + "." for _ in range(documents)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return write_texts()


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return WordPiece(vocabulary=900).train(texts)


@pytest.mark.parametrize(
    "config",
    [
        WordPiece(vocabulary=900),
        WordPiece(vocabulary=900, normalizer="cramming", punctuation="runs"),
        ByteBPE(vocabulary=900),
    ],
)
def test_training_gives_the_same_bytes_in_any_process_order_and_number_of_threads(
    texts: list[str], tmp_path: Path, config: WordPiece | ByteBPE
) -> None:
    texts = [text.replace(",", ",?!").replace("'", "''") for text in texts] + language_texts("finnish", 60, seed=5)
    save_tokenizer(config.train(texts), tmp_path / "here")
    running = []
    for trial in range(2):
        shuffled = random.Random(trial).sample(texts, len(texts))
        (tmp_path / f"{trial}.json").write_text(json.dumps([shuffled, to_dict(config)]))
        environment = os.environ | {"RAYON_NUM_THREADS": str(1 + 2 * trial), "PYTHONHASHSEED": str(trial)}
        arguments = [str(tmp_path / f"{trial}.json"), str(tmp_path / f"t{trial}")]
        environment["TOKENIZERS_PARALLELISM"] = "true"
        running.append(subprocess.Popen([sys.executable, "-c", TRAIN, *arguments], env=environment))
    assert [process.wait() for process in running] == [0] * 2
    fingerprints = {tokenizer_fingerprint(tmp_path / name) for name in ("here", "t0", "t1")}
    assert len(fingerprints) == 1


def test_the_vocabulary_is_as_large_as_asked_and_starts_with_the_special_tokens(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(900))
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == [PAD, UNK, CLS, SEP, MASK] == list(range(5))
    assert all(token in ("##" + token[2:], token.lower()) for token in vocabulary if token not in SPECIAL_TOKENS)


def test_a_small_text_gives_fewer_tokens() -> None:
    found = WordPiece(vocabulary=5000).train(["a few words", "a few more words"]).get_vocab_size()
    assert 20 < found < 60


def test_tokens_need_several_documents(texts: list[str]) -> None:
    private = [*texts, "zzyzzkov " * 300]
    assert len(private) >= MANY_DOCUMENTS

    def secret(documents: list[str]) -> list[str]:
        pieces = WordPiece(vocabulary=900).train(documents).get_vocab()
        return [
            piece for piece in pieces if len(piece.removeprefix("##")) > 2 and piece.removeprefix("##") in "zzyzzkov"
        ]

    assert secret(private) == []
    assert "zzyzzkov" in secret([*private, "zzyzzkov " * 300])


def test_rare_characters_stay_out_of_the_alphabet() -> None:
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))
    vocabulary = WordPiece(vocabulary=600).train(["common words here " * 50 + rare, "common words"]).get_vocab()
    assert len([piece for piece in vocabulary if piece in rare]) < 128
    assert "##," not in WordPiece(vocabulary=600).train(["one, two", "one, two"]).get_vocab()


def test_case_and_accents(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode("CAF\u00c9").ids == tokenizer.encode("cafe").ids
    assert not any("\u00e9" in piece for piece in tokenizer.get_vocab())
    cased = WordPiece(vocabulary=900, cased=True).train(texts)
    assert cased.encode("Caf\u00e9").tokens == ["[CLS]", "Caf\u00e9", "[SEP]"]


def test_it_is_the_scheme_of_bert(tokenizer: Tokenizer, texts: list[str]) -> None:
    from transformers import BertTokenizer

    vocabulary = tokenizer.get_vocab()
    theirs = BertTokenizer(vocab=dict(sorted(vocabulary.items(), key=lambda item: item[1])))
    for text in texts[:20]:
        assert tokenizer.encode(text).ids == theirs(text).input_ids


def test_auto_tokenizer_loads_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert stock("Ba [MASK] beta!").input_ids == ours.encode("Ba [MASK] beta!").ids
    assert stock("ba", "be")["input_ids"] == ours.encode("ba", "be").ids
    assert ours.encode("ba", "be").type_ids.count(1) == len(stock.tokenize("be")) + 1
    assert (stock.pad_token_id, stock.unk_token_id, stock.cls_token_id, stock.sep_token_id, stock.mask_token_id) == (
        PAD, UNK, CLS, SEP, MASK,
    )  # fmt: skip
    assert stock.model_input_names == ["input_ids", "attention_mask"]
    assert list(stock("ba")) == ["input_ids", "attention_mask"]
    word = max(ours.get_vocab(), key=lambda piece: (not piece.startswith(("##", "[")), len(piece)))
    assert stock.decode(stock(f"{word}, {word}").input_ids, skip_special_tokens=True) == f"{word}, {word}"


def test_a_folder_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no tokenizer.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"no readable tokenizer.json"):
        tokenizer_fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_the_normalizer_of_cramming(texts: list[str]) -> None:
    config = WordPiece(vocabulary=900, normalizer="cramming")
    tokenizer = config.train([*texts, "a b `` c e \u6f22 \u2014"])
    normal = tokenizer.normalizer.normalize_str
    assert normal("``Caf\u00c9'' na\u00efve   \u6f22\u5b57x \u2014 \ufb01") == '"cafe" naive x  '
    assert all(piece.isascii() for piece in tokenizer.get_vocab())
    cased = WordPiece(vocabulary=900, normalizer="cramming", cased=True).train(texts)
    assert cased.normalizer.normalize_str("''Caf\u00e9   \ufb01ne") == '"Caf fine'  # NFKC, so accents go as non-ASCII
    words = [token for token, _ in tokenizer.pre_tokenizer.pre_tokenize_str("so... it's")]
    assert words == ["so", ".", ".", ".", "it", "'", "s"]


def test_runs_of_punctuation_are_one_word(texts: list[str]) -> None:
    words = ["what?!", "so...", "(a_b),"]
    tokenizer = WordPiece(vocabulary=900, punctuation="runs").train([*texts, *words * 300])
    assert tokenizer.encode("...", add_special_tokens=False).tokens == ["..."]
    assert tokenizer.encode("?!", add_special_tokens=False).tokens == ["?!"]
    assert [token for token, _ in tokenizer.pre_tokenizer.pre_tokenize_str("(a_b), c")] == ["(", "a_b", "),", "c"]


def test_settings_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r"normalizer cannot be 'crammed'. Did you mean 'cramming'\?"):
        WordPiece(normalizer="crammed")
    with pytest.raises(UserError, match=r"--tokenizer.punctuation cannot be 'run'"):
        WordPiece(punctuation="run")
    with pytest.raises(UserError, match=r"cannot contain an alphabet. Use 300 or more"):
        WordPiece(vocabulary=100).train(["text"])
    with pytest.raises(UserError, match=r"3000000000 is too large. Use at most 1048576"):
        WordPiece(vocabulary=3_000_000_000).train(["text"])


def test_an_uncased_tokenizer_says_so(tmp_path: Path) -> None:
    for name, cased in (("bert", False), ("cramming", False), ("cramming", True)):
        WordPiece(vocabulary=900, normalizer=name, cased=cased).make(["a few words"] * 3, tmp_path)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] == (not cased)


def test_tokens_that_continue_a_word(tokenizer: Tokenizer) -> None:
    table = continuation_table(tokenizer)
    pieces = tokenizer.get_vocab()
    assert len(table) == 900 and not table[:5].any()
    assert {piece for piece, id in pieces.items() if table[id]} == {p for p in pieces if p.startswith("##")}


def test_tokens_that_continue_a_word_of_sentencepiece() -> None:
    """As XLM-RoBERTa's, where the first token of a word begins with its space."""
    continuing = dict.fromkeys(("ing", "\u4f60", "\u093f", "7"), True)
    pieces = {"<unk>": False, "\u2581read": False, "\u2581": False, ",": False, **continuing}
    made = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    assert dict(zip(pieces, continuation_table(made).tolist())) == pieces


def test_the_overlap_of_two_vocabularies(tokenizer: Tokenizer, texts: list[str]) -> None:
    other = WordPiece(vocabulary=450).train(texts)
    one, two = (set(each.get_vocab()) - set(SPECIAL_TOKENS) for each in (tokenizer, other))
    assert overlap(tokenizer, tokenizer) == 1
    assert overlap(tokenizer, other) == len(one & two) / len(one)
    assert overlap(other, tokenizer) == len(one & two) / len(two) > overlap(tokenizer, other)


def test_special_ids_are_those_of_the_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    assert special_ids(load_tokenizer(tmp_path), tmp_path) == SpecialIds()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"cls_token": {"content": "a", "special": True}, "mask_token": None, "sep_token": "[NONE]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text("[torn")
    assert special_ids(tokenizer, tmp_path) == SpecialIds(cls=tokenizer.token_to_id("a"))
    plain = tmp_path / "plain"
    plain.mkdir()
    text = (tmp_path / "tokenizer.json").read_text().replace("[SEP]", "[END]")
    (plain / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"has no \[SEP\] token. Use one with \[PAD\]"):
        special_ids(load_tokenizer(plain), plain)
