"""What a preparation makes of text: shards, a tokenizer and a report, as options, presets and recipes ask."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import command
from language_texts import language_texts
from needs import takes_long
from small_texts import contents, left_over, write_records

import daybreak
from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.locks import locked
from daybreak.data.pipeline import corpus_facts
from daybreak.data.pipeline.corpus import bundle_files
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.pipeline.resuming import earlier
from daybreak.data.readers import hub
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import find_files
from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import SEP, TokenizerConfig, WordPiece, load_tokenizer
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.pretraining.run_start import other_tokenizer
from daybreak.recipe import load_recipe
from daybreak.reporting.corpus import corpus_page
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import Manifest, SpecialIds

SMALL = WordPiece(vocabulary=600)


def babble(rng: random.Random, sentences: int) -> list[str]:
    words = "the a of river stone valley walks sings under over quiet bright morning and then because it's".split()
    return [" ".join(rng.choices(words, k=rng.randrange(4, 12))).capitalize() + "." for _ in range(sentences)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """300 records of prose, 20 of them copies, one that spells out our special tokens."""
    rng = random.Random(5)
    texts = ["  ".join(babble(rng, rng.randrange(1, 30))) for _ in range(279)]
    texts += [text.replace("  ", " ") for text in texts[:20]] + ["A text on [SEP] and [MASK] tokens."]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def check_split(shards: Shards, data: Path, wanted: list[list[int]]) -> None:
    """The stream holds exactly the documents wanted, each closed by [SEP]."""
    ends = np.concatenate([shards.train.document_ends(), shards.heldout.document_ends() + np.uint64(len(shards.train))])
    stream = np.concatenate([split.read(0, len(split)) for split in (shards.train, shards.heldout)])
    found = [part.tolist() for part in np.split(stream, ends.astype(int))[:-1]]
    assert all(document[-1] == SEP and SEP not in document[:-1] for document in found)
    assert sorted(document[:-1] for document in found) == sorted(wanted)


def test_every_document_is_in_the_shards_once_as_the_tokenizer_encodes_it(corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    manifest = prepare([corpus], data, tokenizer=SMALL)
    shards = open_shards(data)
    assert shards.manifest == manifest
    tokenizer = load_tokenizer(data / "tokenizer")
    tokenizer.encode_special_tokens = True
    texts = {clean(json.loads(line)["text"]) for line in corpus.read_text().splitlines()}
    check_split(shards, data, [tokenizer.encode(text, add_special_tokens=False).ids for text in texts])
    assert (manifest.duplicates, manifest.train.documents + manifest.heldout.documents) == (20, 280)
    assert 1 <= manifest.heldout.documents < 20
    assert (manifest.document_rule, manifest.token_bytes, manifest.skipped) == ("record", 2, {})
    assert manifest.vocabulary == tokenizer.get_vocab_size() <= 600
    assert [(source.path, source.documents) for source in manifest.sources] == [(str(corpus), 300)]
    train = shards.train.read(0, len(shards.train))
    np.testing.assert_array_equal(shards.unigram_counts, np.bincount(train, minlength=manifest.vocabulary))
    assert left_over(tmp_path) == []


def test_the_call_in_the_docstring_of_the_package_prepares_text(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tokenizer of the command, and also with one text that is in no list."""
    (tmp_path / "texts").mkdir()
    corpus.rename(tmp_path / "texts" / "corpus.jsonl")
    monkeypatch.chdir(tmp_path)
    (call,) = re.findall(r"daybreak\.prepare\(.*\)", daybreak.__doc__ or "")
    manifest = eval(call, {"daybreak": daybreak})
    assert manifest.tokenizer_settings == WordPiece().training_settings()
    assert (
        manifest == daybreak.prepare("texts/", "data/mine") == read_json(tmp_path / "data/mine/manifest.json", Manifest)
    )


def test_the_same_text_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for name in "ab":
        prepare([corpus], tmp_path / name, tokenizer=SMALL)
    found = contents(tmp_path / "a")
    assert len(found) >= 8 and contents(tmp_path / "b") == found


def test_the_tokenizer_never_sees_heldout_text(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    train = WordPiece.train
    monkeypatch.setattr(WordPiece, "train", lambda self, texts: (seen.extend(texts), train(self, texts))[1])
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert len(seen) == len(set(seen)) == manifest.train.documents
    heldout = open_shards(tmp_path / "data").heldout
    tokenizer = load_tokenizer(tmp_path / "data/tokenizer")
    seen_ids = {tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in seen}
    documents = np.split(heldout.read(0, len(heldout)), heldout.document_ends().astype(int))[:-1]
    assert not any(tuple(document[:-1].tolist()) in seen_ids for document in documents)


def test_sentences_are_recorded_where_the_input_has_one_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(6)
    documents = [babble(rng, rng.randrange(1, 8)) for _ in range(120)]
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("\n\n".join("\n".join(sentences) for sentences in documents))
    manifest = prepare([tmp_path / "t.txt.gz"], tmp_path / "data", tokenizer=SMALL)
    assert manifest.document_rule == "blank-line"
    shards, tokenizer = open_shards(tmp_path / "data"), load_tokenizer(tmp_path / "data/tokenizer")
    found = []
    for split in (shards.train, shards.heldout):
        ends = split.sentence_ends()
        assert ends is not None and set(split.document_ends().tolist()) <= set(ends.tolist())
        found += [part.tolist() for part in np.split(split.read(0, len(split)), ends.astype(int))[:-1]]
    unique = {"\n".join(sentences): sentences for sentences in documents}.values()
    wanted = [
        tokenizer.encode(sentence, add_special_tokens=False).ids + [SEP] * (place == len(sentences) - 1)
        for sentences in unique
        for place, sentence in enumerate(sentences)
    ]
    assert sorted(found) == sorted(wanted)
    assert "120 documents (documents separated by blank lines)" in capsys.readouterr().out


def test_a_complete_folder_of_the_same_origin_is_kept(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    first = prepare([corpus], data, tokenizer=SMALL)
    changed = (data / "manifest.json").stat().st_mtime_ns
    capsys.readouterr()
    assert prepare([corpus], data, tokenizer=SMALL) == first
    assert (data / "manifest.json").stat().st_mtime_ns == changed
    assert capsys.readouterr().out.count("\n") == 1
    with pytest.raises(UserError, match=r"from other text or with other settings. Choose another folder"):
        prepare([corpus], data, tokenizer=WordPiece(vocabulary=601))
    assert open_shards(data).manifest == first


def test_text_that_was_copied_or_moved_is_known_by_its_content(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, moved = tmp_path / "data", tmp_path / "elsewhere" / "text.jsonl"
    first = prepare([corpus], data, tokenizer=SMALL)
    moved.parent.mkdir()
    corpus.rename(moved)
    os.utime(moved, ns=(1, 1))
    capsys.readouterr()
    assert prepare([moved], data, tokenizer=SMALL) == first == open_shards(data).manifest
    assert "its content is the same" in capsys.readouterr().out
    other = "from other text or with other settings"
    with pytest.raises(UserError, match=other):
        prepare([moved], data, tokenizer=SMALL, chunk_characters=90)
    text = moved.read_text()
    moved.write_text(text.replace("valley", "meadow"))
    with pytest.raises(UserError, match=other):
        prepare([moved], data, tokenizer=SMALL)
    moved.write_text(text)
    earlier_version = json.loads((data / "manifest.json").read_text())
    del earlier_version["settings_fingerprint"], earlier_version["content_fingerprint"]
    (data / "manifest.json").write_text(json.dumps(earlier_version))
    with pytest.raises(UserError, match=other):
        prepare([moved], data, tokenizer=SMALL)


def test_files_in_another_order_are_other_text(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, word in (("a", "stone"), ("b", "river")):
        lines = [f"The {word} of number {number} sings." for number in range(100, 200)]
        (texts / f"{name}.txt").write_text("\n".join(lines))
    prepare([texts], tmp_path / "data", tokenizer=SMALL, document="line")
    (texts / "a.txt").rename(texts / "c.txt")
    with pytest.raises(UserError, match="from other text"):
        prepare([texts], tmp_path / "data", tokenizer=SMALL, document="line")


def test_a_table_with_another_ending_is_other_text(tmp_path: Path) -> None:
    """Its cells are separated by other characters."""
    table = tmp_path / "a.csv"
    table.write_text("\n".join(["text", *(f"The stone of number {number} sings." for number in range(100, 200))]))
    prepare([table], tmp_path / "data", tokenizer=SMALL)
    with pytest.raises(UserError, match="from other text"):
        prepare([table.rename(tmp_path / "a.tsv")], tmp_path / "data", tokenizer=SMALL)


def test_a_language_model_that_was_downloaded_again_is_the_same(tmp_path: Path) -> None:
    model = tmp_path / "lid.bin"
    model.write_text("weights")
    given = Preprocessing(language_model=str(model), languages=("en",))
    before, content = given.identity(()), given.identity((), by_content=True)
    os.utime(model, ns=(1, 1))
    assert given.identity(()) != before and given.identity((), by_content=True) == content
    model.write_text("WEIGHTS")
    assert given.identity((), by_content=True) != content


def test_a_folder_that_macos_shows_as_empty_is_used(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    assert earlier(tmp_path, "of this text", str, []) is None


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("mine", "is not empty and contains no prepared data"),
        ("mine/thesis.doc", "is a file, not a folder"),
        ("/proc/data", "Choose another folder"),
        ("/dev/null/data", "Choose another folder"),
    ],
)
def test_a_folder_that_cannot_be_used_is_left_alone(corpus: Path, tmp_path: Path, out: str, message: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.doc").write_text("years of work")
    with pytest.raises(UserError, match=message):
        prepare([corpus], tmp_path / out, tokenizer=SMALL)
    assert (tmp_path / "mine/thesis.doc").read_text() == "years of work"


def test_an_output_folder_whose_name_is_not_utf8_is_refused(corpus: Path, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9"))
    with pytest.raises(UserError, match=r"caf\udce9' is not UTF-8\. Choose another folder"):
        prepare([corpus], out, tokenizer=SMALL)
    assert list(tmp_path.iterdir()) == [corpus]


def test_an_empty_folder_is_filled(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    prepare(["corpus.jsonl"], Path("out"), tokenizer=SMALL)
    open_shards(tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "The corpus is empty: no document holds any text. Give files"),
        (" \n\n\t\n", "The corpus is empty"),
        ("only this\n", "a single document, so no text can be held out .* or split it"),
        ("only this\n" * 2000, "holds one document 2,000 times, so no text can be held out .* different documents"),
    ],
    ids=["nothing", "blank", "one document", "one document again and again"],
)
def test_a_corpus_that_cannot_be_used_leaves_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_a_corpus_of_which_everything_was_skipped_says_why(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": null}\n' * 30)
    with pytest.raises(UserError, match=r"No document with text is left\. Skipped: 30 records without text\. "):
        prepare([tmp_path / "t.jsonl"], tmp_path / "data", tokenizer=SMALL)


def test_a_large_held_out_part_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{number} is a number of some words, as many as any other." for number in range(40)]
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" + "\n".join(lines))
    manifest = prepare([tmp_path], tmp_path / "data", tokenizer=SMALL, document="file")
    assert manifest.heldout.documents == 1
    assert "with 1 held-out document (50% of the text). Add documents" in capsys.readouterr().out
    prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "more", tokenizer=SMALL)
    assert "of the text)" not in capsys.readouterr().out, "lines are documents"


def test_fewer_than_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"-3 workers are too few\. Use at least 1"):
        prepare([tmp_path], tmp_path / "data", workers=-3)


@pytest.mark.parametrize(("documents", "held"), [(20, "1 held-out document."), (1000, "")])
def test_few_held_out_documents_are_warned_of(
    documents: int, held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = prepare([write_records(tmp_path / "t.jsonl", documents)], tmp_path / "data", tokenizer=SMALL)
    said = capsys.readouterr().out
    assert (manifest.heldout.documents < module.FEW_HELDOUT) == bool(held)
    assert ("held-out losses are unreliable" in said) == bool(held) and held in said


def test_what_a_kill_left_beside_complete_data_is_removed(corpus: Path, tmp_path: Path) -> None:
    prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    beside = tmp_path / ".data.preparing"
    (beside / "work").mkdir(parents=True)
    with (beside / "lock").open("a") as lock:
        assert locked(lock.fileno())  # its process is alive
        prepare([corpus], tmp_path / "data", tokenizer=SMALL)
        assert beside.exists()
    prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert not beside.exists()


def test_of_folders_made_for_nothing_none_stays(corpus: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(UserError):
        prepare([empty], tmp_path / "runs" / "mine" / "data", tokenizer=SMALL)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError):
        prepare([empty], tmp_path / "there" / "mine" / "data", tokenizer=SMALL)
    assert list((tmp_path / "there").iterdir()) == []
    prepare([corpus], tmp_path / "runs" / "mine" / "data", tokenizer=SMALL)
    assert [path.name for path in (tmp_path / "runs" / "mine").iterdir()] == ["data"]


def test_lines_left_out_are_counted_and_said(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with corpus.open("a") as file:
        file.write("{torn\n")
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert manifest.skipped == {"malformed lines": 1}
    assert f"Skipped: 1 malformed lines, the first in '{corpus}' line 301." in capsys.readouterr().out


SCRIPT = """
import sys, pathlib
from daybreak.commands.prepare import prepare
from daybreak.data.pipeline import encoding, sample
from daybreak.data.tokenizers.tokenizer import WordPiece
# What has a limit is brought to it: the sample of the text, and libraries that larger text is worth.
sample.SampleSpool.__init__.__defaults__ = sample.shrink.__defaults__ = (1_000_000,)
encoding.FAST_CHARACTERS = 1 << 60
prepare([sys.argv[1]], pathlib.Path(sys.argv[2]), tokenizer=WordPiece(vocabulary=600))
assert "torch" not in sys.modules
"""


def write_large(path: Path, copies: int) -> None:
    rng = random.Random(8)
    block = [" ".join(babble(rng, 12)) for _ in range(2000)]
    with path.open("w") as file:
        for copy in range(copies):
            file.writelines(f"{text} {copy}\n" for text in block)


def peak_bytes(text: Path, out: Path) -> int:
    script = SCRIPT + "from daybreak.core import process; print(process.peak_bytes())"
    run = subprocess.run(
        [sys.executable, "-c", script, str(text), str(out)], capture_output=True, text=True, check=True
    )
    return int(run.stdout.split()[-1])


@takes_long
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    for name, copies in (("small", 14), ("large", 34)):
        write_large(tmp_path / f"{name}.txt", copies)
    grown = (tmp_path / "large.txt").stat().st_size - (tmp_path / "small.txt").stat().st_size
    assert grown > 18 << 20
    small, large = (peak_bytes(tmp_path / f"{name}.txt", tmp_path / name) for name in ("small", "large"))
    assert large - small < grown / 2


# ---------------------------------------------------------------- what is done only when asked


def test_prose_is_split_into_sentences_when_asked(corpus: Path, tmp_path: Path) -> None:
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL, split_sentences=True)
    texts = {clean(json.loads(line)["text"]) for line in corpus.read_text().splitlines()}
    shards = open_shards(tmp_path / "data")
    ends = [split.sentence_ends() for split in (shards.train, shards.heldout)]
    assert sum(len(found) for found in ends if found is not None) == sum(text.count(".") for text in texts)
    assert manifest.heldout.documents >= 2
    batch = SentencePairs().build(shards.train, 48, 0, manifest.special).take(0, 200)
    assert 0.4 < batch.next_sentence_label.mean() < 0.8
    with pytest.raises(UserError, match="with other settings"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL)


def test_a_sentence_of_which_no_token_is_left_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(["One here.\n\u200b\u200b\nTwo there.\n\u200b"] + ["More.\nText."] * 3))
    prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL, document="blank-line")
    shards = open_shards(tmp_path / "data")
    for split in (shards.train, shards.heldout):
        ends = split.sentence_ends()
        assert ends is not None and len(ends) == 2 * len(split.document_ends())
        assert np.diff(ends.astype(int), prepend=0).min() > 1
        assert ends[-1] == len(split)


def test_documents_are_cut_into_chunks_when_asked(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL, chunk_characters=120)
    assert "(one document per record, in chunks of about 120 characters)" in capsys.readouterr().out
    assert manifest.train.documents + manifest.heldout.documents > 1000
    assert set(manifest.skipped) == {"chunks under 29 characters"}
    with pytest.raises(UserError, match="A chunk cannot have -1 characters"):
        prepare([corpus], tmp_path / "more", tokenizer=SMALL, chunk_characters=-1)


def test_a_tokenizer_is_taken_over_and_compared(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    words = "the a of river stone valley walks sings . on".split()
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[MASK]", *words, "[SEP]"]
    (theirs / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    taken = Existing(folder=str(theirs))
    manifest = prepare([corpus], tmp_path / "data", tokenizer=taken)
    assert manifest.special == SpecialIds(pad=0, unk=2, cls=3, sep=15, mask=4)
    assert (manifest.tokenizer_kind, manifest.vocabulary, manifest.overlap) == ("Existing", 16, None)
    train = open_shards(tmp_path / "data").train
    ids = train.read(0, len(train))
    assert np.array_equal(np.flatnonzero(ids == 15) + 1, train.document_ends())
    assert prepare([corpus], tmp_path / "data", tokenizer=taken) == manifest  # it is kept
    capsys.readouterr()
    own = prepare([corpus], tmp_path / "own", tokenizer=SMALL, compare=str(tmp_path / "data/tokenizer"))
    vocabulary = load_tokenizer(tmp_path / "own/tokenizer").get_vocab()
    assert own.overlap is not None and 0 < own.overlap <= 10 / (len(vocabulary) - 5)
    assert f"Tokenizer: {own.overlap:.1%} of its tokens are also in" in capsys.readouterr().out
    assert own.special == SpecialIds()


def test_a_data_set_is_read_twice_and_known_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    corpus.rename(tmp_path / "set/train.jsonl")
    given = f"hf://{tmp_path / 'set'}"
    manifest = prepare([given], tmp_path / "data", tokenizer=SMALL)
    assert (manifest.document_rule, manifest.duplicates) == ("record", 20)
    assert [(source.path, source.documents) for source in manifest.sources] == [(given, 300)]
    assert prepare([given], tmp_path / "data", tokenizer=SMALL) == manifest
    os.utime(tmp_path / "set/train.jsonl", ns=(1, 1))
    with pytest.raises(UserError, match="from other text"):
        prepare([given], tmp_path / "data", tokenizer=SMALL)


@pytest.mark.parametrize("weights", [(), (3.0, 1.0)])
def test_public_corpora_are_prepared_by_their_names(
    weights: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(babble(random.Random(number), 9)) for number in range(400)]

    def records(wanted: hub.DataSet, revision: str, field: str) -> Iterator[dict[str, str]]:
        half = texts[:200] if wanted.name == "allenai/c4" else texts[200:]
        return ({field: text} for text in half)

    monkeypatch.setattr(hub, "inspect", lambda wanted: (0, 0, wanted.revision))
    monkeypatch.setattr(hub, "read_records", records)
    asked = Preprocessing(weights=weights)
    names = ["c4", "wikipedia"]
    manifest = prepare(names, tmp_path / "data", tokenizer=SMALL, preprocessing=asked, workers=1)
    sources = [(hub.KNOWN_CORPORA[name].address, 200) for name in names]
    assert [(source.path, source.documents) for source in manifest.sources] == sources
    assert prepare(names, tmp_path / "data", tokenizer=SMALL, preprocessing=asked, workers=1) == manifest
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    assert (report.sources[0].epochs > report.sources[1].epochs) == bool(weights)


@pytest.mark.parametrize(
    ("language", "tokenizer", "wanted"),
    [
        ("hindi", SMALL, "deletes vowels or splits syllables in Devanagari. Add --tokenizer.cased, or choose"),
        ("hindi", WordPiece(vocabulary=600, cased=True), ""),
        ("hindi", ByteBPE(vocabulary=600, cased=False), ""),
        (
            "german",
            SMALL,
            "have accents or other marks, which this tokenizer removes. Add --tokenizer.cased to keep accents",
        ),
        ("arabic", SMALL, "have accents or other marks, which this tokenizer removes."),
    ],
)
def test_folding_that_damages_the_text_is_said_with_its_remedy(
    tmp_path: Path, language: str, tokenizer: TokenizerConfig, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(language_texts(language, 30, sentences=4)), "utf-8")
    prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=tokenizer, document="line")
    said = [line for line in capsys.readouterr().out.splitlines() if "this tokenizer removes" in line]
    assert len(said) == bool(wanted) and (not wanted or wanted in said[0])


def test_a_folding_tokenizer_that_is_taken_over_is_warned_of_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(language_texts("thai", 30, sentences=4)), "utf-8")
    prepare([tmp_path / "t.txt"], tmp_path / "first", tokenizer=SMALL, document="line")
    capsys.readouterr()
    taken = Existing(folder=str(tmp_path / "first" / "tokenizer"))
    prepare([tmp_path / "t.txt"], tmp_path / "second", tokenizer=taken, document="line")
    assert "splits syllables in Thai" in capsys.readouterr().out


# ---------------------------------------------------------------- how much of each source


@pytest.mark.usefixtures("small_parts")
def test_epochs_say_how_often_a_source_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_records(tmp_path / "a.jsonl"), write_records(tmp_path / "b.jsonl", seed=6)
    plain = prepare([one, two], tmp_path / "plain", tokenizer=SMALL)
    asked = Preprocessing(epochs=(2.5, 0.0))
    mixed = prepare([one, two], tmp_path / "mixed", tokenizer=SMALL, preprocessing=asked)
    first = open_shards(tmp_path / "mixed")
    assert f"Training text: 100.0% from '{one}', 0.0% from '{two}'." in capsys.readouterr().out
    counts = [(one.heldout.documents, one.heldout.tokens, one.heldout.document_ends) for one in (mixed, plain)]
    assert counts[0] == counts[1]  # held-out text is never repeated, nor left out
    from_one = prepare([one], tmp_path / "one", tokenizer=SMALL).train.documents
    assert 2.4 * from_one < mixed.train.documents < 2.6 * from_one
    assert int(first.unigram_counts.sum()) == mixed.train.tokens
    report = read_json(tmp_path / "mixed" / "corpus.json", CorpusReport)
    assert [source.epochs for source in report.sources] == [2.5, 0.0]


def test_a_mixture_prints_what_it_became(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole document is in the text or not, whatever fraction was asked for."""
    (tmp_path / "a.txt").write_text("\n".join(f"{number} the river was quiet" for number in range(400)))
    (tmp_path / "b.txt").write_text(f"{'a single long document ' * 300}\nand another one")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    asked = Preprocessing(weights=(0.999, 0.001))
    prepare(paths, tmp_path / "data", document="line", tokenizer=SMALL, preprocessing=asked)
    said, train = capsys.readouterr().out, open_shards(tmp_path / "data").train
    tokenizer, of_a, start = load_tokenizer(tmp_path / "data" / "tokenizer"), 0, 0
    for stop in train.document_ends().astype(int).tolist():
        of_a += (stop - start) * ("river" in tokenizer.decode(train.read(start, stop).tolist()))
        start = stop
    part = said.partition("Training text: ")[2].partition("%")[0]
    assert float(part) == pytest.approx(100 * of_a / len(train), abs=0.06)
    assert (f"Warning: no document of '{paths[1]}' is in the training text" in said) == (of_a == len(train))


@pytest.mark.parametrize("mixture", [{"epochs": (0.0, 1.0)}, {"weights": (0.0, 1.0)}])
def test_a_source_that_is_not_trained_on_makes_no_token(tmp_path: Path, mixture: dict[str, Any]) -> None:
    pieces: dict[str, set[str]] = {}
    for name, words in (("a.txt", "secret names of patients"), ("b.txt", "river under bridge quiet")):
        order = [words.split()[number % 4] for number in range(4000)]
        (tmp_path / name).write_text("\n".join(f"{number} {' '.join(order[number:])}"[:200] for number in range(200)))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for name, asked in (("all", {}), ("one", mixture)):
        prepare(paths, tmp_path / name, document="line", tokenizer=SMALL, preprocessing=Preprocessing(**asked))
        pieces[name] = set(load_tokenizer(tmp_path / name / "tokenizer").get_vocab())
    assert {"secret", "patients", "river", "bridge"} <= pieces["all"]
    assert {"river", "bridge"} <= pieces["one"] and not {"secret", "names", "patients"} & pieces["one"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sentences", [False, True])
def test_a_copy_of_a_document_stands_a_whole_reading_behind_it(tmp_path: Path, sentences: bool) -> None:
    """Side by side, a row would hold the answers to its own masks."""
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(f"Document {number} begins.\nIt ends at {number * 7}." for number in range(900)))

    def read(epochs: float, name: str) -> tuple[list[list[int]], list[list[int]]]:
        prepare(
            [text], tmp_path / name, tokenizer=SMALL,
            preprocessing=Preprocessing(epochs=(epochs,)), document="blank-line",
            split_sentences=sentences,
        )  # fmt: skip
        stream = open_shards(tmp_path / name).train
        ids = stream.read(0, len(stream))
        documents = [part.tolist() for part in np.split(ids, stream.document_ends().astype(int))[:-1]]
        ends = stream.sentence_ends()
        return documents, [] if ends is None else [part.tolist() for part in np.split(ids, ends.astype(int))[:-1]]

    once, whole_sentences = read(1.0, "once")
    often, all_sentences = read(2.5, "often")
    assert often[: len(once)] == often[len(once) : 2 * len(once)] == once
    rest, places = often[2 * len(once) :], {tuple(document): place for place, document in enumerate(once)}
    assert 0.4 < len(rest) / len(once) < 0.6
    of_rest = [places[tuple(document)] for document in rest]
    assert of_rest == sorted(set(of_rest))
    assert all_sentences[: 2 * len(whole_sentences)] == 2 * whole_sentences
    if sentences:
        assert len(whole_sentences) == 2 * len(once)
        assert list(chain.from_iterable(all_sentences)) == list(chain.from_iterable(often))


def test_many_epochs_take_no_more_memory_and_count_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A line of text.\nAnother line of text.\nA third line of text.\n")
    manifest = prepare(
        [tmp_path / "a.txt"], tmp_path / "data", tokenizer=SMALL, preprocessing=Preprocessing(epochs=(1000.0,))
    )
    assert (manifest.train.documents, manifest.heldout.documents) == (2000, 1)
    assert sum(read_json(tmp_path / "data" / "corpus.json", CorpusReport).compressibility.counts) == 3


@pytest.mark.parametrize(
    "values", [(1.0, math.nan), (math.nan, math.nan), (-1.0, 1.0), (0.0, 0.0), (1.0, math.inf), (1.0, 5000.0)]
)
def test_numbers_that_are_none_are_refused_before_anything_is_read(tmp_path: Path, values: tuple[float, float]) -> None:
    for asked in (Preprocessing(epochs=values), Preprocessing(weights=values)):
        with pytest.raises(UserError, match=rf"--(epochs|weights) cannot be {values[0]}, {values[1]}\."):
            prepare([tmp_path / "a", tmp_path / "b"], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Preprocessing(epochs=(0.0, 0.0001)), "No training text is left"),
        (Preprocessing(weights=(0.001, 1000.0)), r"b.jsonl' would be read .* times for its weight|No training text"),
    ],
)
def test_a_mixture_without_sense_is_refused(tmp_path: Path, asked: Preprocessing, said: str) -> None:
    paths = [write_records(tmp_path / "a.jsonl", 3000), write_records(tmp_path / "b.jsonl", 1, seed=7)]
    with pytest.raises(UserError, match=said):
        prepare(paths, tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


def test_sources_that_overlap_cannot_be_mixed(records: Path, tmp_path: Path) -> None:
    for inputs in ([records, records], [tmp_path / "*.jsonl", records]):
        with pytest.raises(UserError, match=r"in other inputs too. Name each text once"):
            prepare(inputs, tmp_path / "data", tokenizer=SMALL, preprocessing=Preprocessing(epochs=(1.0, 2.0)))


def test_weights_are_fractions_of_the_training_text(tmp_path: Path) -> None:
    large, small = write_records(tmp_path / "a.jsonl", 900), write_records(tmp_path / "b.jsonl", 100, seed=6)
    plain: Manifest = prepare([large, small], tmp_path / "plain", tokenizer=SMALL)
    asked = Preprocessing(weights=(1.0, 1.0))
    even = prepare([large, small], tmp_path / "even", tokenizer=SMALL, preprocessing=asked)
    assert even.train.tokens == pytest.approx(plain.train.tokens, rel=0.08)  # as much text as before
    report = read_json(tmp_path / "even" / "corpus.json", CorpusReport)
    characters = [source.epochs * source.kept_characters for source in report.sources]
    assert characters[0] == pytest.approx(characters[1], rel=1e-9)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Preprocessing(epochs=(1.0, 2.0)), "--epochs has 2 numbers for 1 inputs"),
        (Preprocessing(weights=(1.0,), epochs=(1.0,)), "--epochs and --weights cannot be combined"),
        (Preprocessing(languages=("en",)), "Language filtering needs a model"),
        (Preprocessing(remove_evaluation=True), "no evaluation text to remove"),
        (Preprocessing(filter_tokenizer="folder"), "The preset plain does not use a tokenizer"),
    ],
)
def test_a_preprocessing_that_cannot_be_meant_is_refused(
    records: Path, tmp_path: Path, asked: Preprocessing, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    assert left_over(tmp_path) == []


# ---------------------------------------------------------------- the account of the text


def test_blank_lines_in_a_document_are_no_words(tmp_path: Path) -> None:
    texts = [f"Title {number}\n\n\nA first line\nand a second.\n\nThe end" for number in range(40)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare([tmp_path / "text.jsonl"], tmp_path / "data", tokenizer=SMALL, workers=1)
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    assert report.words == sum(len(text.split()) for text in texts)


@pytest.mark.usefixtures("small_parts")
def test_the_account_adds_up(records: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "task.txt"
    texts = [json.loads(line)["text"] for line in records.read_text().splitlines()]
    long = [text for text in dict.fromkeys(texts) if len(text.split()) >= 20]
    evaluation.write_text(f"{long[0].upper()}!\nOf this not a word stands in the corpus, which is about rivers.\n")
    asked = Preprocessing(evaluation=(str(evaluation),), remove_evaluation=True, show_text=True)
    prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=asked, workers=2)
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    found, equal = report.steps
    assert (found.documents_in, found.documents_out) == (660, 660 - texts.count(long[0]))
    assert (equal.documents_in, equal.documents_out) == (found.documents_out, 599)
    assert sum(equal.reasons.values()) == equal.documents_in - equal.documents_out
    assert found.examples[0].text.startswith(long[0][:40]) and not equal.examples
    (contamination,) = report.contamination
    assert (contamination.items, contamination.items_found, contamination.removed) == (2, 1, True)
    assert contamination.documents == texts.count(long[0])
    assert report.documents == 599 == sum(report.lengths.counts) == sum(report.compressibility.counts)
    kept = [text for text in dict.fromkeys(texts) if text != long[0]]
    assert (report.characters, report.words) == (sum(map(len, kept)), sum(len(text.split()) for text in kept))
    shards = open_shards(tmp_path / "data")
    assert report.tokens == len(shards.train) + len(shards.heldout)
    assert report.scripts == {"Latin": 1.0} and report.tokenizer is not None
    assert report.sources[0].documents == 660 and report.sources[0].kept_documents == 599
    only_reported = dataclasses.replace(asked, remove_evaluation=False)
    prepare([records], tmp_path / "all", tokenizer=SMALL, preprocessing=only_reported, workers=1)
    report = read_json(tmp_path / "all" / "corpus.json", CorpusReport)
    assert report.documents == 600 and report.contamination == [dataclasses.replace(contamination, removed=False)]


def test_what_filters_remove_is_told_in_characters_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One long document among short ones: the number of documents hides that most of the text is gone."""
    short = [f"Document {number} is short and about rivers." for number in range(99)]
    task = "These thirteen words stand in the task and also in the long document"
    long = f"{task}. " + "It goes on and on about rivers. " * 1000
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*short, long]))
    (tmp_path / "task.txt").write_text(task)
    asked = Preprocessing(evaluation=(str(tmp_path / "task.txt"),), remove_evaluation=True)
    prepare([tmp_path / "text.jsonl"], tmp_path / "data", tokenizer=SMALL, preprocessing=asked, workers=1)
    told = capsys.readouterr().out
    characters = len("".join(short)) + len(long.strip())
    assert f"100 documents (one document per record), {characters:,} characters." in told
    fraction = len(long.strip()) / characters
    assert f"Removed by filters: 1 documents with {fraction:.1%} of the characters (text of an evaluation: 1)." in told


def test_another_evaluation_text_is_another_preparation(records: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "task.txt"
    asked = Preprocessing(evaluation=(str(evaluation),))
    with pytest.raises(UserError, match=r"task.txt' cannot be read: no such file"):
        prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    evaluation.write_text("A line of at least eight words, so that it is looked for.\n")
    prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    evaluation.write_text("Another line of at least eight words, so that it is looked for.\n")
    with pytest.raises(UserError, match="from other text or with other settings"):
        prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


def test_a_case_that_needs_a_first_tokenizer_reads_once_more(tmp_path: Path) -> None:
    """Cramming's filter leaves out what a tokenizer of the text itself cannot compress."""
    path = write_records(tmp_path / "t.jsonl")
    rng = random.Random(1)
    noise = ["".join(rng.choices("qxzjkvw0189#%", k=200)) for _ in range(5)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in noise) + path.read_text())
    prepare([path], tmp_path / "data", tokenizer=SMALL, preprocessing=Preprocessing(preset="crammed", show_text=True))
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    assert report.preset == "crammed" and report.steps[0].passes == 1
    assert report.steps[0].documents_in - report.steps[0].documents_out >= 5
    assert [example.text for example in report.steps[0].examples] == noise[:3]
    assert left_over(tmp_path) == []


# ---------------------------------------------------------------- many files, other forms


def test_small_files_are_read_together_and_inputs_apart(tmp_path: Path) -> None:
    for folder, sizes in (("a", [3000] * 7), ("b", [100] * 40 + [20_000])):
        (tmp_path / folder).mkdir()
        for number, size in enumerate(sizes):
            (tmp_path / folder / f"{number:03d}.txt").write_text("word " * (size // 5))
    files = find_files([tmp_path / "a", tmp_path / "b"])
    parts = bundle_files(files, choose_rule(files, "file"), 10_000)
    assert [bundle[-1].file.path.stem for bundle in parts] == ["002", "005", "006", "039", "040"]
    assert [part.file for bundle in parts for part in bundle] == files
    lines = bundle_files(files, choose_rule(files, "line"), 10_000)
    assert len(lines) == 6 and [part.start for part in lines[-1]] == [10_000]  # the big one is cut


def test_every_form_of_text_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"A cell, with a comma."\n2,Another cell.\n')
    (tmp_path / "b.html").write_text("<title>A page</title><p>It says something.</p>")
    (tmp_path / "c.txt").write_text("A line of text.\n\nAnother line of text.\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "From a pipe."}\n')))
    inputs = [*(tmp_path / name for name in ("a.csv", "b.html", "c.txt")), "-"]
    manifest = prepare(inputs, tmp_path / "data", tokenizer=SMALL)
    assert manifest.document_rule == "record and page and blank-line"
    assert [source.documents for source in manifest.sources] == [2, 1, 2, 1]
    assert manifest.train.sentence_ends is None  # of records and pages they are not known
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "From a pipe."}\n')))
    assert prepare(inputs, tmp_path / "data", tokenizer=SMALL) == manifest  # the same text again
    assert left_over(tmp_path) == []


def test_a_sample_without_held_out_text_leaves_quality_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large corpus of books the sample may hold none; hours of work must not be lost for that."""
    monkeypatch.setattr(corpus_facts, "some_of", lambda texts, characters: [])
    text, asked = write_records(tmp_path / "a.jsonl"), Preprocessing(advise=True)
    prepare([text], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    assert report.tokenizer is None and report.advice is None
    assert "Tokenizer" in corpus_page(tmp_path / "data")


def test_a_tokenizer_that_deletes_the_held_out_text_is_refused_before_all_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    english = WordPiece(vocabulary=300, normalizer="cramming")
    prepare([write_records(tmp_path / "a.jsonl", 40)], tmp_path / "english", tokenizer=english)
    texts = [{"text": "".join(chr(0x4E00 + 7 * number + place) for place in range(20))} for number in range(50)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))

    def never(*_: object) -> int:
        raise AssertionError("it is encoded")

    monkeypatch.setattr(module.encoding, "encode_part", never)
    with pytest.raises(UserError, match="The tokenizer removes all characters of the held-out text"):
        prepare([tmp_path / "b.jsonl"], tmp_path / "b", tokenizer=Existing(folder=str(tmp_path / "english/tokenizer")))
    assert left_over(tmp_path) == [] and not (tmp_path / "b").exists()


def test_advice_about_a_tokenizer_that_is_taken_over_is_refused_at_once(tmp_path: Path) -> None:
    """Not after the text was read and encoded: all of that work would be thrown away."""
    text = [write_records(tmp_path / "a.jsonl")]
    with pytest.raises(UserError, match="has a fixed vocabulary size"):
        prepare(text, tmp_path / "b", tokenizer=Existing(folder="nowhere"), preprocessing=Preprocessing(advise=True))


def test_inputs_of_other_types_are_taken_or_refused(tmp_path: Path) -> None:
    found = Preprocessing(evaluation="dev.csv", languages="de", epochs=2, weights=(0.5,))  # type: ignore[arg-type]
    assert (found.evaluation, found.languages, found.epochs) == (("dev.csv",), ("de",), (2,))
    for inputs, said in ((None, "No text was given"), ([""], "An input is an empty text")):
        with pytest.raises(UserError, match=said):
            prepare(inputs, tmp_path / "b")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="The preprocessing 'web' is not one"):
        prepare([tmp_path], tmp_path / "b", preprocessing="web")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--document cannot be 'None'"):
        prepare([write_records(tmp_path / "a.jsonl")], tmp_path / "b", document=None)  # type: ignore[arg-type]


def test_a_vocabulary_that_is_too_small_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_files", lambda *_: pytest.fail("the text is read"))
    with pytest.raises(UserError, match=r"A vocabulary of 299 cannot contain an alphabet\. Use 300 or more"):
        prepare([tmp_path], tmp_path / "b", tokenizer=WordPiece(vocabulary=299))


# ---------------------------------------------------------------- the tokenizer and the documents of a recipe


SENTENCES = [
    f"The {who} {does} the {what} near the river every morning."
    for who in "teacher farmer doctor painter sailor".split()
    for does in "finds paints carries watches cleans".split()
    for what in "table window garden letter basket".split()
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Three documents of prose, parted by blank lines; quotes as Cramming's normaliser turns them."""
    path = tmp_path / "text.txt"
    parts = [" ".join(SENTENCES[start::3]) + " He said ``yes'' twice...\n" for start in range(3)]
    path.write_text("\n".join(parts))
    return path


def prepared(text: Path, out: Path, *flags: str) -> Manifest:
    command("prepare", text, "--out", out, *flags)
    manifest: Manifest = read_json(out / "manifest.json", Manifest)
    return manifest


def test_the_recipe_chooses_tokenizer_and_documents(text: Path, tmp_path: Path) -> None:
    chunked = prepared(text, tmp_path / "8gb", "--recipe", "bert-8gb", "--size", "tiny", "--document", "blank-line")
    assert chunked.train.documents + chunked.heldout.documents > 3  # pieces of about 820 characters
    tokenizer = load_tokenizer(tmp_path / "8gb" / "tokenizer")
    assert tokenizer.normalizer.normalize_str("``Caf\u00e9'' \u4f60") == '"cafe" '
    packed = prepared(text, tmp_path / "crammed", "--recipe", "crammed", "--size", "tiny", "--document", "blank-line")
    assert packed.train.documents + packed.heldout.documents == 3
    runs = load_tokenizer(tmp_path / "crammed" / "tokenizer").pre_tokenizer.pre_tokenize_str("twice...")
    assert [word for word, _ in runs] == ["twice", "..."]
    pairs = prepared(text, tmp_path / "pairs", "--recipe", "scibert", "--size", "tiny", "--document", "blank-line")
    assert pairs.train.sentence_ends is not None
    assert pairs.train.sentence_ends.bytes > 8 * 20 * pairs.train.documents  # found in prose, not one a line


def test_a_flag_goes_before_the_recipe(text: Path, tmp_path: Path) -> None:
    flags = ["--recipe", "crammed", "--size", "tiny", "--document", "blank-line", "--tokenizer.vocabulary", "300"]
    assert prepared(text, tmp_path / "data", *flags).vocabulary <= 300


def test_pushing_text_away_needs_a_word(text: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    flags = ["--document", "line", "--push-to-hub", "me/mine"]
    assert "--with-text" in refused("prepare", text, "--out", tmp_path / "data", *flags)


def test_a_bad_name_of_a_repository_is_refused_before_the_text_is_read(
    text: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    flags = ["--document", "line", "--push-to-hub", "me/my/data", "--with-text"]
    assert "'me/my/data' is not a name" in refused("prepare", text, "--out", tmp_path / "data", *flags)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--recipe", "crammed", "--size", "tiny"], ""),
        (["--recipe", "crammed", "--size", "tiny", "--tokenizer.vocabulary", "300"], "vocabulary 300 instead of"),
        (["--tokenizer.normalizer", "bert"], "normalizer bert instead of cramming"),
        (["--tokenizer-kind", "ByteBPE"], "kind ByteBPE instead of WordPiece"),
    ],
)
def test_the_settings_of_a_tokenizer_that_are_not_the_recipes_are_said(
    flags: list[str], said: str, text: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    manifest = prepared(text, data, "--document", "blank-line", *flags)
    recipe = load_recipe("crammed", size="tiny")
    sentence = other_tokenizer(recipe, manifest)
    assert bool(sentence) == bool(said) and said in sentence
    if "kind" not in said:
        other = other_tokenizer(dataclasses.replace(recipe, tokenizer=ByteBPE(vocabulary=300)), manifest)
        assert other.endswith(f"differs from that of {recipe.name}: kind WordPiece instead of ByteBPE.")
    assert not other_tokenizer(recipe, dataclasses.replace(manifest, tokenizer_settings={}))  # a folder of version 0.1
    taken = prepared(text, tmp_path / "taken", "--document", "blank-line", "--tokenizer-from", str(data / "tokenizer"))
    assert taken.tokenizer_settings == {}, "another folder's path is private"
    assert not other_tokenizer(recipe, taken)


def test_the_name_of_a_tokenizer_is_no_configuration(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'WordPiece' is not a configuration of a tokenizer"):
        daybreak.prepare([corpus], tmp_path / "out", tokenizer="WordPiece")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
