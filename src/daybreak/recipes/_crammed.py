"""Trunks and training settings of the Cramming recipes, named after the configuration files of the original.

Source: JonasGeiping/cramming and its paper (Geiping and Goldstein 2022, arXiv 2212.14034).
"""

from __future__ import annotations

from dataclasses import replace

from daybreak.data.sequences.sampler import PackedRows
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.recipe import Procedure, Recipe
from daybreak.recipes import _bert, _sizes
from daybreak.training.objectives.masked import Masked
from daybreak.training.optim.optimizers import Adam, AdamW, OptimizerConfig
from daybreak.training.schedule import BudgetTriangle, Cosine, Ramp, Schedule, Trapezoid, Unfinished

Trunk = BertEncoder | CrammedEncoder
SHAPES = {
    "tiny": (2, 128, 2, 256),
    "mini": (4, 256, 4, 512),
    "small": (6, 384, 6, 768),
    "base": (16, 768, 12, 1536),
    "large": (24, 1024, 16, 2048),
}
"""Layers, hidden size, heads and intermediate size of crammed-bert; base is the paper's."""
VOCABULARY = 32_768
DECAYED = ("matrices", "embeddings", "scalars")
"""Parameters with weight decay in version 2."""
UNFILTERED = Procedure(protocol="cramming", tasks=("glue",))
"""Fine-tuning of all runs of the papers."""
FILTERED = replace(UNFILTERED, preset="crammed")
"""The same, with the filter of the final text."""


def crammed_bert(size: str, faithful: bool) -> CrammedEncoder:
    """crammed-bert, the final architecture: gated, no biases, scaled sinusoids, no head before the decoder."""
    layers, hidden_size, heads, intermediate_size = SHAPES[size]
    return CrammedEncoder(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        intermediate_size=intermediate_size,
        init_std=_sizes.init_std(hidden_size, faithful),
        position_scale=0.3 if _sizes.is_narrow(hidden_size, faithful) else 0.0,
        **_sizes.correlations(hidden_size, faithful),
    )


def crammed_simple(size: str, faithful: bool) -> CrammedEncoder:
    """crammed-bert-simple: ungated, with biases, learned positions and a head before the decoder."""
    layers, hidden_size, heads, intermediate_size = _bert.SHAPES[size]
    return CrammedEncoder(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        intermediate_size=intermediate_size,
        gated=False,
        biases=True,
        positions="learned",
        head="dense",
        final_norm=False,
        classifier_width=hidden_size,
        init_std=_sizes.init_std(hidden_size, faithful),
        **_sizes.correlations(hidden_size, faithful),
    )


def izsak(size: str, faithful: bool) -> CrammedEncoder:
    """crammed-large-izsak, after Izsak et al. 2021 (arXiv 2104.07705): BERT-large with pre-norm and dropout."""
    return replace(crammed_simple("large" if size == "base" else size, faithful), epsilon=1e-6, dropout=0.1)


def hugging_face_bert(size: str, faithful: bool, dropout: float) -> BertEncoder:
    """hf-bert-base: BertForMaskedLM."""
    return _bert.masked_only(size, faithful, dropout=dropout)


def final(name: str, trunk: Trunk, size: str, faithful: bool, *, order: str = "", budget: str = "24h") -> Recipe:
    """``bert-o4``, the training of version 2: the batch grows to 8192 over 60 % of the budget, 25 % masked."""
    return Recipe(
        name=name,
        tokenizer=WordPiece(vocabulary=_sizes.vocabulary(size, VOCABULARY), normalizer="cramming", punctuation="runs"),
        rows=PackedRows(order=order or ("full-stops" if faithful else "shuffled")),
        model=trunk,
        word_vectors=_sizes.word_vectors(trunk.hidden_size, faithful),
        objective=Masked(rate=0.25, count="fixed", protect_special=False),
        optimizer=adamw(1e-3, trunk.hidden_size, faithful),
        schedule=BudgetTriangle(base=0.25, falloff=0.25),
        length=128,
        batch=_sizes.batch(size, 8192),
        ramp=Ramp(fraction=0.6, batch_multiple=128 if size in ("base", "large") else 8),
        max_grad_norm=0.5,
        budget=budget,
    )


def adamw(rate: float, hidden_size: int, faithful: bool, *, epsilon: float = 1e-12) -> AdamW:
    return AdamW(
        lr=_sizes.rate(rate, hidden_size, faithful), beta2=0.98, epsilon=epsilon, weight_decay=0.01, decay=DECAYED
    )


UNFINISHED_WARMUP = 0.13
"""80,000 of the 600,000 microbatches of a day on a 2080 Ti (He and Hofmann 2023); the rate hardly falls afterwards."""
NO_CLIP = 1e9
"""The original configurations do not clip."""


def baseline(
    name: str,
    trunk: Trunk,
    size: str,
    faithful: bool,
    optimizer: OptimizerConfig,
    schedule: Schedule,
    *,
    batch: int,
    order: str = "",
) -> Recipe:
    """A baseline training on the same packed sequences: 15 % masked, no ramp, no clipping."""
    return replace(
        final(name, trunk, size, faithful, order=order),
        objective=Masked(rate=0.15, count="fixed", protect_special=False),
        optimizer=optimizer,
        schedule=schedule,
        ramp=Ramp(),
        batch=_sizes.batch(size, batch),
        max_grad_norm=NO_CLIP,
    )


def original(name: str, trunk: Trunk, size: str, faithful: bool, *, finished: bool, order: str = "") -> Recipe:
    """``bert-original``: Adam with L2 decay, batch 512, and a schedule of 8 million microbatches.

    Args:
        finished: fit the schedule to the budget instead.
    """
    hidden_size = trunk.hidden_size
    # The original excludes norms by a name that those of BERT have, but not those of crammed-bert.
    decays_norms = faithful and isinstance(trunk, CrammedEncoder)
    optimizer = Adam(
        lr=_sizes.bert_rate(1e-4, hidden_size, faithful),
        beta2=_sizes.bert_beta2(hidden_size, faithful),
        epsilon=1e-8,
        weight_decay=_sizes.l2_decay(0.01, hidden_size, faithful),
        decay=(*DECAYED, "norms") if decays_norms else DECAYED,
    )
    schedule: Schedule = Cosine(warmup=_sizes.bert_warmup(0.06, hidden_size, faithful))
    if not finished:
        warmup = _sizes.bert_warmup(UNFINISHED_WARMUP, hidden_size, faithful)
        schedule = Unfinished() if faithful else Trapezoid(warmup=warmup, decay=0.0)
    return baseline(name, trunk, size, faithful, optimizer, schedule, batch=512, order=order)


def budget_cosine(name: str, trunk: Trunk, size: str, faithful: bool, *, batch: int) -> Recipe:
    """``bert-base``: AdamW at 5e-4 with a cosine over the budget."""
    optimizer = adamw(5e-4, trunk.hidden_size, faithful)
    return baseline(name, trunk, size, faithful, optimizer, Cosine(warmup=30 / 900), batch=batch)


def budget_linear(name: str, trunk: Trunk, size: str, faithful: bool) -> Recipe:
    """``bert-izsak``: AdamW at 2e-3, linear over the budget, batch 4096."""
    optimizer = adamw(2e-3, trunk.hidden_size, faithful, epsilon=1e-6)
    return baseline(name, trunk, size, faithful, optimizer, Trapezoid(warmup=0.06, decay=0.94), batch=4096)
