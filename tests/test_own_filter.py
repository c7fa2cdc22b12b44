"""The example of a filter, and a filter in a preparation: what it leaves out, by how many workers, and after a kill."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from small_texts import contents, left_over, write_records

from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.filters.custom_filters import custom_filters
from daybreak.data.filters.filter import Context
from daybreak.data.pipeline.corpus import bundle_files
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.reporting.corpus import corpus_page
from daybreak.schemas.corpus import CorpusReport

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_filter.py"
OWN = Preprocessing(filters=str(EXAMPLE))
SMALL = WordPiece(vocabulary=600)
TABLE = "1914 1918 4 | 1939 1945 6 of war"
PLACEHOLDER = "Lorem Ipsum dolor sit amet"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """660 records of prose, and in between ten tables and five placeholder pages."""
    path = write_records(tmp_path / "corpus.jsonl")
    lines = path.read_text().splitlines()
    for place in range(15):
        text = f"{TABLE} {place}" if place % 3 else f"{PLACEHOLDER} {place}"
        lines.insert(40 * place, json.dumps({"text": text}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bundle_files", lambda files, rule, **how: bundle_files(files, rule, 20_000, **how))


def verdicts(text: str) -> list[str | None]:
    return [step.open(Context())(text) for step in custom_filters(str(EXAMPLE))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Prose of the year 1914, in which 2 digits are not many.", [None, None]),
        (TABLE, ["too many digits", None]),
        ("12345 678", ["too many digits", None]),
        ("ten to one, 12 3", [None, None]),
        ("Please ENABLE JavaScript to see this page.", [None, "placeholder page"]),
        ("Please enable javascripting.", [None, None]),
        ("Lorem ipsum is what printers set. " * 40, [None, None]),
    ],
)
def test_what_the_example_leaves_out(text: str, said: list[str | None]) -> None:
    assert verdicts(text) == said


def test_the_example_refuses_a_setting_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace("FewDigits()", "FewDigits(most=20)"))
    with pytest.raises(UserError, match="20 is not a fraction of digits"):
        custom_filters(str(tmp_path / "mine.py"))


@pytest.mark.usefixtures("small_parts")
def test_what_was_left_out_is_counted_by_filter_and_reason(corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    prepare([corpus], data, tokenizer=SMALL, preprocessing=Preprocessing(filters=str(EXAMPLE), show_text=True))
    digits, placeholders, equal = read_json(data / "corpus.json", CorpusReport).steps
    assert (digits.documents_in, digits.documents_out, digits.reasons) == (675, 665, {"too many digits": 10})
    assert (placeholders.name, placeholders.documents_out) == ("NoPlaceholders", 660)
    assert placeholders.reasons == {"placeholder page": 5} and equal.documents_in == 660
    assert [one.text for one in digits.examples] == [f"{TABLE} {place}" for place in (1, 2, 4)]
    assert digits.why.startswith("tables and lists: more than 20%") and "own_filter.py" in digits.why
    page = corpus_page(data)
    assert "placeholder pages: at most 1,000" in page and "own_filter.py" in page


@pytest.mark.usefixtures("small_parts")
def test_neither_workers_nor_who_filters_change_what_comes_out(corpus: Path, tmp_path: Path) -> None:
    made = []
    for workers in (1, 2, 4):
        prepare([corpus], tmp_path / f"{workers}", tokenizer=SMALL, workers=workers, preprocessing=OWN)
        made.append(contents(tmp_path / f"{workers}"))
    assert len(made[0]) >= 9 and made[0] == made[1] == made[2]
    by_hand = tmp_path / "by_hand.jsonl"
    kept = [line for line in corpus.read_text().splitlines() if verdicts(json.loads(line)["text"]) == [None, None]]
    by_hand.write_text("\n".join(kept) + "\n")
    prepare([by_hand], tmp_path / "plain", tokenizer=SMALL)
    plain = contents(tmp_path / "plain")
    assert len(kept) == 660
    same = [name for name in plain if name not in ("manifest.json", "corpus.json")]
    assert same and [made[0][name] for name in same] == [plain[name] for name in same]
    assert left_over(tmp_path) == []


def test_data_made_with_another_filter_are_never_taken_for_those_asked_for(corpus: Path, tmp_path: Path) -> None:
    file, data = tmp_path / "mine.py", tmp_path / "data"
    file.write_text(EXAMPLE.read_text())
    own = Preprocessing(filters=str(file))
    made = prepare([corpus], data, tokenizer=SMALL, preprocessing=own)
    assert prepare([corpus], data, tokenizer=SMALL, preprocessing=own) == made
    with pytest.raises(UserError, match="from other text or with other settings"):
        prepare([corpus], data, tokenizer=SMALL)
    file.write_text(EXAMPLE.read_text().replace("FewDigits()", "FewDigits(most=0.5)"))
    with pytest.raises(UserError, match="from other text or with other settings"):
        prepare([corpus], data, tokenizer=SMALL, preprocessing=own)
    file.unlink()
    with pytest.raises(UserError, match=r"mine.py' cannot be read: no such file"):
        prepare([corpus], data, tokenizer=SMALL, preprocessing=own)
    assert contents(data) and left_over(tmp_path) == []


KILLED = """
import os, signal
from daybreak.data.filters.filter import DocumentFilter

seen = 0

class Killed(DocumentFilter):
    def why(self):
        return "short documents"

    def open(self, context):
        def evaluate(text):
            global seen
            seen += 1
            if seen == int(os.environ.get("LAST", "0")):
                os.kill(os.getpid(), signal.SIGKILL)
            return "too short" if len(text) < 60 else None
        return evaluate

steps = (Killed(),)
"""


def test_killed_in_a_filter_it_goes_on_and_comes_out_the_same(tmp_path: Path, daybreak: Callable[..., object]) -> None:
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    texts = [write_records(tmp_path / f"{seed}.jsonl", 100, seed) for seed in (1, 2, 3)]

    def run(out: str, *flags: str, **more: str) -> tuple[int, str]:
        # Sources that are mixed are parts of their own.
        words = ["--epochs", "1", "1", "1", "--tokenizer.vocabulary", "400", "--filters", str(file), *flags]
        done = daybreak("prepare", *texts, "--out", tmp_path / out, *words, **more)
        return done.returncode, done.stdout + done.stderr  # type: ignore[attr-defined]

    assert run("straight", "--workers", "1")[0] == 0
    assert run("killed", "--workers", "1", LAST="290")[0] == -signal.SIGKILL
    done = [path.name for path in (tmp_path / ".killed.preparing").glob("*/survey/[0-9]*")]
    assert sorted(done) == ["00000", "00001"] and not (tmp_path / "killed").exists()
    code, said = run("killed", "--workers", "2")
    assert code == 0 and "Resuming the interrupted preparation." in said, said
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_filter_that_fails_is_reported_in_one_sentence_and_nothing_is_lost(
    workers: int, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file, data = tmp_path / "mine.py", tmp_path / "data"
    file.write_text(KILLED.replace('os.environ.get("LAST", "0")', "0").replace("len(text) < 60", "1 / (seen - 5)"))
    texts = [write_records(tmp_path / f"{seed}.jsonl", 100, seed) for seed in (1, 2)]
    asked = ["prepare", *texts, "--epochs", "1", "1", "--out", data, "--workers", workers]
    prepare(texts, data, tokenizer=SMALL)
    before = contents(data)
    assert "with other settings" in refused(*asked, "--filters", file)
    said = refused(*asked[:-3], tmp_path / "other", *asked[-2:], "--filters", file)
    assert f"daybreak: '{file}' failed on document 5 of '{tmp_path}/" in said
    assert ".jsonl': line 17: ZeroDivisionError: division by zero. Correct that file.\n" in said
    assert contents(data) == before and left_over(tmp_path) == [] and not (tmp_path / "other").exists()


@pytest.mark.usefixtures("small_parts")
def test_a_document_in_a_later_part_is_named_by_where_the_part_begins(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        EXAMPLE.read_text().replace("if digits >", f"if text == {TABLE + ' 14'!r} or 0 >")
    )
    file = tmp_path / "mine.py"
    file.write_text(
        file.read_text().replace('return "too many digits"', f'return 7 if text == {TABLE + " 14"!r} else "d"')
    )
    with pytest.raises(UserError, match=r"failed on document \d+ of '.*corpus.jsonl' after byte [\d,]+: FewDigits"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, preprocessing=Preprocessing(filters=str(file)), workers=1)
