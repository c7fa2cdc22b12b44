"""What we write is what the server's format asks; what others write is judged to the line, whatever it is."""

from __future__ import annotations

import dataclasses
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tasks import run

from daybreak.core.errors import UserError
from daybreak.evaluation.glue_server.submission import (
    FILES,
    best_predictions,
    check,
    check_submission,
    file_faults,
    write_submission,
)
from daybreak.evaluation.tasks.known_tasks import GLUE
from daybreak.schemas.tasks import FinetuningRun

ROWS = 7
CLASSES = {"STS-B": 0} | {name: len(file.values) for name, file in FILES.items() if file.values}
shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few rows, for tests that write many."""
    for name, file in FILES.items():
        monkeypatch.setitem(FILES, name, dataclasses.replace(file, rows=ROWS))


def rows(name: str, folder: Path) -> list[str]:
    """The predictions of a file, read as any reader of tab-separated values would."""
    lines = (folder / f"{name}.tsv").read_text("utf-8").splitlines()
    assert lines[0].split("\t") == ["index", "prediction"]
    cells = [line.split("\t") for line in lines[1:]]
    assert [int(index) for index, _ in cells] == list(range(len(cells)))
    return [value for _, value in cells]


def test_all_filler_has_the_servers_files_and_rows(tmp_path: Path) -> None:
    told = write_submission(tmp_path, {}, {})
    assert check(tmp_path) == [] and check(tmp_path / "submission.zip") == []
    names = "CoLA SST-2 MRPC STS-B MNLI-m MNLI-mm QNLI QQP RTE WNLI AX".split()
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in names)
    counts = [1063, 1821, 1725, 1379, 9796, 9847, 5463, 390965, 3000, 146, 1104]
    assert {name: len(rows(name, tmp_path)) for name in names} == dict(zip(names, counts))
    assert len(told) == 11 and told[9] == "WNLI.tsv is filler, 0 in every row: there are no answers for it."
    assert set(rows("WNLI", tmp_path)) == {"0"}


def test_the_name_of_a_label_decides_and_not_its_id(tmp_path: Path, short: None) -> None:
    turned = {
        "WNLI": ("entailment", "not_entailment"),
        "RTE": ("not_entailment", "entailment"),
        "MRPC": ("equivalent", "not_equivalent"),
        "AX": ("contradiction", "entailment", "neutral"),
    }
    ids = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    told = write_submission(tmp_path, dict.fromkeys(turned, ids), turned)
    assert rows("WNLI", tmp_path)[:2] == ["1", "0"]
    assert rows("RTE", tmp_path)[:2] == ["not_entailment", "entailment"]
    assert rows("MRPC", tmp_path)[:2] == ["1", "0"]
    assert rows("AX", tmp_path)[:2] == ["contradiction", "entailment"]
    assert len(told) == 7 and check(tmp_path) == []


def test_stsb_is_clipped_and_has_three_decimals(tmp_path: Path, short: None) -> None:
    write_submission(tmp_path, {"STS-B": [-0.3, -1e-9, 5.2, 4.99996, 3.14159, 2, 0]}, {})
    assert rows("STS-B", tmp_path) == ["0.000", "0.000", "5.000", "5.000", "3.142", "2.000", "0.000"]
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "answers", "labels", "words"),
    [
        ("RTE", [0.0] * 6, ("entailment", "not_entailment"), "RTE.tsv takes 7 answers, and 6 are there"),
        ("STS-B", [0.0] * 6 + [float("nan")], (), "An answer for STS-B.tsv is not a number"),
        ("RTE", [0.0] * 7, ("yes", "not_entailment"), "no answer for the label 'yes'"),
    ],
)
def test_answers_that_cannot_be_submitted(tmp_path, short, name, answers, labels, words) -> None:
    with pytest.raises(UserError, match=words):
        write_submission(tmp_path / "out", {name: answers}, {name: labels})
    assert not (tmp_path / "out").exists()


@shared_fixture
@given(chance=st.randoms(use_true_random=False), given_names=st.sets(st.sampled_from(sorted(FILES))))
def test_any_answers_come_back_as_they_were(tmp_path, short, chance: random.Random, given_names: set[str]) -> None:
    answers: dict[str, list[float]] = {}
    labels: dict[str, list[str]] = {}
    for name in sorted(given_names):
        labels[name] = [label for label, _ in FILES[name].values]
        chance.shuffle(labels[name])
        top = CLASSES[name]
        answers[name] = [chance.randrange(top) if top else chance.uniform(-9, 9) for _ in range(ROWS)]
    write_submission(tmp_path, answers, labels)
    assert check(tmp_path) == [] and check(tmp_path / "submission.zip") == []
    for name in given_names:
        if name == "STS-B":
            clipped = [min(5.0, max(0.0, answer)) for answer in answers[name]]
            assert [float(value) for value in rows(name, tmp_path)] == pytest.approx(clipped, rel=0, abs=5.001e-4)
        else:
            back = {answer: label for label, answer in FILES[name].values}
            assert [back[value] for value in rows(name, tmp_path)] == [labels[name][i] for i in answers[name]]


def changed(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / f"{name}.tsv"
        path.write_bytes(change(path.read_bytes().decode("utf-8")).encode("utf-8"))

    return apply


def move_into_a_folder(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "RTE.tsv").rename(folder / "inner" / "RTE.tsv")


HEADER = "index\tprediction"
# fmt: off
BROKEN: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "missing": (lambda folder: (folder / "AX.tsv").unlink(), ["AX.tsv is missing"]),
    "misnamed": (lambda folder: (folder / "MNLI-m.tsv").rename(folder / "MNLI_m.tsv"),
                 ["'MNLI_m.tsv' is none of the 11 files. Did you mean 'MNLI-m.tsv'?", "MNLI-m.tsv is missing"]),
    "in a folder": (move_into_a_folder, ["'inner/RTE.tsv' lies in a folder. Put RTE.tsv at the root"]),
    "extra file": (lambda folder: (folder / ".DS_Store").write_bytes(b"x"), ["'.DS_Store' is none of the 11 files"]),
    "empty": (changed("QQP", lambda _: ""), ["QQP.tsv is empty"]),
    "other header": (changed("RTE", lambda text: text.replace("index", "id", 1)),
                     ["RTE.tsv, line 1: the header is 'id\\tprediction'"]),
    "no header": (changed("RTE", lambda text: text.partition("\n")[2]),
                  ["RTE.tsv, line 1: the header is '0\\tentailment'"]),
    "too few rows": (changed("CoLA", lambda text: text[: text.rindex("6")]),
                     ["CoLA.tsv, line 7, is its last: 6 rows. Write 7"]),
    "too many rows": (changed("CoLA", lambda text: text + "7\t0\n"),
                      ["CoLA.tsv, line 9, is its last: 8 rows. Write 7"]),
    "counted from one": (changed("AX", lambda _: "\n".join([HEADER, *(f"{i}\tneutral" for i in range(1, 8)), ""])),
                         ["AX.tsv, line 2: the index is '1' where 0 is due", "So it is in 6 more lines"]),
    "twice": (changed("AX", lambda text: text.replace("4\t", "3\t")), ["line 6: index '3' stood in line 5 already"]),
    "run_glue's label names": (
        changed("CoLA", lambda text: text.replace("\t0", "\tunacceptable").replace("\t1", "\tacceptable")),
        ["CoLA.tsv, line 2: 'unacceptable' is the name of a label. Write 0 for unacceptable and 1 for acceptable."]),
    "numbers for names": (changed("QNLI", lambda text: text.replace("entailment", "0")),
                          ["QNLI.tsv, line 2: '0' is not an answer of this task. Write entailment or not_entailment."]),
    "one wrong label": (changed("AX", lambda text: text.replace("3\tentailment", "3\tnot_entailment")),
                        ["AX.tsv, line 5: 'not_entailment' is not an answer of this task"]),
    "out of range": (changed("STS-B", lambda text: text.replace("2\t2.500", "2\t5.001")),
                     ["STS-B.tsv, line 4: 5.001 is outside of 0 to 5. Clip it"]),
    "NaN": (changed("STS-B", lambda text: text.replace("2\t2.500", "2\tnan")), ["line 4: 'nan' is not a number"]),
    "byte order mark": (changed("MRPC", lambda text: "\ufeff" + text), ["MRPC.tsv begins with a byte order mark"]),
    "Latin-1": (lambda folder: (folder / "MRPC.tsv").write_bytes(b"index\tprediction\n0\t0\n1\t\xe9\n"),
                ["MRPC.tsv, line 3, is not UTF-8"]),
    "commas": (changed("SST-2", lambda text: text.replace("\t", ",")),
               ["SST-2.tsv, line 1: the header is 'index,prediction'", "line 2: '0,0' has a comma. Put one tab"]),
    "a third column": (changed("SST-2", lambda text: text.replace("4\t0", "4\t0\t0.9")),
                       ["line 6: '4\\t0\\t0.9' has 2"]),
}
# fmt: on


def zipped(folder: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "submission.zip":
                archive.write(path, path.relative_to(folder))
    return target


@pytest.mark.parametrize("variant", BROKEN)
def test_a_broken_submission_gets_its_fault_and_nothing_else(tmp_path, short, variant: str) -> None:
    write_submission(tmp_path / "s", {}, {})
    apply, wanted = BROKEN[variant]
    apply(tmp_path / "s")
    for faults in (check(tmp_path / "s"), check(zipped(tmp_path / "s", tmp_path / "s.zip"))):
        for words in wanted:
            assert any(words in fault for fault in faults), faults
        about = {name for name in FILES for fault in faults if f"{name}.tsv" in fault}
        assert len(about) <= 1, faults


def test_windows_line_ends_and_a_missing_last_one_do_no_harm(short: None) -> None:
    text = "index\tprediction\n" + "\n".join(f"{i}\t1" for i in range(ROWS))
    assert file_faults("CoLA", text.encode()) == []
    assert file_faults("CoLA", text.replace("\n", "\r\n").encode()) == []


def test_a_zip_with_a_file_twice_or_a_folder_around_it(tmp_path: Path, short: None) -> None:
    write_submission(tmp_path / "s", {}, {})
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(zipped(tmp_path / "s", tmp_path / "twice.zip"), "a") as archive,
    ):
        archive.write(tmp_path / "s" / "AX.tsv", "AX.tsv")
    assert check(tmp_path / "twice.zip") == ["AX.tsv is there twice. Take one of them out."]
    faults = check(zipped(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip"))
    assert sum("lies in a folder" in fault for fault in faults) == 11


def test_a_huge_declared_file_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("QQP.tsv", bytes(2**26 + 1))
    assert check(tmp_path / "bomb.zip")[0].startswith("'QQP.tsv' has more than 64 MB")


@shared_fixture
@given(cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6), end=st.floats(0, 1))
def test_no_damage_to_a_zip_crashes_the_checker(tmp_path, short, cuts: list[tuple[float, int]], end: float) -> None:
    path = tmp_path / "s" / "submission.zip"
    if not path.exists():
        write_submission(tmp_path / "s", {}, {})
    content = bytearray(path.read_bytes())
    for place, value in cuts:
        content[round(place * (len(content) - 1))] = value
    (tmp_path / "damaged.zip").write_bytes(content if end > 0.5 else content[: round(2 * end * len(content))])
    assert all(isinstance(fault, str) and fault.endswith(".") for fault in check(tmp_path / "damaged.zip"))


def cell(task: str, metric: str, seed: int, dev: float, predictions: dict[str, list[float]]) -> FinetuningRun:
    return run(task=task, seed=seed, scores={metric: dev, f"mismatched_{metric}": 1 - dev}, predictions=predictions)


def test_the_best_seed_on_dev_answers() -> None:
    metric = GLUE["rte"].metric
    cells = [cell("rte", metric, seed, dev, {"RTE": [float(seed)]}) for seed, dev in enumerate((0.5, 0.7, 0.7))]
    other = GLUE["stsb"].metric
    numbers = [cell("stsb", other, seed, dev, {"STS-B": [seed]}) for seed, dev in enumerate((float("nan"), 0.1))]
    unanswered = [cell("cola", GLUE["cola"].metric, 0, 0.1, {})]
    found = [(GLUE["rte"], cells), (GLUE["stsb"], numbers), (GLUE["cola"], unanswered)]
    answers, labels, told = best_predictions(found)
    assert answers == {"RTE": [1.0], "STS-B": [1]}
    assert labels == {"RTE": ("entailment", "not_entailment"), "STS-B": ()}
    assert told[0] == (
        f"rte: seed 1 of quick (5 epochs, rate 0.0003), the best of 3 on dev with {metric} 0.700, answers RTE.tsv."
    )
    assert len(told) == 2


def test_the_labels_of_every_glue_task_are_the_servers() -> None:
    tasks = {"CoLA": "cola", "SST-2": "sst2", "MRPC": "mrpc", "QQP": "qqp", "RTE": "rte", "QNLI": "qnli"}
    tasks |= {"WNLI": "wnli", "MNLI-m": "mnli", "MNLI-mm": "mnli"}
    for name, task in tasks.items():
        assert {label for _, label in GLUE[task].labels} == {label for label, _ in FILES[name].values}


# ---------------------------------------------------------------- daybreak check-submission


def test_the_command_says_every_fault_or_that_there_is_none(
    tmp_path: Path, short: None, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    write_submission(tmp_path, {}, {})
    check_submission(str(tmp_path / "submission.zip"))
    assert capsys.readouterr().out.endswith("submission.zip' is a valid submission: 11 files, all rows present.\n")
    (tmp_path / "AX.tsv").unlink()
    (tmp_path / "RTE.tsv").write_text("index\tprediction\n0\tentailment\n", encoding="utf-8")
    said = refused("check-submission", tmp_path)
    assert "is not a valid submission: 2 problems" in said
    assert "RTE.tsv, line 2, is its last: 1 row. Write 7," in said and "AX.tsv is missing" in said
