"""Text whose accents a tokenizer would remove gets a warning; English does not."""

from __future__ import annotations

from collections import Counter

import pytest
from tokenizers import Tokenizer, models, normalizers

from daybreak.data.pipeline.tokenizer_quality import accented_fraction, warn_of_folding

FRENCH = (
    "L'\u00e9t\u00e9 dernier, nous avons visit\u00e9 la for\u00eat et le ch\u00e2teau pr\u00e8s de la rivi\u00e8re."
)
ENGLISH = "Last summer we saw the forest and the castle near the river. " * 9 + "The caf\u00e9 is new."


def tokenizer(cased: bool) -> Tokenizer:
    made = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=not cased, strip_accents=not cased)
    return made


def test_the_fraction_is_that_of_the_letters() -> None:
    assert accented_fraction(["\u00e9a b", "cd"]) == pytest.approx(1 / 5)
    assert accented_fraction(["123 \u4e2d"]) == 0.0


@pytest.mark.parametrize(
    ("text", "cased", "warned"), [(FRENCH, False, True), (FRENCH, True, False), (ENGLISH, False, False)]
)
def test_who_is_warned(text: str, cased: bool, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_folding(tokenizer(cased), Counter({"Latin": 60}), [text])
    said = capsys.readouterr().out
    assert ("letters have accents" in said and "--tokenizer.cased" in said) == warned
