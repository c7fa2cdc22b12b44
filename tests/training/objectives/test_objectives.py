"""Masking and the causal stage as functions of (seed, row), and the random numbers below them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_run import TableEncoder

from daybreak.core.batch import Batch
from daybreak.core.rng import draws
from daybreak.recipe import load_recipe
from daybreak.schemas.run import SpecialIds
from daybreak.training.objectives.objective import CausalThenMasked, choose, is_special

CPU = torch.device("cpu")
LAST_SPECIAL_ID, MASK_ID = 4, 4


def rows(count: int, length: int, seed: int = 0, vocabulary: int = 50) -> Tensor:
    ids = torch.randint(5, vocabulary, (count, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = 2
    return ids


# ---------------------------------------------------------------- chance


def test_draws_fill_their_range_evenly() -> None:
    found = draws(7, 0, 400, 64, CPU)
    assert found.dtype == torch.int64 and found.min() >= 0 and found.max() < 1 << 62
    boxes = torch.bincount((found >> 56).reshape(-1), minlength=64).double()  # the top six bits
    expected = found.numel() / 64
    assert ((boxes - expected) ** 2 / expected).sum() < 120  # 63 degrees of freedom: 110 once in 5,000 seeds
    assert abs((found & 1).double().mean() - 0.5) < 0.02
    assert found.unique().numel() == found.numel()


def test_draws_depend_on_seed_row_and_column_alone() -> None:
    whole = draws(3, 1_000_000, 10, 20, CPU)
    torch.testing.assert_close(draws(3, 1_000_004, 3, 20, CPU), whole[4:7], rtol=0, atol=0)
    torch.testing.assert_close(draws(3, 1_000_000, 10, 5, CPU), whole[:, :5], rtol=0, atol=0)
    assert (draws(4, 1_000_000, 10, 20, CPU) == whole).sum() == 0
    # Neighbouring seeds and rows are not shifted copies of each other.
    assert not torch.isin(draws(4, 0, 200, 20, CPU), draws(3, 0, 200, 20, CPU)).any()


# ---------------------------------------------------------------- masks


@settings(max_examples=60, deadline=None)
@given(
    fraction=st.floats(0.001, 1.0),
    length=st.integers(2, 70),
    position=st.integers(0, 2**40),
    seed=st.integers(0, 2**31),
)
def test_exactly_k_positions_of_each_sequence_are_masked(
    fraction: float, length: int, position: int, seed: int
) -> None:
    ids = rows(6, length, seed=length)
    positions = choose(ids, fraction, seed=seed, position=position)
    wanted = max(1, round(fraction * length))
    assert positions.shape == (6, wanted)
    assert (positions[:, 1:] > positions[:, :-1]).all() and positions[:, -1].max() < length
    assert wanted == length or (positions > 0).all(), "[CLS] comes last"


@settings(max_examples=40, deadline=None)
@given(specials=st.lists(st.integers(0, 29), unique=True, max_size=20), seed=st.integers(0, 2**31))
def test_special_tokens_are_spared_while_there_are_others(specials: list[int], seed: int) -> None:
    ids = rows(4, 30)
    for place in specials:
        ids[:, place] = place % (LAST_SPECIAL_ID + 1)
    positions = choose(ids, 0.5, seed=seed, position=9)
    others = int((ids[0] > LAST_SPECIAL_ID).sum())
    chosen_specials = (ids.gather(1, positions) <= LAST_SPECIAL_ID).sum(1)
    assert (chosen_specials == max(0, 15 - others)).all()


def test_a_mask_does_not_know_how_rows_are_grouped() -> None:
    ids = rows(12, 32)
    whole = choose(ids, 0.3, seed=5, position=100)
    for size in (1, 2, 5):
        split = [choose(part, 0.3, seed=5, position=100 + i * size) for i, part in enumerate(ids.split(size))]
        assert torch.equal(torch.cat(split), whole)


def test_other_rows_and_other_seeds_have_other_masks() -> None:
    ids = rows(1, 64).expand(200, -1)
    one = choose(ids, 0.15, seed=0, position=0)
    assert one.unique(dim=0).shape[0] == 200
    other = choose(ids, 0.15, seed=1, position=0)
    shared = (one[:, :, None] == other[:, None]).any(2).double().mean().item()
    assert shared == pytest.approx(10 / 63, abs=0.03)  # what chance alone gives


def test_every_position_is_masked_equally_often() -> None:
    count, length, fraction = 6_000, 33, 0.25
    positions = choose(rows(count, length), fraction, seed=11, position=0)
    times = torch.bincount(positions.reshape(-1), minlength=length).double()
    assert times[0] == 0  # [CLS]
    expected = positions.numel() / (length - 1)
    assert ((times[1:] - expected) ** 2 / expected).sum() < 60  # 31 degrees of freedom, and draws without return


def test_the_draws_of_runs_that_exist_stay_what_they_were() -> None:
    """Resume and replay read old checkpoints: these positions were drawn when the first runs were."""
    positions = choose(rows(3, 24), 0.25, seed=123, position=4_567)
    assert positions.tolist() == [[1, 7, 10, 15, 16, 19], [7, 12, 16, 20, 21, 23], [2, 6, 11, 12, 20, 22]]


def test_other_special_ids_are_obeyed() -> None:
    special = SpecialIds(pad=40, unk=41, cls=42, sep=43, mask=44)
    ids = torch.arange(30, 46)[None].expand(8, -1)
    assert (is_special(ids, special)[0] == ((ids[0] >= 40) & (ids[0] <= 44))).all()
    positions = choose(ids, 11 / 16, seed=0, position=0, special=special)
    assert positions.shape == (8, 11) and not is_special(ids.gather(1, positions), special).any()


# ---------------------------------------------------------------- stages


def test_stages_and_rates_follow_progress() -> None:
    objective = CausalThenMasked(causal_fraction=0.4, mask_rates=(0.4, 0.3, 0.2, 0.1))
    assert [objective.stage(p) for p in (0.0, 0.3999, 0.4, 0.99)] == ["causal", "causal", "masked", "masked"]
    rates = [objective.mask_rate(0.4 + 0.6 * inside) for inside in (0.01, 0.24, 0.26, 0.49, 0.51, 0.74, 0.76, 0.999)]
    assert rates == [0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]
    assert len({objective.mask_rate(p / 1000) for p in range(400, 1001)}) == 4
    assert CausalThenMasked(causal_fraction=0.0, mask_rates=(0.3,)).mask_rate(0.0) == 0.3
    assert CausalThenMasked(causal_fraction=0.0).stage(0.0) == "masked"


def test_the_causal_stage_is_plain_next_token_loss() -> None:
    model, ids = TableEncoder(), rows(5, 20)
    found = CausalThenMasked(causal_fraction=0.5).loss(model, Batch(input_ids=ids), seed=0, position=0, progress=0.1)
    logits = model.map(model.table(ids[:, :-1]))
    plain = F.cross_entropy(logits.reshape(-1, 50), ids[:, 1:].reshape(-1), reduction="sum")
    assert found.sum.item() == pytest.approx(plain.item(), rel=1e-5)
    assert found.count == 5 * 19 and model.asked == [(True, None, None)]


def test_fewer_causal_targets_are_a_sample_of_the_same_loss() -> None:
    model, ids = TableEncoder(), rows(5, 21)
    objective = CausalThenMasked(causal_fraction=0.5, causal_targets=0.3)
    found = objective.loss(model, Batch(input_ids=ids), seed=4, position=70, progress=0.1)
    positions = choose(ids[:, 1:], 0.3, seed=4, position=70)
    each = F.cross_entropy(model.map(model.table(ids[:, :-1])).transpose(1, 2), ids[:, 1:], reduction="none")
    assert found.count == 5 * 6 == positions.numel()
    assert found.sum.item() == pytest.approx(each.gather(1, positions).sum().item(), rel=1e-5)


def test_the_masked_stage_predicts_what_was_masked() -> None:
    model, ids = TableEncoder(), rows(5, 20)
    objective = CausalThenMasked(causal_fraction=0.5, mask_rates=(0.3, 0.2))
    found = objective.loss(model, Batch(input_ids=ids), seed=4, position=70, progress=0.9)
    positions = choose(ids, 0.2, seed=4, position=70)
    of_mask = model.map(model.table(torch.tensor(MASK_ID))).log_softmax(0)
    assert found.count == 5 * 4 and model.asked == [(False, None, None)]
    assert found.sum.item() == pytest.approx(-of_mask[ids.gather(1, positions)].sum().item(), rel=1e-5)


@pytest.mark.parametrize("progress", [0.1, 0.9])
@pytest.mark.parametrize("causal_targets", [0.9, 1.0])
def test_padding_is_no_target_and_the_model_gets_its_mask(progress: float, causal_targets: float) -> None:
    model, ids = TableEncoder(), rows(4, 20)
    lengths = torch.tensor([20, 13, 5, 2])
    attention_mask = torch.arange(20) < lengths[:, None]
    batch = Batch(
        input_ids=ids.masked_fill(~attention_mask, 0),
        attention_mask=attention_mask,
        token_type_ids=torch.zeros_like(ids),
    )
    objective = CausalThenMasked(causal_fraction=0.5, causal_targets=causal_targets, mask_rates=(0.9,))
    draw = {"seed": 4, "position": 70, "progress": progress}
    found = objective.loss(model, batch, **draw)
    assert model.asked[0][1:] == (attention_mask, batch.token_type_ids)
    assert found.count == objective.targets(batch, **draw)
    if progress > 0.5:
        words = 18 + 12 + 4 + 1  # round(0.9 * n) of n positions without padding; [CLS] is as special as padding
        assert words <= found.count <= words + 1
    elif causal_targets == 1.0:
        assert found.count == 19 + 12 + 4 + 1
        each = F.cross_entropy(
            model.map(model.table(batch.input_ids[:, :-1])).transpose(1, 2), ids[:, 1:], reduction="none"
        )
        assert found.sum.item() == pytest.approx(each[attention_mask[:, 1:]].sum().item(), rel=1e-5)
    else:
        chosen = choose(batch.input_ids[:, 1:], causal_targets, seed=4, position=70)
        assert found.count == int(attention_mask[:, 1:].gather(1, chosen).sum())


@pytest.mark.parametrize("progress", [0.1, 0.9])
def test_targets_are_counted_without_the_model(progress: float) -> None:
    model, batch = TableEncoder(), Batch(input_ids=rows(5, 20))
    for objective in (CausalThenMasked(), CausalThenMasked(causal_targets=0.3)):
        draw = {"seed": 4, "position": 70, "progress": progress}
        assert objective.targets(batch, **draw) == objective.loss(model, batch, **draw).count
        assert not objective.averages_rows and not objective.whole_words


@pytest.mark.parametrize(
    "name", "tiny ladder-01 ladder-13 bert-2018 bert-8gb bert-gpu crammed crammed-legacy scibert".split()
)
def test_every_parameter_has_a_part_in_every_loss(name: str) -> None:
    """Or a rank of DistributedDataParallel would wait for gradients that never come."""
    recipe = load_recipe(name, size="" if name == "tiny" else "tiny")
    torch.manual_seed(1)
    built = recipe.model.build(400)
    ids = torch.randint(5, 400, (2, 32), generator=torch.Generator().manual_seed(2))
    halves = (torch.arange(32) >= 16).long().expand(2, 32)
    batch = Batch(
        input_ids=ids,
        token_type_ids=halves,
        next_sentence_label=torch.tensor([0, 1]),
        is_continuation=torch.zeros_like(ids, dtype=torch.bool),
    )
    for at in (0.0, 0.999):
        recipe.objective.loss(built, batch, seed=1, position=0, progress=at, per_row=1.0).sum.backward()
        without = [name for name, parameter in built.named_parameters() if parameter.grad is None]
        assert without == []
        built.zero_grad()
