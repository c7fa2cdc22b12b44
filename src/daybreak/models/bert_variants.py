"""Import of checkpoints that compute what a BERT computes: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT and ELECTRA.

Each function translates a ``config.json`` and a state dict into BERT's, and the run exports a BERT. The differences:

* RoBERTa and its relatives number positions from the padding id on and have one token type.
* DistilBERT has no token types and other names.
* A discriminator of ELECTRA has no masked-LM head. It gets one that training has to fit: its dense map starts as the
  identity, its norm as transformers initializes it.

Token types that the original lacks are added without effect, so that sentence pairs can be told apart in fine-tuning
with a tokenizer that does so, such as DistilBERT's.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models import bert

TYPES = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
TRANSFORM = "cls.predictions.transform."

ROBERTA = (
    (r"^roberta\.", "bert."),
    (r"^lm_head\.dense\.", f"{TRANSFORM}dense."),
    (r"^lm_head\.layer_norm\.", f"{TRANSFORM}LayerNorm."),
    (r"^lm_head\.", "cls.predictions."),
)
DISTILBERT = (
    (r"^distilbert\.", "bert."),
    (r"^bert\.transformer\.", "bert.encoder."),
    (r"\.attention\.q_lin\.", ".attention.self.query."),
    (r"\.attention\.k_lin\.", ".attention.self.key."),
    (r"\.attention\.v_lin\.", ".attention.self.value."),
    (r"\.attention\.out_lin\.", ".attention.output.dense."),
    (r"\.sa_layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.ffn\.lin1\.", ".intermediate.dense."),
    (r"\.ffn\.lin2\.", ".output.dense."),
    (r"\.output_layer_norm\.", ".output.LayerNorm."),
    (r"^vocab_transform\.", f"{TRANSFORM}dense."),
    (r"^vocab_layer_norm\.", f"{TRANSFORM}LayerNorm."),
    (r"^vocab_projector\.", "cls.predictions.decoder."),
)
ELECTRA = (
    (r"^electra\.", "bert."),
    (r"^generator_predictions\.", f"{TRANSFORM}"),
    (r"^generator_lm_head\.", "cls.predictions.decoder."),
)
DISCRIMINATOR = "discriminator_predictions."

DISTILBERT_CONFIG = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""DistilBERT's names of entries that BERT has too."""
DISTILBERT_SIZES = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
"""transformers' defaults that differ from BERT's or have another name."""


def from_roberta(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[bert.BertEncoder, bert.Bert]:
    """Build the BERT that equals a RoBERTaForMaskedLM, XLMRobertaForMaskedLM or CamembertForMaskedLM."""
    state = _renamed(weights, ROBERTA)
    first = int(config.get("pad_token_id", 1)) + 1
    if POSITIONS in state:
        state[POSITIONS] = state[POSITIONS][first:]
    if TYPES in state:
        state[TYPES] = state[TYPES][:1].repeat(2, 1)
    positions = int(config.get("max_position_embeddings", 514)) - first
    changes = {"max_position_embeddings": positions, "vocab_size": config.get("vocab_size", 50265)}
    return _as_bert(config, changes, state)


def from_distilbert(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[bert.BertEncoder, bert.Bert]:
    """Build the BERT that equals a DistilBertForMaskedLM."""
    state = _renamed(weights, DISTILBERT)
    full = DISTILBERT_SIZES | config
    state[TYPES] = torch.zeros(2, int(full["dim"]))
    return _as_bert(full, {name: full[theirs] for theirs, name in DISTILBERT_CONFIG.items() if theirs in full}, state)


def from_electra(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[bert.BertEncoder, bert.Bert]:
    """Build the BERT that equals an ElectraForMaskedLM, or the encoder of an ElectraForPreTraining with a new head."""
    hidden_size, narrow = int(config.get("hidden_size", 256)), int(config.get("embedding_size", 128))
    if narrow != hidden_size:
        raise UserError(
            f"The ELECTRA has embeddings of {narrow} dimensions and layers of {hidden_size}; only equal sizes are "
            "supported.",
            "Use a larger ELECTRA, such as its base size, or another model.",
        )
    generating = {name: tensor for name, tensor in weights.items() if not name.startswith(DISCRIMINATOR)}
    state = _renamed(generating, ELECTRA)
    if not any(name.startswith("cls.predictions.") for name in state):
        vocabulary = int(config.get("vocab_size", 30522))
        state[f"{TRANSFORM}dense.weight"] = torch.eye(hidden_size)
        state[f"{TRANSFORM}LayerNorm.weight"] = torch.ones(hidden_size)
        state |= {f"{TRANSFORM}{part}.bias": torch.zeros(hidden_size) for part in ("dense", "LayerNorm")}
        state[bert.BIAS] = torch.zeros(vocabulary)
    sizes = {"hidden_size": hidden_size, "num_attention_heads": config.get("num_attention_heads", 4)}
    return _as_bert(config, {**sizes, "intermediate_size": config.get("intermediate_size", 1024)}, state)


def _renamed(weights: dict[str, Tensor], names: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith(("bert.", "cls.")):
            raise UserError(
                f"The checkpoint holds '{name}', which is BERT's.", "Correct model_type in its config.json."
            )
        for theirs, ours in names:
            name = re.sub(theirs, ours, name)
        renamed[bert.current_name(name)] = tensor
    return renamed


def _as_bert(
    config: dict[str, Any], changes: dict[str, Any], state: dict[str, Tensor]
) -> tuple[bert.BertEncoder, bert.Bert]:
    types = len(state[TYPES]) if TYPES in state else 2
    return bert.from_hugging_face({**config, **changes, "model_type": "bert", "type_vocab_size": types}, state)
