"""Checkpoints: exact, two deep, never pickle, and an earlier one is never lost to a later one that failed."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daybreak.core.errors import UserError
from daybreak.models.modern import ModernBert, ModernEncoder
from daybreak.training import checkpoint
from daybreak.training.averaging import Averaging, RunningAverage
from daybreak.training.checkpoint import Progress
from daybreak.training.guard import Health
from daybreak.training.optim.optimizers import AdamW

IDS = torch.randint(5, 40, (4, 10), generator=torch.Generator().manual_seed(0))


def fresh(seed: int) -> tuple[ModernBert, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = ModernEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=12, init_std=0.1).build(40)
    return model, AdamW(lr=1e-2).build(model)


def train(model: ModernBert, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model.logits(IDS).square().mean().backward()
        optimizer.step()


def at(step: int) -> Progress:
    used = {"start": 1.25, "train": 0.1 + 0.2}
    return Progress(
        step=step,
        position=8 * step,
        tokens=80 * step,
        targets=9 * step,
        elapsed=1 / 3,
        resumes=2,
        time_by_category=used,
    )


def test_a_round_trip_is_exact_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer)
    checkpoint.save(tmp_path, at(3), model, optimizer)
    again, other = fresh(2)
    progress, torn = checkpoint.load_newest(tmp_path, again, other)
    assert (progress, torn) == (at(3), [])
    assert again.output.weight is again.embedding.weight
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        left, right = optimizer.state[mine], other.state[theirs]
        assert set(left) == set(right) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(left[name], right[name]) and left[name].dtype == right[name].dtype for name in left)
    for pair in ((model, optimizer), (again, other)):
        train(*pair)
    for (name, left), right in zip(model.named_parameters(), again.parameters()):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("file", ["weights", "moments", "average"])
@pytest.mark.parametrize("how", ["other size", "missing", "unknown"])
def test_tensors_that_do_not_fit_are_refused_before_anything_is_loaded(file: str, how: str, tmp_path: Path) -> None:
    """As after damage to the header of a file, which safetensors accepts if its sizes add up."""
    model, optimizer = fresh(1)
    average = RunningAverage(Averaging(fraction=1.0, every=1), model)
    train(model, optimizer)
    average.update(0, 1.0)
    saved, _ = checkpoint.read_newest(checkpoint.save(tmp_path, at(3), model, optimizer, average).parent)
    assert saved and not checkpoint.misfit(saved, model, optimizer, average)
    tensors = dict(getattr(saved, file))
    name = next(name for name, tensor in tensors.items() if tensor.numel() > 1)
    if how == "other size":
        tensors[name] = tensors[name].flatten()[:3].clone()
    elif how == "unknown":
        tensors["x"] = tensors.pop(name)
    else:
        del tensors[name]
    again, other = fresh(2)
    before = {name: value.clone() for name, value in again.state_dict().items()}
    damaged = replace(saved, **{file: tensors})
    if (file, how) == ("moments", "missing"):  # state that a parameter has not had yet
        checkpoint.load(damaged, again, other, RunningAverage(Averaging(fraction=1.0, every=1), again))
        return
    with pytest.raises(UserError, match="of step 3 does not fit the run") as refused:
        checkpoint.load(damaged, again, other, RunningAverage(Averaging(fraction=1.0, every=1), again))
    assert "Delete its folder step-000000003" in refused.value.remedy
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


def test_an_optimizer_whose_state_has_other_shapes_is_resumed(tmp_path: Path) -> None:
    """Adafactor keeps a row and a column of the squares of each matrix."""
    model, _ = fresh(1)
    optimizer = torch.optim.Adafactor(model.parameters())
    train(model, optimizer)
    checkpoint.save(tmp_path, at(3), model, optimizer)
    again, _ = fresh(2)
    other = torch.optim.Adafactor(again.parameters())
    assert checkpoint.load_newest(tmp_path, again, other) == (at(3), [])
    for pair in ((model, optimizer), (again, other)):
        train(*pair)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), again.parameters(), strict=True))


def test_a_checkpoint_before_the_first_step_loads(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    checkpoint.save(tmp_path, at(0), model, optimizer)
    again, other = fresh(2)
    assert checkpoint.load_newest(tmp_path, again, other)[0] == at(0)
    assert torch.equal(model.embedding.weight, again.embedding.weight) and not other.state


@pytest.mark.parametrize("file", ["progress.json", "model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_torn_newest_gives_way_to_the_one_before(tmp_path: Path, file: str, how: str) -> None:
    model, optimizer = fresh(1)
    for step in (3, 6):
        train(model, optimizer)
        last = checkpoint.save(tmp_path, at(step), model, optimizer)
    if how == "cut":
        (last / file).write_bytes((last / file).read_bytes()[:-20])
    else:
        (last / file).unlink()
    again, other = fresh(2)
    progress, torn = checkpoint.load_newest(tmp_path, again, other)
    assert progress == at(3)
    assert len(torn) == 1 and torn[0].startswith("step-000000006")
    (tmp_path / "step-000000003" / file).unlink()
    before = again.embedding.weight.clone()
    progress, torn = checkpoint.load_newest(tmp_path, again, other)
    assert progress is None and len(torn) == 2
    assert torch.equal(before, again.embedding.weight)


def test_two_are_kept_and_none_holds_pickle(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer)
    for step in (5, 10, 15, 1_000):
        checkpoint.save(tmp_path, at(step), model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000015", "step-000001000"]
    files = sorted(path.name for path in (tmp_path / "step-000001000").iterdir())
    assert files == ["model.safetensors", "optimizer.safetensors", "progress.json"]
    for path in tmp_path.rglob("*.safetensors"):
        assert path.read_bytes()[8:10] == b'{"'  # the header of safetensors; pickles and zips begin otherwise


def test_checkpoints_are_in_the_order_of_their_steps_also_beyond_nine_digits(tmp_path: Path) -> None:
    """And a copy that a file manager made is none of them."""
    model, optimizer = fresh(1)
    for step in (999_999_998, 999_999_999, 10**9, 10**9 + 1):
        checkpoint.save(tmp_path, at(step), model, optimizer)
    (tmp_path / "step-1000000001 copy").mkdir()
    assert [path.name for path in checkpoint.saved_in(tmp_path)] == ["step-1000000000", "step-1000000001"]
    checkpoint.save(tmp_path, at(999_999_999), model, optimizer, keep=3)
    newest, unreadable = checkpoint.read_newest(tmp_path)
    assert newest and newest.progress.step == 10**9 + 1 and not unreadable


def test_the_same_step_may_be_written_twice(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    checkpoint.save(tmp_path, at(5), model, optimizer)
    train(model, optimizer)
    checkpoint.save(tmp_path, at(5), model, optimizer)
    again, other = fresh(2)
    checkpoint.load_newest(tmp_path, again, other)
    assert torch.equal(model.embedding.weight, again.embedding.weight)


def test_what_a_kill_left_half_written_goes_with_the_next_one(tmp_path: Path) -> None:
    """Milestones are written once: a torn one of another step would stay beside them for ever."""
    for torn in (".step-000000004.tmp", ".step-000000004.old"):
        (tmp_path / torn).mkdir()
        (tmp_path / torn / "model.safetensors").write_bytes(b"half of it")
    checkpoint.save(tmp_path, at(5), *fresh(1), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_a_file_in_the_way_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(UserError, match="checkpoint at step 3 cannot be written"):
        checkpoint.save(tmp_path / "checkpoints", at(3), *fresh(1))


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 4 kB: the nearest to a full disk that a test may bring about.

    Inside the test alone: pytest's own report, where it goes to a file, is such a file too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_really_full_is_a_user_error(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    with small_files(), pytest.raises(UserError, match="cannot be written"):
        checkpoint.save(tmp_path, at(3), model, optimizer)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer)
    checkpoint.save(tmp_path, at(3), model, optimizer)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match="No space left") as error:
        checkpoint.save(tmp_path, at(6), model, optimizer)
    assert "Free disk space" in error.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    assert checkpoint.load_newest(tmp_path, *fresh(2))[0] == at(3)


def test_a_charge_is_on_disk_before_the_next_step(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    checkpoint.save(tmp_path, at(3), model, optimizer)
    charged = replace(at(3), elapsed=77.5, resumes=3)
    checkpoint.charge(tmp_path, charged)
    assert checkpoint.load_newest(tmp_path, *fresh(2)) == (charged, [])


def ill(step: int, recent: int) -> Progress:
    return replace(at(step), health=Health(recent=recent, dropped=recent.bit_count()))


def names(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def test_of_a_run_that_leaves_out_steps_one_from_before_stays(tmp_path: Path) -> None:
    """Steps 4, 5 ... are skipped: 3 is the newest one before a good step."""
    model, optimizer = fresh(1)
    kept = []
    for step, recent in ((2, 0), (3, 0), (4, 0), (5, 0b1), (6, 0b11), (7, 0b111), (8, 0b1111)):
        checkpoint.save(tmp_path, ill(step, recent), model, optimizer)
        kept.append(names(tmp_path))
    assert kept == [[2], [2, 3], [3, 4], [3, 4, 5], [3, 5, 6], [3, 6, 7], [3, 7, 8]]
    # Two good steps later the window still holds them.
    checkpoint.save(tmp_path, ill(10, 0b111100), model, optimizer)
    assert names(tmp_path) == [3, 8, 10]
    checkpoint.save(tmp_path, at(40), model, optimizer)
    assert names(tmp_path) == [10, 40]
    # Milestones keep only one checkpoint.
    checkpoint.save(tmp_path / "best", ill(4, 0), model, optimizer, keep=1)
    checkpoint.save(tmp_path / "best", ill(6, 0b11), model, optimizer, keep=1)
    assert names(tmp_path / "best") == [6]


def test_the_newest_before_a_step_is_found(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    for step in (3, 7, 12):
        checkpoint.save(tmp_path, at(step), model, optimizer, keep=9)
    for before, expected in ((13, 12), (12, 7), (7, 3), (4, 3)):
        found, torn = checkpoint.read_newest(tmp_path, before=before)
        assert found is not None and found.progress == at(expected) and torn == []
    assert checkpoint.read_newest(tmp_path, before=3) == (None, [])
    (tmp_path / "step-000000007" / "model.safetensors").unlink()
    found, torn = checkpoint.read_newest(tmp_path, before=12)
    assert found is not None and found.progress == at(3) and torn[0].startswith("step-000000007")


def test_a_checkpoint_that_this_user_may_not_read_is_not_taken_for_an_incomplete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = fresh(1)
    newest = [checkpoint.save(tmp_path, at(step), model, optimizer) for step in (3, 7)][-1]
    assert len({file.stat().st_mode for file in newest.iterdir()}) == 1  # the weights are as readable as the rest
    opened = Path.open

    def forbidden(path: Path, *how: Any, **more: Any) -> Any:
        if path == newest / checkpoint.WEIGHTS:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(UserError, match=r"step-000000007' cannot be read: permission denied"):
        checkpoint.read_newest(tmp_path)
    found, _ = checkpoint.read_newest(tmp_path, before=7)
    assert found is not None and found.progress == at(3)


def test_checkpoints_of_a_course_that_was_left_are_dropped(tmp_path: Path) -> None:
    for step in (3, 7, 12, 100):
        checkpoint.save(tmp_path, at(step), *fresh(1), keep=9)
    checkpoint.drop_after(tmp_path, 7)
    assert names(tmp_path) == [3, 7]
    checkpoint.drop_after(tmp_path / "none", 7)


def test_the_average_comes_back_with_the_weights(tmp_path: Path) -> None:
    model, optimizer = fresh(1)
    average = RunningAverage(Averaging(fraction=1.0, every=1), model)
    for step in range(3):
        train(model, optimizer, 1)
        average.update(step, 1.0)
    checkpoint.save(tmp_path, at(3), model, optimizer, average)
    found, torn = checkpoint.read_newest(tmp_path)
    assert found is not None and torn == []
    other, theirs = fresh(2)
    again = RunningAverage(Averaging(fraction=1.0, every=1), other)
    assert checkpoint.load(found, other, theirs, again) == at(3)
    for each, run in ((average, model), (again, other)):
        each.update(4, 1.0)  # counts as the fourth, not as the first
        each.put_in(run)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert int(again.tensors()["count"]) == 4
    assert checkpoint.bytes_of(model, average) == 4 * 4 * model.parameter_count() > checkpoint.bytes_of(model)
