"""Is one model better than another, and how sure: what the paired bootstrap says, in words and as intervals."""

from __future__ import annotations

import html
from collections.abc import Sequence

from daybreak.core.formatting import percent, score, signed
from daybreak.reporting.figures import Figure, base_layout
from daybreak.reporting.markup import Markup, figure, join, note, section, table, tag
from daybreak.reporting.sections import NOTHING
from daybreak.schemas.tasks import Comparison

VERDICTS = {"B is better": "var(--good)", "A is better": "var(--alarm)"}
"""What is no verdict has the colour of quiet text."""


def line(found: Comparison) -> str:
    """A comparison for the terminal."""
    return (
        f"{found.task} ({found.protocol}), {found.model_b} (B) against {found.model_a} (A): {found.verdict}. "
        f"{found.metric} {score(found.b)} against {score(found.a)}, {_difference(found)} {_interval(found)}, "
        f"B ahead in {percent(found.better)} of resamples, {_basis(found)}"
    )


def verdicts(comparisons: Sequence[Comparison], unpaired: Sequence[str]) -> Markup:
    """One table for each two models, a row a task."""
    if not comparisons and not unpaired:
        return NOTHING
    blocks: list[Markup] = []
    for a, b in dict.fromkeys((found.model_a, found.model_b) for found in comparisons):
        these = [found for found in comparisons if (found.model_a, found.model_b) == (a, b)]
        rows = [_row(found) for found in these]
        caption = (
            f"B is {b}, A is {a}. The bar is the 95 % interval of B less A; only one that leaves out zero decides."
        )
        blocks.append(figure(f"{b} against {a}", caption, _intervals(these), numbers=False))
        blocks.append(table(("Task", "Verdict", "A", "B", "B less A", "B ahead in"), rows, words=2))
    alone = any(len(found.seeds) == 1 for found in comparisons)
    seeds = " With one seed the interval knows nothing of how much seeds differ." if alone else ""
    alike = {(found.model_a.split(" ")[0], found.model_b.split(" ")[0]) for found in comparisons}
    return section(
        "Is pretraining worth it" if alike == {("untrained", "pretrained")} else "Is B better than A",
        *blocks,
        *(note(words, "quiet") for words in unpaired),
        caption="Both models answered the same rows. Rows and seeds are drawn again and again, the same for both, and "
        "the difference is counted each time: the interval holds the middle 95 % of these, and the share is that of "
        f"those in which B was ahead. Points of 100.{seeds}",
    )


def _row(found: Comparison) -> list[Markup | str]:
    mark = {"B is better": "best", "A is better": "poor"}.get(found.verdict, "plain")
    name = join(tag("b", found.task), tag("small", f"{found.protocol}; {found.metric.replace('_', ' ')}"))
    return [
        name,
        join(tag("span", found.verdict, class_=mark), tag("small", _basis(found))),
        score(found.a),
        score(found.b),
        join(_difference(found), tag("small", _interval(found))),
        percent(found.better),
    ]


def _difference(found: Comparison) -> str:
    return signed(100 * (found.b - found.a), 1)


def _interval(found: Comparison) -> str:
    return f"[{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"


def _basis(found: Comparison) -> str:
    return f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}, {found.rows:,} rows"


def _intervals(comparisons: Sequence[Comparison]) -> Figure:
    """A line a task, from the lower to the upper end of the interval, and where zero is."""
    data = []
    for place, found in enumerate(comparisons):
        middle, low, high = (100 * value for value in (found.b - found.a, found.low, found.high))
        tint = VERDICTS.get(found.verdict, "var(--quiet)")
        words = f"{html.escape(found.task)}: {found.verdict}, {_difference(found)} {_interval(found)}"
        ends = {"type": "data", "symmetric": False, "array": [high - middle], "arrayminus": [middle - low]}
        data.append(
            {
                "type": "scatter", "mode": "markers", "x": [middle], "y": [place], "name": html.escape(found.task),
                "error_x": ends | {"color": tint, "thickness": 2.5, "width": 5},
                "marker": {"size": 10, "color": tint}, "hovertemplate": f"{words}<extra></extra>",
            }
        )  # fmt: skip
    layout = base_layout("B less A, points of 100", "")
    zero = {"color": "var(--ink)", "width": 1.5, "dash": "dot"}
    layout |= {
        "hovermode": "closest", "height": 90 + 40 * len(comparisons),
        "shapes": [{"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": zero}],
    }  # fmt: skip
    layout["xaxis"]["showgrid"] = True
    layout["yaxis"] |= {
        "tickvals": list(range(len(comparisons))), "showgrid": False, "range": [len(comparisons) - 0.4, -0.6],
        "ticktext": [f"<b>{html.escape(found.task)}</b><br>{html.escape(found.protocol)}" for found in comparisons],
    }  # fmt: skip
    return {"data": data, "layout": layout}
