(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const plots = Array.from(document.querySelectorAll(".plot"));
  const figures = plots.map((plot) => JSON.parse(plot.parentElement.querySelector("script").textContent));
  function applyTheme(value, style) {
    if (Array.isArray(value)) return value.map((item) => applyTheme(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, applyTheme(item, style)]));
    }
    const found = typeof value === "string" && value.match(/^var\((--[a-z]+)\)$/);
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
      const figure = applyTheme(figures[number], style);
      figure.data.forEach((trace) => { trace.visible = !hidden(trace.meta); });
      figure.layout.dragmode = touch ? false : "zoom";
      // A printed page has a fixed width and is not redrawn; lower plots leave fewer pages half empty.
      if (printed) Object.assign(figure.layout, { width: plot.clientWidth, height: 0.8 * figure.layout.height });
      plot.style.height = figure.layout.height + "px";
      Plotly.react(plot, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
  }
  // Boxes that scroll sideways can be focused with the keyboard; other boxes are not tab stops.
  function makeFocusable() {
    document.querySelectorAll(".scroll, pre").forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
      else box.removeAttribute("tabindex");
    });
  }
  function print(printing) {
    document.documentElement.classList.toggle("printed", printing);
    draw();
    if (!printing) plots.forEach((plot) => Plotly.Plots.resize(plot));
  }
  document.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false" ? "true" : "false");
    if (button.dataset.run) draw();
  }));
  const reload = document.querySelector("button[data-reload]");
  if (reload) {
    setInterval(() => {
      if (reload.getAttribute("aria-pressed") === "true") location.reload();
    }, 1000 * reload.dataset.reload);
  }
  window.addEventListener("resize", makeFocusable);
  document.addEventListener("toggle", makeFocusable, true);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  dark.addEventListener("change", draw);
  draw();
  makeFocusable();
})();
