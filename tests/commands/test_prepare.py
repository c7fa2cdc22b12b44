from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.readers.cleaning import clean
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.tokenizers.tokenizer import SEP, WordPiece, load_tokenizer
from daybreak.schemas.run import Manifest

SMALL = WordPiece(vocabulary=600)


def babble(rng: random.Random, sentences: int) -> list[str]:
    words = "the a of river stone valley walks sings under over quiet bright morning and then because it's 7".split()
    return [" ".join(rng.choices(words, k=rng.randrange(4, 12))).capitalize() + "." for _ in range(sentences)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """300 records, 20 of them copies, one that spells out our special tokens."""
    rng = random.Random(5)
    texts = ["  ".join(babble(rng, rng.randrange(1, 30))) for _ in range(279)]
    texts += [text.replace("  ", " ") for text in texts[:20]] + ["A text on [SEP] and [MASK] tokens."]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


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


def test_the_same_text_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for name in "ab":
        prepare([corpus], tmp_path / name, tokenizer=SMALL)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) >= 8
    for file in files:
        if file.name not in ("manifest.json", "corpus.json"):  # they tell the time
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


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


def test_text_and_records_together(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("One line.\n\nAnother line.\n")
    manifest = prepare([corpus, str(tmp_path / "*.txt")], tmp_path / "data", tokenizer=SMALL)
    assert manifest.document_rule == "record and blank-line"
    assert manifest.train.sentence_ends is None
    assert [source.documents for source in manifest.sources] == [300, 2]


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
    os.utime(corpus, ns=(1, 1))
    with pytest.raises(UserError, match="from other text or with other settings"):
        prepare([corpus], data, tokenizer=SMALL)
    assert open_shards(data).manifest == first


def test_a_folder_that_holds_something_else_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.doc").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and contains no prepared data"):
        prepare([corpus], tmp_path / "out", tokenizer=SMALL)
    with pytest.raises(UserError, match="is a file, not a folder"):
        prepare([corpus], tmp_path / "out/thesis.doc", tokenizer=SMALL)
    assert (tmp_path / "out/thesis.doc").read_text() == "years of work"


def test_an_empty_folder_is_filled(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    prepare(["corpus.jsonl"], Path("out"), tokenizer=SMALL)
    open_shards(tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("out", ["/proc/data", "/dev/null/data"])
def test_an_unwritable_folder(corpus: Path, out: str) -> None:
    with pytest.raises(UserError, match="Choose another folder with --out"):
        prepare([corpus], Path(out), tokenizer=SMALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "The corpus is empty: no document holds any text. Give files"),
        (" \n\n\t\n", "The corpus is empty"),
        ("only this\nonly this\n", "a single document, so no text can be held out"),
        ("\0\1\2\n", "is binary"),
    ],
)
def test_a_corpus_that_cannot_be_used_leaves_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


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


@pytest.mark.parametrize(("kept", "what"), [(0, "The input"), (1 << 20, "corpus.jsonl'")])
def test_an_input_that_grows_meanwhile_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, what: str
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    report = module._report

    def grow(*arguments: object) -> None:
        report(*arguments)  # type: ignore[arg-type]
        with corpus.open("a") as file:
            file.write('{"text": "late"}\n')

    monkeypatch.setattr(module, "_report", grow)
    with pytest.raises(UserError, match=f"{what} changed while it was read"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert not (tmp_path / "data").exists() and left_over(tmp_path) == []


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
    # Not ru_maxrss: a process inherits that from the one that started it.
    script = SCRIPT + "print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    run = subprocess.run(
        [sys.executable, "-c", script, str(text), str(out)], capture_output=True, text=True, check=True
    )
    return int(run.stdout.split()[-1]) * 1024


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    write_large(tmp_path / "small.txt", 14)
    write_large(tmp_path / "large.txt", 34)
    grown = (tmp_path / "large.txt").stat().st_size - (tmp_path / "small.txt").stat().st_size
    assert grown > 18 << 20
    small, large = (
        peak_bytes(tmp_path / "small.txt", tmp_path / "a"),
        peak_bytes(tmp_path / "large.txt", tmp_path / "b"),
    )
    assert large - small < grown / 2


def test_real_text(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "../shared/data/corpus/peps.jsonl.zst"
    if not path.exists():
        pytest.skip("needs ../shared/data")
    manifest: Manifest = prepare([path], tmp_path / "data", tokenizer=WordPiece(vocabulary=8192))
    assert (manifest.train.documents + manifest.heldout.documents, manifest.vocabulary) == (627, 8192)
    assert open_shards(tmp_path / "data").unigram_counts[1] / manifest.train.tokens < 0.001  # unknown
