// The readout of history charts: pointing at one, or moving in it by arrow keys, reads them all.
"use strict";
(() => {
  const WIDTH = 1000;
  let chosen = null;

  const history = () => document.getElementById("history");

  function points() {
    const box = history();
    if (!box || !box.dataset.points) return [];
    if (box.parsedFrom !== box.dataset.points) {
      box.parsedFrom = box.dataset.points;
      box.parsed = JSON.parse(box.dataset.points);
    }
    return box.parsed;
  }

  // The point next to a time, unless it lies in a gap.
  function nearest(time) {
    const step = Number(history().dataset.step);
    let best = null;
    for (const point of points()) {
      const distance = Math.abs(point[0] + step / 2 - time);
      if (distance <= step * 1.5 && (best === null || distance < best[0])) best = [distance, point];
    }
    return best && best[1];
  }

  function show() {
    const box = history();
    const since = Number(box.dataset.since), until = Number(box.dataset.until);
    const point = chosen === null ? null : nearest(chosen);
    const x = chosen === null ? 0 : (WIDTH * (chosen - since)) / (until - since);
    for (const chart of box.querySelectorAll(".chart")) {
      const cursor = chart.querySelector(".cursor");
      cursor.classList.toggle("on", chosen !== null);
      cursor.setAttribute("d", `M${x.toFixed(1)} 0V100`);
      const value = point && point[1 + Number(chart.dataset.slot)];
      const unit = chart.querySelector("h3").textContent.split(", ").pop();
      chart.querySelector(".readout").textContent =
        chosen === null ? "" : value === null || value === undefined ? "unknown" : `${value} ${unit}`;
    }
    if (chosen !== null) {
      const time = new Date(chosen * 1000).toLocaleTimeString("en-GB");
      document.getElementById("readout-time").textContent = `At ${time}`;
    }
  }

  function choose(time) {
    const box = history();
    chosen = time === null ? null
      : Math.min(Number(box.dataset.until), Math.max(Number(box.dataset.since), time));
    show();
  }

  function timeAt(event, plot) {
    const place = plot.getBoundingClientRect();
    const since = Number(history().dataset.since), until = Number(history().dataset.until);
    return since + ((until - since) * (event.clientX - place.left)) / place.width;
  }

  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    if (plot) choose(timeAt(event, plot));
    else if (chosen !== null && !document.activeElement.closest(".plot")) choose(null);
  });

  document.addEventListener("keydown", (event) => {
    if (!event.target.closest || !event.target.closest(".plot")) return;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const box = history();
    const step = Number(box.dataset.step);
    choose(chosen === null ? Number(box.dataset.until) - step : chosen + move * step);
  });

  document.addEventListener("htmx:after:swap", () => {
    if (chosen !== null && history()) choose(chosen);
  });
})();
