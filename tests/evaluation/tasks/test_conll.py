"""CoNLL files: what is read of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.conll import Sentence, read_sentences


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "train.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_sentences_end_at_blank_lines_and_documents(tmp_path: Path) -> None:
    text = (
        "\ufeff-DOCSTART- (6794356)\n\nThe DT O O\nsun\tNN\tO\tB-star\r\n \t\r\n\n\n"
        "-DOCSTART- NN O O\n\nrain  NN   O I-w \n-DOCSTART-\nMars NN O B-star\nrises VB O O"
    )
    assert read_sentences(written(tmp_path, text), 0, 3) == [
        Sentence(("The", "sun"), ("O", "B-star"), 3),
        Sentence(("rain",), ("I-w",), 10),
        Sentence(("Mars", "rises"), ("B-star", "O"), 12),
    ]


def test_words_keep_what_only_looks_like_a_separator(tmp_path: Path) -> None:
    strange = ["a\u2028b", "c\u00a0d", "\x85", "e\x0bf", "g\rh"]
    text = "".join(f"{word} O\n" for word in strange) + "New York\tB-city\n#\tO\n"
    (found,) = read_sentences(written(tmp_path, text), 0, 1)
    assert found.words == (*strange, "New York", "#")


WORDS = st.text(st.characters(blacklist_characters=" \t\r\n", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda word: not word.startswith(("-DOCSTART-", "\ufeff"))
)


@given(
    st.lists(
        st.lists(st.tuples(WORDS, st.sampled_from(["O", "B-x", "I-x", "I-a-b"])), min_size=1), min_size=1, max_size=5
    ),
    st.sampled_from([" ", "\t"]),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], between: str
) -> None:
    text = "\n\n".join("\n".join(between.join((word, "NN", tag)) for word, tag in pairs) for pairs in sentences)
    found = read_sentences(written(tmp_path_factory.mktemp("conll"), text), 0, 2)
    assert [list(zip(each.words, each.tags)) for each in found] == sentences
    lines = text.split("\n")
    assert [lines[each.line - 1].split(between)[0] for each in found] == [each.words[0] for each in found]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sun B-x\n", "Line 1 of '{}' has nothing in column 3: its columns are 0 to 1."),
        ("sun NN O O\n\nrain NN O\n", "Line 3 of '{}' has nothing in column 3: its columns are 0 to 2."),
        ("a\tb\tc\tO\n\t\t\tO\n", "Line 2 of '{}' has nothing in column 3: its columns are 0 to 0."),
        ("", "'{}' holds no sentence."),
        ("\n \n-DOCSTART- NN O O\n\n", "'{}' holds no sentence."),
        (b"sun NN O O\nm\xfcde NN O O\n", "'{}' is not UTF-8 text (invalid start byte)."),
        ("sun NN O O\nwarm NN O NN\n", "Line 2 of '{}' has 'NN' in column 3, which is not a tag."),
        ("sun NN O S-x\n", "Line 1 of '{}' has 'S-x' in column 3, which is not a tag."),
        ("sun NN O B-\n", "Line 1 of '{}' has 'B-' in column 3, which is not a tag."),
        ("sun NN O o\n", "Line 1 of '{}' has 'o' in column 3, which is not a tag."),
    ],
)
def test_what_is_no_conll_file_is_refused_in_one_sentence(tmp_path: Path, text: str | bytes, fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_sentences(path, 0, 3)
    assert caught.value.sentence == fault.format(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_sentences(tmp_path / "none.txt", 0, 1)
    with pytest.raises(UserError, match="Is a directory"):
        read_sentences(tmp_path, 0, 1)
