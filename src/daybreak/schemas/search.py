"""Type of SEARCH/index.json, which describes the search index of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """The state of a search index; the file is rewritten after each part of the index."""

    format: int
    """Version of the files; an index of another version is built again."""
    model: str
    """Fingerprint of the exported model: weights, config and tokenizer."""
    model_stamp: str
    """Size and modification time of the weights: while they are the same, the fingerprint is not computed again."""
    data: str
    """Fingerprint of the tokens and documents of both splits."""
    data_folder: str = ""
    """Folder of the prepared data; empty for the folder ``data`` inside the run folder."""
    most_tokens: int
    """Tokens of a passage at most."""
    precision: str
    """In which the passages are embedded: float32 or bfloat16."""
    passages: int
    hidden_size: int
    """Numbers of a vector."""
    embedded: int = 0
    """Passages whose vectors are on disk."""
    has_bm25: bool = False
    """Whether the BM25 index is on disk."""
    dense_weight: float | None = None
    """Weight of the vectors beside BM25 in hybrid search, measured on passages of the index; None until it is."""
