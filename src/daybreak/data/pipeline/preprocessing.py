"""Settings of the preprocessing: preset, filters, contamination checks and the mixture of sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.serialization import to_dict
from daybreak.data.filters.compressibility import SELF, Compressibility
from daybreak.data.filters.contamination import EvaluationText
from daybreak.data.filters.custom_filters import CustomFilter, custom_filters
from daybreak.data.filters.filter import DocumentFilter, Filter
from daybreak.data.filters.languages import Language
from daybreak.data.filters.presets import PLAIN, preset_filters
from daybreak.data.tokenizers.tokenizer import tokenizer_fingerprint

MOST_EPOCHS = 1000


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a text is cleaned and mixed."""

    preset: str = PLAIN
    """Filter preset: plain, books, web or crammed."""
    filters: str = ""
    """A Python file that defines your own filters, which run after those of the preset."""
    evaluation: tuple[str, ...] = ()
    """Files of evaluation texts to search for in the corpus."""
    remove_evaluation: bool = False
    """Remove documents that contain evaluation text."""
    language_model: str = ""
    """File of a fastText model that identifies the language of a document."""
    languages: tuple[str, ...] = ()
    """Codes of the languages to keep."""
    filter_tokenizer: str = SELF
    """For the preset crammed: a tokenizer folder, or self to train one on the text before filtering."""
    epochs: tuple[float, ...] = ()
    """Number of times that the documents of each input are repeated in the training text; empty for once."""
    weights: tuple[float, ...] = ()
    """Weight of each input in the training text; inputs that are too small are repeated."""
    advise: bool = False
    """Recommend a vocabulary size; trains a second tokenizer on a few megabytes."""
    show_text: bool = False
    """Store examples of removed documents in corpus.json."""

    def __post_init__(self) -> None:
        for name in ("evaluation", "languages"):  # one name alone is not its letters
            value = getattr(self, name)
            object.__setattr__(self, name, (str(value),) if isinstance(value, Path | str) else tuple(map(str, value)))
        for name in ("epochs", "weights"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, int | float) else tuple(value))

    def check(self, inputs: int, *, trains: bool) -> None:
        """Check settings that depend on each other, on the number of inputs, or on whether a tokenizer is trained."""
        if self.epochs and self.weights:
            raise UserError("--epochs and --weights cannot be combined.", "Give one of them.")
        for name, values in (("--epochs", self.epochs), ("--weights", self.weights)):
            if values and len(values) != inputs:
                raise UserError(
                    f"{name} has {len(values)} numbers for {inputs} inputs.", "Give one for each, in their order."
                )
            if values and not (all(0 <= value <= MOST_EPOCHS for value in values) and any(values)):
                raise UserError(f"{name} cannot be {', '.join(map(str, values))}.", "Give numbers from 0 to 1000.")
        if self.remove_evaluation and not self.evaluation:
            raise UserError("There is no evaluation text to remove.", "Name its files with --evaluation.")
        if self.advise and not trains:
            raise UserError("An imported tokenizer has a fixed vocabulary size.", "Omit --advise.")

    def unused(self, inputs: Sequence[str]) -> set[str]:
        """The inputs that are not in the training text, by their number of repetitions or their weight."""
        return {given for given, times in zip(inputs, self.epochs or self.weights) if times == 0}

    def check_sources(self, given: Sequence[str], owners: set[str]) -> None:
        """Check that each number of a mixture refers to one input, of which files are left in ``owners``."""
        if not self.mixes:
            return
        for place, one in enumerate(given):
            if one in given[:place] or one not in owners:
                raise UserError(f"All of '{one}' is in other inputs too.", "Name each text once to mix sources.")

    def all_filters(self) -> tuple[Filter, ...]:
        """Return all filters in order: of documents, evaluation text, of the corpus. Reads the user's filter file."""
        if bool(self.languages) != bool(self.language_model):
            raise UserError(
                "Language filtering needs a model and languages.",
                "Give both --languages and --language-model, or neither of them.",
            )
        language = Language(model=self.language_model, languages=self.languages) if self.languages else None
        found = list(preset_filters(self.preset, language))
        if self.filter_tokenizer != SELF:
            if not any(isinstance(step, Compressibility) for step in found):
                raise UserError(f"The preset {self.preset} does not use a tokenizer.", "Leave --filter-tokenizer out.")
            found = [
                replace(step, tokenizer=self.filter_tokenizer) if isinstance(step, Compressibility) else step
                for step in found
            ]
        document_filters = [step for step in found if isinstance(step, DocumentFilter)]
        corpus_filters = [step for step in found if not isinstance(step, DocumentFilter)]
        own = custom_filters(self.filters) if self.filters else ()
        evaluation = [EvaluationText(paths=self.evaluation)] if self.evaluation else []
        return (*document_filters, *own, *evaluation, *corpus_filters)

    def identity(self, filters: Sequence[Filter], *, by_content: bool = False) -> Any:
        """Return a plain value that identifies this preprocessing and ``all_filters``, with the files that it names.

        Args:
            by_content: read all of the language model, which is else identified by its path, size and time of change.
        """
        beside: list[Any] = []
        try:
            for path in (*self.evaluation, *([self.language_model] if self.language_model and by_content else [])):
                with Path(os.path.expanduser(path)).open("rb") as file:
                    beside.append(hashlib.file_digest(file, "blake2b").hexdigest())
            if self.language_model and not by_content:  # may be gigabytes
                model = Path(os.path.expanduser(self.language_model)).resolve()
                beside.append([str(model), model.stat().st_size, model.stat().st_mtime_ns])
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            raise UserError(f"'{error.filename}' cannot be read: {why}.", "Check the path.") from None
        if self.filter_tokenizer != SELF:
            beside.append(tokenizer_fingerprint(Path(os.path.expanduser(self.filter_tokenizer))))
        beside += [step.digest for step in filters if isinstance(step, CustomFilter)][:1]
        plain = to_dict(replace(self, evaluation=(), language_model="", filter_tokenizer=SELF))
        del plain["filters"]
        plain["case"] = plain.pop("preset")  # its name in the version before, whose folders are still recognized
        return [plain, beside]

    @property
    def mixes(self) -> bool:
        """Whether inputs may be repeated or reduced."""
        return bool(self.epochs or self.weights)


AS_IT_IS = Preprocessing()
"""No preprocessing; every input once."""


def epochs_of(preprocessing: Preprocessing, inputs: Sequence[str], characters: dict[str, int]) -> dict[str, float]:
    """Return the number of copies of each input's documents in the training text.

    Weights preserve the total length: of a source with half of the text and a weight of 1/4, half is used. An input
    that is given twice counts once.

    Args:
        characters: characters of each input that passed the filters.
    """
    if preprocessing.epochs:
        return dict(zip(inputs, preprocessing.epochs, strict=True))
    if not preprocessing.weights:
        return dict.fromkeys(inputs, 1.0)
    weights = dict(zip(inputs, preprocessing.weights, strict=True))
    weights = {given: weight for given, weight in weights.items() if characters.get(given)}
    total, whole = sum(weights.values()), sum(characters.values())
    epochs = {given: weight / total * whole / characters[given] for given, weight in weights.items() if total}
    for given, times in epochs.items():
        if times > MOST_EPOCHS:
            raise UserError(
                f"'{given}' would be read {times:,.0f} times for its weight.",
                "Lower its weight, or add more text to it.",
            )
    return dict.fromkeys(inputs, 0.0) | epochs
