"""A run that does not fit on the disk is refused; a disk that fills up during the run causes a warning."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from daybreak.core.errors import UserError
from daybreak.training.monitoring import disk
from daybreak.training.monitoring.disk import SECOND_BYTES, check_room, low_room

MIB = 2**20


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets every disk have so many bytes left."""

    def put(free: int) -> None:
        monkeypatch.setattr(disk, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=free)))

    return put


def test_a_run_needs_eight_checkpoints_two_models_and_its_records(
    tmp_path: Path, set_free: Callable[[int], None]
) -> None:
    needed = 8 * 3_000_000_000 + 2 * 1_000_000_000 + 64 * MIB
    set_free(needed)
    check_room(tmp_path / "run", checkpoint_bytes=3_000_000_000, model_bytes=1_000_000_000)
    set_free(needed - 1)
    with pytest.raises(UserError) as error:
        check_room(tmp_path / "run", checkpoint_bytes=3_000_000_000, model_bytes=1_000_000_000)
    assert str(tmp_path / "run") in error.value.sentence and "up to 26.07 GB" in error.value.sentence
    assert "only 26.07 GB are free" in error.value.sentence
    set_free(needed + 7 * 86_400 * SECOND_BYTES)
    check_room(tmp_path / "run", checkpoint_bytes=3_000_000_000, model_bytes=1_000_000_000, seconds=7 * 86_400)
    with pytest.raises(UserError, match=r"up to 27\.03 GB"):
        check_room(tmp_path / "run", checkpoint_bytes=3_000_000_000, model_bytes=1_000_000_000, seconds=8 * 86_400)


def test_what_a_resumed_run_has_written_counts_as_room(tmp_path: Path, set_free: Callable[[int], None]) -> None:
    for name in ("step-1", "step-2"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "model.safetensors").write_bytes(bytes(MIB))
    (tmp_path / "shard.bin").write_bytes(bytes(MIB))
    set_free(6 * MIB + 2 * MIB + 64 * MIB)
    check_room(tmp_path, checkpoint_bytes=MIB, model_bytes=MIB)
    set_free(6 * MIB + 2 * MIB + 64 * MIB - 1)
    with pytest.raises(UserError):
        check_room(tmp_path, checkpoint_bytes=MIB, model_bytes=MIB)


def test_little_room_is_said_and_enough_is_not(tmp_path: Path, set_free: Callable[[int], None]) -> None:
    set_free(2_000_000_000)
    assert low_room(tmp_path, 1_000_000_000) is None
    warning = low_room(tmp_path, 1_200_000_000)
    assert warning is not None
    assert "2.00 GB" in warning and "1.20 GB" in warning and str(tmp_path) in warning


def test_a_folder_that_is_gone_is_no_warning(tmp_path: Path) -> None:
    assert low_room(tmp_path / "gone", 10**18) is None
    assert low_room(tmp_path, 10**18) is not None


def test_a_read_only_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UserError, match="read-only file system"):
        check_room(tmp_path, checkpoint_bytes=1, model_bytes=1)


def test_a_real_small_disk_is_measured_and_read_only_refused(small_disk: Path) -> None:
    run = small_disk / "run"
    check_room(run, checkpoint_bytes=3 * MIB, model_bytes=MIB)  # 90 of 96 MiB
    with pytest.raises(UserError, match=r"0\.10 GB"):
        check_room(run, checkpoint_bytes=5 * MIB, model_bytes=MIB)
    assert low_room(run, 40 * MIB) is None
    (small_disk / "other").write_bytes(bytes(20 * MIB))
    assert low_room(run, 40 * MIB) is not None
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match="read-only file system"):
        check_room(run, checkpoint_bytes=1, model_bytes=1)
