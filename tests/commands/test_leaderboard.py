"""``daybreak leaderboard``: who compares, who has a place, who stays out; and the page on show is the program's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import command

from daybreak.commands.leaderboard import leaderboard
from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.reporting.leaderboard_table import CLASSES, Filed, Row, places, why_not
from daybreak.schemas.records import RECORD_FILE, RULES, DataIdentity, Record, Verified
from daybreak.schemas.run import Environment

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "docs" / "leaderboard.md"
Refused = Callable[..., str]

TEXT = DataIdentity(
    tokenizer="aaaa", train="bbbb", heldout="cccc", vocabulary=8192, train_documents=100, train_tokens=1_000_000,
    heldout_tokens=9_000, texts=1, names=["wiki.jsonl"],
)  # fmt: skip
MACHINE = Environment(
    daybreak="0.1.0", python="3.11.7", torch="2.13.0", platform="Linux", device="Some CPU", cores=2, memory_gib=8.0,
    started=1_790_000_000.0,
)  # fmt: skip


def of(loss: float = 4.0, seed: int = 0, **more: Any) -> Record:
    """A run of ten minutes on a quiet processor, verified to its last 500 steps."""
    found = Record(
        rules=RULES, date="2026-11-22", recipe="daybreak-tiny", fingerprint=f"{seed}", variant="deadbeef", seed=seed,
        budget="10m", seconds=600.0, elapsed=599.0, wall=599.0, resumes=0, device="cpu", threads=2, processes=1,
        precision="float32", batch=16, machine=MACHINE, transformers="5", commit="", parameters=1_400_000, steps=2_000,
        tokens=4_000_000, epochs=4.0, tokens_per_second=7_000.0, loss=loss, accuracy=0.3, unigram_loss=6.0,
        positions=9_728, data=TEXT, parent="",
        verified=Verified(first=1_500, last=2_000, gradient_norms=9, weights=["the exported model"], loss=loss),
        load=2.0, others=None, void="",
    )  # fmt: skip
    return replace(found, **more)


def seeds(*losses: float, **more: Any) -> list[Record]:
    return [of(loss, seed, **more) for seed, loss in enumerate(losses)]


@pytest.fixture
def board(tmp_path: Path) -> Callable[..., str]:
    """Return ``board(record, ...)``: they are filed as a, b, c ... and the page is returned."""

    def made(*records: Record) -> str:
        for number, record in enumerate(records):
            folder = tmp_path / "records" / f"{chr(ord('a') + number)}"
            folder.mkdir(parents=True)
            write_json(folder / RECORD_FILE, record)
        return leaderboard(tmp_path / "records", tmp_path / "docs" / "board.md")

    return made


def section(page: str, name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, page
    return found[1]


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("|--")]
    return [row for row in rows if row[0] != "place"]


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (of(), "10 minutes on CPUs"),
        (of(elapsed=594.0), "10 minutes on CPUs"),
        (of(elapsed=606.1), ""),
        (of(seconds=620.0, elapsed=600.0), ""),
        (of(seconds=None, elapsed=600.0), ""),
        (of(processes=2), "10 minutes on CPUs"),
        (of(seconds=1800.0, elapsed=1782.0), "30 minutes on CPUs"),
        (of(device="cuda"), "10 minutes on one GPU"),
        (of(device="cuda", processes=2), ""),
        (of(device="cuda", seconds=1800.0, elapsed=1800.0), "30 minutes on one GPU"),
        (of(device="cuda", seconds=86400.0, elapsed=86000.0), "24 hours on one GPU"),
        (of(seconds=86400.0, elapsed=86000.0), ""),
    ],
)
def test_a_class_is_a_time_and_a_kind_of_hardware(record: Record, name: str) -> None:
    assert [one.name for one in CLASSES if one.holds(record)] == ([name] if name else [])


def test_a_class_without_records_says_so(board: Callable[..., str]) -> None:
    page = board(of())
    assert section(page, "24 hours on one GPU").strip() == "No record yet."
    assert "## Other budgets" not in page


def test_other_budgets_are_named(board: Callable[..., str]) -> None:
    assert section(board(of(seconds=180.0, elapsed=180.0, budget="3m")), "Other budgets").strip() == (
        "[a](../records/a/) (`3m`)."
    )


# ---------------------------------------------------------------- places


def test_three_seeds_are_a_row_with_a_place(board: Callable[..., str]) -> None:
    (row,) = cells(section(board(*seeds(4.0, 4.1, 4.2)), "10 minutes on CPUs"))
    assert row == [
        "1", "4.100 +- 0.100", "30.0 %", "`daybreak-tiny deadbeef`", "1.40 million", "4.00 million",
        "`Some CPU, 2 cores, 2 threads, float32`", "`0.1.0, torch 2.13.0`",
        "[0](../records/a/) [1](../records/b/) [2](../records/c/)",
    ]  # fmt: skip


@pytest.mark.parametrize("have", [[0], [0, 1], [1, 2, 3], [0, 2, 3]], ids=str)
def test_too_few_seeds_or_chosen_ones_have_no_place(have: list[int], board: Callable[..., str]) -> None:
    (row,) = cells(board(*[of(4.0 + seed / 10, seed) for seed in have]))
    assert row[0] == "-" and len(re.findall(r"\[\d\]", row[-1])) == len(have)


def test_a_place_needs_a_lead_beyond_the_spread(board: Callable[..., str]) -> None:
    runs = [
        *seeds(4.0, 4.02, 4.04, variant="first"),
        *seeds(4.01, 4.03, 4.05, variant="second"),  # 0.01 behind, spread 0.02
        *seeds(4.03, 4.05, 4.07, variant="third"),  # 0.03 behind the first, 0.02 behind the second
        *seeds(4.0, 4.5, 5.0, variant="wide"),  # within its own spread of all, but never before the third
        *seeds(6.0, 6.0, 6.0, variant="last"),
        *seeds(3.0, 3.0, variant="lucky"),  # two seeds take nobody's place
    ]
    found = [(row[3].strip("`").split()[1], row[0]) for row in cells(board(*runs))]
    assert found == [("lucky", "-"), ("first", "1"), ("second", "1"), ("third", "3"), ("wide", "3"), ("last", "5")]


def test_equal_rows_share_the_first_place() -> None:
    assert places([Row([Filed(name, "", run) for run in seeds(4.0, 4.0, 4.0)]) for name in "ab"]) == [1, 1]


@pytest.mark.parametrize(
    "other",
    [
        {"variant": "other"},
        {"threads": 1},
        {"precision": "bfloat16"},
        {"machine": replace(MACHINE, device="Another CPU")},
        {"machine": replace(MACHINE, cores=4)},
        {"machine": replace(MACHINE, torch="2.12.0")},
        {"machine": replace(MACHINE, daybreak="0.2.0")},
    ],
    ids=str,
)
def test_seeds_share_everything_else(other: dict[str, Any], board: Callable[..., str]) -> None:
    assert len(cells(board(of(4.0, 0), of(4.1, 1), of(4.2, 2, **other)))) == 2


def test_a_seed_counts_once_the_earlier_run(board: Callable[..., str]) -> None:
    later = replace(MACHINE, started=MACHINE.started + 10)
    page = board(of(3.0, 0, machine=later), *seeds(4.0, 4.1, 4.2))
    (row,) = cells(page)
    assert row[:2] == ["1", "4.100 +- 0.100"]
    assert "- [a](../records/a/): loss 3.000," in page and "seed 0 was run before, in `b`." in page


def test_a_void_run_may_be_run_again(board: Callable[..., str]) -> None:
    earlier = replace(MACHINE, started=MACHINE.started - 10)
    page = board(of(5.0, 0, machine=earlier, void="others used 0.9 of 2 cores"), *seeds(4.0, 4.1, 4.2))
    assert [row[0] for row in cells(page)] == ["1"]
    assert "loss 5.000, `daybreak-tiny` on `Some CPU, 2 cores, 2 threads`: void: others used 0.9 of 2 cores." in page


@pytest.mark.parametrize("name", ["tokenizer", "train", "heldout"])
def test_other_text_is_another_table(name: str, board: Callable[..., str]) -> None:
    page = board(*seeds(4.0, 4.1, 4.2), *seeds(3.0, 3.1, 3.2, data=replace(TEXT, **{name: "other"})))
    assert [row[0] for row in cells(page)] == ["1", "1"]
    assert page.count("| place ") == 2 and page.count("**Text `") == 2


# ---------------------------------------------------------------- who stays out


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"verified": None, "rules": 0}, "recorded before `daybreak record` existed"),
        ({"verified": Verified(first=1_501, last=2_000, gradient_norms=1, weights=[])}, "only its last 499 steps"),
        ({"verified": Verified(first=1, last=40, gradient_norms=1, weights=[]), "steps": 40}, "only its last 39"),
        ({"verified": Verified(first=0, last=40, gradient_norms=1, weights=[]), "steps": 40}, ""),
        ({"rules": RULES + 1}, f"recorded under rules {RULES + 1}"),
        ({"parent": "google/bert"}, "it starts from `google/bert`"),
        ({"void": "the machine load was not recorded"}, "void: the machine load was not recorded"),
    ],
)
def test_who_stays_out_gets_a_reason(values: dict[str, Any], words: str, board: Callable[..., str]) -> None:
    record = of(**values)
    assert why_not(record).startswith(words) and bool(why_not(record)) is bool(words)
    page = board(record)
    assert len(cells(page)) == (0 if words else 1) and (words in page) and ("Not ranked:" in page) is bool(words)


def test_a_run_kept_without_a_record_is_read_from_its_own_files(tmp_path: Path) -> None:
    night = "2026-11-21-mini-wiki-30m-night"
    (tmp_path / "records").mkdir()
    shutil.copytree(ROOT / "records" / night, tmp_path / "records" / night)
    (tmp_path / "records" / "unfinished").mkdir()
    shutil.copy(tmp_path / "records" / night / "recipe.json", tmp_path / "records" / "unfinished")
    told = section(leaderboard(str(tmp_path / "records")), "30 minutes on CPUs")
    why = "recorded before `daybreak record` existed; void: the load was"
    assert f"loss 5.221, `daybreak-mini` on `AMD EPYC, 2 cores, 1 thread`: {why}" in told


def test_names_cannot_break_the_page(board: Callable[..., str]) -> None:
    evil = "a`b|c\n## d <script> [x](y)"
    data = replace(TEXT, texts=5, names=[evil, "b", "c"])
    machine = replace(MACHINE, device=evil)
    page = board(*seeds(4.0, 4.1, recipe=evil, data=data, machine=machine), of(seed=2, recipe=evil, parent=evil))
    (row,) = cells(page)
    assert len(row) == 9 and row[3] == "`a'b/c ## d <script> [x](y) deadbeef`"
    assert "\n## d" not in page and " and 2 more; " in page


# ---------------------------------------------------------------- the command


def test_the_same_records_give_the_same_page(board: Callable[..., str], tmp_path: Path) -> None:
    page = board(*seeds(4.0, 4.1, 4.2), *seeds(4.0, 4.1, 4.2, variant="other"))
    (tmp_path / "records" / "measurement.json").write_text("{}")
    (tmp_path / "records" / ".hidden.tmp").mkdir()
    (tmp_path / "records" / "notes").mkdir()
    assert leaderboard(tmp_path / "records", tmp_path / "docs" / "board.md") == page
    assert (tmp_path / "docs" / "board.md").read_text() == page
    links = re.findall(r"\]\(([^)#]+)", page)
    assert len(links) == 7 and all((tmp_path / "docs" / link).exists() for link in links)


def test_it_is_printed_or_written(
    board: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = board(of())
    for words, said in (([], "# Leaderboard\n"), (["--out", tmp_path / "b.md"], f"{tmp_path / 'b.md'}\n")):
        command("leaderboard", tmp_path / "records", *words)
        assert capsys.readouterr().out.startswith(said)
    assert cells((tmp_path / "b.md").read_text()) == cells(page.replace("../records/", "records/"))


def test_what_is_no_folder_and_what_is_damaged_is_said(tmp_path: Path, refused: Refused) -> None:
    assert "There is no folder" in refused("leaderboard", tmp_path / "nothing")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    assert "is a run. Name the folder that daybreak record writes to." in refused("leaderboard", tmp_path / "run")
    (tmp_path / "records").mkdir()
    assert "is a folder" in refused("leaderboard", tmp_path / "records", "--out", tmp_path)
    folder = tmp_path / "records" / "a"
    folder.mkdir()
    (folder / RECORD_FILE).write_text('{"rules": 1}')
    assert "The field 'date' is missing." in refused("leaderboard", tmp_path / "records")
    (folder / RECORD_FILE).write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        leaderboard(tmp_path / "records")


def test_the_page_on_show_is_what_the_program_writes(tmp_path: Path) -> None:
    """After a new record: ``daybreak leaderboard records --out docs/leaderboard.md``."""
    before = BOARD.read_text(encoding="utf-8")
    copy = tmp_path / "docs" / "leaderboard.md"
    (tmp_path / "records").symlink_to(ROOT / "records")
    (tmp_path / "RULES.md").symlink_to(ROOT / "RULES.md")
    assert leaderboard(tmp_path / "records", copy) == before


def test_the_rules_say_their_version() -> None:
    assert f"version {RULES} of its rules" in (ROOT / "RULES.md").read_text(encoding="utf-8")
