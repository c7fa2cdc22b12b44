"""Masked tokens: which are masked, that predictions equal a plain loop with stock transformers, and their scores."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_tasks import quiet
from transformers import AutoModelForMaskedLM, AutoTokenizer

from daybreak.core.errors import UserError
from daybreak.evaluation.probes.frozen import FrozenModel, load_masked_model
from daybreak.evaluation.probes.masked_words import (
    MOST_TOKENS,
    RANKS,
    Guesses,
    HeldOutText,
    bucket_scores,
    calibration_bins,
    guess,
    interval,
    masked_positions,
    position_ranges,
    probe_masked_words,
    row_lengths,
    token_stream,
)
from daybreak.evaluation.scoring.metrics import BINS, calibration_error

WORDS = "the day was very and it will be sun warm bright rain cold dark winter storm beach town people".split()
SPECIAL = [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def frozen(encoder: Path) -> FrozenModel:
    return load_masked_model(encoder)


@pytest.fixture(scope="module")
def ids(frozen: FrozenModel) -> np.ndarray:
    """A stream of 30 documents, more than 300 tokens; the token of rank r is drawn in proportion to 1 / r."""
    chance = random.Random(6)
    weights = [1 / rank for rank in range(1, len(WORDS) + 1)]
    texts = [" ".join(chance.choices(WORDS, weights, k=chance.randint(3, 25))) for _ in range(30)]
    return token_stream(frozen.tokenizer, texts)


def test_the_stream_holds_each_document_closed_by_the_separator(frozen: FrozenModel) -> None:
    tokenizer = frozen.tokenizer
    one, other = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("sun warm", "cold"))
    assert token_stream(tokenizer, ["sun warm", "cold"]).tolist() == [*one, 3, *other, 3]
    assert not {2, 4} & set(token_stream(tokenizer, ["a [MASK] [CLS]"]).tolist()), "spelled out, it is text"
    assert len(token_stream(tokenizer, iter(lambda: "sun " * 5000, ""))) == MOST_TOKENS, "endless text has an end"


@given(st.lists(st.integers(0, 30), max_size=300))
def test_fifteen_in_a_hundred_words_are_masked_once_each(ids: list[int]) -> None:
    stream = np.array(ids, dtype=np.int64)
    words = [place for place, id in enumerate(ids) if id not in SPECIAL]
    if round(0.15 * len(words)) == 0:
        with pytest.raises(UserError, match=f"The text has {len(words)} tokens, too few to mask some"):
            masked_positions(stream, SPECIAL)
        return
    places = masked_positions(stream, SPECIAL).tolist()
    assert len(places) == round(0.15 * len(words))
    assert places == sorted(set(places)) and set(places) <= set(words)
    assert masked_positions(stream, SPECIAL).tolist() == places


@pytest.mark.parametrize("length", [16, 64, 128])
def test_guesses_equal_a_loop_over_single_rows(
    encoder: Path, frozen: FrozenModel, ids: np.ndarray, length: int
) -> None:
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    places = masked_positions(ids, tokenizer.all_special_ids)
    found = guess(frozen, ids, places, length, quiet)
    wanted = []
    for start in range(0, len(ids), length - 1):
        row = ids[start : start + length - 1].copy()
        asked = [place - start for place in places.tolist() if start <= place < start + len(row)]
        answers = row[asked]
        row[asked] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[tokenizer.cls_token_id, *row.tolist()]])).logits[0].double()
        for place, answer in zip(asked, answers.tolist()):
            chances = logits[place + 1].softmax(0)
            right = int(chances.argmax()) == answer
            wanted.append((right, -math.log(chances[answer]), float(chances.max()), place + 1))
    right, losses, confidences, positions = map(np.array, zip(*wanted))
    np.testing.assert_array_equal(found.right, right)
    np.testing.assert_allclose(found.losses, losses, atol=1e-4)
    np.testing.assert_allclose(found.confidences, confidences, atol=1e-5)
    np.testing.assert_array_equal(found.positions, positions)


def test_the_probe_counts_the_same_tokens_in_every_way(frozen: FrozenModel, ids: np.ndarray) -> None:
    found = probe_masked_words(frozen, HeldOutText("tales", ids, None), quiet)
    assert [run.length for run in found.lengths] == [64, 128, 256]
    assert [run.times_trained for run in found.lengths] == [1, 2, 4]
    count = found.lengths[0].count
    assert count == round(0.15 * int((ids > 4).sum()))
    for run in found.lengths:
        assert run.count == sum(bucket.count for bucket in run.positions) == count
        assert run.loss == pytest.approx(sum(bucket.loss * bucket.count for bucket in run.positions) / count)
        assert run.low <= run.accuracy <= run.high
    assert sum(bucket.count for bucket in found.frequency) == sum(found_bin.count for found_bin in found.calibration)
    gap = sum(abs(each.confidence - each.accuracy) * each.count for each in found.calibration) / count
    assert found.calibration_error == pytest.approx(gap)
    words = ids[ids > 4]
    hidden = ids[masked_positions(ids, SPECIAL)]
    assert found.constant == pytest.approx(float((hidden == np.bincount(words).argmax()).mean()))
    assert (found.text, found.tokens, found.trained_length, found.ranks_from) == ("tales", len(ids), 64, "this text")
    assert probe_masked_words(frozen, HeldOutText("tales", ids, None), quiet) == found


def test_ranks_come_from_the_training_text_where_it_is_known(frozen: FrozenModel, ids: np.ndarray) -> None:
    counts = np.zeros(frozen.vocabulary, np.uint64)
    counts[5:20] = 1000 - np.arange(15)
    counts[4] = 10**6  # the mask itself is no word
    found = probe_masked_words(frozen, HeldOutText("tales", ids, counts), quiet)
    hidden = ids[masked_positions(ids, SPECIAL)]
    assert found.ranks_from == "training text"
    first = sum(bucket.count for bucket in found.frequency if bucket.first == 1)
    assert first == int(np.isin(hidden, range(5, 15)).sum())


def test_rows_grow_as_far_as_positions_and_text_reach() -> None:
    assert row_lengths(128, None, 10**6) == [128, 256, 512]
    assert row_lengths(128, 300, 10**6) == [128, 256], "a table of 300 positions"
    assert row_lengths(512, 512, 10**6) == [512]
    assert row_lengths(1024, None, 10**6) == [1024, 2048]
    assert row_lengths(8192, None, 10**6) == [2048]
    assert row_lengths(128, None, 300) == [128, 256], "no row of 512 would be full"
    assert row_lengths(128, None, 20) == [128], "some text is always read"


@given(st.integers(1, 5000))
def test_ranges_of_positions_cover_each_position_once(length: int) -> None:
    covered = [place for first, last in position_ranges(length) for place in range(first, (last or 0) + 1)]
    assert covered == list(range(length))


@given(st.integers(1, 400), st.floats(0, 1))
def test_intervals_are_wilsons(count: int, share: float) -> None:
    right = round(share * count)
    low, high = interval(right, count)
    z, p = 1.959963984540054, right / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    assert low == pytest.approx(max(0.0, middle - half), abs=1e-9)
    assert high == pytest.approx(min(1.0, middle + half), abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 30_000), st.booleans(), st.floats(0, 20)), min_size=1, max_size=60))
def test_every_masked_token_is_in_one_bucket(tokens: list[tuple[int, bool, float]]) -> None:
    ranks, right, losses = map(np.array, zip(*tokens))
    guesses = Guesses(right, losses, np.full(len(right), 0.5), np.ones(len(right)))
    found = bucket_scores(ranks, RANKS, guesses)
    assert sum(bucket.count for bucket in found) == len(tokens)
    for bucket in found:
        inside = [t for t in tokens if t[0] >= bucket.first and (bucket.last is None or t[0] <= bucket.last)]
        assert bucket.count == len(inside) > 0
        assert bucket.accuracy == pytest.approx(sum(t[1] for t in inside) / len(inside))
        assert bucket.loss == pytest.approx(sum(t[2] for t in inside) / len(inside))
        assert 0 <= bucket.low <= bucket.accuracy + 1e-12 and bucket.accuracy - 1e-12 <= bucket.high <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_calibration_bins_add_up_to_the_calibration_error(tokens: list[tuple[float, bool]]) -> None:
    confidences, right = map(np.array, zip(*tokens))
    found = calibration_bins(confidences, right)
    assert sum(each.count for each in found) == len(tokens) and len(found) <= BINS
    gap = sum(abs(each.confidence - each.accuracy) * each.count for each in found) / len(tokens)
    assert gap == pytest.approx(calibration_error(confidences, right))
    assert all(each.low - 1e-9 <= each.confidence <= each.high + 1e-9 for each in found)
