"""Small encoders of every architecture, their stock classes, and what the tests ask them."""

from __future__ import annotations

from typing import Any

import torch
from small_models import assert_close, disturb
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM

from daybreak.core.encoder import Encoder
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modeling_crammed import CrammedConfig, CrammedForMaskedLM
from daybreak.models.modern import ModernEncoder

VOCABULARY, ROWS, LENGTH = 97, 3, 20
CRAMMED: dict[str, Any] = {"layers": 2, "hidden_size": 24, "heads": 3, "intermediate_size": 20, "init_std": 0.2}
LAYOUTS: dict[str, Any] = {
    "bert, masked only": BertEncoder(
        layers=2, hidden_size=32, heads=4, intermediate_size=40, positions=20, init_std=0.2
    ),
    "bert, next sentence": BertEncoder(
        layers=3, hidden_size=24, heads=3, intermediate_size=50, next_sentence=True, init_std=0.2
    ),
    "bert, tanh": BertEncoder(
        layers=2, hidden_size=32, heads=2, intermediate_size=64, positions=32, activation="gelu_new", epsilon=1e-5,
        init_std=0.3,
    ),
    "bert, one layer": BertEncoder(
        layers=1, hidden_size=16, heads=1, intermediate_size=16, segments=3, next_sentence=True, init_std=0.2
    ),
    "modern, global": ModernEncoder(layers=3, hidden_size=48, heads=4, intermediate_size=40, init_std=0.2),
    "modern, mixed": ModernEncoder(
        layers=5, hidden_size=48, heads=3, intermediate_size=40, global_every=3, window=10, global_rope_base=160_000.0,
        init_std=0.2,
    ),
    "modern, one global": ModernEncoder(
        layers=3, hidden_size=32, heads=2, intermediate_size=32, global_every=3, window=6, init_std=0.2
    ),
    "modern, one layer": ModernEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=32, init_std=0.2),
    "crammed, version 2": CrammedEncoder(**CRAMMED),
    "crammed, version 1": CrammedEncoder(**CRAMMED, head="square", attend_padding=True, pooling="mean"),
    "crammed, simple": CrammedEncoder(
        **CRAMMED, gated=False, biases=True, positions="learned", longest_row=32, head="dense", final_norm=False
    ),
    "crammed, one layer": CrammedEncoder(**{**CRAMMED, "layers": 1}, biases=True, epsilon=1e-6, pooling="mean"),
}  # fmt: skip
TIED = {"decoder.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
"""Tensors that repeat another one."""


def built(shape: Any, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(3)
    model = shape.build(vocabulary)
    disturb(model)
    return model.eval()


def blank_stock(shape: Any, vocabulary: int = VOCABULARY, length: int = LENGTH) -> Any:
    """The class that the export names, with weights of its own; for Cramming the one that the export contains."""
    config = shape.to_hugging_face(vocabulary, length)
    configs = {"bert": BertConfig, "modernbert": ModernBertConfig, "daybreak-crammed": CrammedConfig}
    classes = (BertForMaskedLM, BertForPreTraining, ModernBertForMaskedLM, CrammedForMaskedLM)
    (kind,) = [one for one in classes if [one.__name__] == config["architectures"]]
    more = {} if isinstance(shape, CrammedEncoder) else {"attn_implementation": "eager"}
    return kind(configs[config["model_type"]](**config, **more)).eval()


def stock_of(shape: Any, model: Encoder, length: int = LENGTH) -> Any:
    """The stock model with our weights."""
    stock = blank_stock(shape, model.vocabulary, length)
    outcome = stock.load_state_dict(shape.export_weights(model), strict=False)
    assert outcome.unexpected_keys == [] and set(outcome.missing_keys) <= TIED
    stock.tie_weights()
    return stock


def tokens(vocabulary: int = VOCABULARY, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    return torch.randint(min(5, vocabulary - 1), vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    """Rows of 20, 13 and 7 real positions."""
    return torch.arange(LENGTH)[None] < torch.tensor([[20], [13], [7]])


def two_segments() -> Tensor:
    """The second segment begins at 8, 4 and 2."""
    return (torch.arange(LENGTH)[None] >= torch.tensor([[8], [4], [2]])).long()


def assert_same_model(
    model: Any, stock: Any, ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
) -> None:
    """Masked-LM logits at the real positions, and next-sentence logits where the model has them."""
    more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
    theirs = stock(input_ids=ids, attention_mask=None if attention_mask is None else attention_mask.long(), **more)
    seen = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else attention_mask
    scores = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
    assert_close(model.logits(ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[seen], scores[seen])
    if "seq_relationship_logits" in theirs:
        first = model.states(
            ids,
            torch.zeros(len(ids), 1, dtype=torch.long),
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
        )[:, 0]
        assert_close(model.next_logits(first), theirs.seq_relationship_logits)
