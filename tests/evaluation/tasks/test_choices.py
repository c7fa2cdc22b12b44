"""Multiple choice: pairs as SWAG makes them, stock scores, and a toy task that is learned."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from small_tasks import FILLER, RAINY, SUNNY, VOCABULARY, learned
from transformers import DebertaConfig

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetuning.finetune import Batches, predict
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import Padding
from daybreak.evaluation.tasks.choices import Choice
from daybreak.evaluation.tasks.known_tasks import known_task
from daybreak.evaluation.tasks.task import LabeledRows, Task

KIND = Choice()
COLUMNS = ("story", "begin", "first", "second", "third", "right")


def told(folder: Path, lines: list[tuple[str, ...]], dev: list[tuple[str, ...]] | None = None, **more: Any) -> Task:
    for name, rows in (("train", lines), ("dev", dev)):
        if rows is not None:
            text = "\n".join("\t".join(row) for row in [COLUMNS, *rows])
            (folder / f"{name}.tsv").write_text(text + "\n", encoding="utf-8")
    described: dict[str, Any] = {"text": ("story",), "choices": ("first", "second", "third"), **more}
    return Task(
        name="endings", train=folder / "train.tsv", dev=folder / "dev.tsv" if dev else None,
        label="right", kind="choice", metric="accuracy", **described,
    )  # fmt: skip


ROW = ("the sun", "people", "walk home", "walk late", "rain", "2")


def test_one_context_column_stands_before_every_choice(tmp_path: Path) -> None:
    data = KIND.load(told(tmp_path, [ROW, ("it", "day", "a", "b", "c", "0")], [ROW]))
    assert data.dev.texts == [("the sun", "walk home", "walk late", "rain")]
    assert (data.train.targets, data.dev.targets, data.labels) == ([2, 0], [2], ())


def test_the_second_context_column_begins_every_choice(tmp_path: Path) -> None:
    data = KIND.load(told(tmp_path, [ROW, ROW], [ROW], text=("story", "begin")))
    assert data.dev.texts == [("the sun", "people walk home", "people walk late", "people rain")]


def test_swag_is_read_as_distributed(tmp_path: Path) -> None:
    """The header of data/train.csv in rowanz/swagaf; each ending follows the start of its sentence."""
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    row = '0,anet_1,1,"A man sits, she",A man sits.,She,gold,"runs, fast.",sings.,sleeps.,eats.,2'
    (tmp_path / "SWAG").mkdir()
    for part in ("train", "val"):
        (tmp_path / "SWAG" / f"{part}.csv").write_text(f"{header}\n{row}\n")
    data = KIND.load(known_task("swag", tmp_path))
    assert data.train.texts == [("A man sits.", "She runs, fast.", "She sings.", "She sleeps.", "She eats.")]
    assert data.dev.targets == [2]
    with pytest.raises(UserError, match="needs the files of SWAG"):
        known_task("swag", None)


def test_a_tenth_is_held_out_and_rows_without_a_cell_are_counted(tmp_path: Path) -> None:
    rows = [(f"{ROW[0]} {number}", *ROW[1:]) for number in range(40)]
    data = KIND.load(told(tmp_path, [*rows, ("it", "day", "a", "", "c", "0")]))
    assert (len(data.train), len(data.dev), data.skipped) == (36, 4, 1)


WORDS = st.lists(st.sampled_from([*FILLER, "zq"]), min_size=1, max_size=40).map(" ".join)


@given(st.integers(2, 4).flatmap(lambda count: st.lists(st.tuples(*[WORDS] * (count + 1)), min_size=1, max_size=4)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_choices_stay_whole_while_the_context_can_give(tokenizer: Any, texts: list[tuple[str, ...]]) -> None:
    alone = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for row in texts for text in row}
    encoded = KIND.encode(tokenizer, LabeledRows(texts, [0] * len(texts)), 32, VOCABULARY)
    for row, sequences in zip(texts, encoded.features["input_ids"], strict=True):
        context = alone[row[0]]
        for text, ids in zip(row[1:], sequences, strict=True):
            choice, room = alone[text], 32 - 3
            assert len(ids) == min(32, len(context) + len(choice) + 3)
            if len(choice) < room:
                assert ids == [2, *context[: room - len(choice)], 3, *choice, 3]
            else:
                at = ids.index(3)
                kept = len(ids) - at - 2
                assert at - 1 >= min(len(context), room // 2) and kept >= room // 2
                assert ids == [2, *context[: at - 1], 3, *choice[:kept], 3]
    assert encoded.lengths == [max(map(len, sequences)) for sequences in encoded.features["input_ids"]]


def rows(count: int, seed: int) -> LabeledRows:
    """Which of three endings speaks of sunny weather; some contexts are too long."""
    chance, texts, targets = random.Random(seed), [], []
    for _ in range(count):
        target = chance.randrange(3)
        endings = []
        for number in range(3):
            words = chance.choices(FILLER, k=chance.randint(1, 5))
            words.insert(chance.randint(0, len(words)), chance.choice(SUNNY if number == target else RAINY))
            endings.append(" ".join(words))
        texts.append((" ".join(chance.choices(FILLER, k=chance.randint(1, 30))), *endings))
        targets.append(target)
    return LabeledRows(texts, targets)


def test_batches_are_what_a_stock_model_takes_and_scores_are_its_own_row_by_row(family: Path) -> None:
    tokenizer = load_tokenizer(family)
    data = rows(30, 1)
    encoded = KIND.encode(tokenizer, data, 64, VOCABULARY)
    model = build_classifier(family, KIND, (), 0, untrained=False).eval()
    padding = Padding.of(tokenizer)
    batch = Batches(model, KIND, padding, encoded).inputs([3, 7])
    assert batch["input_ids"].shape == (2, 3, max(encoded.lengths[3], encoded.lengths[7]))
    found = predict(model, KIND, padding, encoded)
    for (context, *endings), scores in zip(data.texts, found, strict=True):
        stock = tokenizer([context] * 3, endings, padding=True, truncation="only_first", max_length=64,
                          return_tensors="pt")  # fmt: skip
        with torch.inference_mode():
            expected = model(**{name: value[None] for name, value in stock.items()}).logits[0]
        np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert np.stack(found).std() > 0


def test_a_toy_task_is_learned(family: Path) -> None:
    _, dev, found = learned(family, KIND, (), rows(300, 1), rows(80, 2), Setting(3, 2e-3, 16), untrained=True)
    judged = KIND.evaluate(dev, found, ())
    scores = KIND.score(judged, ())
    assert scores["accuracy"] > 0.95
    assert scores["accuracy"] == accuracy_score(dev.targets, np.stack(found).argmax(axis=1))
    chances = torch.tensor(np.stack(found)).double().softmax(1).numpy()
    assert scores["nll"] == pytest.approx(log_loss(dev.targets, chances))
    np.testing.assert_allclose(judged[:, 2], chances.max(axis=1), atol=1e-9)


def test_the_loss_is_that_of_the_stock_model(family: Path) -> None:
    tokenizer = load_tokenizer(family)
    encoded = KIND.encode(tokenizer, rows(6, 1), 64, VOCABULARY)
    model = build_classifier(family, KIND, (), 0, untrained=False).eval()
    batches = Batches(model, KIND, Padding.of(tokenizer), encoded)
    targets = batches.targets(range(6), 64)
    output = model(**batches.inputs(range(6)), labels=targets)
    torch.testing.assert_close(KIND.loss(output, targets), output.loss)


def test_an_encoder_without_such_a_stock_head_is_refused_in_one_sentence(encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deberta"
    shutil.copytree(encoder, folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    DebertaConfig(vocab_size=100, max_position_embeddings=64, **shape).save_pretrained(folder)
    for untrained in (False, True):
        with pytest.raises(UserError, match="AutoModelForMultipleChoice") as caught:
            build_classifier(folder, KIND, (), 0, untrained)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600, str(caught.value)
