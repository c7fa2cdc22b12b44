"""``daybreak prepare --recipe``: the recipe's tokenizer and its way with documents become the defaults of the flags."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from daybreak.cli import main
from daybreak.core.files import read_json
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.pretraining.run_start import say_other_tokenizer
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Manifest

SENTENCES = [
    f"The {who} {does} the {what} near the river every morning."
    for who in "teacher farmer doctor painter sailor".split()
    for does in "finds paints carries watches cleans".split()
    for what in "table window garden letter basket".split()
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Three documents of prose, parted by blank lines; quotes as Cramming's normaliser turns them."""
    path = tmp_path / "text.txt"
    parts = [" ".join(SENTENCES[start::3]) + " He said ``yes'' twice...\n" for start in range(3)]
    path.write_text("\n".join(parts))
    return path


def prepared(text: Path, out: Path, *flags: str) -> Manifest:
    with pytest.raises(SystemExit) as left:
        main(["prepare", str(text), "--out", str(out), *flags])
    assert not left.value.code
    manifest: Manifest = read_json(out / "manifest.json", Manifest)
    return manifest


def test_the_recipe_chooses_tokenizer_and_documents(text: Path, tmp_path: Path) -> None:
    chunked = prepared(text, tmp_path / "8gb", "--recipe", "bert-8gb", "--size", "tiny", "--document", "blank-line")
    assert chunked.train.documents + chunked.heldout.documents > 3  # pieces of about 820 characters
    tokenizer = load_tokenizer(tmp_path / "8gb" / "tokenizer")
    assert tokenizer.normalizer.normalize_str("``Caf\u00e9'' \u4f60") == '"cafe" '
    packed = prepared(text, tmp_path / "crammed", "--recipe", "crammed", "--size", "tiny", "--document", "blank-line")
    assert packed.train.documents + packed.heldout.documents == 3
    runs = load_tokenizer(tmp_path / "crammed" / "tokenizer").pre_tokenizer.pre_tokenize_str("twice...")
    assert [word for word, _ in runs] == ["twice", "..."]
    pairs = prepared(text, tmp_path / "pairs", "--recipe", "scibert", "--size", "tiny", "--document", "blank-line")
    assert pairs.train.sentence_ends is not None
    assert pairs.train.sentence_ends.bytes > 8 * 20 * pairs.train.documents  # found in prose, not one a line


def test_a_flag_goes_before_the_recipe(text: Path, tmp_path: Path) -> None:
    flags = ["--recipe", "crammed", "--size", "tiny", "--document", "blank-line", "--tokenizer.vocabulary", "300"]
    assert prepared(text, tmp_path / "data", *flags).vocabulary <= 300


def test_a_tokenizer_is_taken_over_and_compared(text: Path, tmp_path: Path) -> None:
    first = prepared(text, tmp_path / "first", "--document", "blank-line", "--tokenizer.vocabulary", "400")
    folder = str(tmp_path / "first" / "tokenizer")
    flags = ["--document", "blank-line", "--tokenizer-from", folder, "--compare", folder]
    second = prepared(text, tmp_path / "second", *flags)
    assert second.tokenizer == first.tokenizer and second.overlap == 1.0


def test_pushing_text_away_needs_a_word(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["prepare", str(text), "--out", str(tmp_path / "data"), "--document", "line", "--push-to-hub", "me/mine"])
    assert left.value.code == 2 and "--with-text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--recipe", "crammed", "--size", "tiny"], ""),
        (["--recipe", "crammed", "--size", "tiny", "--tokenizer.vocabulary", "300"], "vocabulary 300 instead of"),
        (["--tokenizer.normalizer", "bert"], "normalizer bert instead of cramming"),
        (["--tokenizer-kind", "ByteBPE"], "kind ByteBPE instead of WordPiece"),
    ],
)
def test_a_run_says_which_settings_of_its_tokenizer_are_not_the_recipes(
    flags: list[str], said: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    manifest = prepared(text, data, "--document", "blank-line", *flags)
    recipe = load_recipe("crammed", size="tiny")
    capsys.readouterr()
    say_other_tokenizer(recipe, manifest)
    line = capsys.readouterr().out
    assert bool(line) == bool(said) and said in line
    say_other_tokenizer(recipe, dataclasses.replace(manifest, tokenizer_settings={}))  # a folder of version 0.1
    taken = prepared(text, tmp_path / "taken", "--document", "blank-line", "--tokenizer-from", str(data / "tokenizer"))
    assert taken.tokenizer_settings == {}, "another folder's path is private"
    capsys.readouterr()
    say_other_tokenizer(recipe, taken)
    assert not capsys.readouterr().out
