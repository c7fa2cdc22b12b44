"""Parts on Ray: a real cluster of two nodes on this machine, where Ray is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clusters import SMALL, done_parts, failing_step, hurry, kill_on_the_way, parts_of
from needs import marks
from small_texts import Contents, contents, left_over

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.pipeline.cluster import Cluster
from daybreak.data.pipeline.workers import WorkerLost

pytestmark = marks("ray: make test-all", "ray")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two nodes with a core each."""
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1})
        nodes.add_node(num_cpus=1)
        yield nodes.address
        nodes.shutdown()


def test_ray_prepares_the_same(
    records: Path,
    as_here: Contents,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=Cluster("ray", 2))
    assert contents(tmp_path / "data") == as_here and left_over(tmp_path) == []
    told = "".join(capfd.readouterr())
    assert "Ray: " in told and "datatrove" not in told and "Executor" not in told, told
    failing = failing_step(tmp_path)
    with pytest.raises(UserError, match=r"failing\.py' failed on document 1 of"):
        prepare([records], tmp_path / "other", tokenizer=SMALL, preprocessing=failing, workers=Cluster("ray", 2))


def test_its_tasks_end_with_who_waits_and_the_same_command_goes_on(
    records: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    preprocessing = kill_on_the_way(records, tmp_path, "ray", 0.05)
    done: list[Path] = []
    deadline = time.monotonic() + 60
    while (now := done_parts(tmp_path)) != done:
        assert time.monotonic() < deadline
        done = now
        time.sleep(3)
    assert len(done) < len(parts_of(records)), "nobody goes on"
    (tmp_path / "delay").write_text("0")
    prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=preprocessing, workers=Cluster("ray", 2))
    assert "Resuming the interrupted preparation" in capsys.readouterr().out
    prepare([records], tmp_path / "here", tokenizer=SMALL, preprocessing=preprocessing, workers=1)
    assert contents(tmp_path / "data") == contents(tmp_path / "here") and left_over(tmp_path) == []


def test_a_cluster_that_is_not_there(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(WorkerLost, match=r"The Ray cluster fails: .*refused\. Check its address"):
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=Cluster("ray", 2))
