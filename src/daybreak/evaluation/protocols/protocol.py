"""The type of a fine-tuning protocol, and the settings that it gives each task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.task import Task

_Value = TypeVar("_Value")
FROZEN_RATE = 1e-3
"""Default peak learning rate of a head on a frozen encoder; Beltagy et al. 2019 use it for a BiLSTM."""


@dataclass(frozen=True)
class Setting:
    """One set of hyperparameters of a fine-tuning."""

    epochs: int
    rate: float
    """Peak learning rate."""
    batch: int
    weight_decay: float | None = None
    """Weight decay of this task, if it differs from the protocol's."""

    def __str__(self) -> str:
        return f"{_epochs(self.epochs)}, rate {_power(self.rate)}"


@dataclass(frozen=True, kw_only=True)
class Own:
    """The settings of one task that differ from the protocol's; None keeps the protocol's."""

    epochs: int | None = None
    rate: float | None = None
    batch: int | None = None
    weight_decay: float | None = None
    seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of the fine-tuning loop: AdamW, rows shuffled by seed, scores after the last epoch."""

    name: str
    train_rows: int | None = None
    """Most training rows, the first of a shuffle that is the same for every seed. None: all."""
    epochs: tuple[int, ...]
    batch: int
    length: int
    """Most tokens of a sequence, special tokens included; less if the model takes less."""
    rates: tuple[tuple[int, tuple[float, ...]], ...]
    """(hidden size, peak learning rates): the entry with the largest hidden size up to the model's applies."""
    warmup: float
    """Fraction of the steps with linear warm-up."""
    shape: str = "linear"
    """Shape of the decay to 0: ``linear`` or ``cosine``."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    """Epsilon of AdamW."""
    weight_decay: float
    """Decoupled, times the learning rate, on matrices only: not on norms and biases."""
    layer_decay: tuple[tuple[int, float], ...] = ()
    """(hidden size, factor), read like ``rates``: layer-wise decay of the learning rate. Empty: none."""
    max_grad_norm: float | None
    """Largest norm of the gradient; None for no clipping."""
    dropout: float | None = None
    """Probability of every dropout layer of the model; None keeps the config's."""
    drop_last: bool = False
    """Drop the rows that do not fill a batch, chosen at random in each epoch."""
    own: tuple[tuple[str, Own], ...] = ()
    """(task family, its settings)."""
    reported: str = "dev"
    """The reported part: dev, or test if the task has a labeled test file."""
    selection: str = "best"
    """Which of several settings is reported: ``best`` or ``shortest`` (``task_evaluation.select_setting``)."""
    starts: tuple[tuple[str, str], ...] = ()
    """(task, task whose fine-tuned model of the first seed it starts from); other tasks start from the model."""
    seeds: int = 3
    """Default number of fine-tunings of each task."""
    frozen: bool = False
    """Train the head only, with the encoder frozen and its dropout off."""
    heads: tuple[tuple[str, str], ...] = ()
    """(task type as in ``kinds.task_type``, a name of ``heads.HEADS``); other types have the stock head."""
    distillation: tuple[tuple[str, float], ...] = ()
    """(task type, weight w): the training targets are (1 - w) times the label plus w times the probabilities that the
    bag of words gives to rows that it was not fitted on (soft targets: Hinton et al. 2015, arXiv:1503.02531). Rows
    without labels have these probabilities as targets. Other types learn from the labels alone."""
    precision: str = "float32"
    """Arithmetic of training on a CPU: ``float32``, or ``fast`` for bfloat16 if it is measured to be faster.
    Predictions are always computed in float32."""

    def for_task(self, task: Task) -> Protocol:
        """Return the protocol of one task: with its own head and distillation only."""
        type = _type_of(task)
        return dataclasses.replace(
            self,
            heads=tuple(pair for pair in self.heads if pair[0] == type),
            distillation=tuple(pair for pair in self.distillation if pair[0] == type),
        )

    def head_of(self, task: Task) -> str:
        """Return the head of a task, a name of ``heads.HEADS``; a number for a single text has nothing to compare."""
        head = dict(self.heads).get(_type_of(task), "stock")
        return "mean" if head == "segments" and len(task.text) == 1 else head

    def distillation_of(self, task: Task) -> float:
        """Return the weight of the bag of words in the training targets of a task."""
        return dict(self.distillation).get(_type_of(task), 0.0)

    def settings(self, hidden_size: int, family: str) -> list[Setting]:
        """Return all combinations of epochs and rates for a task and a hidden size; the dev score selects one."""
        own = self._own(family)
        return [
            Setting(epochs, rate, own.batch or self.batch, own.weight_decay)
            for epochs in ((own.epochs,) if own.epochs else self.epochs)
            for rate in ((own.rate,) if own.rate else _fitting(self.rates, hidden_size))
        ]

    def check_starts(self, tasks: Sequence[Task]) -> None:
        """Raise UserError if a task starts from the model of a task that is not among ``tasks``."""
        starts = dict(self.starts)
        learned = {name for task in tasks if task.whole not in starts for name in (task.whole, task.name)}
        for task in tasks:
            if task.whole in starts and (needed := starts[task.whole]) not in learned:
                raise UserError(
                    f"Under the protocol {self.name}, {task.name} starts from a model that learned {needed}.",
                    f"Add {needed} to --tasks, or choose another protocol.",
                )

    def seeds_of(self, family: str) -> int:
        """Return the default number of fine-tunings of a task of this family."""
        return self._own(family).seeds or self.seeds

    def decay_of(self, setting: Setting) -> float:
        return self.weight_decay if setting.weight_decay is None else setting.weight_decay

    def layer_decay_at(self, hidden_size: int) -> float:
        """Return the layer-wise decay factor for a hidden size; 1.0 for none."""
        return _fitting(self.layer_decay, hidden_size) if self.layer_decay else 1.0

    def recorded(self, setting: Setting, hidden_size: int, type: str = "") -> dict[str, float]:
        """Return the hyperparameters that the result of a task of this type records."""
        found = {
            "learning_rate": setting.rate,
            "epochs": setting.epochs,
            "batch": setting.batch,
            "warmup": self.warmup,
            "weight_decay": self.decay_of(setting),
            "beta1": self.betas[0],
            "beta2": self.betas[1],
            "eps": self.eps,
            "layer_decay": self.layer_decay_at(hidden_size) if self.layer_decay else None,
            "max_grad_norm": self.max_grad_norm,
            "dropout": self.dropout,
            "distillation": dict(self.distillation).get(type),
            "most_train_rows": self.train_rows,
        }
        return {name: value for name, value in found.items() if value is not None}

    def changed(
        self, epochs: int | None = None, rate: float | None = None, rows: int | None = None, frozen: bool = False
    ) -> Protocol:
        """Return the protocol with other epochs, peak learning rate or training rows, or with a frozen encoder.

        The changes apply to every task and become part of the name. ``rows`` 0 means all rows. With a frozen encoder
        the default rate is FROZEN_RATE.

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
            train_rows=self.train_rows if rows is None else rows or None,
            frozen=frozen or self.frozen,
        )

    def _own(self, family: str) -> Own:
        return dict(self.own).get(family, Own())


def _type_of(task: Task) -> str:
    # Kinds import torch, and protocols are read by commands that start without it.
    from daybreak.evaluation.tasks.kinds import task_type

    return task_type(task)


def _fitting(table: tuple[tuple[int, _Value], ...], hidden_size: int) -> _Value:
    """Return the entry with the largest hidden size up to ``hidden_size``, or the first."""
    return ([value for least, value in table if least <= hidden_size] or [table[0][1]])[-1]


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def _power(rate: float) -> str:
    """``0.0003`` -> ``3e-4``."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"
