"""What a protocol is: how the one fine-tuning loop is set, and which of several settings a task takes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TypeVar

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.task import Task, task_type

_Value = TypeVar("_Value")
FROZEN_RATE = 1e-3
"""Peak learning rate of a head on a frozen encoder, unless one is given; Beltagy et al. 2019 take it for a BiLSTM."""


@dataclass(frozen=True)
class Setting:
    """One way in which a protocol fine-tunes a model on a task."""

    epochs: int
    rate: float
    """Peak learning rate."""
    batch: int
    weight_decay: float | None = None
    """In place of the protocol's, where the task has its own."""

    def __str__(self) -> str:
        return f"{_epochs(self.epochs)}, rate {_power(self.rate)}"


@dataclass(frozen=True, kw_only=True)
class Own:
    """What a protocol does otherwise for one task; None is as for the others."""

    epochs: int | None = None
    rate: float | None = None
    batch: int | None = None
    weight_decay: float | None = None
    seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the one fine-tuning loop is set: AdamW, rows shuffled by seed, scores after the last epoch."""

    name: str
    train_rows: int | None = None
    """At most this many rows of the train file: the first of a shuffle that is the same for every seed. None: all."""
    epochs: tuple[int, ...]
    batch: int
    length: int
    """Tokens a row at most, special tokens included; less where the model takes less."""
    rates: tuple[tuple[int, tuple[float, ...]], ...]
    """(width, peak learning rates): a model takes the entry with the largest width that is not above its own."""
    warmup: float
    """Share of the steps in which the learning rate rises linearly."""
    shape: str = "linear"
    """How the learning rate then falls to 0: ``linear``, or ``cosine`` for half a wave."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    """Of AdamW."""
    weight_decay: float
    """Decoupled, times the learning rate, on matrices only: not on norms and biases."""
    layer_decay: tuple[tuple[int, float], ...] = ()
    """(width, factor), read as ``rates``: a layer learns slower by it than the one above. Empty: all alike."""
    clip: float | None
    """Largest norm of the gradient; None for any."""
    dropout: float | None = None
    """Of every dropout layer that the model has; None leaves each as the model's config says."""
    drop_last: bool = False
    """Leave out of each epoch the rows that do not fill a batch, other ones each time."""
    own: tuple[tuple[str, Own], ...] = ()
    """(task family, what is otherwise there)."""
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
    by_type: tuple[tuple[str, Own], ...] = ()
    """(task type, what is otherwise there); the types are those of ``tasks.task_type``. ``own`` comes before it."""
    heads: tuple[tuple[str, str], ...] = ()
    """(task type, a name of ``heads.HEADS``); the others have the stock head."""
    both_orders: bool = False
    """Train on both orders of each pair whose order means nothing, and average the answers over both."""
    precision: str = "float32"
    """Arithmetic of training on a CPU: ``float32``, or ``fast`` for bfloat16 where that is measured to be faster.
    Predictions are always computed in float32."""

    def for_task(self, task: Task) -> Protocol:
        """The protocol as one task takes it: its one head, and both orders only where its pairs have none."""
        name = dict(self.heads).get(task_type(task))
        return dataclasses.replace(
            self,
            heads=((task_type(task), name),) if name else (),
            both_orders=self.both_orders and task.symmetric,
        )

    def head_of(self, task: Task) -> str:
        """The head for a task, a name of ``heads.HEADS``."""
        return dict(self.heads).get(task_type(task), "stock")

    def settings(self, width: int, family: str, type: str = "") -> list[Setting]:
        """Every epoch count with every rate for a task and a model of this width. Of several, dev chooses one."""
        own = self._own(family, type)
        return [
            Setting(epochs, rate, own.batch or self.batch, own.weight_decay)
            for epochs in ((own.epochs,) if own.epochs else self.epochs)
            for rate in ((own.rate,) if own.rate else _fitting(self.rates, width))
        ]

    def seeds_of(self, family: str) -> int:
        """Fine-tunings of a task of this family, unless the user says otherwise."""
        return self._own(family).seeds or self.seeds

    def decay_of(self, setting: Setting) -> float:
        """The weight decay under ``setting``."""
        return self.weight_decay if setting.weight_decay is None else setting.weight_decay

    def layer_decay_at(self, width: int) -> float:
        """The factor between neighbouring layers of a model of this width; 1.0 where all learn alike."""
        return _fitting(self.layer_decay, width) if self.layer_decay else 1.0

    def recorded(self, setting: Setting, width: int) -> dict[str, float]:
        """What a result says of how it came about: the numbers of ``setting`` and of the protocol at this width."""
        told = {
            "learning_rate": setting.rate,
            "epochs": setting.epochs,
            "batch": setting.batch,
            "warmup": self.warmup,
            "weight_decay": self.decay_of(setting),
            "beta1": self.betas[0],
            "beta2": self.betas[1],
            "eps": self.eps,
            "layer_decay": self.layer_decay_at(width) if self.layer_decay else None,
            "max_grad_norm": self.clip,
            "dropout": self.dropout,
            "most_train_rows": self.train_rows,
        }
        return {name: value for name, value in told.items() if value is not None}

    def changed(
        self, epochs: int | None = None, rate: float | None = None, rows: int | None = None, frozen: bool = False
    ) -> Protocol:
        """The protocol with one epoch count, one peak learning rate, another number of training rows, a frozen encoder.

        The changes hold for every task and become part of the name, so that nothing passes for the protocol that is
        none. Where ``rows`` is 0, all are taken. With a frozen encoder the rate is FROZEN_RATE, unless one is given.

        Raises:
            UserError: a value is out of range.
        """
        for what, value in (("epochs", epochs), ("training rows", rows or None)):
            if value is not None and value < 1:
                raise UserError(f"{value} {what} are too few.", "Use at least 1.")
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UserError(f"The learning rate {rate:g} is out of range.", "Use a positive number, such as 3e-4.")
        names = [self.name]
        names += [] if epochs is None else [_epochs(epochs)]
        names += [] if rate is None else [f"rate {_power(rate)}"]
        names += [] if rows is None else [f"{rows} rows" if rows else "all rows"]
        names += ["frozen"] if frozen else []
        rate = FROZEN_RATE if frozen and rate is None else rate
        overruled = {name: None for name, value in (("epochs", epochs), ("rate", rate)) if value is not None}
        return dataclasses.replace(
            self,
            name=", ".join(names),
            epochs=self.epochs if epochs is None else (epochs,),
            rates=self.rates if rate is None else ((0, (rate,)),),
            own=tuple((family, dataclasses.replace(each, **overruled)) for family, each in self.own),
            by_type=tuple((type, dataclasses.replace(each, **overruled)) for type, each in self.by_type),
            train_rows=self.train_rows if rows is None else rows or None,
            frozen=frozen or self.frozen,
        )

    def _own(self, family: str, type: str = "") -> Own:
        """What holds for the family, and where that says nothing, for the type."""
        general, special = dict(self.by_type).get(type, Own()), dict(self.own).get(family, Own())
        said = {name: value for name, value in vars(special).items() if value is not None}
        return dataclasses.replace(general, **said)


def _fitting(table: tuple[tuple[int, _Value], ...], width: int) -> _Value:
    """The entry with the largest width that is not above ``width``, or the first."""
    return ([value for least, value in table if least <= width] or [table[0][1]])[-1]


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def _power(rate: float) -> str:
    """``0.0003`` -> ``3e-4``."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"
