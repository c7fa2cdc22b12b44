"""The language filter, with a small fastText model that the test writes."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from in_process import command
from language_texts import language_texts

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.filters.filter import Context
from daybreak.data.filters.languages import OTHER, UNSURE, Language, open_identifier
from daybreak.schemas.corpus import CORPUS_FILE

CODES = {"finnish": "fin_Latn", "german": "deu_Latn", "hindi": "hin_Deva"}


MAGIC, VERSION = 793712314, 12
SUPERVISED, SOFTMAX = 3, 3
WORD, LABEL = 0, 1


def write_model(path: Path) -> None:
    """Write a fastText classifier of the three languages in the library's own format.

    The vector of a word counts for its language only, so the probabilities are exactly known.
    """
    words = {
        word: number
        for number, language in enumerate(CODES)
        for text in language_texts(language, documents=40, seed=1)
        for word in text.split()
    }
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    settings = struct.pack("<12id", len(CODES), 5, 5, 1, 5, 1, SOFTMAX, SUPERVISED, 0, 0, 0, 100, 1e-4)
    entries = [(word, WORD) for word in words] + [(f"__label__{code}", LABEL) for code in CODES.values()]
    dictionary = struct.pack("<3i2q", len(entries), len(words), len(CODES), len(words), -1)
    dictionary += b"".join(word.encode() + b"\0" + struct.pack("<qb", 1, kind) for word, kind in entries)
    one_hot = np.eye(len(CODES), dtype=np.float32)
    vectors = one_hot[list(words.values())]
    with path.open("wb") as file:
        file.write(struct.pack("<2i", MAGIC, VERSION) + settings + dictionary)
        for matrix in (vectors, 5 * one_hot):
            file.write(struct.pack("<?2q", False, *matrix.shape) + matrix.tobytes())


@pytest.fixture
def model(tmp_path: Path) -> str:
    pytest.importorskip("fasttext", reason="needs the extra 'corpus' (fasttext)")
    write_model(tmp_path / "three.bin")
    return str(tmp_path / "three.bin")


def decisions(model: str, *languages: str, least: float = 0.65) -> dict[str, str | None]:
    """What the filter says to a new text of each language."""
    filtered = Language(model=model, languages=languages, least=least).open(Context())
    return {language: filtered(language_texts(language, documents=1, seed=9)[0]) for language in CODES}


def test_only_the_chosen_languages_stay(model: str) -> None:
    assert decisions(model, "fin_Latn") == {"finnish": None, "german": OTHER, "hindi": OTHER}
    assert decisions(model, "fin_Latn", "deu_Latn") == {"finnish": None, "german": None, "hindi": OTHER}


def test_a_language_without_its_script_selects_every_script(model: str) -> None:
    assert decisions(model, "deu") == decisions(model, "deu_Latn")


def test_a_language_below_the_probability_is_not_certain(model: str) -> None:
    assert decisions(model, "fin_Latn", least=1.1) == {"finnish": UNSURE, "german": OTHER, "hindi": OTHER}


def test_the_most_likely_language_has_the_name_of_the_model(model: str) -> None:
    identify = open_identifier(model)
    assert {language: identify(language_texts(language, documents=1, seed=9)[0]) for language in CODES} == CODES


def test_an_unknown_language_and_a_missing_or_wrong_model_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no language 'swe'"):
        decisions(model, "swe")
    with pytest.raises(UserError, match="no language model"):
        decisions(str(tmp_path / "nothing.bin"), "fin")
    (tmp_path / "wrong.bin").write_text("this is no model")
    with pytest.raises(UserError, match="not a fastText model"):
        decisions(str(tmp_path / "wrong.bin"), "fin")


def test_prepare_counts_what_it_leaves_out_and_reports_the_languages(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for language in CODES for text in language_texts(language, documents=30, seed=5)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command(
        "prepare", tmp_path / "mixed.jsonl", "--out", tmp_path / "data", "--language-model", model,
        "--languages", "fin", "deu", "--tokenizer.vocabulary", 400,
    )  # fmt: skip
    removed = re.search(
        r"Removed by filters: 30 documents with [\d.]+% of the characters \(another language: 30\)\.",
        capsys.readouterr().out,
    )
    assert removed
    corpus = read_json(tmp_path / "data" / CORPUS_FILE)
    assert corpus["documents"] == 60 and corpus["languages"] == {"fin_Latn": 0.5, "deu_Latn": 0.5}
