"""Protocols: how a model is fine-tuned, so that two numbers under one name mean the same thing."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest


@dataclass(frozen=True)
class Setting:
    """What a protocol may try several of."""

    epochs: int
    rate: float
    """Peak learning rate."""
    batch: int

    def __str__(self) -> str:
        return f"{_epochs(self.epochs)}, rate {_power(self.rate)}"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the fine-tuning loop is set. The loop itself is the same for all."""

    name: str
    train_rows: int | None
    """At most this many rows of the train file: the first of a shuffle that is the same for every seed. None: all."""
    epochs: tuple[int, ...]
    batch: int
    length: int
    """Tokens a row at most, special tokens included; less where the model takes less."""
    rates: tuple[tuple[int, tuple[float, ...]], ...]
    """(width, peak learning rates): a model takes the entry with the largest width that is not above its own."""
    warmup: float
    """Share of the steps in which the learning rate rises linearly; then it falls linearly to 0."""
    weight_decay: float
    """Decoupled, on matrices only: not on norms and biases."""
    clip: float | None
    """Largest norm of the gradient; None for any."""
    dropout: float | None = None
    """Of every dropout layer that the model has; None leaves each as the model's config says."""
    reported: str = "dev"
    """The part of the headline number: dev, or test where the task has a labelled test file."""
    selection: str = "best"
    """Which of several settings counts: ``best``, or ``shortest`` (``selection.choose``)."""
    starts: tuple[tuple[str, str], ...] = ()
    """(task, task whose fine-tuned model it starts from, first seed's); the others start from the model itself."""
    seeds: int = 3
    """Fine-tunings of each task, unless the user says otherwise."""
    frozen: bool = False
    """Train the head alone; the encoder stays as it is, dropout off."""

    def settings(self, width: int, family: str) -> list[Setting]:
        """Every epoch count with every rate for a task and a model of this width. Of several, dev chooses one."""
        fitting = [rates for least, rates in self.rates if least <= width] or [self.rates[0][1]]
        return [Setting(epochs, rate, self.batch) for epochs in self.epochs for rate in fitting[-1]]

    def changed(
        self, epochs: int | None = None, rate: float | None = None, rows: int | None = None, frozen: bool = False
    ) -> Protocol:
        """The protocol with one epoch count, one peak learning rate, another number of training rows, a frozen encoder.

        The changes become part of its name, so that nothing passes for the protocol that is none.

        Raises:
            UserError: a value is out of range.
        """
        for what, value in (("epochs", epochs), ("training rows", rows)):
            if value is not None and value < 1:
                raise UserError(f"{value} {what} are too few.", "Use at least 1.")
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UserError(f"The learning rate {rate:g} is out of range.", "Use a positive number, such as 3e-4.")
        names = [self.name]
        names += [] if epochs is None else [_epochs(epochs)]
        names += [] if rate is None else [f"rate {_power(rate)}"]
        names += [] if rows is None else [f"{rows} rows"]
        names += ["frozen"] if frozen else []
        return dataclasses.replace(
            self,
            name=", ".join(names),
            epochs=self.epochs if epochs is None else (epochs,),
            rates=self.rates if rate is None else ((0, (rate,)),),
            train_rows=self.train_rows if rows is None else rows,
            frozen=frozen or self.frozen,
        )


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def _power(rate: float) -> str:
    """``0.0003`` -> ``3e-4``."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="quick",
            train_rows=2000,
            epochs=(5,),
            batch=16,
            length=128,
            rates=((0, (5e-4,)), (256, (3e-4,)), (384, (2e-4,)), (512, (1e-4,)), (768, (5e-5,))),
            warmup=0.1,
            weight_decay=0.01,
            clip=1.0,
        ),
        # Beltagy et al. 2019, arXiv:1903.10676, section 3.4, and their text_classification_finetune.json. Theirs is
        # BERT's Adam without bias correction, which clips each tensor alone; here, as everywhere, AdamW.
        Protocol(
            name="scibert",
            train_rows=None,
            epochs=(2, 3, 4, 5),
            batch=32,
            length=512,
            rates=((0, (5e-6, 1e-5, 2e-5, 5e-5)),),
            warmup=0.1,
            weight_decay=0.01,
            clip=1.0,
            dropout=0.1,
            reported="test",
            selection="shortest",
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
