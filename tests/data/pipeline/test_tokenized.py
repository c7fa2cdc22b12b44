"""Text that is tokens already: datatrove's files, by datatrove itself where it is installed, and damaged by hand."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_texts import small_text, write_tokens

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.pipeline import tokenized
from daybreak.data.pipeline.corpus import Corpus, split_parts
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.readers.documents import DocumentRule
from daybreak.data.readers.file_range import Skips
from daybreak.data.readers.inputs import ByteCounter, find_files
from daybreak.data.sequences.shards import TokenStream, open_shards
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import CLS, PAD, SEP, WordPiece, load_tokenizer
from daybreak.data.tokenizers.tokenizer_import import Existing


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """400 documents, a tenth of them copies."""
    rng = random.Random(3)
    own = [small_text(rng, rng.randrange(2, 5)) for _ in range(360)]
    return own + own[:40]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    WordPiece(vocabulary=400).make(texts, folder)
    return folder


def encoded(texts: list[str], tokenizer: Path) -> list[list[int]]:
    found = load_tokenizer(tokenizer)
    return [found.encode(text, add_special_tokens=False).ids for text in texts]


def documents_of(stream: TokenStream) -> list[list[int]]:
    ends = stream.document_ends().astype(int)
    return [part.tolist() for part in np.split(stream.read(0, len(stream)), ends)[:-1]]


def corpus_of(path: Path, tokenizer: Path, part_bytes: int = 64 << 20) -> Corpus:
    parts = tuple((part,) for part in split_parts(find_files([path]), DocumentRule("line"), part_bytes))
    return Corpus(parts, DocumentRule("line"), "text", False, 0, str(tokenizer))


def read(path: Path, tokenizer: Path, part_bytes: int = 64 << 20) -> tuple[list[list[int]], Skips]:
    """The ids of all documents, and what was skipped."""
    corpus, skips = corpus_of(path, tokenizer, part_bytes), Skips()
    found = [one for number in range(len(corpus.parts)) for one in corpus.documents(number, skips, ByteCounter())]
    return [one.ids.tolist() for one in found if one.ids is not None], skips


@pytest.mark.parametrize("end", ["", "[SEP]", "[CLS]"])
@pytest.mark.parametrize("chunk", [None, 100])
def test_what_datatrove_writes_becomes_shards(
    texts: list[str], tokenizer: Path, tmp_path: Path, end: str, chunk: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever stands around the documents (the tokenizer's own, or an end of text), and if they are cut in chunks."""
    pytest.importorskip("datatrove", reason="needs the extra corpus")
    from datatrove.data import Document as TheirDocument
    from datatrove.pipeline.tokens import DocumentTokenizer

    step = DocumentTokenizer(
        str(tmp_path / "tokens"), str(tokenizer / "tokenizer.json"), eos_token=end or None, seed=1,
        save_loss_metadata=True, shuffle_chunk_size=chunk,
    )  # fmt: skip
    step.run(TheirDocument(text=text, id=str(number)) for number, text in enumerate(texts))
    written = sorted(path.name.partition(".")[2] for path in (tmp_path / "tokens").iterdir())
    assert written == ["ds", "ds.index", "ds.loss", "ds.metadata"]
    manifest = prepare([tmp_path / "tokens"], tmp_path / "data", tokenizer=Existing(folder=str(tokenizer)))
    shards = open_shards(tmp_path / "data")
    found = documents_of(shards.train) + documents_of(shards.heldout)
    assert all(ids[-1] == SEP and not {SEP, CLS} & set(ids[:-1]) for ids in found)
    assert manifest.document_rule == "document" and shards.manifest == manifest
    wanted = encoded(list(dict.fromkeys(texts)), tokenizer)
    if chunk is None:
        assert sorted(ids[:-1] for ids in found) == sorted(wanted)
        assert manifest.duplicates == 40
    else:  # chunks are cut anywhere, and what does not fill the last one is lost
        assert 0.9 * sum(map(len, wanted)) < sum(len(ids) - 1 for ids in found)
    train = shards.train.read(0, len(shards.train))
    assert np.array_equal(shards.unigram_counts, np.bincount(train, minlength=manifest.vocabulary))
    said = capsys.readouterr().out
    assert f"metadata names '{tokenizer / 'tokenizer.json'}'" in said and "the first document begins" in said.lower()
    assert "Not read" not in said


def test_a_file_of_tokens_and_one_of_text_are_one_corpus(texts: list[str], tmp_path: Path) -> None:
    """Where decoding gives the text back, documents as tokens are those as text; together they are copies."""
    tokenizer = tmp_path / "tokenizer"
    ByteBPE(vocabulary=500).make(texts, tokenizer)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_tokens(tmp_path / "t.ds", [ids + [SEP] for ids in encoded(texts, tokenizer)])
    taken = Existing(folder=str(tokenizer))
    made = {}
    for name, inputs in {"text": ["t.jsonl"], "tokens": ["t.ds"], "both": ["t.ds", "t.jsonl"]}.items():
        prepare([tmp_path / one for one in inputs], tmp_path / name, tokenizer=taken, workers=1)
        made[name] = open_shards(tmp_path / name)
    for split in ("train", "heldout"):
        streams = {name: documents_of(getattr(shards, split)) for name, shards in made.items()}
        assert streams["text"] == streams["tokens"] == streams["both"]
    assert (made["tokens"].manifest.duplicates, made["both"].manifest.duplicates) == (40, 440)
    report = read_json(tmp_path / "tokens" / "corpus.json")
    assert report["scripts"] == {"Latin": 1.0} and report["characters"] == made["text"].manifest.characters - sum(
        map(len, texts[:40])
    )


def test_filters_see_what_is_decoded(texts: list[str], tokenizer: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.ds", encoded(texts, tokenizer))
    (tmp_path / "evaluation.txt").write_text("\n".join(text for text in texts[5:9] if len(text.split()) > 13))
    preprocessing = Preprocessing(evaluation=(str(tmp_path / "evaluation.txt"),), remove_evaluation=True)
    taken = Existing(folder=str(tokenizer))
    prepare([tmp_path / "t.ds"], tmp_path / "data", tokenizer=taken, preprocessing=preprocessing)
    (found,) = read_json(tmp_path / "data" / "corpus.json")["contamination"]
    assert found["items_found"] == found["items"] > 0


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    part_bytes=st.integers(2, 400),
    width=st.sampled_from([2, 4]),
    around=st.sampled_from([([], []), ([CLS], [SEP]), ([], [SEP]), ([], [SEP, PAD, PAD])]),
    named=st.booleans(),
)
def test_parts_of_any_size_are_the_file(
    tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    part_bytes: int,
    width: int,
    around: tuple[list[int], list[int]],
    named: bool,
) -> None:
    rng = np.random.default_rng(sum(lengths))
    bodies = [rng.integers(5, 60, length).tolist() for length in lengths]
    path = tmp_path_factory.mktemp("tokens") / "t.ds"
    write_tokens(path, [[*around[0], *ids, *around[1]] for ids in bodies], width, "them|all" if named else "")
    found, skips = read(path, tokenizer, part_bytes)
    assert found == [body for body in bodies if body]
    assert skips.counts.get("documents without text", 0) == lengths.count(0)
    assert len(find_files([path])) == 1


def test_a_long_document_is_cut_and_memory_bounded(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenized, "LARGEST_TOKENS", 1000)
    monkeypatch.setattr(tokenized, "BATCH_TOKENS", 2000)
    monkeypatch.setattr(tokenized, "INDEX_BLOCK", 64)
    ids = np.random.default_rng(0).integers(5, 60, 10_500).tolist()
    path = write_tokens(tmp_path / "t.ds", [[CLS, *ids, SEP], [CLS, 7, 8, SEP]])
    pieces, _ = read(path, tokenizer)
    assert np.concatenate(pieces[:-1]).tolist() == ids and pieces[-1] == [7, 8] and max(map(len, pieces)) == 1000

    def peak(documents: int) -> int:
        large = write_tokens(tmp_path / "large.ds", [[7] * 500] * documents)
        corpus = corpus_of(large, tokenizer)
        tracemalloc.start()
        assert sum(1 for _ in corpus.documents(0, Skips(), ByteCounter())) == documents
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(1500) < 1.5 * peak(100)


def test_ids_of_another_tokenizer_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    taken = Existing(folder=str(tokenizer))
    write_tokens(tmp_path / "t.ds", [[7, 8, SEP]] * 5 + [[9, 5000, SEP]])
    with pytest.raises(UserError, match=r"has the id 5,000, but the tokenizer in .* has [\d,]+. Name the tokenizer"):
        prepare([tmp_path / "t.ds"], tmp_path / "data", tokenizer=taken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.ds", "t.ds.index", "t.ds.metadata"]


def test_whose_they_are_must_be_said(tokenizer: Path, tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "t.ds", [[7, 8]] * 5)
    with pytest.raises(UserError, match=r"contains token ids, so their tokenizer must be named.*--tokenizer-from"):
        prepare([path], tmp_path / "data", tokenizer=WordPiece())
    taken = Existing(folder=str(tokenizer))
    for how in ({"split_sentences": True}, {"chunk_characters": 80}):
        with pytest.raises(UserError, match="contains token ids, which cannot be split"):
            prepare([path], tmp_path / "data", tokenizer=taken, **how)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: Path(f"{path}.index").unlink(), "has no index .'t.ds.index'., which marks its"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "its size is 57 bytes, but its index has 30"),
        (lambda path: Path(f"{path}.index").write_bytes(b"123"), "is damaged: its index is truncated"),
        (lambda path: Path(f"{path}.index").write_bytes(struct.pack("<3Q", 20, 9, 30)), "its index does not ascend"),
        (lambda path: Path(f"{path}.index").write_bytes(struct.pack("<3Q", 1, 99, 30)), "its index does not ascend"),
        (lambda path: Path(f"{path}.metadata").write_text("theirs|8\n30"), "has tokens of 8 bytes"),
        (lambda path: Path(f"{path}.metadata").write_text("theirs|4\n30"), "its size is 60 bytes, but its index"),
    ],
)
def test_damaged_files(tokenizer: Path, tmp_path: Path, damage: object, message: str) -> None:
    path = write_tokens(tmp_path / "t.ds", [[7] * 10] * 3)
    damage(path)  # type: ignore[operator]
    with pytest.raises(UserError, match=message):
        prepare([path], tmp_path / "data", tokenizer=Existing(folder=str(tokenizer)))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("metadata", ["", "\n\n", "theirs", "theirs|two", "\0" * 9000])
def test_metadata_that_say_nothing(tokenizer: Path, tmp_path: Path, metadata: str) -> None:
    for width in (2, 4):
        path = write_tokens(tmp_path / f"{width}.ds", [[7] * 10] * 3, width)
        Path(f"{path}.metadata").write_text(metadata)
        assert read(path, tokenizer)[0] == [[7] * 10] * 3


def test_an_empty_file_is_an_empty_corpus(tokenizer: Path, tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "t.ds", [])
    with pytest.raises(UserError, match="The corpus is empty"):
        prepare([path], tmp_path / "data", tokenizer=Existing(folder=str(tokenizer)))
