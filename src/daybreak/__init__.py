"""Daybreak trains a text encoder within a time budget and exports it for Hugging Face transformers.

The functions of the commands are imported at their first use, so ``import daybreak`` loads neither torch nor numpy:

    import daybreak

    daybreak.prepare(["texts/"], "data/mine")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daybreak.commands.evaluate import evaluate
    from daybreak.commands.export import export
    from daybreak.commands.predict import predict
    from daybreak.commands.prepare import prepare
    from daybreak.commands.pretrain import pretrain
    from daybreak.commands.report import report
    from daybreak.commands.run import run
    from daybreak.commands.search import search
    from daybreak.commands.study import study
    from daybreak.recipe import load_recipe

__version__ = "0.2.0"

__all__ = [
    "__version__", "evaluate", "export", "load_recipe", "predict", "prepare", "pretrain", "report", "run", "search",
    "study",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'daybreak' has no attribute '{name}'")
    module = "daybreak.recipe" if name == "load_recipe" else f"daybreak.commands.{name}"
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
