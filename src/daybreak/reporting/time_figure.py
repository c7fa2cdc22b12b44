"""Where the seconds of the budget went, as a bar a run."""

from __future__ import annotations

import html
from collections.abc import Sequence

from daybreak.reporting.figures import Figure, base_layout, readable_on
from daybreak.reporting.runs import RunRecords

USE_COLOURS = {
    "train": "#3b6fd4",
    "communicate": "#6b5fc7",
    "data": "#b5489c",
    "clock": "#7a8290",
    "monitor": "#8fb52f",
    "validate": "#2a9d78",
    "start": "#d9a441",
    "checkpoint": "#8d7cc3",
    "export": "#5aa9bd",
    "lost": "#c44e52",
}
OTHER_USE = "#888888"
USE_WORDS = {
    "communicate": "communication",
    "data": "data wait",
    "clock": "clock agreement",
    "monitor": "monitors",
}
"""What readers call a use, where the key in the record is too short."""


def spent(runs: Sequence[RunRecords]) -> Figure:
    """A bar a run: the seconds of the budget by use, as shares of what was charged."""
    told = [run for run in runs if run.summary is not None]
    uses = list(
        dict.fromkeys([*USE_COLOURS, *(use for run in told if run.summary for use in run.summary.time_by_category)])
    )
    data = []
    for use in uses:
        seconds = [run.summary.time_by_category.get(use, 0.0) if run.summary else 0.0 for run in told]
        totals = [sum(run.summary.time_by_category.values()) if run.summary else 0.0 for run in told]
        shares = [100 * part / whole if whole else 0.0 for part, whole in zip(seconds, totals)]
        labels = [html.escape(run.label) for run in told]
        if not any(seconds):
            continue
        words = USE_WORDS.get(use, use)
        data.append(
            {
                "type": "bar", "orientation": "h", "name": words, "y": labels, "x": shares,
                "customdata": seconds, "marker": {"color": USE_COLOURS.get(use, OTHER_USE)},
                "text": [f"{words} {share:.0f} %" if share >= 12 else "" for share in shares],
                "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                "insidetextfont": {"color": readable_on(USE_COLOURS.get(use, OTHER_USE))},
                "hovertemplate": f"%{{y}}: {words} %{{customdata:.1f}} s (%{{x:.2f}} %)<extra></extra>",
            }
        )  # fmt: skip
    layout = base_layout("% of the time charged", "")
    layout |= {"barmode": "stack", "hovermode": "closest", "height": 90 + 44 * max(1, len(told))}
    layout["xaxis"]["range"] = [0, 100]
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "showticklabels": len(runs) > 1, "automargin": True}
    return {"data": data, "layout": layout}
