"""The figure of the README: task scores against training time, drawn from records/.

python docs/figures.py    draws docs/hours.png; needs Chromium
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tables
from plotly.subplots import make_subplots

PICTURE = Path(__file__).with_name("hours.png")
PANELS = ("cola", "sst2", "mrpc", "stsb")
BLUE, ORANGE, QUIET = "#3f77e0", "#d9822b", "#7a8290"
WIDTH, HEIGHT = 1120, 340
ALIKE = 0.15


def scores(task: str, name: str) -> dict[int, list[float]]:
    """Scores times 100 of all runs that have such a one, by minutes of one core: ``mean``, or ``combined``."""
    found: dict[int, list[float]] = {}
    for (_, minutes), records in tables.HOURS.items():
        for record in records:
            for result in tables.small_results(record):
                if result["task"] == task and name in result:
                    value = result["mean"] if name == "mean" else statistics.fmean(result["combined"])
                    found.setdefault(minutes, []).append(100 * value)
    return found


def alike(minutes: Iterable[int]) -> list[list[int]]:
    """Times in groups that differ by less than ALIKE, for which the line has one mean."""
    groups: list[list[int]] = []
    for each in sorted(minutes):
        if groups and each < (1 + ALIKE) * groups[-1][0]:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def figure() -> Any:
    titles = [tables.GLUE[task] for task in PANELS]
    drawn = make_subplots(rows=1, cols=len(PANELS), subplot_titles=titles, horizontal_spacing=0.045)
    for column, task in enumerate(PANELS, 1):
        for score, color, name in (("mean", BLUE, "encoder"), ("combined", ORANGE, "averaged with the bag of words")):
            found, look = scores(task, score), {"row": 1, "col": column}
            x = [minutes for minutes, values in found.items() for _ in values]
            y = [value for values in found.values() for value in values]
            dots = {"color": color, "size": 7, "opacity": 0.55}
            drawn.add_scatter(x=x, y=y, mode="markers", marker=dots, showlegend=False, **look)
            means = [
                (statistics.fmean(group), statistics.fmean(v for m in group for v in found[m]))
                for group in alike(found)
            ]
            line = dict(zip("xy", zip(*means)))
            drawn.add_scatter(**line, mode="lines", line_color=color, name=name, showlegend=column == 1, **look)
        for value, dash, name in baselines(task):
            ends = {"x": [25, 340], "y": [value, value], "name": name, "showlegend": column == 1}
            drawn.add_scatter(**ends, mode="lines", line={"color": QUIET, "dash": dash}, row=1, col=column)
    drawn.update_xaxes(
        type="log", range=[1.4, 2.53], tickvals=[30, 45, 120, 300], title="minutes of one core",
        gridcolor="#e3e5e0",
    )  # fmt: skip
    drawn.update_yaxes(gridcolor="#e3e5e0", automargin=True)
    drawn.update_layout(
        template="none", width=WIDTH, height=HEIGHT, margin={"l": 36, "r": 12, "t": 66, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 12}, legend={"orientation": "h", "y": 1.3, "x": 0},
    )  # fmt: skip
    return drawn


def baselines(task: str) -> list[tuple[float, str, str]]:
    """(score times 100, dash, name) of what needs no pretraining."""
    before = tables.without_pretraining()[task]
    bag = before["bag_of_words"][before["metric"]]
    return [(100 * bag, "dash", "bag of words"), (100 * before["mean"], "dot", "without pretraining")]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        figure().write_html(page, include_plotlyjs=True, config={"staticPlot": True})
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=2".split()
        size = f"--window-size={WIDTH + 16},{HEIGHT + 16}"
        command = ["chromium", *flags, size, f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
