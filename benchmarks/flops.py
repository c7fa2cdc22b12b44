"""Count the floating-point operations of a training step from the shapes of its matrix products.

    python benchmarks/flops.py        the flagship family at 128 and 512 tokens

The count includes matrix products, 2 m n k each, and full attention (also for causal attention, of which kernels may
skip half). It excludes embedding look-up, norms, rotary positions, softmax and optimizer. A training step costs three
forward passes, because each product has two of its size in the backward pass. Daybreak computes the last layer's
queries, its gated unit and the head at the masked positions only; the other positions are not counted.

L positions, K masked positions, D hidden size, I intermediate size, V vocabulary; all numbers are per sequence.
"""

from __future__ import annotations

import measure

from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe, load_recipe, recipe_names
from daybreak.training.objectives.objective import CausalThenMasked

BACKWARD = 2
"""Products of the backward pass for each one of the forward pass."""


def gated_layer(shape: ModernEncoder, length: int, asked: int) -> int:
    """One layer with a gated unit: keys and values at all positions, everything else at ``asked`` positions."""
    keys_values = 2 * length * shape.hidden_size * 2 * shape.hidden_size
    queries_out = 2 * asked * shape.hidden_size * 2 * shape.hidden_size
    attention = 2 * 2 * asked * length * shape.hidden_size
    unit = 2 * asked * shape.hidden_size * 3 * shape.intermediate_size
    return keys_values + queries_out + attention + unit


def modern_forward(shape: ModernEncoder, vocabulary: int, length: int, *, asked: int, targets: int) -> int:
    """One ModernBERT sequence: last layer and head at ``asked`` positions, the decoder at ``targets``."""
    layers = (shape.layers - 1) * gated_layer(shape, length, length) + gated_layer(shape, length, asked)
    head = 2 * asked * shape.hidden_size * shape.hidden_size
    return layers + head + 2 * targets * shape.hidden_size * vocabulary


def bert_forward(layers: int, width: int, inner: int, vocabulary: int, length: int) -> int:
    """One BERT sequence of transformers, with the masked-LM head at every position."""
    layer = 2 * length * 4 * width * width + 2 * 2 * length * length * width + 2 * length * 2 * width * inner
    return layers * layer + 2 * length * width * width + 2 * length * width * vocabulary


def asked_and_targets(recipe: Recipe, length: int, progress: float) -> tuple[int, int]:
    """Number of positions that the last layer and the decoder compute at ``progress``."""
    objective = recipe.objective
    assert isinstance(objective, CausalThenMasked)
    if objective.stage(progress) == "masked":
        asked = targets = max(1, round(objective.mask_rate(progress) * length))
    elif objective.causal_targets >= 1.0:
        asked, targets = length, length - 1
    else:
        asked = targets = max(1, round(objective.causal_targets * (length - 1)))
    return asked, targets


def step_forward(recipe: Recipe, vocabulary: int, length: int, progress: float) -> int:
    """One sequence of Daybreak's training step at ``progress``."""
    assert isinstance(recipe.model, ModernEncoder)
    asked, targets = asked_and_targets(recipe, length, progress)
    return modern_forward(recipe.model, vocabulary, length, asked=asked, targets=targets)


def training(forward: int) -> int:
    """Forward and backward pass."""
    return (1 + BACKWARD) * forward


def main() -> None:
    chosen = measure.parser(__doc__).parse_args()
    head = ["MFLOP a token", "tokens", "causal", "masked 30 %", "masked 15 %", "stock ModernBERT", "stock BERT"]
    rows, lines = [], []
    for name in recipe_names():
        recipe = load_recipe(name)
        shape = recipe.model
        if not isinstance(shape, ModernEncoder):
            continue
        vocabulary = recipe.tokenizer.vocabulary
        for length in (128, 512):
            stock = modern_forward(shape, vocabulary, length, asked=length, targets=length)
            bert = bert_forward(shape.layers, shape.hidden_size, 4 * shape.hidden_size, vocabulary, length)
            ours = [step_forward(recipe, vocabulary, length, progress) for progress in (0.0, 0.5, 1.0)]
            per_token = [training(forward) / length / 1e6 for forward in (*ours, stock, bert)]
            rows.append([name, str(length), *(f"{value:.1f}" for value in per_token)])
            lines.append(dict(zip(head, [name, length, *per_token])))
    print(measure.table(head, rows))
    if chosen.out:
        measure.write_json(chosen.out, lines)


if __name__ == "__main__":
    main()
