"""Parts, workers, kills and hostile text: what is made depends on text and settings alone, or an error is clear."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from needs import takes_long
from rendezvous import wait_for
from small_texts import PART, contents, left_over, write_records

from daybreak.commands import prepare as module
from daybreak.commands.prepare import prepare
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import read_json
from daybreak.data.pipeline import encoding, first_pass
from daybreak.data.pipeline.corpus import Corpus, bundle_files
from daybreak.data.readers import inputs
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.file_range import Skips
from daybreak.data.readers.inputs import RECORDS, TEXT, ByteCounter, find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece

SMALL = WordPiece(vocabulary=600)
FULL = Path("/dev/full")


@takes_long
def test_neither_workers_nor_parts_change_what_is_made(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare([records], tmp_path / "whole", tokenizer=SMALL)
    whole = contents(tmp_path / "whole")
    for size, workers in ((700, 1), (PART, 1), (PART, 2), (PART, 4)):
        monkeypatch.setattr(
            module, "bundle_files", lambda files, rule, size=size, **how: bundle_files(files, rule, size, **how)
        )
        out = tmp_path / f"{size}-{workers}"
        prepare([records], out, tokenizer=SMALL, workers=workers)
        assert contents(out) == whole
    assert len(whole) >= 9 and left_over(tmp_path) == []


SCRIPT = """
import os, signal, sys
from pathlib import Path
from daybreak.commands import prepare as module
from daybreak.data.pipeline.corpus import bundle_files
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import find_files
from daybreak.data.tokenizers.tokenizer import WordPiece

module.bundle_files = lambda files, rule, **how: bundle_files(files, rule, {part}, **how)
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
def test_killed_on_the_way_it_goes_on_and_comes_out_the_same(records: Path, tmp_path: Path, fraction: float) -> None:
    parts = -(-records.stat().st_size // PART)
    before = round(fraction * 2 * parts)

    def run(tasks: int) -> subprocess.CompletedProcess[str]:
        script = SCRIPT.format(part=PART)
        command = [sys.executable, "-c", script, str(records), str(tmp_path / "killed"), str(tasks)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(before).returncode == -signal.SIGKILL
    work = tmp_path / ".killed.preparing"
    done = [path for stage in ("survey", "encoded") for path in work.glob(f"*/{stage}/[0-9]*")]
    assert len(done) == before and not (tmp_path / "killed").exists()
    again = run(10_000)  # that nothing is done twice is the next test's
    assert again.returncode == 0 and "Resuming the interrupted preparation." in again.stdout, again.stderr
    prepare([records], tmp_path / "straight", tokenizer=SMALL)
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_what_is_done_is_not_done_again(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    encode = encoding._encode

    def stopping(*arguments: object) -> None:
        if len(read) == 5:
            raise KeyboardInterrupt
        read.append(arguments[3])  # type: ignore[arg-type]
        encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "_encode", stopping)
    with pytest.raises(KeyboardInterrupt):
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    monkeypatch.setattr(first_pass, "_read", lambda *arguments: pytest.fail("read again"))
    monkeypatch.setattr(WordPiece, "make", lambda *arguments: pytest.fail("made again"))
    again: list[int] = []
    monkeypatch.setattr(
        encoding,
        "_encode",
        lambda *arguments: (again.append(arguments[3]), encode(*arguments)),  # type: ignore[arg-type]
    )
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert sorted(read + again) == list(range(len(read) + len(again))) and len(read) == 5 < len(again)
    assert left_over(tmp_path) == []


def test_what_was_left_of_other_text_is_not_gone_on_with(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".data.preparing" / "something else" / "survey" / "00000").mkdir(parents=True)
    manifest = prepare([records], tmp_path / "data", tokenizer=SMALL)
    assert manifest.train.documents + manifest.heldout.documents == 600
    assert "Resuming the interrupted preparation" not in capsys.readouterr().out


def test_two_preparations_of_one_folder_do_not_meet(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = WordPiece.make

    def another(*arguments: Any) -> Any:
        with pytest.raises(UserError, match=r"Another preparation is writing the same folder."):
            prepare([records], tmp_path / "data", tokenizer=SMALL)
        return make(*arguments)

    monkeypatch.setattr(WordPiece, "make", another)
    prepare([records], tmp_path / "data", tokenizer=SMALL)
    open_shards(tmp_path / "data")
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_a_killed_worker_is_reported_in_one_sentence(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_by_the_kernel(*arguments: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    monkeypatch.setattr(module.first_pass, "first_pass_part", killed_by_the_kernel)
    with pytest.raises(UserError, match=r"A worker process was killed.*Use fewer with --workers"):
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=2)
    monkeypatch.undo()
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)  # goes on from there
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
    wait_for(lambda: list(tmp_path.glob(".data.preparing/*/survey/[0-9]*")), process)
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


def test_a_link_is_followed_and_a_disk_refused(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "large" / "data")
    prepare([records], tmp_path / "data", tokenizer=SMALL)
    assert (tmp_path / "data").is_symlink() and (tmp_path / "large" / "data" / "manifest.json").is_file()
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    with pytest.raises(UserError, match="is a mount point"):
        prepare([records], tmp_path / "other", tokenizer=SMALL)


@pytest.mark.parametrize("kept", [0, 1 << 20], ids=["read twice", "kept"])
@pytest.mark.parametrize("more", [0, 1], ids=["other text", "more text"])
def test_input_that_changes_meanwhile_is_refused(
    kept: int, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with as many documents as before, so that no count tells: the verdicts would be of other text."""
    text, report = tmp_path / "a.txt", module._report
    text.write_text("".join(f"Line {number} of the first text.\n" for number in range(300)))

    def overwrite(*facts: object) -> None:
        report(*facts)  # type: ignore[arg-type]
        text.write_text("".join(f"Line {number} of another text.\n" for number in range(300 + more)))

    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    monkeypatch.setattr(module, "_report", overwrite)
    with pytest.raises(UserError, match=r"changed while it was read"):
        prepare([text], tmp_path / "data", tokenizer=SMALL)
    assert not (tmp_path / "data").exists() and left_over(tmp_path) == []


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("stage", "task", "name", "said"),
    [
        *((encoding, "_encode", name, r"The disk of '.*' is full") for name in ("times", "counts", "density")),
        (first_pass, "_read", ".facts.json.{}.tmp", r"facts.json' cannot be written \(.*No space left on device\)"),
    ],
    ids=["times", "counts", "density", "facts"],
)
def test_a_full_disk_loses_no_file_of_a_part(
    stage: ModuleType, task: str, name: str, said: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """An empty file of times would leave all documents of its part out of the training text."""
    write = getattr(stage, task)

    def full(job: Any, work: Path, *more: Any) -> None:
        (work / name.format(os.getpid())).symlink_to(FULL)
        write(job, work, *more)

    with monkeypatch.context() as patch:
        patch.setattr(stage, task, full)
        with pytest.raises(UserError, match=said):
            prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert left_over(tmp_path) == [".data.preparing"]
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert "Resuming the interrupted preparation." in capsys.readouterr().out
    prepare([records], tmp_path / "at-once", tokenizer=SMALL, workers=1)
    assert contents(tmp_path / "data") == contents(tmp_path / "at-once") and left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "full"), UserError, "is full. Free disk space and run the same command again: finished"),
        (BrokenPipeError(errno.EPIPE, "closed"), BrokenPipeError, "closed"),
        (OSError(errno.EIO, "disk"), OSError, "disk"),
        (Interrupted(15), Interrupted, None),
    ],
    ids=["full", "pipe", "disk", "signal"],
)
def test_after_an_error_that_may_pass_the_same_command_goes_on(
    error: Exception, raised: type[Exception], words: str | None, records: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("daybreak.data.pipeline.encoding.join", fail)
        with pytest.raises(raised, match=words):
            prepare([records], tmp_path / "data", tokenizer=SMALL)
    assert left_over(tmp_path) == [".data.preparing"]
    prepare([records], tmp_path / "data", tokenizer=SMALL)
    assert "Resuming the interrupted preparation." in capsys.readouterr().out and left_over(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_after_a_read_error_what_is_done_stays(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[object] = []

    class Failing(inputs._CountedFile):
        def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
            opened.append(self)
            if len(opened) > 4:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer)

    with monkeypatch.context() as patch:
        patch.setattr(inputs, "_CountedFile", Failing)
        with pytest.raises(UserError, match=r"cannot be read: input/output error. Fix that, or leave the file out."):
            prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    done = list(tmp_path.glob(".data.preparing/*/survey/[0-9]*"))
    assert done
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert "Resuming the interrupted preparation." in capsys.readouterr().out and left_over(tmp_path) == []


@pytest.mark.parametrize("out", ["x" * 300, "deep/" + "y" * 300])
def test_a_name_that_is_too_long_is_said(tmp_path: Path, out: str) -> None:
    with pytest.raises(UserError, match="name too long"):
        prepare([write_records(tmp_path / "a.jsonl", 40)], tmp_path / out, tokenizer=SMALL)


# ---------------------------------------------------------------- hostile text


def test_a_line_without_an_end_becomes_documents_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, TEXT, 1 << 14)
    rng = random.Random(0)
    words = [str(rng.randrange(10**6)) for _ in range(60_000)]
    (tmp_path / "t.txt").write_text(" ".join(words))
    manifest = prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert manifest.train.documents + manifest.heldout.documents == -(-len(" ".join(words)) // (1 << 14))
    assert manifest.characters == pytest.approx(len(" ".join(words)), rel=1e-3)
    assert read_json(tmp_path / "data" / "corpus.json")["words"] == len(words)

    def peak(lines: int) -> int:
        (tmp_path / "long.txt").write_bytes(b"word " * (lines << 14))
        files = find_files([tmp_path / "long.txt"])
        corpus = Corpus(bundle_files(files, choose_rule(files, "line")), choose_rule(files, "line"), "text", False, 0)
        tracemalloc.start()
        documents = corpus.documents(0, Skips(), ByteCounter())
        assert sum(len(document.text) + 1 for document in documents) == 5 * lines << 14
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(64) < 1.5 * peak(4)


def test_a_record_without_an_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, RECORDS, 1 << 14)
    path = write_records(tmp_path / "t.jsonl", 200)
    path.write_text(path.read_text() + '{"text": "' + "word " * 10_000 + '"}\n')
    manifest = prepare([path], tmp_path / "data", tokenizer=SMALL)
    assert sum(manifest.skipped.values()) == 1 and manifest.sources[0].documents == 220


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nul.txt", b"a line\nzero \0 bytes\n", r"nul.txt' is binary, not text \(line 2\). Leave it out"),
        ("old.txt", "gr\u00fc\u00dfe\nna\u00efve\n".encode("latin-1"), "old.txt' has 2 undecodable lines of 2"),
    ],
)
def test_one_bad_file_among_good_ones_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"File {number} says this.\nAnd that.\n")
    (folder / "loop").symlink_to(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare([folder], tmp_path / "data", tokenizer=SMALL, document="line", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]
    (folder / name).unlink()
    manifest = prepare([folder], tmp_path / "data", tokenizer=SMALL, document="line", workers=1)
    assert (manifest.sources[0].documents, manifest.duplicates) == (10, 4)


def test_files_named_one_by_one_are_read_together_and_counted_apart(tmp_path: Path) -> None:
    """A shell names thousands of files: they must not be as many tasks, nor change what is made."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(
            "".join(f"Text {number} line {line}.\n" for line in range(number % 4))
        )
    files = sorted(folder.iterdir())
    found = find_files(files)
    assert len(bundle_files(found, choose_rule(found, "line"), together=True)) == 1
    assert len(bundle_files(found, choose_rule(found, "line"))) == 60
    one = prepare([folder], tmp_path / "one", tokenizer=SMALL, document="line")
    many = prepare(files, tmp_path / "many", tokenizer=SMALL, document="line")
    assert [source.documents for source in many.sources] == [number % 4 for number in range(60)]
    assert [source.path for source in many.sources] == list(map(str, files))
    assert (one.train, one.heldout, one.unigram_counts) == (many.train, many.heldout, many.unigram_counts)
    assert open_shards(tmp_path / "many").manifest == many and left_over(tmp_path) == []


WILD = st.binary(max_size=300) | st.text(max_size=120).map(lambda text: text.encode("utf-8", "surrogatepass"))


@settings(max_examples=150)
@given(st.sampled_from([".txt", ".jsonl", ".csv", ".tsv", ".html", ".xml", ".parquet", ".txt.gz"]), WILD)
@example(".jsonl", b'{"text": "\\ud800"}\n' * 3)
@example(".html", b"<p>" * 60)
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("wild") / f"t{suffix}"
    path.write_bytes(content)
    try:
        files = find_files([path])
        rule = choose_rule(files, "auto")
        corpus = Corpus(bundle_files(files, rule, 64), rule, "text", False, 0)
        skips = Skips()
        for number in range(len(corpus.parts)):
            for document in corpus.documents(number, skips, ByteCounter()):
                assert document.text.strip() and document.text.encode()
        skips.evaluate()
    except UserError as error:
        assert error.sentence.endswith(".") and error.remedy.endswith(".")
