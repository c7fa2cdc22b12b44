"""The index on disk: what it holds, that a build that was killed comes out the same, and what makes it anew."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from daybreak.core.errors import UserError, WriteFailed
from daybreak.core.files import read_json, write_json
from daybreak.core.locks import alone_in
from daybreak.evaluation.probes.bm25 import bm25_index
from daybreak.schemas.search import SearchIndex
from daybreak.searching import index as module
from daybreak.searching.index import OpenIndex, SearchSource, export_parquet, open_index


@pytest.fixture
def run(finished: Path, data: Path, tmp_path: Path) -> Path:
    """A run folder of its own, with its data inside."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(data, tmp_path / "run" / "data")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stock_vectors(index: OpenIndex) -> np.ndarray:
    """Unit means of the last hidden states of transformers' own model, text by text."""
    folder = index.source.model
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for number in range(index.state.passages):
        ids = [tokenizer.cls_token_id, *index.reader.ids(number).tolist(), tokenizer.sep_token_id]
        with torch.inference_mode():
            mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        found.append((mean / mean.norm()).numpy())
    return np.stack(found)


def test_the_vectors_are_those_of_stock_transformers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daybreak.training.hardware.probe.faster_precision", lambda device: "float32")
    index = open_index(run)
    assert index.vectors.dtype == np.float16 and index.state.precision == "float32"
    assert index.vectors.astype(float) == pytest.approx(stock_vectors(index).astype(float), abs=1e-3)


def test_bfloat16_changes_the_vectors_little(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daybreak.training.hardware.probe.faster_precision", lambda device: "bfloat16")
    index = open_index(run)
    assert index.state.precision == "bfloat16"
    assert (index.vectors.astype(float) * stock_vectors(index)).sum(axis=1).min() > 0.995


def test_the_words_on_disk_are_those_of_an_index_in_memory(run: Path) -> None:
    index = open_index(run)
    memory = bm25_index(list(index.reader.all_texts()))
    assert isinstance(index.bm25.scores["data"], np.memmap) and index.bm25.vocab_dict == memory.vocab_dict
    for name in ("data", "indices", "indptr"):
        assert (index.bm25.scores[name] == memory.scores[name]).all()


KILLED = """
import os, signal, sys
from pathlib import Path
from daybreak.searching import index

index.PART = 300
write = index.write_json
def killed(path, state):
    write(path, state)
    if state.embedded == 600:
        os.kill(os.getpid(), signal.SIGKILL)
index.write_json = killed
index.open_index(Path(sys.argv[1]))
"""


def test_a_build_that_was_killed_goes_on_and_gives_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PART", 300)
    done = subprocess.run([sys.executable, "-c", KILLED, str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    halfway: SearchIndex = read_json(run / "search" / "index.json", SearchIndex)
    assert halfway.embedded == 600 < halfway.passages and not halfway.has_bm25
    begun = np.load(run / "search" / "vectors.npy")
    assert begun[:600].any(axis=1).all() and not begun[600:].any()
    open_index(run)
    assert f"Resuming the search index at passage 600 of {halfway.passages:,}." in capsys.readouterr().out
    whole = open_index(run, folder=tmp_path / "whole")
    assert contents(run / "search") == contents(tmp_path / "whole") and whole.state.embedded == halfway.passages


def test_the_progress_of_a_small_index_is_shown_too(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("daybreak.core.terminal.PLAIN_INTERVAL", 0.0)
    passages = open_index(run).state.passages
    assert passages <= module.PART
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Embedding passages:")]
    assert len(shown) > 1 and shown[-1].endswith(f"{passages:,} of {passages:,}")


def test_a_build_that_failed_before_bm25_was_complete_makes_it_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents(open_index(run, folder=tmp_path / "whole").source.model)
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(module, "replace_folder", interrupted)
        open_index(run)
    assert not (run / "search" / "bm25").exists() and (run / "search" / ".bm25.tmp").is_dir()
    assert contents(open_index(run).source.model) == whole
    assert contents(run / "search") == contents(tmp_path / "whole")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_index_that_is_complete_is_only_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_index(run)
    before = {path: path.stat().st_mtime_ns for path in (run / "search").rglob("*")}
    monkeypatch.setattr(module, "alone_in", None)  # nothing is locked
    open_index(run)
    assert before == {path: path.stat().st_mtime_ns for path in (run / "search").rglob("*")}


def test_another_model_makes_it_anew_and_a_copy_of_the_same_does_not(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_index(run)
    weights = run / "model" / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    capsys.readouterr()
    open_index(run)
    assert capsys.readouterr().out == ""
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    open_index(run)
    said = capsys.readouterr().out
    assert said.startswith("The model changed since the search index was made: it is built again.\n")
    open_index(run)
    assert capsys.readouterr().out == ""


def test_other_data_of_the_same_tokenizer_make_it_anew(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from daybreak.commands.prepare import prepare
    from daybreak.data.tokenizers.tokenizer_import import Existing

    first = open_index(run)
    text = tmp_path / "other.txt"
    text.write_text("\n\n".join(f"the sailor number {number} finds the river ." for number in range(200)))
    prepare([text], tmp_path / "other", tokenizer=Existing(folder=str(run / "model")))
    second = open_index(run, data=tmp_path / "other")
    assert "The data changed since the search index was made: it is built again.\n" in capsys.readouterr().out
    assert second.state.data != first.state.data and second.state.data_folder == str(tmp_path / "other")
    assert first.vectors[-1].any()  # the files of before stay readable for who has them open


def test_data_elsewhere_are_remembered(finished: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with pytest.raises(UserError, match=r"The prepared data of .* are not in .* Name their folder with --data\."):
        open_index(run)
    open_index(run, data=data)
    assert open_index(run).source.data == data


def test_data_that_moved_are_named_once(finished: Path, data: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    index = open_index(run, data=shutil.copytree(data, tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(UserError, match=r"The prepared data of .* are not in .*old'\. Name their folder with --data\."):
        open_index(run)
    made = (run / "search" / "vectors.npy").stat().st_mtime_ns
    again = open_index(run, data=tmp_path / "new")
    assert again.state.passages == index.state.passages and open_index(run).source.data == tmp_path / "new"
    assert (run / "search" / "vectors.npy").stat().st_mtime_ns == made


def test_data_that_moved_are_not_written_over_an_index_that_is_built_again(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that index would count as complete, with vectors of zeros if its build was killed."""
    run = shutil.copytree(finished, tmp_path / "run")
    begun = replace(open_index(run, data=data).state, embedded=0)
    file, moved = run / "search" / "index.json", shutil.copytree(data, tmp_path / "moved")

    vectors, is_ready = np.load(run / "search" / "vectors.npy"), module._is_ready
    state: list[SearchIndex | None] = []

    def look(found: SearchIndex | None, source: SearchSource, words: bool) -> bool:
        state.append(found)
        if len(state) == 1:
            write_json(file, begun)  # by another process, after this one has read the state
            np.save(run / "search" / "vectors.npy", np.zeros_like(vectors))
        return len(state) == 1 or is_ready(found, source, words)

    monkeypatch.setattr(module, "_is_ready", look)
    opened = open_index(run, data=moved)
    assert opened.state.data_folder == str(moved) and state[1] == begun
    assert read_json(file, SearchIndex) == opened.state and opened.state.embedded == len(vectors)
    assert np.array_equal(opened.vectors, vectors)


def test_an_index_of_its_own_keeps_its_data(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run has its own data inside, which --index without --data must not take instead."""
    from daybreak.commands.prepare import prepare
    from daybreak.data.tokenizers.tokenizer_import import Existing

    text, other, own = tmp_path / "other.txt", tmp_path / "other", tmp_path / "own"
    text.write_text("\n\n".join(f"the sailor number {number} finds the river ." for number in range(200)))
    prepare([text], other, tokenizer=Existing(folder=str(run / "model")))
    first = open_index(run, data=other, folder=own)
    capsys.readouterr()
    for rebuild in (False, True):
        again = open_index(run, folder=own, rebuild=rebuild)
        assert again.source.data == other and again.state.passages == first.state.passages
    assert capsys.readouterr().out == ""
    assert open_index(run).source.data == run / "data"


def test_two_commands_do_not_build_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(run / "search")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="Another process is at work in"):
        open_index(run)
    holder.communicate("")
    assert open_index(run).state.has_bm25


HOLDS = f"""
import sys
from pathlib import Path
from {alone_in.__module__} import alone_in

with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_full_disk_shows_before_the_vectors_are_mapped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(module, "_embed_passages", lambda *_: pytest.fail("passages were embedded"))
    with pytest.raises(OSError, match="No space left"):
        open_index(run)


def test_a_full_disk_while_bm25_is_saved_is_one_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's errors of a full disk have no number."""
    shutil.rmtree(run / "search", ignore_errors=True)
    full = OSError("79883 requested and 14304 written")
    monkeypatch.setattr("bm25s.BM25.save", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(WriteFailed, match=r"79883 requested and 14304 written.*Free disk space"):
        open_index(run)


def test_an_index_that_is_built_again_while_it_is_opened_is_opened_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new vectors are zeros at first, of the same shape."""
    open_index(run)
    state = module._saved_state(run / "search")
    found = iter([state, replace(state, embedded=0), state, state])
    monkeypatch.setattr(module, "_saved_state", lambda folder: next(found))
    assert open_index(run).state == state
    assert next(found, None) is None


def test_a_damaged_index_is_named(run: Path) -> None:
    open_index(run)
    (run / "search" / "vectors.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"The search index in .* is damaged .* Build it again with --rebuild\."):
        open_index(run)
    assert open_index(run, rebuild=True).vectors.any(axis=1).all()
    (run / "search" / "bm25" / "params.index.json").write_text("null")
    with pytest.raises(UserError, match=r"is damaged .* Build it again with --rebuild\."):
        open_index(run)
    (run / "search" / "passages.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged .* Build it again with --rebuild\."):
        open_index(run)


@pytest.mark.parametrize("name", ["passages.npy", "vectors.npy"])
def test_a_damaged_part_of_an_index_is_named(run: Path, name: str) -> None:
    state = open_index(run).state
    write_json(run / "search" / "index.json", replace(state, embedded=0, has_bm25=False))
    (run / "search" / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged .* Build it again with --rebuild\."):
        open_index(run)


def test_a_model_that_cannot_be_read_leaves_the_index(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_index(run)
    before, weights = contents(run / "search"), run / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])  # of a copy that was interrupted
    capsys.readouterr()
    for rebuild in (False, True):
        with pytest.raises(UserError):
            open_index(run, rebuild=rebuild)
    assert contents(run / "search") == before and "built again" not in capsys.readouterr().out
    weights.write_bytes(whole)
    assert open_index(run).vectors.any(axis=1).all() and "built again" not in capsys.readouterr().out


def test_an_index_whose_files_vanish_while_it_is_opened_is_opened_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes them before it makes them again."""
    state, opened = open_index(run).state, module._opened

    def vanishing(folder: Path, *rest: object) -> OpenIndex:
        monkeypatch.setattr(module, "_opened", opened)
        write_json(folder / "index.json", replace(state, passages=0))
        (folder / "passages.npy").unlink()
        return opened(folder, *rest)

    monkeypatch.setattr(module, "_opened", vanishing)
    assert open_index(run).state == state


def test_a_build_that_was_killed_before_its_passages_goes_on_in_a_folder_of_its_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(module, "cut_passages", interrupted)
        open_index(run, folder=tmp_path / "own")
    assert (tmp_path / "own" / "index.json").is_file()
    assert open_index(run, folder=tmp_path / "own").vectors.any(axis=1).all()


def test_a_moved_model_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_index(run)
    for path in (run / "model").iterdir():
        os.utime(path, (1, 1))  # as after a copy
    open_index(run)
    monkeypatch.setattr(module, "model_fingerprint", lambda model: pytest.fail("the model is read again"))
    open_index(run)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_link_that_leads_nowhere_is_one_sentence(run: Path, name: str) -> None:
    (run / "model" / name).unlink()
    (run / "model" / name).symlink_to("nowhere")
    with pytest.raises(UserError) as caught:
        open_index(run)
    assert name in caught.value.sentence and "\n" not in caught.value.sentence


def test_a_folder_of_something_else_is_not_touched(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds 'thesis.tex' and is not a search index. Choose another with --index\."):
        open_index(run, folder=tmp_path / "mine", rebuild=True)
    assert contents(tmp_path / "mine") == {"thesis.tex": b"years of work"}
    with pytest.raises(UserError, match=r"is not a folder. Choose another folder with --index\."):
        open_index(run, folder=tmp_path / "mine" / "thesis.tex")


def test_files_of_the_user_with_the_names_of_an_index_are_not_touched(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    np.save(mine / "vectors.npy", np.ones(3))
    for facts in (None, '{"my": "data"}'):
        if facts:
            (mine / "index.json").write_text(facts)
        before = contents(mine)
        with pytest.raises(UserError, match=r"and is not a search index. Choose another with --index\."):
            open_index(run, folder=mine, rebuild=True)
        assert contents(mine) == before


def test_data_of_another_tokenizer_are_refused(run: Path, tmp_path: Path) -> None:
    from daybreak.commands.prepare import prepare
    from daybreak.data.tokenizers.tokenizer import WordPiece

    text = tmp_path / "other.txt"
    text.write_text("\n\n".join(f"sailor {number} and the unexpected zebra ." for number in range(200)))
    prepare([text], tmp_path / "other", tokenizer=WordPiece(vocabulary=300))
    with pytest.raises(UserError, match="were made with another tokenizer than that of"):
        open_index(run, data=tmp_path / "other")


def test_without_bm25s_vectors_alone_are_indexed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.importlib.util.find_spec
    with monkeypatch.context() as missing:
        missing.setattr(module.importlib.util, "find_spec", lambda name: None if name == "bm25s" else real(name))
        with pytest.raises(UserError, match=r"need the package bm25s\. Install it .* or search with --method dense\."):
            open_index(run)
        assert not open_index(run, words=False).state.has_bm25
    assert open_index(run).state.has_bm25


def test_parquet_holds_every_passage_and_its_vector(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 500)
    index, path = open_index(run), tmp_path / "out" / "vectors.parquet"
    export_parquet(index, path)
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == ["id", "split", "document", "text", "vector"]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{index.state.hidden_size}]"
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    assert (vectors == index.vectors.astype(np.float32)).all()
    assert table["id"].to_pylist() == list(range(index.state.passages))
    assert table["text"].to_pylist() == list(index.reader.all_texts())
    split, document = index.reader.passages[:, :2].T
    assert table["split"].to_pylist() == [("train", "heldout")[number] for number in split]
    assert table["document"].to_pylist() == document.tolist()
    assert [file.name for file in path.parent.iterdir()] == ["vectors.parquet"]


def test_what_cannot_be_written_is_one_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_index(run)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .* Choose another file with --export\."):
        export_parquet(index, tmp_path / "file" / "vectors.parquet")
    real = module.importlib.util.find_spec
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name))
    with pytest.raises(UserError, match="Writing Parquet needs the package pyarrow"):
        export_parquet(index, tmp_path / "vectors.parquet")


def test_the_state_on_disk_is_plain(run: Path) -> None:
    open_index(run)
    state = json.loads((run / "search" / "index.json").read_text())
    assert state["data_folder"] == "" and str(run) not in json.dumps(state)
