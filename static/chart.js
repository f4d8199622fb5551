// The readout of history charts: pointing at one, or moving in it by arrow keys, reads them all.
"use strict";
(() => {
  const app = window.gpucoord;
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

  // "43 %", or with several lines "mean 43, highest 98 %".
  function words(chart, point) {
    const labels = chart.dataset.labels.split("|");
    const values = chart.dataset.slots.split(" ").map((slot) => point && point[1 + Number(slot)]);
    if (values.every((value) => value === null || value === undefined)) return "unknown";
    const shown = values.map((value, i) =>
      `${labels.length > 1 ? `${labels[i]} ` : ""}${value === null ? "unknown" : value}`);
    return `${shown.join(", ")} ${chart.dataset.unit}`.trim();
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
      chart.querySelector(".readout").textContent = chosen === null ? "" : words(chart, point);
    }
    if (chosen !== null) {
      const form = { hour: "2-digit", minute: "2-digit", ...(until - since > 43200
        ? { day: "numeric", month: "short" } : { second: "2-digit" }) };
      const date = new Date(chosen * 1000), utc = app.utc(date);
      const readout = document.getElementById("readout-time");
      const ofUtc = date.getTimezoneOffset() ? ` (${utc.slice(11, until - since > 43200 ? 16 : 19)} UTC)` : "";
      readout.textContent = `At ${date.toLocaleString("en-GB", form)}${ofUtc}`;
      readout.title = utc;
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
    showLocalTimes();
  });

  // ---- A stretch of one's own choice: shown and asked for in the viewer's zone ----

  function local(seconds) {
    const date = new Date(seconds * 1000);
    return new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  }

  function showLocalTimes() {
    for (const field of document.querySelectorAll("[data-local-times] [data-t]")) {
      if (field !== document.activeElement) field.value = local(Number(field.dataset.t));
    }
    for (const hint of document.querySelectorAll("[data-zone]")) {
      hint.textContent = `Times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
    }
  }

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-local-times]")) return;
    event.preventDefault();
    const wanted = new URLSearchParams({ range: "custom" });
    for (const field of event.target.querySelectorAll("[data-t]")) {
      wanted.set(field.name, new Date(field.value).toISOString());
    }
    window.location.search = wanted.toString();
  });

  // ---- The heat strip: what a cell says, and arrow keys from hour to hour ----

  function say(event) {
    const cell = event.target.closest && event.target.closest(".heat .cell");
    const line = cell && cell.closest("section").querySelector("[data-heat-said]");
    if (!line) return;
    line.textContent = cell.getAttribute("aria-label");
    line.title = cell.title;
  }

  document.addEventListener("pointerover", say);
  document.addEventListener("focusin", say);
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest && event.target.closest(".heat .cell");
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!cell || !move) return;
    const cells = [...cell.closest("table").querySelectorAll(".cell")];
    const next = cells[cells.indexOf(cell) + move];
    if (next) next.focus();
    event.preventDefault();
  });

  showLocalTimes();
})();
