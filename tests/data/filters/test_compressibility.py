from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from small_texts import small_text
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.data.filters.compressibility import REASON, Compressibility, count_tokens
from daybreak.data.filters.filter import Context
from daybreak.data.tokenizers.tokenizer import WordPiece, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that knows the words of ``small_text``."""
    rng = random.Random(3)
    found = tmp_path_factory.mktemp("made") / "tokenizer"
    WordPiece(vocabulary=400).make([small_text(rng, 12) for _ in range(200)], found)
    return found


def test_it_decides_as_the_rule_of_the_paper_does(folder: Path) -> None:
    rng = random.Random(4)
    known = [small_text(rng, 6) for _ in range(20)]
    noise = ["".join(rng.choices("qxzjkw#$%&", k=200)) for _ in range(20)]
    mixed = [f"{one} {other}"[: rng.randrange(100, 500)] for one, other in zip(noise, known)]
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    verdicts = set()
    for threshold in (0.2, 0.25, 0.3, 0.5):
        evaluate = Compressibility(threshold=threshold).open(Context(tokenizer=folder))
        for text in [*known, *noise, *mixed]:
            kept = len(reference.encode(text).ids) < threshold * len(text)
            assert (evaluate(text) is None) == kept, text
            verdicts.add(kept)
    assert verdicts == {True, False}


def test_the_special_tokens_count_once_also_where_a_text_goes_through_in_pieces(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    text = small_text(random.Random(5), 4000)
    assert len(text) > 3 * (1 << 16)
    assert count_tokens(text, tokenizer) == len(tokenizer.encode(text).ids)
    assert count_tokens("the", tokenizer) == 3


def test_a_folder_takes_the_place_of_a_tokenizer_of_the_text(folder: Path) -> None:
    own, given = Compressibility(), Compressibility(tokenizer=str(folder), threshold=0.3)
    assert (own.needs_tokenizer, own.passes, given.needs_tokenizer, given.passes) == (True, 1, False, 0)
    evaluate = pickle.loads(pickle.dumps(given)).open(Context())
    assert evaluate("the teacher finds the table near the river .") is None
    assert evaluate("#$%&" * 20) == REASON
    with pytest.raises(ValueError, match="must be given"):
        own.open(Context())
    with pytest.raises(UserError, match=r"There is no tokenizer.json"):
        Compressibility(tokenizer=str(folder.parent)).open(Context())
    with pytest.raises(UserError, match="is not possible"):
        Compressibility(threshold=0)
