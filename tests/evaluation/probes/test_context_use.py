from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import ModernBertConfig, ModernBertForMaskedLM

from daybreak.evaluation.probes import context_use as module
from daybreak.evaluation.probes.context_use import measure_context_use
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds()
VOCABULARY = 64


MANY = 5000


def heldout(documents: int = 12, size: int = 100, vocabulary: int = VOCABULARY) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(10, vocabulary, documents * size)
    ends = np.arange(size, documents * size + 1, size)
    ids[ends - 1] = SPECIAL.sep
    return ids.astype(np.uint16), ends.astype(np.uint64)


class Copier(torch.nn.Module):
    """Looks for a neighbour of the masked token elsewhere in the sequence, and says which token stands beside it."""

    decoder = torch.nn.Linear(1, 1)

    def logits(self, ids: Tensor, positions: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        found = torch.zeros(*positions.shape, MANY)
        for row, places in enumerate(positions.tolist()):
            tokens = ids[row].tolist()
            for column, place in enumerate(places):
                for at in range(1, len(tokens) - 1):
                    near = any(tokens[at + i] == tokens[place + i] >= 10 for i in (-1, 1))
                    if at != place and near and tokens[at] >= 10:
                        found[row, column, tokens[at]] += 20.0
        return found


def test_a_model_that_copies_differs_from_one_that_does_not() -> None:
    stream, ends = heldout(vocabulary=MANY)
    use = measure_context_use(Copier(), stream, ends)  # type: ignore[arg-type]
    assert use is not None and use.attends_across_segments
    assert use.copy < 0.3 * use.alone and use.copy_accuracy > 0.8 > use.alone_accuracy
    assert use.copy < use.noisy_copy < use.alone

    class Blind(Copier):
        def logits(self, ids: Tensor, positions: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return torch.zeros(*positions.shape, MANY)

    blind = measure_context_use(Blind(), stream, ends)  # type: ignore[arg-type]
    assert blind is not None and not blind.attends_across_segments
    for loss in (blind.alone, blind.copy, blind.noisy_copy, *(each.loss for each in blind.visible)):
        assert loss == pytest.approx(math.log(MANY), rel=1e-6)


def test_losses_equal_those_of_stock_transformers() -> None:
    stream, ends = heldout()
    shape = ModernEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=48, init_std=0.3)
    torch.manual_seed(0)
    model = shape.build(VOCABULARY)
    stock = ModernBertForMaskedLM(
        ModernBertConfig(**shape.to_hugging_face(VOCABULARY, 128), attn_implementation="eager")
    ).eval()
    stock.load_state_dict(shape.export_weights(model), strict=False)
    use = measure_context_use(model, stream, ends)
    assert use is not None

    class Stock(torch.nn.Module):
        """One sequence at a time, so that nothing is padded."""

        decoder = torch.nn.Linear(1, 1)

        def logits(self, ids: Tensor, positions: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            rows = []
            for row in range(len(ids)):
                size = int(attention_mask[row].sum()) if attention_mask is not None else ids.shape[1]
                rows.append(stock(input_ids=ids[row : row + 1, :size]).logits[0, positions[row]])
            return torch.stack(rows)

    theirs = measure_context_use(Stock(), stream, ends)  # type: ignore[arg-type]
    assert theirs is not None
    for name in ("alone", "copy", "noisy_copy"):
        assert getattr(use, name) == pytest.approx(getattr(theirs, name), abs=1e-4)
    assert [each.loss for each in use.visible] == pytest.approx([each.loss for each in theirs.visible], abs=1e-4)
    assert [each.tokens for each in use.visible] == [2, 4, 8, module.SPAN_TOKENS - 1]


def test_the_masked_span_stands_where_it_is_looked_for() -> None:
    stream, ends = heldout()
    seen: list[tuple[list[int], list[int]]] = []

    class Recorder(Copier):
        def logits(self, ids: Tensor, positions: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            seen.extend(zip(ids.tolist(), positions.tolist()))
            return super().logits(ids, positions, attention_mask)

    measure_context_use(Recorder(), stream, ends)  # type: ignore[arg-type]
    for ids, places in seen:
        assert [place for place, token in enumerate(ids) if token == SPECIAL.mask] == places


def test_spans_are_whole_and_of_one_document() -> None:
    stream, ends = heldout(documents=3, size=70)
    spans = module._spans(stream, ends, SPECIAL)
    assert spans.shape == (6, module.SPAN_TOKENS) and not (spans == SPECIAL.sep).any()
    assert measure_context_use(Copier(), *heldout(documents=5, size=30)) is None  # type: ignore[arg-type]
    # Documents past the end of what was read are left out.
    assert len(module._spans(stream[:140], ends, SPECIAL)) == 4


def test_a_model_without_room_for_two_spans_is_not_measured() -> None:
    room = 2 * module.SPAN_TOKENS + 3
    assert measure_context_use(Copier(), *heldout(), longest=room - 1) is None  # type: ignore[arg-type]
    assert measure_context_use(Copier(), *heldout(), longest=room) is not None  # type: ignore[arg-type]
