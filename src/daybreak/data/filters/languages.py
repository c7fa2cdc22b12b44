"""Identify the language of a document with a local fastText model, such as lid.176.bin or GlotLID.

No model is downloaded. The rules on pretrained models (RULES.md, Data) apply to this filter too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction, missing_extra

LABEL = "__label__"
LONGEST_IDENTIFIED = 1 << 16
"""Characters at the beginning of a document from which its language is identified."""
OTHER, UNSURE = "another language", "language not certain"


class _Model:
    """A fastText model that caches its last result, because the filter and the corpus report use the same text."""

    def __init__(self, model: Any):
        self.names = {label.removeprefix(LABEL) for label in model.labels}
        self._predict = model.predict
        self._last: tuple[str, dict[str, float]] | None = None

    def scores(self, text: str) -> dict[str, float]:
        """Return language -> probability, most likely first; line breaks become spaces, as in datatrove."""
        beginning = text[:LONGEST_IDENTIFIED].replace("\n", " ")
        if self._last is None or self._last[0] != beginning:
            labels, scores = self._predict(beginning, k=-1)
            found = {label.removeprefix(LABEL): float(score) for label, score in zip(labels, scores, strict=True)}
            self._last = beginning, found
        return self._last[1]


def _load(model: str) -> _Model:
    path = Path(os.path.expanduser(model))
    if not path.is_file():
        raise UserError(
            f"There is no language model '{model}'.", "Give the path of a fastText model, such as lid.176.bin."
        )
    return _loaded(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> _Model:
    """Load a model; cached for all parts that a process reads."""
    try:
        from fasttext.FastText import _FastText  # an extra; the public name warns on each load
    except ImportError:
        raise missing_extra("Language identification", "fasttext-numpy2-wheel") from None
    try:
        return _Model(_FastText(str(path)))
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"'{path}' is not a fastText model: {reason(error)}.", "Give a fastText .bin or .ftz file."
        ) from None


def open_identifier(model: str) -> Callable[[str], str]:
    """Load ``model``; return a function from a text to its most likely language, as named by the model."""
    loaded = _load(model)

    def identify(text: str) -> str:
        return next(iter(loaded.scores(text)), "")

    return identify


@dataclass(frozen=True, kw_only=True)
class Language(DocumentFilter):
    """Keeps documents in the given languages, identified by a fastText model (Joulin et al. 2016, arXiv 1607.01759).

    As in FineWeb (Penedo et al. 2024), a document is kept if one of ``languages`` has a probability above ``least``.
    Memory: the model, about 130 MB for lid.176.bin and 1.6 GB for GlotLID.
    """

    model: str
    """The path of a fastText model."""
    languages: tuple[str, ...]
    """Names of the model, such as en or eng_Latn; eng also selects eng_Latn."""
    least: float = 0.65

    def __post_init__(self) -> None:
        if not self.languages:
            raise UserError("No language was given.", "Name one or more, as the model does.")

    def why(self) -> str:
        return f"documents in other languages than {', '.join(self.languages)}, found by '{Path(self.model).name}'"

    def open(self, context: Context) -> FilterFunction:
        model = _load(self.model)
        wanted = {name for name in model.names if name in self.languages or name.partition("_")[0] in self.languages}
        for language in self.languages:
            if language not in wanted | {name.partition("_")[0] for name in wanted}:
                raise UserError(
                    f"The model '{self.model}' has no language '{language}'.{nearest(language, model.names)}",
                    f"Use its names, such as {', '.join(sorted(model.names)[:5])}.",
                )

        def evaluate(text: str) -> str | None:
            scores = model.scores(text)
            if any(scores.get(name, 0.0) > self.least for name in wanted):
                return None
            return UNSURE if next(iter(scores), "") in wanted else OTHER

        return evaluate
