from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.core.words import bare_words, is_unspaced
from daybreak.data.filters import contamination
from daybreak.data.filters.contamination import RUN, SHORTEST, EvaluationTexts

WORDS = [f"{first}{second}" for first in "ba ke mi no tu ra li".split() for second in "lo sa ne di mu ta po ri".split()]


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def slow_find(evaluations: list[list[str]], text: str) -> set[tuple[int, int]]:
    """The rule restated with strings."""
    whole = b" " + b" ".join(bare_words(text)) + b" "
    found = set()
    for evaluation, items in enumerate(evaluations):
        split = [(words, 3 if is_unspaced(words) else 1) for words in map(bare_words, items)]
        long_enough = [(words, times) for words, times in split if len(words) >= times * SHORTEST]
        for item, (words, times) in enumerate(long_enough):
            length = min(times * RUN, len(words))
            runs = (words[start : start + length] for start in range(len(words) - length + 1))
            if any(b" " + b" ".join(run) + b" " in whole for run in runs):
                found.add((evaluation, item))
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_found_is_what_a_search_of_strings_finds(data: st.DataObject) -> None:
    few = st.lists(st.sampled_from(["a", "b", "c,", "\u00c9", "\u4f60", "\u0e01\u0e33", "d-e"]), max_size=60)
    few = few.map(" ".join)
    evaluations = data.draw(st.lists(st.lists(few, max_size=4), min_size=1, max_size=3))
    text = data.draw(few)
    if pool := [item for items in evaluations for item in items]:
        text += data.draw(st.sampled_from([" ", " x ", "\n"])) + data.draw(st.sampled_from(pool))
    assert EvaluationTexts(evaluations).find(text) == slow_find(evaluations, text)


@pytest.mark.parametrize(
    "name",
    [
        "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e21\u0e2b\u0e32\u0e19\u0e04\u0e23",
        "\u6771\u4eac\u90fd\u5343\u4ee3\u7530\u533a\u971e\u304c\u95a2",
    ],
)
def test_a_name_in_a_script_without_spaces_is_no_evaluation_text(name: str) -> None:
    """Bangkok has 13 code points, and each counts as a word."""
    sentence = "".join(chr(0x4E00 + place) for place in range(40))
    texts = EvaluationTexts([[name, sentence, sentence[:30]]])
    assert texts.counts == [2]
    assert texts.find(f"{sentence[5:20]}{name}") == set()
    assert texts.find(f"{name}{sentence[:39]}{name}") == {(0, 0), (0, 1)}
    assert texts.find(sentence[1:]) == {(0, 0)}


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    items = [sentence(rng, length) for length in (8, 11, 12, 13, 20, 40)]
    texts = EvaluationTexts([items])
    monkeypatch.setattr(contamination, "PIECE", 200)
    for _ in range(100):
        text = " ".join(itertools.chain.from_iterable((sentence(rng, rng.randrange(40)), i) for i in items))
        text = text[rng.randrange(300) :]
        assert texts.find(text) == slow_find([items], text)
    assert texts.find("x" * 900 + " " + items[0]) == {(0, 0)}


def spoil(rng: random.Random, item: str) -> str:
    """The same words in other letters, with other marks and line breaks between them."""
    words = [rng.choice([word, word.upper(), word.title(), f"({word})", f"{word},"]) for word in item.split()]
    return "".join(word + rng.choice([" ", "\n", "  ", " - ", "... "]) for word in words)


def test_planted_items_are_found_and_nothing_else() -> None:
    rng = random.Random(2)
    items = [sentence(rng, rng.randrange(SHORTEST, 40)) for _ in range(300)]
    near = [" ".join(item.split()[:-1] + ["otherword"])[-60:] for item in items]
    texts = EvaluationTexts([items[:150], items[150:]])
    planted = rng.sample(range(300), 80)
    for number in range(300):
        middle = spoil(rng, items[number]) if number in planted else near[number]
        text = f"{sentence(rng, 100)} {middle} {sentence(rng, 100)}"
        assert texts.find(text) == ({(number // 150, number % 150)} if number in planted else set())


def test_lengths_and_borders() -> None:
    rng = random.Random(3)
    item = sentence(rng, 30)
    words = item.split()
    texts = EvaluationTexts([[item, sentence(rng, 7), " ".join(words[:10])]])
    assert texts.counts == [2]  # seven words are too few
    assert texts.find(" ".join(words[5 : 5 + RUN])) == {(0, 0)}
    assert texts.find(" ".join(words[5 : 4 + RUN])) == set()
    assert texts.find(" ".join(words[:10])) == {(0, 1)}
    assert texts.find(item) == {(0, 0), (0, 1)}
    # Two documents that share an item out between them are not found.
    assert texts.find(" ".join(words[10:20])) | texts.find(" ".join(words[20:])) == set()


def test_a_long_item_is_found_to_its_end() -> None:
    """Such as a line of JSON with all texts of an evaluation."""
    words = [f"w{number}" for number in range(contamination.PIECE + 30)]
    assert EvaluationTexts([[" ".join(words)]]).find(" ".join(words[-13:])) == {(0, 0)}


def test_files_of_three_kinds(tmp_path: Path) -> None:
    one, two, three = (sentence(random.Random(seed), 15) for seed in (4, 5, 6))
    (tmp_path / "plain.txt").write_text(f"\ufeff{one}\nshort\n{two}\n")
    (tmp_path / "table.tsv").write_text(f"id\tsentence1\tsentence2\n7\t{two}\t{three}\n")
    record = {"text": one, "intermediate_size": {"options": [two, 3, None]}, "label": "short"}
    with gzip.open(tmp_path / "records.jsonl.gz", "wt") as file:
        file.write(json.dumps(record) + "\n\n")
    texts = EvaluationTexts.read([tmp_path / name for name in ("plain.txt", "table.tsv", "records.jsonl.gz")])
    assert texts.counts == [2, 2, 2]
    assert texts.find(f"so {two} it is") == {(0, 1), (1, 0), (2, 1)}
    assert texts.find(f"so {three} it is") == {(1, 1)}


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_each_cell_of_a_csv_file_is_an_item(mark: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    short, quoted, first, second = (sentence(rng, words) for words in (9, 11, 6, 5))
    rows = [["id", "text", "label"], ["17", short, "entailment"], ["18", f"{quoted}, {mark} so", "neutral"]]
    rows += [["19", f"{first}\n{second}", "neutral"]]
    with (tmp_path / "dev.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(rows)
    texts = EvaluationTexts.read([tmp_path / "dev.csv"])
    assert texts.counts == [3]
    assert texts.find(f"They say: {short}. And so on.") == {(0, 0)}
    assert texts.find(f"They say: {quoted} so. And so on.") == {(0, 1)}
    assert texts.find(f"They say: {first} {second}. And so on.") == {(0, 2)}


def test_a_csv_file_with_old_line_ends_is_read(tmp_path: Path) -> None:
    (short, other) = (sentence(random.Random(seed), 9) for seed in (8, 9))
    (tmp_path / "old.csv").write_bytes(f"text,label\r{short},1\r{other},0\r".encode())
    assert EvaluationTexts.read([tmp_path / "old.csv"]).find(f"{short} {other}") == {(0, 0), (0, 1)}


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"none.txt' cannot be read: no such file"):
        EvaluationTexts.read([tmp_path / "none.txt"])
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n{"text": \n')
    with pytest.raises(UserError, match="line 2 is not valid JSON"):
        EvaluationTexts.read([tmp_path / "bad.jsonl"])
    (tmp_path / "dev.json").write_text('[{"question": "of many words, in one line or in many"}]')
    with pytest.raises(UserError, match=r"dev.json' is JSON, not text\. Convert it to \.jsonl"):
        EvaluationTexts.read([tmp_path / "dev.json"])
    (tmp_path / "labels.tsv").write_text("0\t1\n1\t0\n")
    with pytest.raises(UserError, match="has no text of 8 words or more"):
        EvaluationTexts.read([tmp_path / "labels.tsv"])
    (tmp_path / "long.csv").write_text("text,label\n" + "words " * 20 + ",1\n")
    monkeypatch.setattr(contamination, "LARGEST_ROW", 50)
    limit = csv.field_size_limit(50)
    try:
        with pytest.raises(UserError, match=r"long.csv' cannot be read as csv: field larger than .* \(line 2\)"):
            EvaluationTexts.read([tmp_path / "long.csv"])
    finally:
        csv.field_size_limit(limit)
    (tmp_path / "rte.parquet").write_bytes(b"PAR1\x15\0" + " ".join(WORDS[:20]).encode() + b"\nPAR1")
    with pytest.raises(UserError, match=r"rte.parquet' is binary, not text \(line 1\)"):
        EvaluationTexts.read([tmp_path / "rte.parquet"])
    (tmp_path / "windows.tsv").write_bytes(b"0\tfine\n1\t" + " ".join(WORDS[:20]).encode() + b" caf\xe9\n")
    with pytest.raises(UserError, match=r"windows.tsv' is not UTF-8 text \(line 2\). Convert it"):
        EvaluationTexts.read([tmp_path / "windows.tsv"])


def test_an_index_is_the_same_in_every_process(tmp_path: Path) -> None:
    rng = random.Random(8)
    texts = EvaluationTexts([[sentence(rng, 20) for _ in range(50)]])
    (tmp_path / "index").write_bytes(pickle.dumps(texts))
    (tmp_path / "text").write_text(text := sentence(random.Random(8), 200))
    code = "import pickle, sys; print(sorted(pickle.load(open(sys.argv[1], 'rb')).find(open(sys.argv[2]).read())))"
    command = [sys.executable, "-c", code, str(tmp_path / "index"), str(tmp_path / "text")]
    said = subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": "1"}, text=True)
    assert said == f"{sorted(texts.find(text))}\n" and said.count("(0, ") >= 9
