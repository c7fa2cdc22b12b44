"""The way in: a stock BERT checkpoint -> our model, refused where this architecture cannot hold it exactly."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models.bert import Bert, BertEncoder, hugging_face_names

EMBEDDING, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BIAS, DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
POOLER, NEXT_HEAD = "bert.pooler.dense.", "cls.seq_relationship."
LEFT_BEHIND = re.compile(rf"{DECODER}|{DECODER_BIAS}|bert\.embeddings\.(position_ids|token_type_ids)")
"""What repeats another tensor or is a plain count."""
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
"""Transformers' names -> ours; the last two are one formula."""


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[BertEncoder, Bert]:
    """Build our model from the ``config.json`` and state dict of a BertForMaskedLM or BertForPreTraining.

    Names may lack the ``bert.`` in front, and LayerNorms may be called gamma and beta, as in checkpoints of 2018 and
    2019. The next-sentence head comes together with its pooler; one of the two alone is left behind, for masked
    language modelling reads neither.

    Raises:
        UserError: the checkpoint has parts that this architecture cannot hold (relative positions, a decoder's
            causal or cross attention, another activation, an untied decoder, unknown tensors), or lacks tensors.
    """
    state = {current_name(name): tensor for name, tensor in weights.items()}
    if not any(name.startswith("cls.predictions.") for name in state):
        raise UserError(
            "The checkpoint has no masked-language-model head.",
            "Use one saved from BertForMaskedLM or BertForPreTraining: it holds 'cls.predictions' tensors.",
        )
    shape = shape_from_hugging_face(config, next_sentence={f"{POOLER}weight", f"{NEXT_HEAD}weight"} <= set(state))
    model = Bert(shape, int(config.get("vocab_size", 30522)))
    state.setdefault(BIAS, state.get(DECODER_BIAS, torch.empty(0)))
    names = {ours: hugging_face_names(ours) for ours in model.state_dict() if ours != "output.weight"}
    _check_names({theirs for parts in names.values() for theirs in parts}, set(state))
    for copy, original in ((DECODER, EMBEDDING), (DECODER_BIAS, BIAS)):
        if not torch.equal(state.get(copy, state[original]), state[original]):
            raise UserError(f"The checkpoint's '{copy}' is not tied to '{original}'.", "Use one where it is.")
    fused = {ours: torch.cat([state[theirs].float() for theirs in parts]) for ours, parts in names.items()}
    model.load_state_dict({**fused, "output.weight": fused["embedding.weight"]})
    return shape, model


def current_name(name: str) -> str:
    """Translate the name of a tensor as old versions wrote it into what transformers calls it today."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


def _check_names(wanted: set[str], found: set[str]) -> None:
    missing = sorted(wanted - found)
    if missing:
        raise UserError(f"The checkpoint lacks '{missing[0]}'.", "Use a whole BertForMaskedLM checkpoint.")
    strange = [name for name in found - wanted if not name.startswith((POOLER, NEXT_HEAD))]
    strange = sorted(name for name in strange if not LEFT_BEHIND.fullmatch(name))
    if strange:
        raise UserError(f"The checkpoint holds '{strange[0]}', which a BERT has no place for.", "Use a plain BERT.")


def shape_from_hugging_face(config: dict[str, Any], *, next_sentence: bool) -> BertEncoder:
    """Read the shape from a stock ``config.json``; what it leaves out has transformers' default."""
    if config.get("model_type", "bert") != "bert":
        raise UserError(f"The checkpoint is a {config['model_type']!r}, not a BERT.", "Use a BERT.")
    fixed = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    for name, value in {**fixed, "tie_word_embeddings": True}.items():
        if config.get(name, value) != value:
            raise UserError(
                f"The checkpoint has {name} = {config[name]!r}; only {value!r} is known.", "Use another checkpoint."
            )
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(f"The checkpoint has hidden_act = {activation!r}, which is no GELU.", "Use another checkpoint.")
    dropout = float(config.get("hidden_dropout_prob", 0.1))
    shape = BertEncoder(
        layers=int(config.get("num_hidden_layers", 12)),
        hidden_size=int(config.get("hidden_size", 768)),
        heads=int(config.get("num_attention_heads", 12)),
        intermediate_size=int(config.get("intermediate_size", 3072)),
        positions=int(config.get("max_position_embeddings", 512)),
        segments=int(config.get("type_vocab_size", 2)),
        dropout=dropout,
        attention_dropout=float(config.get("attention_probs_dropout_prob", 0.1)),
        finetune_dropout=dropout,
        activation=ACTIVATIONS[activation],
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        next_sentence=next_sentence,
        init_std=float(config.get("initializer_range", 0.02)),
    )
    if shape.hidden_size % shape.heads:
        raise UserError(
            f"The checkpoint's hidden_size {shape.hidden_size} is no multiple of its heads.", "Use another checkpoint."
        )
    return shape
