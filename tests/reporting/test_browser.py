"""The page in Chromium: plots, accessibility, phones, print and dark mode."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_corpus import fake_corpus, write_data
from needs import needs
from small_records import DEVICES, MACHINE

from daybreak.commands.report import report
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=12000 --enable-logging=stderr --v=0"
).split()
DARK = "--blink-settings=preferredColorScheme=0"
SHAPE = {"kind": "ModernEncoder", "layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256}
VOID = {"meta", "br", "hr"}


class Elements(HTMLParser):
    """Each element of a page in order: its tag, its attributes and the text in it."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(self.found[-1][2])

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        for texts in self._open:
            texts.append(data)

    def of(self, *tags: str) -> list[tuple[str, dict[str, str | None], str]]:
        return [(tag, attrs, "".join(texts).strip()) for tag, attrs, texts in self.found if tag in tags]


@pytest.fixture
def runs(write_run, write_everything):
    """Two runs with everything that a page can show, and one that goes on."""
    return [*write_everything(2), write_run("young", seed=9, ended=False)]


@pytest.fixture
def write_everything(write_run):
    """Return ``write(number)``: finished runs of an architecture that can be counted."""
    return lambda number: [write_run(f"run-{n}", seed=n, recipe={"model": SHAPE, "length": 128}) for n in range(number)]


@pytest.fixture
def page(runs, tmp_path) -> Path:
    return report(runs, tmp_path / "report.html")


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The document after its scripts have run, and what the browser logged."""
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def asked(page: Path, question: str, *flags: str) -> object:
    """What the JavaScript expression ``question``, or its promise, gives on the page, as JSON."""
    told = "then((found) => { document.title = JSON.stringify(found); })"
    answer = f"<script>Promise.resolve({question}).{told};</script></body>"
    copy = page.with_name("asked.html")
    copy.write_text(page.read_text().replace("</body>", answer))
    document, log = opened(copy, page.with_name("profile"), *flags)
    assert "CONSOLE" not in log, log
    return json.loads(Elements(document).of("title")[0][2])


def test_a_screen_reader_finds_its_way(page):
    text = page.read_text()
    elements = Elements(text)
    assert elements.of("html")[0][1]["lang"] == "en" and elements.of("title")[0][2]
    (main,) = elements.of("main")
    first = elements.of("a", "button", "summary")[0]
    assert first[0] == "a" and first[1]["href"] == f"#{main[1]['id']}"
    labels = [attrs.get("aria-label") for _, attrs, _ in elements.of("nav")]
    assert all(labels) and len(set(labels)) == len(labels)

    levels = [int(tag[1]) for tag, _, _ in elements.of("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(now <= before + 1 for before, now in itertools.pairwise(levels))

    tables = re.findall(r"<table>(.*?)</table>", text, re.DOTALL)
    assert len(tables) > 10
    for table in tables:
        head, *body = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        columns = re.findall(r'<th class="[wn]" scope="col">(.*?)</th>', head)
        assert columns and all(columns)
        for row in body:
            assert re.match(r'<th class="[wn]" scope="row">.+?</th>', row, re.DOTALL), row
            assert row.count("<td") == len(columns) - 1

    buttons = elements.of("button")
    assert len(buttons) == 3 + 1, "one a run, and one for loading again"
    assert all(attrs["type"] == "button" and attrs["aria-pressed"] == "true" and text for _, attrs, text in buttons)
    assert all(text for _, _, text in elements.of("summary"))
    for _, attrs, _ in elements.found:
        assert "onclick" not in attrs and attrs.get("tabindex", "-1") in ("0", "-1")

    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) >= 8
    for figure in figures:
        name = re.search(r'role="img" aria-label="Plot: (.+?); its numbers stand in a table below it"', figure)
        assert name, figure[:200]
        alone = text[text.index(figure) + len(figure) :].split("</section>")[0]
        assert "<table>" in figure or "<table>" in alone, name[1]


def test_the_numbers_of_a_plot_are_those_of_its_lines(write_run, tmp_path):
    run = write_run()
    text = report([run], tmp_path / "one.html").read_text()
    table = text[text.index("Loss against time") :].split("</figure>")[0]
    heldout = re.findall(r">([^<>]+)</t[hd]>", table[table.index("masked loss, held out</th>") - 1 :].split("</tr>")[0])
    losses = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    losses = [line["loss"] for line in losses if line["type"] == "validation"]
    wanted = [losses[0], min(losses), max(losses), losses[-1]]
    assert heldout[0] == "masked loss, held out" and heldout[1] == str(len(losses))
    assert [float(value) for value in heldout[4:]] == pytest.approx(wanted, abs=6e-4)


@in_browser
def test_a_phone_never_scrolls_sideways(page, tmp_path):
    told = "<script>console.log('WIDTHS ' + [innerWidth, document.documentElement.scrollWidth].join(' '));</script>"
    page.write_text(page.read_text().replace("</body>", f"{told}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe src="{page.name}" style="width:390px;height:844px;border:0"></iframe>')
    _, log = opened(frame, tmp_path / "profile", "--hide-scrollbars")
    assert re.search(r"WIDTHS (\d+) (\d+)", log).groups() == ("390", "390")


@in_browser
def test_what_scrolls_sideways_can_be_reached_by_keyboard(page):
    question = """Array.from(document.querySelectorAll(".scroll, pre"), (box) =>
        [box.scrollWidth > box.clientWidth + 1, box.tabIndex === 0])"""
    found = asked(page, question, "--window-size=500,900")
    assert any(scrolls for scrolls, _ in found) and all(scrolls == reached for scrolls, reached in found)


@in_browser
def test_paper_is_light_and_holds_every_plot_whole(page):
    question = """(dispatchEvent(new Event("beforeprint")), {
        ink: getComputedStyle(document.querySelector("svg .xtick text")).fill,
        cut: Array.from(document.querySelectorAll(".plot")).filter((plot) =>
            plot.querySelector("svg").getBoundingClientRect().right > plot.getBoundingClientRect().right + 1).length,
        widest: Math.max(...Array.from(document.querySelectorAll(".plot"), (plot) => plot.clientWidth))})"""
    for flags in ([], [DARK]):
        found = asked(page, question, "--window-size=1300,900", *flags)
        assert found["ink"] == "rgb(34, 37, 42)" and found["cut"] == 0 and found["widest"] <= 660


@in_browser
def test_after_paper_the_page_is_as_it_was(page):
    state = 'Array.from(document.querySelectorAll(".plot svg"), (svg) => svg.getBoundingClientRect().width)'
    question = f"""(async () => {{
        const before = {state}, rest = () => new Promise((done) => setTimeout(done, 500));
        dispatchEvent(new Event("beforeprint"));
        await rest();
        dispatchEvent(new Event("afterprint"));
        await rest();
        return [matchMedia("(prefers-color-scheme: dark)").matches, before, {state}];
      }})()"""
    dark, before, after = asked(page, question, "--window-size=1300,900", DARK)
    assert dark and before == after and min(before) > 0


def findings(page: Path, *flags: str, before: str = "") -> list[list[str]]:
    """What axe-core finds on a page with all folds open: rule, impact and the first element, serious ones only."""
    rules = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    script = f"""<script>{rules}</script><script>{before}
      document.querySelectorAll("details").forEach((fold) => {{ fold.open = true; }});
      axe.run(document, {{ resultTypes: ["violations"] }}).then((found) => {{
        document.title = JSON.stringify(found.violations.map((one) => [one.id, one.impact, one.nodes[0].html]));
      }});</script></body>"""
    copy = page.with_name("axe.html")
    copy.write_text(page.read_text("utf-8").replace("</body>", script), "utf-8")
    document, _ = opened(copy, page.with_name("profile"), *flags)
    found = json.loads(Elements(document).of("title")[0][2])
    return [one for one in found if one[1] in ("serious", "critical")]


needs_axe = needs("axe-core-python: make test-all", "axe_core_python")


@in_browser
@needs_axe
@pytest.mark.parametrize("flags", [[], [DARK]], ids=["light", "dark"])
@pytest.mark.parametrize("number", [1, 8])
def test_axe_has_no_serious_violation(write_everything, tmp_path, number, flags):
    assert findings(report(write_everything(number), tmp_path / "report.html"), *flags) == []


@in_browser
@needs_axe
def test_axe_has_none_where_everything_is_switched_off(page):
    click = 'document.querySelectorAll("button").forEach((button) => button.click());'
    assert findings(page, before=click) == []


@in_browser
@needs_axe
def test_axe_has_none_on_a_page_about_a_corpus(tmp_path):
    assert findings(report([write_data(tmp_path / "web", fake_corpus())], tmp_path / "corpus.html")) == []


@in_browser
@needs_axe
def test_axe_would_tell(page):
    """A picture without words is a finding: the rules are really asked."""
    blind = page.with_name("blind.html")
    blind.write_text(page.read_text().replace("</h1>", '</h1><img src="data:,">', 1))
    assert [rule for rule, _, _ in findings(blind)] == ["image-alt"]


# ---------------------------------------------------------------- plots


def plots(document: str) -> list[str]:
    """The drawn part of each figure: what stands between the plot's element and its data."""
    return re.findall(r'<div class="plot.*?<script type="application/json">', document, re.DOTALL)


def drawn(page: Path, number: int, *flags: str) -> list[str]:
    """The plots of a page, which must be ``number``, all drawn without complaint."""
    document, log = opened(page, page.with_name("profile"), *flags)
    assert "CONSOLE" not in log, log
    found = plots(document)
    assert len(found) == number and all("main-svg" in plot for plot in found)
    return found


@in_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_every_plot_is_drawn_without_complaint(write_run, tmp_path, width):
    page = report([write_run()], tmp_path / "report.html")
    losses = drawn(page, 8, f"--window-size={width},2000")[0]
    assert losses.count('class="trace scatter') == 3 and "unigram baseline 6.28" in losses


@in_browser
def test_an_overlay_with_an_unfinished_run_is_drawn(write_run, tmp_path):
    runs = [write_run("a"), write_run("b", seed=2, causal=0.0), write_run("c", seed=3, ended=False)]
    found = drawn(report(runs, tmp_path / "report.html"), 8)
    assert found[0].count('class="trace scatter') == 8


@in_browser
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


@in_browser
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


@in_browser
def test_verdicts_and_probes_are_drawn_without_complaint(write_run, write_results, write_probes, tmp_path):
    runs = [write_run("a"), write_run("b", seed=2)]
    for run, ability in zip(runs, (0.2, 0.9)):
        write_results(run, {"rte": ability, "sst2": ability})
        write_probes(run, ability / 9)
    drawn(report(runs, tmp_path / "report.html"), 8 + 1 + 5, "--window-size=1280,2000")


@in_browser
def test_the_machine_of_a_run_that_goes_on_is_drawn(write_run, tmp_path):
    run = write_run(ended=False)
    device = replace(DEVICES[0], name="A <GPU>")
    with RunFolder(run).metrics.open("a") as file:
        for place in range(4):
            record = replace(MACHINE, elapsed=30.0 * place, devices=[device, device])
            file.write(json.dumps({"type": "machine"} | to_dict(record)) + "\n")
    found = drawn(report([run], tmp_path / "report.html"), 5 + 7, "--window-size=1280,3000")
    assert [plot.count('class="trace scatter') for plot in found[5:]] == [1, 1, 1, 2, 2, 2, 2]


@in_browser
def test_the_plots_of_a_corpus_are_drawn(tmp_path):
    page = report([write_data(tmp_path / "web", fake_corpus())], tmp_path / "corpus.html")
    assert "median" in drawn(page, 2)[0]
