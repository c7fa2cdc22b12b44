"""The embedding finish: its loss against a plain one, its gradient however the step is split, its place in a run."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toy_run
from rendezvous import end_rank, run_ranks
from torch import Tensor
from toy_run import assert_near, descending, weights

from daybreak.core import world as worlds
from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, call_block
from daybreak.core.errors import UserError
from daybreak.core.world import World
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.training import checkpoint
from daybreak.training.loop import fit
from daybreak.training.objectives import loss
from daybreak.training.objectives.finish import (
    Finish,
    Pooling,
    WithEmbeddings,
    contrastive_gradients,
    contrastive_loss,
    embed,
)
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked, Objective
from daybreak.training.phases import Phase
from daybreak.training.schedule import Trapezoid
from daybreak.training.step import MicrobatchTooLarge, Training, take_step
from daybreak.training.validation import Validation

VOCABULARY, LENGTH, SEQUENCES, HIDDEN = 60, 16, 12, 16
FINISH = Finish(start=0.5, weight=0.7, temperature=0.2, length=LENGTH, shortest=4, longest=14)
MASKED = CausalThenMasked(causal_fraction=0.0, mask_rates=(0.2,))
SHAPES = {
    "modern": ModernEncoder(
        layers=2, hidden_size=HIDDEN, heads=2, intermediate_size=12, global_every=2, window=4, init_std=0.3
    ),
    "bert": BertEncoder(
        layers=2, hidden_size=HIDDEN, heads=2, intermediate_size=12, positions=32, dropout=0.1, init_std=0.3
    ),
    "crammed": CrammedEncoder(layers=2, hidden_size=HIDDEN, heads=2, intermediate_size=12, dropout=0.1, init_std=0.3),
}


def take(position: int, rows: int, progress: float = 0.0) -> Batch:
    """Sequence p is a function of p: [CLS], 4 to 14 tokens, [SEP] and padding; every third pair is of document 0, every
    fifth of none."""
    places = np.arange(position, position + rows)
    ids = 5 + (places[:, None] * 7 + np.arange(LENGTH) * (3 + places[:, None] // 2)) % (VOCABULARY - 5)
    sizes = 6 + places * 5 % 11
    here = np.arange(LENGTH)
    ids = np.where(here < sizes[:, None], ids, 0)
    ids[:, 0] = 2
    ids[np.arange(rows), sizes - 1] = 3
    pairs = places // 2
    documents = np.where(pairs % 5 == 4, -1, np.where(pairs % 3, pairs, 0))
    return Batch(input_ids=ids, attention_mask=here < sizes[:, None], passage_ids=documents)


def long_rows(position: int, rows: int, progress: float = 0.0) -> Batch:
    """What the run reads before the finish."""
    ids = 5 + (np.arange(position, position + rows)[:, None] * 7 + np.arange(24)) % (VOCABULARY - 5)
    return Batch(input_ids=ids)


def built(kind: str = "modern") -> Encoder:
    torch.manual_seed(0)
    return SHAPES[kind].build(VOCABULARY)


def training(
    *, microbatch: int = SEQUENCES, world: World | None = None, kind: str = "modern", **changes: Any
) -> Training:
    """A run of 20 steps by plain gradient descent, whose finish starts in its middle."""
    before = Phase(take=long_rows, length=24, rows_per_epoch=1000, batch=4, microbatch=2)
    spans = Phase(take=take, length=LENGTH, rows_per_epoch=1000, batch=SEQUENCES, microbatch=microbatch)
    parts = {"model": built(kind), "phases": (before, spans), "finish": FINISH, "objective": MASKED, "seed": 3}
    parts |= {"max_grad_norm": 1e9, "schedule": Trapezoid(warmup=0.0, decay=0.5)}
    parts["validation"] = Validation(long_rows(10_000, 8), np.ones(VOCABULARY, np.uint64), torch.device("cpu"))
    made = toy_run.training(None, steps=20, microbatch=microbatch, world=world, **{**parts, **changes})
    return descending(made, 0.05)


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize(("position", "count"), [(0, 8), (6, 7), (7, 8), (7, 1), (4, 2)])
def test_the_loss_is_that_of_each_span_against_all_others(position: int, count: int) -> None:
    torch.manual_seed(1)
    embeddings = F.normalize(torch.randn(count, 5), dim=1)
    documents = torch.tensor([(place // 2 + 1) % 4 - 1 for place in range(position, position + count)])
    expected = []
    for one in range(count):
        partner = one + 1 if (position + one) % 2 == 0 else one - 1
        if not 0 <= partner < count or documents[one] < 0:
            continue
        others = [place for place in range(count) if documents[place] not in (documents[one], -1)]
        scores = [math.exp(float(embeddings[one] @ embeddings[place]) / 0.1) for place in [partner, *others]]
        expected.append(-math.log(scores[0] / sum(scores)))
    found = contrastive_loss(embeddings, documents, position, 0.1)
    assert found.item() == pytest.approx(sum(expected) / max(1, len(expected)), rel=1e-5, abs=1e-6)
    leaves = embeddings.clone().requires_grad_()
    contrastive_loss(leaves, documents, position, 0.1).backward()
    loss, slope = contrastive_gradients(embeddings, documents, position, 0.1)
    assert torch.equal(loss, found) and torch.equal(slope, leaves.grad) and slope.isfinite().all()


@pytest.mark.parametrize("kind", SHAPES)
def test_one_forward_pass_gives_the_same_masked_loss_and_the_mean_of_the_last_states(kind: str) -> None:
    model, batch = built(kind).eval(), take(3, 6).to("cpu")
    draw: dict[str, Any] = {"seed": 4, "position": 3, "progress": 0.9}
    for objective in (MASKED, Masked(), Masked(count="rounded")):
        plain = objective.loss(model, batch, **draw)
        found = WithEmbeddings(objective.loss).loss(model, batch, **draw)
        assert found.count == plain.count
        assert found.sum.item() == pytest.approx(plain.sum.item(), rel=1e-5)
        alone = WithEmbeddings(objective.loss).embeddings(model, batch, **draw)
        assert found.embeddings is not None and torch.equal(alone, found.embeddings) and not alone.requires_grad
        torch.testing.assert_close(alone.norm(dim=1), torch.ones(6))
    states = model.states(batch.input_ids, attention_mask=batch.attention_mask)
    for row, size in enumerate(batch.attention_mask.sum(dim=1).tolist()):
        own = model.states(batch.input_ids[row : row + 1, :size])[0].mean(dim=0)  # without its padding
        torch.testing.assert_close(
            embed(states, batch.attention_mask)[row], F.normalize(own, dim=0), atol=1e-5, rtol=1e-4
        )


def test_of_short_spans_no_more_is_masked_than_of_long_ones() -> None:
    """A rate of the padded length would hide all of a short span."""
    batch = take(0, 200).to("cpu")
    seen = []

    class Reading(Pooling):
        def states(self, ids: Tensor, *arguments: Any, **more: Any) -> Tensor:
            seen.append((ids == 4) & batch.attention_mask)
            return super().states(ids, *arguments, **more)

    for objective in (MASKED, Masked(rate=0.2, split=(1.0, 0.0, 0.0))):
        count = objective.loss(Reading(built()), batch, seed=1, position=0, progress=0.9).count
        hidden = seen.pop().sum(dim=1)
        assert hidden.tolist() == (batch.attention_mask.sum(dim=1) * 0.2).round().clamp(min=1).tolist()
        assert count == hidden.sum() == objective.targets(batch, seed=1, position=0, progress=0.9)


# ---------------------------------------------------------------- the step


def reference(model: Encoder, objective: Objective, position: int) -> tuple[float, float, list[Tensor]]:
    """Masked loss, contrastive loss and gradients of a whole step, in plain code."""
    batch = take(position, SEQUENCES).to("cpu")
    torch.manual_seed(3 * 1_000_003 + position)
    found = WithEmbeddings(objective.loss).loss(model, batch, seed=3, position=position, progress=0.75)
    assert found.embeddings is not None
    pair = contrastive_loss(found.embeddings, batch.passage_ids, position, FINISH.temperature)
    mean = found.sum / found.count
    gradients = torch.autograd.grad(mean + FINISH.weight * pair, list(model.parameters()))
    return mean.item(), pair.item(), list(gradients)


@pytest.mark.parametrize("position", [0, 5])
@pytest.mark.parametrize("microbatch", [SEQUENCES, 5, 4, 1])
def test_the_step_is_the_gradient_of_both_means_however_it_is_split(microbatch: int, position: int) -> None:
    made = training(microbatch=microbatch)
    masked, contrastive, expected = reference(made.model, MASKED, position)
    before = weights(made)
    made.optimizer.param_groups[0]["lr"] = 1.0
    found = take_step(made, replace(checkpoint.START, position=position), 0.75)
    assert found.updated and found.loss == pytest.approx(masked, rel=1e-5)
    assert found.contrastive == pytest.approx(contrastive, rel=1e-4)
    assert_near([a - b for a, b in zip(before, weights(made))], expected, 2e-6)
    assert found.progress.position == position + SEQUENCES and found.progress.tokens == SEQUENCES * LENGTH


@pytest.mark.parametrize("kind", ["bert", "crammed"])
def test_dropout_is_the_same_in_both_looks_at_a_microbatch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slopes belong to the embeddings of the second look only where it drops what the first one dropped."""
    seen: dict[bool, list[Tensor]] = {True: [], False: []}
    states = Pooling.states

    def watched(self: Pooling, *arguments: Any, **more: Any) -> Tensor:
        try:
            return states(self, *arguments, **more)
        finally:
            assert self.embeddings is not None
            seen[torch.is_grad_enabled()].append(self.embeddings.detach())

    monkeypatch.setattr(Pooling, "states", watched)
    made = training(microbatch=5, kind=kind)
    made.model.train()
    take_step(made, checkpoint.START, 0.75)
    assert len(seen[True]) == len(seen[False]) == 3
    assert all(torch.equal(a, b) for a, b in zip(seen[True], seen[False]))
    take_step(made, checkpoint.START, 0.75)
    assert not torch.equal(seen[True][0], seen[True][3])  # the weights have moved


def one_rank(folder: Path) -> None:
    """What each of two processes does; torchrun's variables say which it is."""
    world = worlds.start()
    try:
        made = training(microbatch=4, world=world)
        done = fit(made, checkpoint.START)
        torch.save((done.targets, done.position, weights(made)), folder / f"rank-{world.rank}.pt")
    finally:
        worlds.stop(world)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    run_ranks(2, __file__, tmp_path)
    made = training()
    done = fit(made, checkpoint.START)
    ranks = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1)]
    assert ranks[0][:2] == ranks[1][:2] == (done.targets, done.position)
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][2], ranks[1][2]))
    assert_near(ranks[0][2], weights(made), 1e-5)


@pytest.mark.parametrize("look", [1, 2])
def test_a_look_that_does_not_fit_is_reported_and_leaves_nothing(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at a microbatch is without gradients, the second with them."""
    loss = CausalThenMasked.loss

    def tight(self: CausalThenMasked, *arguments: Any, **more: Any) -> Any:
        if torch.is_grad_enabled() == (look == 2) and more["position"] >= 8:
            raise torch.OutOfMemoryError("no room")
        return loss(self, *arguments, **more)

    made = training(microbatch=4)
    before = weights(made)
    with monkeypatch.context() as patch:
        patch.setattr(CausalThenMasked, "loss", tight)
        with pytest.raises(MicrobatchTooLarge):
            take_step(made, checkpoint.START, 0.75)
    assert all(parameter.grad is None for parameter in made.model.parameters())
    take_step(made, checkpoint.START, 0.75)
    other = training(microbatch=2)
    take_step(other, checkpoint.START, 0.75)
    assert_near(weights(made), weights(other), 1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(made)))


# ---------------------------------------------------------------- its place in a run


def test_the_run_reads_rows_first_and_pairs_from_the_start_of_the_finish_on() -> None:
    made, at = training(), []

    def noted(name: str) -> Any:
        inner = {"rows": long_rows, "pairs": take}[name]
        return lambda position, rows, progress: at.append((name, position, rows, progress)) or inner(position, rows)

    first, second = made.phases
    made = replace(made, phases=(replace(first, take=noted("rows")), replace(second, take=noted("pairs"))))
    done = fit(made, checkpoint.START)
    assert [name for name, *_ in at] == ["rows"] * 10 + ["pairs"] * 10
    assert [position for _, position, *_ in at] == [*range(0, 40, 4), *range(40, 160, SEQUENCES)]
    assert done.tokens == 40 * 24 + 120 * LENGTH and done.health.stage == "masked and contrastive"


def test_without_a_finish_nothing_of_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pooling, "__init__", None)
    made = training(finish=Finish())
    assert take_step(made, checkpoint.START, 1.0).contrastive is None
    with pytest.raises(TypeError):
        take_step(training(), checkpoint.START, 0.5)


def test_a_run_that_goes_on_from_another_has_the_finish_at_the_same_place_of_its_course() -> None:
    made = training(objective_start=0.4, finish=replace(FINISH, start=0.7))
    assert [at for at in (0.0, 0.4, 0.49, 0.51, 1.0) if made.finishing(at)] == [0.51, 1.0]
    assert 0.49 < made.before_finish < 0.5 and not made.finishing(made.before_finish)
    assert training(objective_start=0.8, finish=FINISH).before_finish == training(finish=Finish()).before_finish == 1.0


def test_a_step_of_the_finish_has_as_many_positions_as_one_before_it() -> None:
    assert Finish(length=64).sequences(32, 128) == 64
    assert Finish(length=64).sequences(9, 100) == 14
    assert Finish(length=64, batch=21).sequences(32, 128) == 20
    assert Finish(length=512).sequences(2, 128) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"start": 1.1}, {"start": -0.1}, {"temperature": 0.0}, {"weight": -1.0}, {"batch": -2}, {"shortest": 3},
     {"shortest": 20, "longest": 19}, {"shortest": 12, "length": 13}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Finish(**wrong)


if __name__ == "__main__":
    one_rank(Path(sys.argv[1]))
    end_rank()


def test_the_masked_loss_of_the_finish_is_compiled_where_that_of_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU this saves half of its traffic with memory."""
    monkeypatch.setattr(loss, "chunk", lambda *_: 1)  # whole chunks only are compiled
    model, batch, calls = built().train(), take(3, 6).to("cpu"), []
    model.compiled = call_block
    model.compiled_loss = lambda *tensors: calls.append(1) or loss.loss_and_gradient(*tensors)
    with torch.autocast("cpu", torch.bfloat16):
        found = WithEmbeddings(MASKED.loss).loss(model, batch, seed=4, position=3, progress=0.9)
    assert len(calls) == found.count > 0
