"""The page in real Chromium: every plot is drawn, nothing is complained about, nothing is asked of the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from daybreak.commands.report import report
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.schemas.changes import DeviceUse, MachineRecord

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=8000 --enable-logging=stderr --v=0"
).split()


def opened(page, profile, *flags: str) -> tuple[str, str]:
    """Open a page; return its document after the scripts have run, and what the browser logged."""
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def plots(document: str) -> list[str]:
    """The drawn part of each figure: what stands between the plot's element and its data."""
    return re.findall(r'<div class="plot.*?<script type="application/json">', document, re.DOTALL)


@pytest.mark.parametrize("width", [1280, 400])
def test_every_plot_is_drawn_without_complaint(write_run, tmp_path, width):
    page = report([write_run()], tmp_path / "report.html")
    document, log = opened(page, tmp_path / "profile", f"--window-size={width},2000")
    assert "CONSOLE" not in log, log
    drawn = plots(document)
    assert len(drawn) == 8
    assert all("main-svg" in plot for plot in drawn)
    losses = drawn[0]
    assert losses.count('class="trace scatter') == 3 and "unigram plateau 6.28" in losses


def test_an_overlay_with_an_unfinished_run_is_drawn(write_run, tmp_path):
    runs = [write_run("a"), write_run("b", seed=2, causal=0.0), write_run("c", seed=3, ended=False)]
    document, log = opened(report(runs, tmp_path / "report.html"), tmp_path / "profile")
    assert "CONSOLE" not in log, log
    drawn = plots(document)
    assert len(drawn) == 8 and all("main-svg" in plot for plot in drawn)
    assert drawn[0].count('class="trace scatter') == 8


def test_a_run_can_be_hidden_and_a_point_be_asked(write_run, tmp_path):
    page = report([write_run("a"), write_run("b", seed=2)], tmp_path / "report.html")
    click = """<script>
      document.querySelector('.runs button[data-run="1"]').click();
      Plotly.Fx.hover(document.querySelector(".plot"), [{curveNumber: 2, pointNumber: 1}]);
    </script></body>"""
    page.write_text(page.read_text().replace("</body>", click))
    document, log = opened(page, tmp_path / "profile")
    assert "CONSOLE" not in log, log
    first = plots(document)[0]
    assert first.count('class="trace scatter') == 3
    assert "masked loss, held out" in first


def test_the_page_asks_nothing_of_the_network(write_run, tmp_path):
    """The browser's own list of what the page loaded is empty, and a request that is tried is refused."""
    page = report([write_run()], tmp_path / "report.html")
    probe = """<script>
      const loaded = performance.getEntriesByType("resource").filter((entry) => !entry.name.startsWith("data:"));
      document.title = "loaded " + loaded.length;
      fetch("https://example.invalid/").catch(() => {});
    </script></body>"""
    page.write_text(page.read_text().replace("</body>", probe))
    document, log = opened(page, tmp_path / "profile")
    assert "<title>loaded 0</title>" in document
    assert "Content Security Policy" in log


def test_verdicts_and_probes_are_drawn_without_complaint(write_run, write_results, write_probes, tmp_path):
    runs = [write_run("a"), write_run("b", seed=2)]
    for run, ability in zip(runs, (0.2, 0.9)):
        write_results(run, {"rte": ability, "sst2": ability})
        write_probes(run, ability / 9)
    document, log = opened(report(runs, tmp_path / "report.html"), tmp_path / "profile", "--window-size=1280,2000")
    assert "CONSOLE" not in log, log
    drawn = plots(document)
    assert len(drawn) == 8 + 1 + 6 and all("main-svg" in plot for plot in drawn)


def test_the_machine_of_a_run_that_goes_on_is_drawn(write_run, tmp_path):
    run = write_run(ended=False)
    size = 1 << 32
    device = DeviceUse(name="A <GPU>", utilisation=0.9, memory=size, memory_total=size, temperature=61.0, watts=310.0)
    with RunFolder(run).metrics.open("a") as file:
        for place in range(4):
            record = MachineRecord(
                step=100 * place, elapsed=30.0 * place, processor=0.3, load=2.0, memory=size, memory_free=size,
                disk_free=size, devices=[device, device],
            )  # fmt: skip
            file.write(json.dumps({"type": "machine"} | to_dict(record)) + "\n")
    document, log = opened(report([run], tmp_path / "report.html"), tmp_path / "profile", "--window-size=1280,3000")
    assert "CONSOLE" not in log, log
    drawn = plots(document)
    assert len(drawn) == 5 + 7 and all("main-svg" in plot for plot in drawn)
    assert [plot.count('class="trace scatter') for plot in drawn[5:]] == [1, 1, 1, 2, 2, 2, 2]
