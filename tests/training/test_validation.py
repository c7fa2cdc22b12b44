"""The held-out evaluation against plain numpy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from daybreak.core.batch import Batch
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.schemas.run import ValidationRecord
from daybreak.training.clock import Tick
from daybreak.training.objectives.masked import HeldOutResult
from daybreak.training.validation import Validation

VOCABULARY, ROWS, LENGTH = 50, 70, 40
COUNTS = np.random.default_rng(1).integers(0, 1_000, VOCABULARY).astype(np.uint64)
COUNTS[0] = 0


def held_out() -> np.ndarray:
    rows = np.random.default_rng(0).integers(5, VOCABULARY, (ROWS, LENGTH))
    rows[:, 0] = 2
    rows[:, 1:][np.random.default_rng(2).random((ROWS, LENGTH - 1)) < 0.3] = int(COUNTS.argmax())
    return rows


def made() -> Validation:
    return Validation(Batch(input_ids=held_out()), COUNTS, torch.device("cpu"))


def model(seed: int = 0) -> ModernBert:
    torch.manual_seed(seed)
    return ModernEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=12, init_std=0.4).build(VOCABULARY)


def measured(validation: Validation, encoder: ModernBert, rows: int = ROWS) -> ValidationRecord:
    tick = Tick(1.5, 0.25)
    return validation.measure(encoder, rows=rows, step=7, tokens=99, tick=tick, final=False)


def test_the_positions_are_always_the_same() -> None:
    first, second = made().cases(), made().cases()
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    masked, positions, answers = first
    assert positions.shape == (ROWS, 6)  # 15 % of 40
    # Every row is there, in a shuffled order, and differs from itself at its positions alone.
    rows = masked.scatter(1, positions, answers)
    assert sorted(rows.tolist()) == sorted(held_out().tolist()) and rows.tolist() != held_out().tolist()
    assert torch.equal(masked == 4, torch.zeros_like(rows, dtype=torch.bool).scatter(1, positions, True))
    before = measured(made(), model())
    assert (before.loss, before.accuracy) == (measured(made(), model()).loss, before.accuracy)


def test_fewer_rows_are_the_first_ones_of_the_same() -> None:
    encoder = model()
    found = measured(made(), encoder, rows=33)
    masked, positions, answers = (part[:33] for part in made().cases())
    with torch.inference_mode():
        right = encoder.logits(masked, positions).argmax(dim=2) == answers
    assert (found.accuracy, found.positions) == (float(right.double().mean()), 33 * 6)


class Warming(torch.nn.Module):
    """A model whose first look takes ten seconds more than the two that a row takes, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.now = model(), 0.0

    def logits(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.now += 2.0 * len(ids) + (10.0 if self.now == 0 else 0.0)
        return self.inner.logits(ids, positions)


@pytest.mark.parametrize(("rows", "expected"), [(33, 2.0), (16, 2.0 + 10 / 16)])
def test_what_a_row_takes_leaves_out_the_first_look(
    rows: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, validation = Warming(), made()
    monkeypatch.setattr("daybreak.training.validation.time.monotonic", lambda: slow.now)
    measured(validation, slow, rows=rows)  # type: ignore[arg-type]
    assert validation.row_seconds == pytest.approx(expected)
    assert validation.whole_seconds(validation.row_seconds) == pytest.approx(expected * ROWS)


def test_the_held_out_losses_equal_numpy() -> None:
    found = measured(made(), model())
    answers = made().cases()[2].numpy().reshape(-1)
    words = np.where(np.arange(VOCABULARY) < 5, 0, COUNTS)  # special tokens are never masked
    shares = (words + 1.0) / (words.sum() + VOCABULARY)
    assert found.unigram_loss == pytest.approx(-np.log(shares[answers]).mean(), rel=1e-6)
    assert made().unigram_loss == pytest.approx(found.unigram_loss, rel=1e-9)
    assert found.most_frequent_fraction == pytest.approx((answers == COUNTS.argmax()).mean())
    assert found.most_frequent_fraction > 0.2


def test_the_separator_of_many_short_documents_is_no_baseline() -> None:
    many = COUNTS.copy()
    many[3] = 1_000_000
    separated = Validation(Batch(input_ids=held_out()), many, torch.device("cpu"))
    found, known = measured(separated, model()), measured(made(), model())
    assert found.unigram_loss == known.unigram_loss and found.most_frequent_fraction == known.most_frequent_fraction


def test_loss_accuracy_and_predictions_equal_numpy() -> None:
    encoder = model()
    found = measured(made(), encoder)
    masked, positions, answers = made().cases()
    with torch.inference_mode():
        logits = encoder.logits(masked).double().numpy()
    at = np.take_along_axis(logits, positions.numpy()[:, :, None], axis=1)
    right = np.take_along_axis(at, answers.numpy()[:, :, None], axis=2)[:, :, 0]
    assert found.loss == pytest.approx((np.log(np.exp(at).sum(2)) - right).mean(), rel=1e-5)
    guesses = at.argmax(2)
    assert found.accuracy == pytest.approx((guesses == answers.numpy()).mean())
    assert found.distinct == len(np.unique(guesses)) > 1
    assert (found.step, found.tokens, found.elapsed, found.progress, found.final) == (7, 99, 1.5, 0.25, False)
    assert found.positions == ROWS * 6


def test_it_leaves_no_gradients_and_no_changes() -> None:
    encoder = model()
    before = [parameter.clone() for parameter in encoder.parameters()]
    measured(made(), encoder)
    for old, new in zip(before, encoder.parameters(), strict=True):
        assert torch.equal(old, new) and new.grad is None


def test_the_end_is_also_evaluated_on_the_sequences_of_the_interim_validations() -> None:
    """Twenty rows are no whole number of batches; a loss on other rows cannot show that a model got worse."""
    encoder, validation = model(), made()
    interim = measured(validation, encoder, rows=20)
    final = validation.measure(encoder, rows=ROWS, step=7, tokens=99, tick=Tick(1.5, 1.0), final=True, interim_rows=20)
    assert final.interim_loss == pytest.approx(interim.loss, abs=1e-6) and interim.interim_loss is None
    assert final.interim_accuracy == interim.accuracy and interim.interim_accuracy is None
    assert abs(final.loss - interim.loss) > 1e-3 and final.accuracy != interim.accuracy


def test_the_recipes_own_sequences_are_evaluated_at_the_end_and_their_time_is_reserved() -> None:
    found = HeldOutResult(loss=4.0, accuracy=0.1, next_loss=0.6, next_accuracy=0.7)
    own = SimpleNamespace(batch=Batch(input_ids=held_out()[:35]), evaluate=lambda _: found)
    validation = Validation(Batch(input_ids=held_out()), COUNTS, torch.device("cpu"), own)  # type: ignore[arg-type]
    assert validation.whole_seconds(2.0) == 2.0 * (ROWS + 35)
    interim, final = (
        validation.measure(model(), rows=32, step=7, tokens=99, tick=Tick(1.5, 0.25), final=last)
        for last in (False, True)
    )
    names = ("own_loss", "own_accuracy", "next_loss", "next_accuracy")
    assert [getattr(interim, name) for name in names] == [None] * 4
    assert [getattr(final, name) for name in names] == [4.0, 0.1, 0.6, 0.7]
