"""The style sheet and the script of the page. No fonts, images or other files are fetched."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy: the browser itself refuses whatever would leave the page."""

STYLE = """
:root { color-scheme: light dark; --paper: #f6f6f3; --card: #ffffff; --ink: #22252a; --quiet: #6a6f78;
  --grid: #e3e4e0; --accent: #2f61c4; --good: #217a5b; --mark: #fff1c9; --alarm: #b3362b; }
@media screen and (prefers-color-scheme: dark) { :root:not(.printed) { --paper: #15171b; --card: #1d2026;
  --ink: #e4e5e7; --quiet: #9aa0aa; --grid: #33373f; --accent: #7ea4ef; --good: #63c79f; --mark: #4a3f1d;
  --alarm: #f08a80; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 72px; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
main:focus { outline: none; }
.skip a { position: absolute; left: 12px; top: -80px; z-index: 9; padding: 8px 14px; background: var(--card);
  color: var(--accent); border: 1px solid var(--accent); border-radius: 8px; }
.skip a:focus { top: 12px; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; }
main, footer { max-width: 1120px; margin: 0 auto; padding: 40px 24px 0; }
h1 { font-size: 34px; line-height: 1.15; margin: 0 0 12px; letter-spacing: -0.015em; font-weight: 650; }
h1 small { font-size: 17px; font-weight: 400; color: var(--quiet); margin-left: 12px; letter-spacing: 0; }
h2 { font-size: 21px; margin: 0 0 4px; letter-spacing: -0.01em; font-weight: 620; }
h3 { font-size: 15px; margin: 0 0 6px; font-weight: 620; }
p { margin: 0 0 12px; }
.brand { color: var(--accent); font-size: 13px; font-weight: 600; letter-spacing: 0.04em; margin-bottom: 6px; }
.lead { font-size: 18px; line-height: 1.5; max-width: 54em; }
.caption, figcaption, .quiet { color: var(--quiet); font-size: 14px; max-width: 60em; }
figcaption { margin-top: 8px; line-height: 1.45; }
section { margin-top: 48px; }
.note, .warning, .alarm { padding: 10px 14px; border-left: 3px solid var(--grid); background: var(--card);
  font-size: 15px; }
.warning { border-color: #d9a441; }
.alarm { border-color: var(--alarm); color: var(--alarm); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(164px, 1fr)); gap: 12px; margin-top: 24px; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; }
.tile { padding: 14px 16px; display: flex; flex-direction: column; }
.tile b { font-size: 21px; line-height: 1.2; font-weight: 640; letter-spacing: -0.01em; }
.tile span { font-size: 14px; }
.tile em { font-style: normal; font-size: 13px; color: var(--quiet); line-height: 1.35; margin-top: 4px; }
figure { margin: 16px 0 0; padding: 16px 18px; min-width: 0; }
.plot { width: 100%; overflow: hidden; }
.pair > figure, .pair > .card { margin-top: 0; }
.pair { margin-top: 16px; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.three { margin-top: 16px; display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 16px; }
.three > figure { margin-top: 0; } .pair > figure:last-child:nth-child(odd) { grid-column: 1 / -1; }
.card { padding: 14px 18px; margin-top: 16px; min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--quiet); margin-bottom: 6px; }
.legend span { display: inline-flex; align-items: center; }
.legend i { display: inline-block; width: 22px; margin-right: 7px; border-top: 2px solid var(--c); }
.legend i.dotted { border-top-style: dotted; }
.legend i.dashed { border-top-style: dashed; }
.legend i.thin { opacity: 0.6; border-top-width: 1.5px; }
.legend i.marked { border-top-width: 3px; }
.legend i.dot { width: 10px; height: 10px; border: 0; border-radius: 50%; background: var(--c); }
.legend i.bar { width: 3px; height: 14px; border: 0; background: var(--c); }
.legend i.dotbar { width: 0; height: 14px; border: 0; border-left: 2px dotted var(--c); }
.runs { position: sticky; top: 0; z-index: 5; background: var(--paper); padding: 10px 0; display: flex; gap: 8px;
  flex-wrap: wrap; border-bottom: 1px solid var(--grid); margin-top: 24px; }
.renewed { float: right; margin: 0 0 12px 24px; }
button { font: inherit; font-size: 14px; color: inherit; background: var(--card); border: 1px solid var(--grid);
  border-radius: 16px; padding: 3px 12px 3px 10px; cursor: pointer; }
.runs button i, tbody i, h3 i { display: inline-block; width: 10px; height: 10px; border-radius: 50%;
  background: var(--c); margin-right: 8px; }
button[aria-pressed=false] { color: var(--quiet); text-decoration: line-through; border-style: dashed; }
button[aria-pressed=false] i { opacity: 0.3; }
.scroll { overflow-x: auto; margin-top: 12px; } .scroll + p { margin-top: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; line-height: 1.4; }
thead th { font-weight: 600; color: var(--quiet); font-size: 13px; vertical-align: bottom; }
tbody th { font-weight: inherit; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
.w { text-align: left; } .n { text-align: right; white-space: nowrap; } thead .n { white-space: normal; }
.w { min-width: 84px; } tbody th small { min-width: 150px; }
tbody small { display: block; color: var(--quiet); font-size: 12.5px;}
tbody .w span { white-space: nowrap; }
figure table, figure .quiet { font-size: 12.5px; } figure thead th { font-size: 12px; }
.best { font-weight: 650; color: var(--good); }
.poor { font-weight: 650; color: var(--alarm); }
dl { margin: 0; font-size: 14px; }
.fact { display: flex; gap: 16px; justify-content: space-between; padding: 6px 0;
  border-bottom: 1px solid var(--grid); }
.fact:last-child { border: 0; }
dt { color: var(--quiet); flex: none; max-width: 60%; } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.example { padding: 12px 0; border-bottom: 1px solid var(--grid); display: grid; gap: 4px 28px;
  grid-template-columns: minmax(0, 1fr) 260px; }
.example:last-child { border: 0; }
.example p { margin: 0; }
.example mark { background: var(--mark); color: inherit; padding: 1px 5px; border-radius: 4px; }
.example .answer { color: var(--quiet); font-size: 14px; margin-top: 4px; }
.guess { display: grid; grid-template-columns: minmax(0, 1fr) 80px 46px; gap: 8px;
  align-items: center; font-size: 14px; }
.guess span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.guess u { display: block; height: 6px; border-radius: 3px; background: var(--grid); overflow: hidden; }
.guess u::before { content: ""; display: block; height: 100%; width: var(--p); background: var(--quiet); }
.guess em { font-style: normal; color: var(--quiet); text-align: right; font-size: 13px; }
.guess.right { color: var(--good); font-weight: 600; } .guess.right u::before { background: var(--good); }
pre { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 12px 16px; overflow-x: auto;
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; margin: 12px 0 0; }
details { margin-top: 12px; font-size: 14px; } details + p { margin-top: 12px; }
summary { cursor: pointer; color: var(--accent); }
footer { padding: 56px 24px 64px; color: var(--quiet); font-size: 13px; }
@media (max-width: 760px) {
  main { padding: 24px 14px 0; } footer { padding: 40px 14px 48px; }
  h1 { font-size: 27px; } h1 small { display: block; margin: 4px 0 0; }
  .runs { flex-wrap: nowrap; overflow-x: auto; } .runs button { flex: none; }
  .renewed { float: none; margin: 0 0 16px; } .lead { font-size: 16px; }
  .pair, .three { grid-template-columns: minmax(0, 1fr); gap: 16px; }
  section { margin-top: 36px; } tbody .w span { white-space: normal; }
  figure, .card { padding: 12px; } .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .tile { padding: 10px 12px; } .tile b { font-size: 19px; } .example { grid-template-columns: minmax(0, 1fr); }
}
@page { margin: 14mm; }
@media print {
  :root { color-scheme: light; --paper: #ffffff; }
  i, u, u::before, mark { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .runs { position: static; flex-wrap: wrap; overflow: visible; } .skip, .renewed, figure details { display: none; }
  figure, .card, .tile, .example, tr, .fact, .caption { break-inside: avoid; }
  h1, h2, h3, .caption { break-after: avoid; }
  thead { display: table-header-group; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .scroll { overflow: visible; } table { font-size: 11px; } .n { white-space: normal; } th, td { padding-right: 8px; }
  thead th, tbody small { font-size: 10px; } .w, tbody th small { min-width: 0; } tbody .w span { white-space: normal; }
}
.printed { color-scheme: light; --paper: #ffffff; }
.printed main, .printed footer { max-width: 660px; padding: 0; }
.printed .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
.printed .three { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 12px; }
.printed .tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 8px; }
.printed figure, .printed .card { padding: 10px; }
"""

SCRIPT = """
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const plots = Array.from(document.querySelectorAll(".plot"));
  const figures = plots.map((plot) => JSON.parse(plot.parentElement.querySelector("script").textContent));
  function themed(value, style) {
    if (Array.isArray(value)) return value.map((item) => themed(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, style)]));
    }
    const found = typeof value === "string" && value.match(/^var\\((--[a-z]+)\\)$/);
    return found ? style.getPropertyValue(found[1]).trim() : value;
  }
  function hidden(run) {
    const button = document.querySelector('.runs button[data-run="' + run + '"]');
    return button !== null && button.getAttribute("aria-pressed") === "false";
  }
  function draw() {
    const root = document.documentElement, printed = root.classList.contains("printed");
    const style = getComputedStyle(root);
    plots.forEach((plot, number) => {
      const figure = themed(figures[number], style);
      figure.data.forEach((trace) => { trace.visible = !hidden(trace.meta); });
      figure.layout.dragmode = touch ? false : "zoom";
      // Paper has a width of its own, and nothing redraws what is on it; lower plots leave fewer pages half empty.
      if (printed) Object.assign(figure.layout, { width: plot.clientWidth, height: 0.8 * figure.layout.height });
      plot.style.height = figure.layout.height + "px";
      Plotly.react(plot, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
  }
  // What scrolls sideways can be reached and scrolled with the keyboard; what does not is no stop on the way.
  function reach() {
    document.querySelectorAll(".scroll, pre").forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
      else box.removeAttribute("tabindex");
    });
  }
  function print(begins) {
    document.documentElement.classList.toggle("printed", begins);
    draw();
    if (!begins) plots.forEach((plot) => Plotly.Plots.resize(plot));
  }
  document.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false" ? "true" : "false");
    if (button.dataset.run) draw();
  }));
  const again = document.querySelector("button[data-again]");
  if (again) {
    setInterval(() => {
      if (again.getAttribute("aria-pressed") === "true") location.reload();
    }, 1000 * again.dataset.again);
  }
  window.addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  dark.addEventListener("change", draw);
  draw();
  reach();
})();
"""
