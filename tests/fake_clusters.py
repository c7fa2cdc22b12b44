"""What the tests of clusters share: a text in small parts, what comes of it, and a preparation that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rendezvous import wait_for
from small_texts import PART

from daybreak.commands import prepare as module
from daybreak.data.pipeline import cluster
from daybreak.data.pipeline.corpus import Bundle, bundle_files
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.inputs import find_files
from daybreak.data.tokenizers.tokenizer import WordPiece

SMALL = WordPiece(vocabulary=600)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, few tasks, no long waits."""
    monkeypatch.setattr(module, "bundle_files", lambda files, rule, **how: bundle_files(files, rule, PART, **how))
    for name, value in {"TASKS_PER_WORKER": 1, "LOOK_SECONDS": 0.05, "ASK_SECONDS": 0.2, "SETTLE_SECONDS": 0.5}.items():
        monkeypatch.setattr(cluster, name, value)


def parts_of(text: Path) -> tuple[Bundle, ...]:
    files = find_files([text])
    return bundle_files(files, choose_rule(files, "auto"), PART)


SCRIPT = """
import sys
from pathlib import Path
from daybreak.commands import prepare as module
from daybreak.data.pipeline import cluster
from daybreak.data.pipeline.cluster import Cluster
from daybreak.data.pipeline.corpus import bundle_files
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.data.pipeline.preprocessing import Preprocessing

module.bundle_files = lambda files, rule, **how: bundle_files(files, rule, {part}, **how)
cluster.TASKS_PER_WORKER, cluster.LOOK_SECONDS = 1, 0.05
text, out, kind, steps = sys.argv[1:]
module.prepare(
    [text], Path(out), tokenizer=WordPiece(vocabulary=600), preprocessing=Preprocessing(filters=steps),
    workers=Cluster(kind, 2)
)
"""
SLOW = """
import time
from dataclasses import dataclass
from pathlib import Path

from daybreak.data.filters.filter import DocumentFilter

@dataclass(frozen=True, kw_only=True)
class Slow(DocumentFilter):
    memory = "nothing"

    def why(self):
        return "a long look"

    def open(self, context):
        delay = float(Path({delay!r}).read_text())
        return lambda text: time.sleep(delay)

steps = (Slow(),)
"""


FAILING = """
from dataclasses import dataclass
from daybreak.data.filters.filter import DocumentFilter

@dataclass(frozen=True, kw_only=True)
class Failing(DocumentFilter):
    memory = "nothing"

    def why(self):
        return "no look at all"

    def open(self, context):
        return lambda text: 1 / 0

steps = (Failing(),)
"""


def failing_step(folder: Path) -> Preprocessing:
    """A step that raises an exception wherever parts are read."""
    (folder / "failing.py").write_text(FAILING)
    return Preprocessing(filters=str(folder / "failing.py"))


def done_parts(folder: Path) -> list[Path]:
    """Those that the first reading of ``folder/data`` has left."""
    return sorted(folder.glob(".data.preparing/*/survey/[0-9]*"))


def kill_on_the_way(text: Path, folder: Path, kind: str, delay: float) -> Preprocessing:
    """Prepare ``folder/data`` on a cluster; kill who waits once three parts are done. The preprocessing to go on with.

    Each document takes ``delay`` seconds, which is the content of ``folder/delay``.
    """
    steps, file = folder / "slow.py", folder / "delay"
    file.write_text(str(delay))
    steps.write_text(SLOW.format(delay=str(file)))
    command = [sys.executable, "-c", SCRIPT.format(part=PART), str(text), str(folder / "data"), kind, str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: len(done_parts(folder)) >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return Preprocessing(filters=str(steps))
