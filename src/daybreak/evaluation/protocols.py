"""Protocols: how a model is fine-tuned, so that two numbers under one name mean the same thing."""

from __future__ import annotations

from dataclasses import dataclass

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Settings of the fine-tuning loop. The loop itself is the same for all."""

    name: str
    train_rows: int
    """At most this many rows of the train file: the first of a shuffle that is the same for every seed."""
    epochs: int
    batch: int
    length: int
    """Tokens a row at most, special tokens included; less where the model takes less."""
    learning_rates: tuple[tuple[int, float], ...]
    """(width, peak learning rate): a model takes the entry with the largest width that is not above its own."""
    warmup: float
    """Share of the steps in which the learning rate rises linearly; then it falls linearly to 0."""
    weight_decay: float
    """Decoupled, on matrices only: not on norms and biases."""
    clip: float
    """Largest norm of the gradient."""
    selection: str

    def learning_rate(self, width: int) -> float:
        fitting = [rate for least, rate in self.learning_rates if least <= width]
        return fitting[-1] if fitting else self.learning_rates[0][1]


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="quick",
            train_rows=2000,
            epochs=5,
            batch=16,
            length=128,
            learning_rates=((0, 5e-4), (256, 3e-4), (384, 2e-4), (512, 1e-4), (768, 5e-5)),
            warmup=0.1,
            weight_decay=0.01,
            clip=1.0,
            selection="after the last epoch",
        ),
    )
}


def find_protocol(name: str) -> Protocol:
    """Return the protocol ``name``.

    Raises:
        UserError: there is none of that name.
    """
    if name not in PROTOCOLS:
        raise UserError(
            f"There is no protocol '{name}'.{nearest(name, PROTOCOLS)}", f"Use one of: {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[name]
