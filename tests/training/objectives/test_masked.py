"""Which positions BERT's kinds of masking choose, what becomes of them, and the loss they give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from toy_run import TableEncoder

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.schemas.run import SpecialIds
from daybreak.training.objectives.masked import EVALUATION_ROWS, Masked

VOCABULARY = 50
CRAMMED = Masked(rate=0.25, count="fixed", protect_special=False)
BERT = Masked(rate=0.15, count="rounded", most=20)
BERNOULLI = Masked(rate=0.15, count="bernoulli")


class Around(TableEncoder):
    """A state is the mean of a table over what may be seen, plus twice the position's own: the row matters."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.kinds = nn.Embedding(2, self.hidden_size)
        self.pair = nn.Linear(self.hidden_size, 2)

    def all_states(self, ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Tensor:
        own = self.table(ids) + (0 if token_type_ids is None else self.kinds(token_type_ids))
        seen = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
        mean = (own * seen[:, :, None]).sum(1, keepdim=True) / seen.sum(1)[:, None, None]
        return mean + 2 * own

    def transform(self, states: Tensor) -> Tensor:
        return states.tanh()

    def next_logits(self, states: Tensor) -> Tensor:
        return self.pair(states)


def batch(count: int, length: int, *, shortest: int | None = None, seed: int = 0, padded: bool = True) -> Batch:
    """Rows [CLS] ... [SEP], of different lengths when ``shortest`` is given, with pieces of words and segments."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.full((count,), length)
    if shortest is not None:
        lengths = torch.randint(shortest, length + 1, (count,), generator=rng)
    here = torch.arange(length)
    ids = torch.randint(5, VOCABULARY, (count, length), generator=rng)
    ids[:, 0] = 2
    ids[here == lengths[:, None] - 1] = 3
    attention_mask = here < lengths[:, None]
    ids[~attention_mask] = 0
    return Batch(
        input_ids=ids,
        attention_mask=attention_mask if padded and shortest is not None else None,
        token_type_ids=(here >= lengths[:, None] // 2).long(),
        next_sentence_label=torch.randint(2, (count,), generator=rng),
        is_continuation=(torch.rand(ids.shape, generator=rng) < 0.4) & (ids > 4),
    )


def within(seen: float, expected: float, trials: int) -> bool:
    """Whether a share of ``trials`` lies within 4.5 deviations of a binomial's: once in 150,000 it would not."""
    return abs(seen - expected) < 4.5 * math.sqrt(expected * (1 - expected) / trials)


# ---------------------------------------------------------------- how many, and what becomes of them


def test_crammed_has_26_masks_3_random_ids_and_3_kept_in_every_row() -> None:
    rows = batch(200, 128)
    chosen = CRAMMED.chosen(rows, seed=1, position=5)
    read = CRAMMED.replaced(rows, chosen, vocabulary=10_000_000, seed=1, position=5)  # a random id is another one
    assert (chosen.sum(1) == 32).all()
    assert ((read == 4) & chosen).sum(1).tolist() == [26] * 200
    assert ((read != 4) & (read != rows.input_ids)).sum(1).tolist() == [3] * 200
    assert (read[~chosen] == rows.input_ids[~chosen]).all()
    assert within(chosen[:, 0].double().mean().item(), 0.25, 200)  # special tokens are not spared
    assert CRAMMED.targets(rows, seed=1, position=5, progress=0.5) == 200 * 32


def test_bernoulli_rates_and_splits() -> None:
    rows = batch(400, 128)
    chosen = BERNOULLI.chosen(rows, seed=3, position=0)
    read = BERNOULLI.replaced(rows, chosen, vocabulary=10_000_000, seed=3, position=0)
    candidates, found = 400 * 126, int(chosen.sum())
    assert not chosen[:, 0].any() and not chosen[rows.input_ids == 3].any()
    assert within(found / candidates, 0.15, candidates)
    assert chosen.sum(1).unique().numel() > 10
    assert within(((read == 4) & chosen).sum().item() / found, 0.8, found)
    assert within(((read != 4) & (read != rows.input_ids)).sum().item() / found, 0.1, found)
    assert (read[~chosen] == rows.input_ids[~chosen]).all()


def test_the_original_bert_counts_special_tokens_but_never_hides_them() -> None:
    lengths = torch.arange(3, 129)
    ids = torch.where(torch.arange(128) < lengths[:, None], 9, 0)
    ids[:, 0] = 2
    ids[torch.arange(126), lengths - 1] = 3
    attention_mask = torch.arange(128) < lengths[:, None]
    for rows in (Batch(input_ids=ids, attention_mask=attention_mask), Batch(input_ids=ids)):
        found = BERT.chosen(rows, seed=0, position=0)
        assert found.sum(1).tolist() == [min(20, max(1, round(0.15 * n))) for n in range(3, 129)]
        assert (ids[found] == 9).all()
    assert Masked(rate=0.15, count="rounded").chosen(Batch(input_ids=ids), seed=0, position=0).sum(1).max() == 19
    assert Masked(rate=0.15, count="rounded", most=7).chosen(Batch(input_ids=ids), seed=0, position=0).sum(1).max() == 7


def test_random_ids_come_from_the_whole_vocabulary() -> None:
    rows, everything = batch(300, 60), Masked(rate=0.5, count="bernoulli", split=(0.0, 1.0, 0.0))
    chosen = everything.chosen(rows, seed=0, position=0)
    drawn = everything.replaced(rows, chosen, vocabulary=VOCABULARY, seed=0, position=0)[chosen]
    times = torch.bincount(drawn, minlength=VOCABULARY).double()
    assert len(times) == VOCABULARY
    expected = len(drawn) / VOCABULARY
    assert ((times - expected) ** 2 / expected).sum() < 100  # 49 degrees of freedom


@pytest.mark.parametrize("objective", [CRAMMED, BERNOULLI, BERT])
def test_the_three_choices_are_independent(objective: Masked) -> None:
    """What becomes of a position says nothing of how its neighbours fare, nor of the id that would replace it."""
    rows = batch(2_000, 64)
    chosen = objective.chosen(rows, seed=2, position=0)
    read = objective.replaced(rows, chosen, vocabulary=2, seed=2, position=0)
    swapped = chosen & (read != 4) & (read != rows.input_ids)
    assert within((read[swapped] == 0).double().mean().item(), 0.5, int(swapped.sum()))
    share = chosen.double().mean(0)[2:62]
    assert (share - share.mean()).abs().max() < 5 * math.sqrt(share.mean() / 2_000)
    hidden = ((read == 4) & chosen).double().sum(0)[2:62] / chosen.double().sum(0)[2:62]
    assert (hidden - hidden.mean()).abs().max() < 5 * math.sqrt(0.16 / (2_000 * share.min().item()))


SHAPES: dict[str, Any] = {
    "rate": st.floats(0.01, 0.99),
    "count": st.sampled_from(["fixed", "bernoulli", "rounded"]),
    "protect_special": st.booleans(),
    "whole_words": st.booleans(),
}


@settings(max_examples=120, deadline=None)
@given(
    fields=st.fixed_dictionaries(SHAPES),
    length=st.integers(3, 40),
    padded=st.booleans(),
    position=st.integers(0, 2**40),
    seed=st.integers(0, 2**31),
)
def test_any_masking_keeps_its_promises(
    fields: dict[str, Any], length: int, padded: bool, position: int, seed: int
) -> None:
    objective, model = Masked(**fields), Around()
    rows = batch(7, length, shortest=3, seed=length, padded=padded)
    draw = {"seed": seed, "position": position}
    chosen = objective.chosen(rows, **draw)
    read = objective.replaced(rows, chosen, vocabulary=VOCABULARY, **draw)
    assert torch.equal(read[~chosen], rows.input_ids[~chosen]) and read.min() >= 0 and read.max() < VOCABULARY
    if fields["protect_special"]:
        assert (rows.input_ids[chosen] > 4).all()
    if padded:
        assert not (chosen & ~rows.attention_mask).any()
    real = rows.attention_mask.sum(1) if padded else torch.full((7,), length)
    number = (fields["rate"] * real.double()).round().clamp(min=1)
    candidates = (
        (rows.input_ids > 4) if fields["protect_special"] else (rows.attention_mask if padded else rows.input_ids >= 0)
    )
    if fields["count"] == "fixed" and not fields["whole_words"]:
        assert chosen.sum(1).tolist() == torch.minimum(candidates.sum(1), number).tolist()
    elif fields["count"] != "bernoulli":
        assert (chosen.sum(1) <= number).all()
    found = objective.loss(model, rows, **draw, progress=0.3)
    assert found.count == int(chosen.sum()) == objective.targets(rows, **draw, progress=0.3)
    logits = model.logits(read, attention_mask=rows.attention_mask, token_type_ids=rows.token_type_ids)
    plain = F.cross_entropy(logits[chosen], rows.input_ids[chosen], reduction="sum")
    assert found.sum.item() == pytest.approx(plain.item(), rel=1e-4, abs=1e-4)
    found.sum.backward()  # without a target too


def test_other_special_ids_are_obeyed() -> None:
    special = SpecialIds(pad=40, unk=41, cls=42, sep=43, mask=44)
    rows = Batch(input_ids=torch.arange(30, 50)[None].repeat(50, 1), special=special)
    objective = Masked(rate=0.9, count="fixed", split=(1.0, 0.0, 0.0))
    chosen = objective.chosen(rows, seed=0, position=0)
    assert (chosen == ((rows.input_ids < 40) | (rows.input_ids > 44))).all()
    assert (objective.replaced(rows, chosen, vocabulary=50, seed=0, position=0)[chosen] == 44).all()


# ---------------------------------------------------------------- loss


OBJECTIVES = [
    CRAMMED,
    BERT,
    BERNOULLI,
    Masked(rate=0.2, count="rounded", whole_words=True),
    Masked(rate=0.15, count="rounded", next_sentence=True),
]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_does_not_know_how_rows_are_grouped(objective: Masked) -> None:
    model, rows = Around(), batch(12, 40, shortest=20)
    whole = objective.loss(model, rows, seed=5, position=100, progress=0.5, per_row=3.5)
    for size in (1, 2, 5):
        parts = [(rows[start : min(start + size, 12)], 100 + start) for start in range(0, 12, size)]
        losses = [objective.loss(model, p, seed=5, position=at, progress=0.5, per_row=3.5) for p, at in parts]
        assert sum(one.count for one in losses) == whole.count
        assert sum(one.sum.item() for one in losses) == pytest.approx(whole.sum.item(), rel=1e-5)
        assert whole.count == sum(objective.targets(p, seed=5, position=at, progress=0.5) for p, at in parts)
    chosen = objective.chosen(rows, seed=5, position=100)
    assert torch.equal(objective.chosen(rows[4:9], seed=5, position=104), chosen[4:9])
    assert not torch.equal(objective.chosen(rows, seed=6, position=100), chosen)
    assert not torch.equal(objective.chosen(rows, seed=5, position=101), chosen)


@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_next_sentence_adds_a_mean_over_rows_from_the_same_forward(weight: float) -> None:
    objective = Masked(count="rounded", next_sentence=True, next_sentence_weight=weight)
    model, rows = Around(), batch(16, 40, shortest=8)
    draw = {"seed": 1, "position": 7, "progress": 0.0}
    per_row = objective.targets(rows, **draw) / 16
    found = objective.loss(model, rows, **draw, per_row=per_row)
    assert len(model.asked) == 1 and objective.averages_rows and not BERT.averages_rows
    chosen = objective.chosen(rows, seed=1, position=7)
    read = objective.replaced(rows, chosen, vocabulary=VOCABULARY, seed=1, position=7)
    states = model.states(read, attention_mask=rows.attention_mask, token_type_ids=rows.token_type_ids)
    masked = F.cross_entropy(model.map(states[chosen].tanh()), rows.input_ids[chosen])
    following = weight * F.cross_entropy(model.pair(states[:, 0]), rows.next_sentence_label)
    assert (found.sum / found.count).item() == pytest.approx((masked + following).item(), rel=1e-5)
    gradients = []
    for loss in (found.sum / found.count, masked + following):
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def test_judging_is_the_mean_over_all_rows() -> None:
    objective, model = Masked(count="bernoulli", next_sentence=True), Around()
    rows = batch(EVALUATION_ROWS + 9, 30, shortest=6)
    found = objective.evaluate(model, rows, seed=3, position=11)
    chosen = objective.chosen(rows, seed=3, position=11)
    read = objective.replaced(rows, chosen, vocabulary=VOCABULARY, seed=3, position=11)
    states = model.states(read, attention_mask=rows.attention_mask, token_type_ids=rows.token_type_ids)
    logits, pairs = model.map(states[chosen].tanh()), model.pair(states[:, 0])
    assert found.loss == pytest.approx(F.cross_entropy(logits, rows.input_ids[chosen]).item(), rel=1e-5)
    assert found.accuracy == pytest.approx((logits.argmax(1) == rows.input_ids[chosen]).double().mean().item())
    assert found.next_loss == pytest.approx(F.cross_entropy(pairs, rows.next_sentence_label).item(), rel=1e-5)
    assert found.next_accuracy == pytest.approx((pairs.argmax(1) == rows.next_sentence_label).double().mean().item())
    alone = BERNOULLI.evaluate(model, rows, seed=3, position=11)
    assert (alone.loss, alone.next_loss, alone.next_accuracy) == (found.loss, None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"rate": 0.0},
        {"rate": 1.0},
        {"count": "some"},
        {"split": (0.8, 0.2)},
        {"split": (0.8, 0.1, 0.2)},
        {"split": (1.2, -0.1, -0.1)},
        {"most": 20},
        {"most": -1, "count": "rounded"},
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--objective"):
        Masked(**fields)
