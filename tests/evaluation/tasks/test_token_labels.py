"""Tags of words: files in the format of CoNLL, spans and scores as seqeval's, tags at the first piece of each word."""

from __future__ import annotations

import copy
import json
import random
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import f1_score
from small_tasks import VOCABULARY, learned

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import load_tokenizer
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.tables import nfc
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows
from daybreak.evaluation.tasks.token_labels import (
    IGNORED,
    Sentence,
    TokenLabels,
    in_iob2,
    rates,
    read_sentences,
    spans,
)


def conll_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "train.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_sentences_end_at_blank_lines_and_documents(tmp_path: Path) -> None:
    text = (
        "\ufeff-DOCSTART- (6794356)\n\nThe DT O O\nsun\tNN\tO\tB-star\r\n \t\r\n\n\n"
        "-DOCSTART- NN O O\n\nrain  NN   O I-w \n-DOCSTART-\nMars NN O B-star\nrises VB O O"
    )
    assert read_sentences(conll_file(tmp_path, text), 0, 3) == [
        Sentence(("The", "sun"), ("O", "B-star"), 3),
        Sentence(("rain",), ("I-w",), 10),
        Sentence(("Mars", "rises"), ("B-star", "O"), 12),
    ]


def test_words_keep_what_only_looks_like_a_separator(tmp_path: Path) -> None:
    strange = ["a\u2028b", "c\u00a0d", "\x85", "e\x0bf", "g\rh"]
    text = "".join(f"{word} O\n" for word in strange) + "New York\tB-city\n#\tO\n"
    (found,) = read_sentences(conll_file(tmp_path, text), 0, 1)
    assert found.words == (*strange, "New York", "#")


def test_an_empty_first_column_does_not_shift_the_others(tmp_path: Path) -> None:
    (found,) = read_sentences(conll_file(tmp_path, "\tEU\tB-ORG\n1\trejects\tO\t\r\n"), 1, 2)
    assert (found.words, found.tags) == (("EU", "rejects"), ("B-ORG", "O"))


LETTERS = st.characters(blacklist_characters=" \t\r\n", blacklist_categories=["Cs"])
CELLS = st.text(LETTERS, min_size=1).map(nfc).filter(lambda word: not word.startswith(("-DOCSTART-", "\ufeff")))


def test_words_and_tags_are_normalized_as_the_training_text_is(tmp_path: Path) -> None:
    (found,) = read_sentences(conll_file(tmp_path, "Zu\u0308rich B-sta\u0308dte\nist O\n"), 0, 1)
    assert (found.words, found.tags) == (("Z\u00fcrich", "ist"), ("B-st\u00e4dte", "O"))


@given(
    st.lists(
        st.lists(st.tuples(CELLS, st.sampled_from(["O", "B-x", "I-x", "I-a-b"])), min_size=1),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([" ", "\t"]),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], between: str
) -> None:
    text = "\n\n".join("\n".join(between.join((word, "NN", tag)) for word, tag in pairs) for pairs in sentences)
    found = read_sentences(conll_file(tmp_path_factory.mktemp("conll"), text), 0, 2)
    assert [list(zip(each.words, each.tags)) for each in found] == sentences
    lines = text.split("\n")
    assert [lines[each.line - 1].split(between)[0] for each in found] == [each.words[0] for each in found]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sun B-x\n", "Line 1 of '{}' has nothing in column 3: its columns are 0 to 1."),
        ("sun NN O O\n\nrain NN O\n", "Line 3 of '{}' has nothing in column 3: its columns are 0 to 2."),
        ("a\tb\tc\tO\n\t\t\tO\n", "Line 2 of '{}' has nothing in column 0: its columns are 0 to 3."),
        ("# sent_id = 1\nsun NN O B-x\n", "Line 1 of '{}' is a comment, as files in the format of CoNLL-U have them."),
        ("# newdoc\nsun NN O B-x\n", "Line 1 of '{}' is a comment, as files in the format of CoNLL-U have them."),
        ("", "'{}' holds no sentence."),
        ("\n \n-DOCSTART- NN O O\n\n", "'{}' holds no sentence."),
        (b"sun NN O O\nm\xfcde NN O O\n", "'{}' is not UTF-8 text (invalid start byte)."),
        ("sun NN O O\nwarm NN O NN\n", "Line 2 of '{}' has 'NN' in column 3, which is not a tag."),
        ("sun NN O S-x\n", "Line 1 of '{}' has 'S-x' in column 3, which is not a tag."),
        ("sun NN O B-\n", "Line 1 of '{}' has 'B-' in column 3, which is not a tag."),
        ("sun NN O o\n", "Line 1 of '{}' has 'o' in column 3, which is not a tag."),
    ],
)
def test_what_is_no_conll_file_is_refused_in_one_sentence(tmp_path: Path, text: str | bytes, fault: str) -> None:
    path = conll_file(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_sentences(path, 0, 3)
    assert caught.value.sentence == fault.format(path)


TYPES = ["Gene", "a-b", "x"]
TAGS = st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BI" for kind in TYPES)])


@given(st.lists(TAGS))
def test_spans_equal_seqeval(tags: list[str]) -> None:
    assert spans(tags) == get_entities(tags)


@given(st.lists(TAGS))
def test_the_same_spans_are_written_in_iob2(tags: list[str]) -> None:
    written = in_iob2(tags)
    assert spans(written) == spans(tags)
    assert sum(tag.startswith("B") for tag in written) == len(spans(tags))
    assert [tag[2:] for tag in written] == [tag[2:] for tag in tags]
    assert in_iob2(written) == written


def test_nothing_to_divide_by_is_zero() -> None:
    for counts in ([0, 0, 0], [0, 3, 0], [0, 0, 3]):
        assert [float(rate) for rate in rates(np.array(counts))] == [0.0, 0.0, 0.0]


KIND = TokenLabels()
LABELS = ("O", "B-rainy", "B-sunny", "I-rainy", "I-sunny")
FILLER = "the day was very zzz it will be some more of this qx today town people walk home late".split()
SPANS = {
    "sunny": ["sun", "sun warm", "bright summer", "beach warm summer"],
    "rainy": ["rain", "cold winter", "storm dark winter"],
}


def sentence(chance: random.Random) -> list[tuple[str, str]]:
    """Words with IOB2 tags: spans between fillers, some of which are several pieces."""
    pairs: list[tuple[str, str]] = []
    for _ in range(chance.randint(1, 3)):
        pairs += [(word, "O") for word in chance.choices(FILLER, k=chance.randint(1, 4))]
        kind = chance.choice(list(SPANS))
        words = chance.choice(SPANS[kind]).split()
        pairs += [(word, f"{'I' if place else 'B'}-{kind}") for place, word in enumerate(words)]
    return pairs


def write(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n".join("".join(f"{word} X {tag}\n" for word, tag in pairs) for pairs in sentences))
    return path


def tagged(folder: Path, train: str | list, dev: str | list | None = None) -> Task:
    """A task of files; a string holds words/tags of one sentence a line."""
    paths = {}
    for part, told in (("train", train), ("dev", dev)):
        if isinstance(told, str):
            told = [[(pair.split("/")[0], pair.split("/")[1]) for pair in line.split()] for line in told.split("\n")]
        paths[part] = None if told is None else write(folder / f"{part}.txt", told)
    return Task(name="toy", train=paths["train"], dev=paths["dev"], text=(0,), label=2, kind="tokens",
                metric="span_f1", format="conll")  # fmt: skip


@pytest.fixture
def weather_spans(tmp_path: Path) -> TaskRows:
    chance = random.Random(1)
    return KIND.load(tagged(tmp_path, [sentence(chance) for _ in range(400)], [sentence(chance) for _ in range(80)]))


def test_labels_are_iob2_of_the_types_in_train(tmp_path: Path) -> None:
    data = KIND.load(tagged(tmp_path, "sun/I-y warm/I-y cold/I-x day/O cold/B-x\nrain/I-x", "it/O sun/B-y warm/I-y"))
    assert data.labels == ("O", "B-x", "B-y", "I-x", "I-y")
    assert data.train.texts == [("sun", "warm", "cold", "day", "cold"), ("rain",)]
    assert data.train.targets == [[2, 4, 1, 0, 1], [1]]
    assert (data.dev.targets, data.skipped) == ([[0, 2, 4]], 0)


@pytest.mark.parametrize(
    ("train", "dev", "fault"),
    [
        ("sun/O\nwarm/O", None, "Every tag in '{train}' is O."),
        (
            "sun/B-star warm/O",
            "it/O\nthe/O sun/I-sta",
            "Line 4 of '{dev}' has the type 'sta', which no span of '{train}' has. Did you mean 'star'?",
        ),
        ("sun/B-x", None, "'{train}' holds one row, too few to hold some out."),
    ],
)
def test_what_cannot_be_learned_is_refused(tmp_path: Path, train: str, dev: str | None, fault: str) -> None:
    with pytest.raises(UserError) as caught:
        KIND.load(tagged(tmp_path, train, dev))
    assert caught.value.sentence == fault.format(train=tmp_path / "train.txt", dev=tmp_path / "dev.txt")


WORDS = st.lists(
    st.one_of(st.sampled_from([*FILLER, "sun", "-LRB-", "Caf\u00e9", "\u65e5\u672c", "\u200b", "a\u00a0b"])), min_size=1
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, st.integers(4, 40), st.booleans())
def test_tags_stand_where_transformers_finds_the_words(
    tokenizer: Any, words: list[str], length: int, left: bool
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = "left" if left else "right"
    ids = [place % 5 for place in range(len(words))]
    rows = KIND.encode(tokenizer, LabeledRows([tuple(words), ("sun",)], [ids, [2]]), length, VOCABULARY)
    stock = tokenizer([words, ["sun"]], is_split_into_words=True, truncation=True, max_length=length, padding=True)
    batch = KIND.collate(Padding.of(tokenizer), rows, [0, 1])
    assert batch["input_ids"].tolist() == stock["input_ids"]
    assert batch["attention_mask"].tolist() == stock["attention_mask"]
    expected = []
    for row, known in enumerate((ids, [2])):
        owners = stock.word_ids(row)
        first = [owner is not None and owner not in owners[:place] for place, owner in enumerate(owners)]
        expected.append([known[owner] if new else IGNORED for owner, new in zip(owners, first)])
    assert KIND.targets(rows, [0, 1], len(expected[0])).tolist() == expected


def test_words_keep_the_space_that_byte_level_tokens_hold() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        ["the sun is warm and the rain is cold"] * 9,
        trainers.BpeTrainer(vocab_size=290, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    words = ("the", "sun", "\u00e9", "is", "xwarm")
    rows = KIND.encode(tokenizer, LabeledRows([words], [[0, 1, 2, 3, 4]]), 64, 400)
    pieces = tokenizer.convert_ids_to_tokens(rows.features["input_ids"][0])
    assert rows.features["input_ids"][0] == tokenizer("the sun \u00e9 is xwarm")["input_ids"]
    first = KIND.targets(rows, [0], len(pieces))[0].tolist()
    assert [(piece, tag) for piece, tag in zip(pieces, first) if tag != IGNORED] == [
        ("the", 0), ("\u0120sun", 1), ("\u0120", 2), ("\u0120is", 3), ("\u0120", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("left", [False, True])
def test_words_that_were_cut_or_dropped_count_as_outside(encoder: Path, left: bool) -> None:
    tokenizer = load_tokenizer(encoder)
    tokenizer.padding_side = "left" if left else "right"
    rows = LabeledRows([("sun", "\u200b", "rain", "it", "cold"), ("storm",)], [[2, 2, 1, 0, 1], [1]])
    encoded = KIND.encode(tokenizer, rows, 4, VOCABULARY)
    assert encoded.lengths == [4, 3]
    # A model that is always right where it is asked, in a batch that is wider than any sample.
    answers = [np.zeros((9, 5), dtype=np.float32) for _ in range(2)]
    for answer, target in zip(answers, KIND.targets(encoded, [0, 1], 9).tolist()):
        for place, label in enumerate(target):
            answer[place, label if label != IGNORED else 4] = 1.0
    judged = KIND.evaluate(encoded, answers, LABELS)
    # rainy: spans, words; sunny: spans, words. "sun" and the vanished word are two gold spans, of which one is found.
    assert judged.tolist() == [[1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1, 2], [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]]
    found = KIND.score(judged, LABELS)
    assert (found["span_precision"], found["span_recall"]) == (1.0, 3 / 5)


def test_what_does_not_fit_the_model_is_refused(encoder: Path) -> None:
    rows = LabeledRows([("sun",)], [[0]])
    with pytest.raises(UserError, match="but the model knows only 10 tokens"):
        KIND.encode(load_tokenizer(encoder), rows, 12, vocabulary=10)
    with pytest.raises(UserError, match="does not give the word of each token"):
        KIND.encode(SimpleNamespace(is_fast=False), rows, 12, VOCABULARY)


IDS = st.integers(0, len(LABELS) - 1)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=9), min_size=1, max_size=6),
    st.booleans(),
    st.data(),
)
def test_scores_of_any_resample_equal_seqeval(
    sentences: list[list[tuple[int, int]]], left: bool, data: st.DataObject
) -> None:
    targets, answers, notes = [], [], []
    for pairs in sentences:
        targets.append([target for target, _ in pairs])
        logits = np.full((12, 5), -1.0, dtype=np.float32)
        places = np.arange(len(pairs)) - (len(pairs) + 1 if left else -1)
        logits[places, [answer for _, answer in pairs]] = 1.0
        answers.append(logits)
        notes.append(SimpleNamespace(words=np.arange(len(pairs)), places=places))
    rows = EncodedRows({}, targets, [len(t) + 2 for t in targets], LabeledRows([("x",)] * len(targets), targets), notes)
    judged = KIND.evaluate(rows, answers, LABELS)
    drawn = data.draw(st.lists(st.integers(0, len(sentences) - 1), min_size=1, max_size=8))
    gold, predicted = ([[LABELS[pair[side]] for pair in sentences[i]] for i in drawn] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about samples without a span
        expected = {
            "span_f1": seqeval.f1_score(gold, predicted),
            "span_precision": seqeval.precision_score(gold, predicted),
            "span_recall": seqeval.recall_score(gold, predicted),
        }
    words = [[tag[2:] for sentence in side for tag in sentence] for side in (gold, predicted)]
    expected["token_macro_f1"] = f1_score(*words, labels=["rainy", "sunny"], average="macro", zero_division=0)
    assert KIND.score(judged[drawn], LABELS) == pytest.approx(expected)
    assert tuple(expected) == KIND.metrics


def stock_tags(model: Any, tokenizer: Any, words: tuple[str, ...]) -> list[str]:
    """As transformers' own examples have it: sentence by sentence, the tag at the first piece of each word."""
    batch = tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
    with torch.inference_mode():
        best = model(batch["input_ids"], batch["attention_mask"]).logits[0].argmax(dim=-1).tolist()
    owners = batch.word_ids(0)
    return [model.config.id2label[best[owners.index(word)]] for word in range(len(words))]


@pytest.mark.parametrize("left", [False, True])
def test_a_toy_task_is_learned_and_scored_as_the_stock_model_is(
    encoder: Path, weather_spans: TaskRows, tmp_path: Path, left: bool
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"padding_side": "left" if left else "right"}))
    tokenizer = load_tokenizer(folder)
    assert Padding.of(tokenizer).left == left
    model, dev, answers = learned(
        folder, KIND, weather_spans.labels, weather_spans.train, weather_spans.dev, Setting(6, 5e-3, 16)
    )
    scores = KIND.score(KIND.evaluate(dev, answers, weather_spans.labels), weather_spans.labels)
    assert type(model).__name__ == "ModernBertForTokenClassification"
    assert scores["span_f1"] > 0.9
    predicted = [stock_tags(model, tokenizer, words) for words in dev.rows.texts]
    gold = [[weather_spans.labels[label] for label in target] for target in dev.rows.targets]
    assert scores["span_f1"] == pytest.approx(seqeval.f1_score(gold, predicted))
    assert scores["span_precision"] == pytest.approx(seqeval.precision_score(gold, predicted))
