"""Parts, workers and kills: what comes out of a preparation depends on the text and the settings alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_texts import contents, left_over, write_records

from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.pipeline import encoding, first_pass
from daybreak.data.pipeline.corpus import bundled
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece

PART = 6_000
"""Bytes."""
SMALL = WordPiece(vocabulary=600)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_records(tmp_path / "corpus.jsonl")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bundled", lambda files, rule, **how: bundled(files, rule, PART, **how))


@pytest.mark.usefixtures("small_parts")
def test_the_number_of_workers_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    made = []
    for workers in (1, 2, 4):
        prepare([corpus], tmp_path / f"{workers}", tokenizer=SMALL, workers=workers)
        made.append(contents(tmp_path / f"{workers}"))
    assert len(made[0]) >= 9 and made[0] == made[1] == made[2]
    assert left_over(tmp_path) == []


def test_neither_do_parts_change_what_is_made(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare([corpus], tmp_path / "whole", tokenizer=SMALL)
    for size in (700, PART):
        monkeypatch.setattr(module, "bundled", lambda files, rule, size=size, **how: bundled(files, rule, size, **how))
        prepare([corpus], tmp_path / f"{size}", tokenizer=SMALL, workers=1)
        assert contents(tmp_path / f"{size}") == contents(tmp_path / "whole")


SCRIPT = """
import os, signal, sys
from pathlib import Path
from daybreak.commands import prepare as module
from daybreak.data.pipeline.corpus import bundled
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import find_files
from daybreak.data.tokenizers.tokenizer import WordPiece

module.bundled = lambda files, rule, **how: bundled(files, rule, {part}, **how)
left = int(sys.argv[3])
def counted(task):
    def one(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return task(*arguments)
    return one
stages = module.first_pass.first_pass_part, module.encoding.encode_part
module.first_pass.first_pass_part, module.encoding.encode_part = map(counted, stages)
module.prepare([sys.argv[1]], Path(sys.argv[2]), tokenizer=WordPiece(vocabulary=600), workers=1)
"""


@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_killed_on_the_way_it_goes_on_and_comes_out_the_same(corpus: Path, tmp_path: Path, fraction: float) -> None:
    parts = -(-corpus.stat().st_size // PART)
    before = round(fraction * 2 * parts)

    def run(out: str, tasks: int) -> subprocess.CompletedProcess[str]:
        script = SCRIPT.format(part=PART)
        command = [sys.executable, "-c", script, str(corpus), str(tmp_path / out), str(tasks)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("straight", 10_000).returncode == 0
    assert run("killed", before).returncode == -signal.SIGKILL
    work = tmp_path / ".killed.preparing"
    done = [path for stage in ("survey", "encoded") for path in work.glob(f"*/{stage}/[0-9]*")]
    assert len(done) == before and not (tmp_path / "killed").exists()
    again = run("killed", 10_000)  # that nothing is done twice is the next test's
    assert again.returncode == 0 and "Resuming the interrupted preparation." in again.stdout, again.stderr
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_what_is_done_is_not_done_again(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    take, encode = first_pass._read, encoding._encode

    def stopping(*arguments: object) -> None:
        if len(read) == 5:
            raise KeyboardInterrupt
        read.append(arguments[3])  # type: ignore[arg-type]
        encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "_encode", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, workers=1)
    monkeypatch.setattr(first_pass, "_read", lambda *arguments: pytest.fail("read again"))
    monkeypatch.setattr(WordPiece, "make", lambda *arguments: pytest.fail("made again"))
    again: list[int] = []
    monkeypatch.setattr(
        encoding,
        "_encode",
        lambda *arguments: (again.append(arguments[3]), encode(*arguments)),  # type: ignore[arg-type]
    )
    prepare([corpus], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert sorted(read + again) == list(range(len(read) + len(again))) and len(read) == 5 < len(again)
    assert take is not None and left_over(tmp_path) == []


def test_what_was_left_of_other_text_is_not_gone_on_with(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".data.preparing" / "something else" / "survey" / "00000").mkdir(parents=True)
    manifest = prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert manifest.train.documents + manifest.heldout.documents == 600
    assert "Resuming the interrupted preparation" not in capsys.readouterr().out


def test_two_preparations_of_one_folder_do_not_meet(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = WordPiece.make

    def another(*arguments: Any) -> Any:
        with pytest.raises(UserError, match=r"Another preparation is writing the same folder."):
            prepare([corpus], tmp_path / "data", tokenizer=SMALL)
        return make(*arguments)

    monkeypatch.setattr(WordPiece, "make", another)
    prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    open_shards(tmp_path / "data")
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_a_killed_worker_is_told_in_one_sentence(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed_by_the_kernel(*arguments: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    monkeypatch.setattr(module.first_pass, "first_pass_part", killed_by_the_kernel)
    with pytest.raises(UserError, match=r"A worker process was killed.*Use fewer with --workers"):
        prepare([corpus], tmp_path / "data", tokenizer=SMALL, workers=2)
    monkeypatch.undo()
    prepare([corpus], tmp_path / "data", tokenizer=SMALL, workers=1)  # goes on from there
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_an_error_in_a_worker_is_the_users_as_it_is_here(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t.jsonl")
    path.write_text(path.read_text().replace('{"text"', '"text"'))
    said = []
    for workers in (1, 2):
        with pytest.raises(UserError) as caught:
            prepare([path], tmp_path / "data", tokenizer=SMALL, workers=workers)
        said.append((caught.value.sentence, caught.value.remedy))
    assert said[0] == said[1] and "malformed" in said[0][0]
    assert left_over(tmp_path) == []


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t.jsonl", 3000)
    script = SCRIPT.format(part=PART).replace("workers=1", "workers=2").replace("= map(counted, stages)", "= stages")
    command = [sys.executable, "-c", script, str(path), str(tmp_path / "data"), "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".data.preparing/*/survey/[0-9]*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def children(parent: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_same_files_given_otherwise_are_another_preparation(tmp_path: Path) -> None:
    """Parts are cut by input: what one way of naming the files has left must not be gone on with by the other."""
    folder = tmp_path / "texts"
    folder.mkdir()
    paths = [write_records(folder / f"{name}.jsonl", 40, seed) for seed, name in enumerate("abc")]

    def stop(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoding, "join", stop)
        prepare(paths, tmp_path / "data", tokenizer=SMALL)
    manifest = prepare([folder], tmp_path / "data", tokenizer=SMALL)
    assert manifest.train.documents + manifest.heldout.documents == 120
    assert [source.documents for source in manifest.sources] == [132]


def test_a_link_is_followed_and_a_disk_refused(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "large" / "data")
    prepare([corpus], tmp_path / "data", tokenizer=SMALL)
    assert (tmp_path / "data").is_symlink() and (tmp_path / "large" / "data" / "manifest.json").is_file()
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    with pytest.raises(UserError, match="is a mount point"):
        prepare([corpus], tmp_path / "other", tokenizer=SMALL)


def test_input_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many documents as before, so that no count tells: the verdicts would be of other text."""
    text, report = tmp_path / "a.txt", module._report
    text.write_text("".join(f"Line {number} of the first text.\n" for number in range(300)))

    def overwrite(*facts: object) -> None:
        report(*facts)  # type: ignore[arg-type]
        text.write_text("".join(f"Line {number} of another text.\n" for number in range(300)))

    monkeypatch.setattr(module, "_report", overwrite)
    with pytest.raises(UserError, match=r"a.txt' changed while it was read. Start again when no process writes to it."):
        prepare([text], tmp_path / "data", tokenizer=SMALL)
    assert not (tmp_path / "data").exists() and left_over(tmp_path) == []


def test_a_full_disk_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_records(tmp_path / "a.jsonl")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("daybreak.data.pipeline.encoding.join", lambda *_, **__: full())
        with pytest.raises(UserError, match=r"is full. Free disk space and run the same command again: finished parts"):
            prepare([text], tmp_path / "data", tokenizer=SMALL)
    assert left_over(tmp_path) == [".data.preparing"]
    prepare([text], tmp_path / "data", tokenizer=SMALL)
    prepare([text], tmp_path / "at-once", tokenizer=SMALL)
    assert (tmp_path / "data" / "train-00000.tokens.bin").read_bytes() == (
        tmp_path / "at-once" / "train-00000.tokens.bin"
    ).read_bytes()
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("out", ["x" * 300, "deep/" + "y" * 300])
def test_a_name_that_is_too_long_is_said(tmp_path: Path, out: str) -> None:
    with pytest.raises(UserError, match="name too long"):
        prepare([write_records(tmp_path / "a.jsonl", 40)], tmp_path / out, tokenizer=SMALL)
