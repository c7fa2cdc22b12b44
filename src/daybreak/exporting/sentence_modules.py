"""The files that make an exported folder a sentence-transformers model, in the format that all versions read."""

from __future__ import annotations

from typing import Any

PARTS = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
"""Folder and class of each module."""
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


def sentence_modules(hidden_size: int, length: int) -> dict[str, Any]:
    """Return file name -> JSON value.

    The embedding of a text is the normalized mean of the last hidden states including special tokens, as in the
    training of embeddings.

    Args:
        hidden_size: of the model.
        length: tokens at which texts are truncated.
    """
    return {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(PARTS)
        ],
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": hidden_size,
            **{f"pooling_mode_{mode}": mode == "mean_tokens" for mode in POOLING_MODES},
        },
        "2_Normalize/config.json": {},
    }
