"""The language of a document, by a fastText model in a file of the user's: lid.176.bin, GlotLID or one of his own.

A model is never fetched. Rules of the project on pretrained models (RULES.md, Data) concern such a filter too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.data.filters.filter import Context, DocumentFilter, FilterFunction, missing_extra

LABEL = "__label__"
LONGEST_IDENTIFIED = 1 << 16
"""Characters at the beginning of a document that its language is told by."""
OTHER, UNSURE = "another language", "language not certain"


class _Model:
    """A fastText model that remembers its last answer: the step and the corpus report ask of the same text."""

    def __init__(self, model: Any):
        self.names = {label.removeprefix(LABEL) for label in model.labels}
        self._predict = model.predict
        self._last: tuple[str, dict[str, float]] | None = None

    def scores(self, text: str) -> dict[str, float]:
        """Language -> probability, most likely first, as datatrove asks its models: line breaks are spaces."""
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
    """One for all parts that a process reads."""
    try:
        from fasttext.FastText import _FastText  # an extra; the public name warns on each load
    except ImportError:
        raise missing_extra("Telling languages apart", "fasttext-numpy2-wheel") from None
    try:
        return _Model(_FastText(str(path)))
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"'{path}' is no fastText model: {reason(error)}.", "Give one in fastText's own .bin or .ftz form."
        ) from None


def open_identifier(model: str) -> Callable[[str], str]:
    """Load ``model``; return a function that tells the likeliest language of a text, as the model names it.

    Raises:
        UserError: the model, or the library that reads it, is not there.
    """
    loaded = _load(model)

    def identify(text: str) -> str:
        return next(iter(loaded.scores(text)), "")

    return identify


@dataclass(frozen=True, kw_only=True)
class Language(DocumentFilter):
    """Keeps documents in the languages asked for, told by a fastText model (Joulin et al. 2016, arXiv 1607.01759).

    As in FineWeb (Penedo et al. 2024): a document stays if one of ``languages`` has a probability above ``least``.
    """

    memory: ClassVar[str] = "the model: about 130 MB for lid.176.bin, 1.6 GB for GlotLID"

    model: str
    """The path of a fastText model."""
    languages: tuple[str, ...]
    """As the model names them: en, or eng_Latn; eng is enough for eng_Latn."""
    least: float = 0.65

    def __post_init__(self) -> None:
        if not self.languages:
            raise UserError("No language to keep was named.", "Name one or more, as the model does.")

    def why(self) -> str:
        return f"documents in other languages than {', '.join(self.languages)}, told by '{Path(self.model).name}'"

    def open(self, context: Context) -> FilterFunction:
        model = _load(self.model)
        wanted = {name for name in model.names if name in self.languages or name.partition("_")[0] in self.languages}
        for language in self.languages:
            if language not in wanted | {name.partition("_")[0] for name in wanted}:
                raise UserError(
                    f"The model '{self.model}' knows no language '{language}'.{nearest(language, model.names)}",
                    f"Use its names, such as {', '.join(sorted(model.names)[:5])}.",
                )

        def evaluate(text: str) -> str | None:
            scores = model.scores(text)
            if any(scores.get(name, 0.0) > self.least for name in wanted):
                return None
            return UNSURE if next(iter(scores), "") in wanted else OTHER

        return evaluate
