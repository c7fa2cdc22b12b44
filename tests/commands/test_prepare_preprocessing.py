"""Cases, mixtures and the account of the text; every form of input."""

from __future__ import annotations

import io
import json
import math
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from small_texts import left_over, write_records

from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.pipeline import corpus_facts
from daybreak.data.pipeline.corpus import bundled
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.reporting.corpus import write_corpus_page
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import Manifest

SMALL = WordPiece(vocabulary=600)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_records(tmp_path / "corpus.jsonl")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bundled", lambda files, rule, **how: bundled(files, rule, 6_000, **how))


# ---------------------------------------------------------------- how much of each source


@pytest.mark.usefixtures("small_parts")
def test_epochs_say_how_often_a_source_is_read(tmp_path: Path) -> None:
    one, two = write_records(tmp_path / "a.jsonl"), write_records(tmp_path / "b.jsonl", seed=6)
    plain = prepare([one, two], tmp_path / "plain", tokenizer=SMALL)
    asked = Preprocessing(epochs=(2.5, 0.0))
    mixed = prepare([one, two], tmp_path / "mixed", tokenizer=SMALL, preprocessing=asked)
    first = open_shards(tmp_path / "mixed")
    assert mixed.heldout == plain.heldout  # is never repeated, nor left out
    from_one = prepare([one], tmp_path / "one", tokenizer=SMALL).train.documents
    assert 2.4 * from_one < mixed.train.documents < 2.6 * from_one
    assert int(first.unigram_counts.sum()) == mixed.train.tokens
    report = read_json(tmp_path / "mixed" / "corpus.json", CorpusReport)
    assert [source.epochs for source in report.sources] == [2.5, 0.0]


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


@pytest.mark.parametrize("values", [(1.0, math.nan), (math.nan, math.nan), (-1.0, 1.0), (0.0, 0.0), (1.0, math.inf)])
def test_numbers_that_are_none_are_refused_before_anything_is_read(tmp_path: Path, values: tuple[float, float]) -> None:
    for asked in (Preprocessing(epochs=values), Preprocessing(weights=values)):
        with pytest.raises(UserError, match="cannot be"):
            prepare([tmp_path / "a", tmp_path / "b"], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Preprocessing(epochs=(0.0, 0.0001)), "No training text is left"),
        (Preprocessing(weights=(1.0, 5000.0)), "--weights cannot be"),
        (Preprocessing(weights=(0.001, 1000.0)), r"b.jsonl' would be read .* times for its weight|No training text"),
    ],
)
def test_a_mixture_without_sense_is_refused(tmp_path: Path, asked: Preprocessing, said: str) -> None:
    paths = [write_records(tmp_path / "a.jsonl", 3000), write_records(tmp_path / "b.jsonl", 1, seed=7)]
    with pytest.raises(UserError, match=said):
        prepare(paths, tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


def test_sources_that_overlap_cannot_be_mixed(corpus: Path, tmp_path: Path) -> None:
    for inputs in ([corpus, corpus], [tmp_path / "*.jsonl", corpus]):
        with pytest.raises(UserError, match=r"in other inputs too. Name each text once"):
            prepare(inputs, tmp_path / "data", tokenizer=SMALL, preprocessing=Preprocessing(epochs=(1.0, 2.0)))


def test_weights_are_shares_of_the_training_text(tmp_path: Path) -> None:
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
        (Preprocessing(weights=(-1.0,)), "--weights cannot be -1.0"),
        (Preprocessing(weights=(1.0,), epochs=(1.0,)), "--epochs and --weights cannot be combined"),
        (Preprocessing(preset="webb"), "'webb' is not a preset. Did you mean 'web'"),
        (Preprocessing(languages=("en",)), "Language filtering needs a model"),
        (Preprocessing(remove_evaluation=True), "no evaluation text to remove"),
        (Preprocessing(filter_tokenizer="folder"), "The preset plain does not use a tokenizer"),
    ],
)
def test_a_treatment_that_cannot_be_meant_is_refused(
    corpus: Path, tmp_path: Path, asked: Preprocessing, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    assert left_over(tmp_path) == []


# ---------------------------------------------------------------- the account of the text


@pytest.mark.usefixtures("small_parts")
def test_the_account_adds_up(corpus: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "task.txt"
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    long = [text for text in dict.fromkeys(texts) if len(text.split()) >= 20]
    evaluation.write_text(f"{long[0].upper()}!\nOf this not a word stands in the corpus, which is about rivers.\n")
    asked = Preprocessing(evaluation=(str(evaluation),), remove_evaluation=True, show_text=True)
    prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=asked, workers=2)
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


def test_another_evaluation_text_is_another_preparation(corpus: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "task.txt"
    asked = Preprocessing(evaluation=(str(evaluation),))
    with pytest.raises(UserError, match=r"task.txt' cannot be read: no such file"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    evaluation.write_text("A line of at least eight words, so that it is looked for.\n")
    prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)
    evaluation.write_text("Another line of at least eight words, so that it is looked for.\n")
    with pytest.raises(UserError, match="from other text or with other settings"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=asked)


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
    parts = bundled(files, choose_rule(files, "file"), 10_000)
    assert [[part.file.path.name for part in bundle][-1] for bundle in parts] == [
        "002.txt",
        "005.txt",
        "006.txt",
        "039.txt",
        "040.txt",
    ]
    assert [part.file for bundle in parts for part in bundle] == files
    lines = bundled(files, choose_rule(files, "line"), 10_000)
    assert len(lines) == 6 and [part.start for part in lines[-1]] == [10_000]  # the big one is cut


def test_every_form_of_text_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"A cell, with a comma."\n2,Another cell.\n')
    (tmp_path / "b.html").write_text("<title>A page</title><p>It says something.</p>")
    (tmp_path / "c.txt").write_text("A line of text.\nAnother line of text.\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "From a pipe."}\n')))
    inputs = [*(tmp_path / name for name in ("a.csv", "b.html", "c.txt")), "-"]
    manifest = prepare(inputs, tmp_path / "data", tokenizer=SMALL)
    assert manifest.document_rule == "record and page and line"
    assert [source.documents for source in manifest.sources] == [2, 1, 2, 1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "From a pipe."}\n')))
    assert prepare(inputs, tmp_path / "data", tokenizer=SMALL) == manifest  # the same text again
    assert left_over(tmp_path) == []


def test_a_sample_without_held_out_text_leaves_quality_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large corpus of books the sample may hold none; hours of work must not be lost for that."""
    monkeypatch.setattr(corpus_facts, "some_of", lambda texts, characters: [])
    prepare(
        [write_records(tmp_path / "a.jsonl")],
        tmp_path / "data",
        tokenizer=SMALL,
        preprocessing=Preprocessing(advise=True),
    )
    report = read_json(tmp_path / "data" / "corpus.json", CorpusReport)
    assert report.tokenizer is None and report.advice is None
    assert "Tokenizer" in write_corpus_page(tmp_path / "data", tmp_path / "page.html").read_text()


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
