"""What is handed to worker processes, and how often."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from daybreak.data.pipeline.workers import map_parts, workers_ended


class Heavy:
    """A task's load that notes in a folder each time it is unpacked."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return unpacked, (self.folder,)


def unpacked(folder: Path) -> Heavy:
    (folder / str(len(list(folder.iterdir())))).touch()
    return Heavy(folder)


def place_of(load: Heavy, number: int) -> int:
    return number * number + load.folder.is_dir()


def test_threads_that_need_workers_take_turns() -> None:
    """The first one to end would otherwise end the workers of the other, which then waits for ever."""
    entered = threading.Event()

    def second() -> None:
        with workers_ended():
            entered.set()

    with workers_ended(), workers_ended():  # a thread may hold them twice
        other = threading.Thread(target=second)
        other.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    other.join()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_is_unpacked_once_by_each_worker_and_nothing_is_left(tmp_path: Path, workers: int) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "work").mkdir()
    with workers_ended():
        for _ in range(2):  # a later task is another one
            found = map_parts(partial(place_of, Heavy(tmp_path / "seen")), range(40), workers, tmp_path / "work")
            assert sorted(found) == [number * number + 1 for number in range(40)]
    assert len(list((tmp_path / "seen").iterdir())) <= (0 if workers == 1 else 2 * workers)
    assert list((tmp_path / "work").iterdir()) == []
