// The calendar of time windows: GPUs and hours are selected by drag or by keyboard, and requested with a link.
"use strict";
(() => {
  const table = document.getElementById("calendar");
  if (!table || !table.tBodies[0].rows.length) return;
  const app = window.gpucoord;
  const DAY_H = 24, HOUR_UNITS = 10, CELL_HIGH = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const rows = [...table.tBodies[0].rows];
  const days = [...table.tHead.rows[0].cells].slice(1);
  const links = rows.map((row) => [...row.querySelectorAll("a")]);
  const place = document.getElementById("selection");
  const status = place.querySelector("[role=status]"), request = place.querySelector("a");
  const lastHour = days.length * DAY_H - 1;
  const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
  // Where the selection began, and where it is: row and hour since the first midnight.
  let from = null, to = { row: 0, hour: 9 };

  // A window lasts 24 h at most.
  function range() {
    const first = Math.min(from.hour, to.hour), last = Math.max(from.hour, to.hour);
    const begin = to.hour < from.hour ? Math.max(first, last - DAY_H + 1) : first;
    return {
      rows: [Math.min(from.row, to.row), Math.max(from.row, to.row)],
      begin,
      end: Math.min(last + 1, begin + DAY_H),
    };
  }

  const clock = (hour) => `${String(hour % DAY_H).padStart(2, "0")}:00`;
  const name = (row) => rows[row].querySelector("th").textContent.trim();

  function overlapping(chosen) {
    const holders = new Set();
    for (let row = chosen.rows[0]; row <= chosen.rows[1]; row += 1) {
      links[row].forEach((link, day) => {
        for (const bar of link.querySelectorAll("rect[data-holder]")) {
          const begin = day * DAY_H + Number(bar.getAttribute("x")) / HOUR_UNITS;
          const end = begin + Number(bar.getAttribute("width")) / HOUR_UNITS;
          if (begin < chosen.end && end > chosen.begin) holders.add(bar.dataset.holder);
        }
      });
    }
    return [...holders];
  }

  function draw(chosen) {
    for (const old of table.querySelectorAll(".selected")) old.remove();
    for (let row = chosen.rows[0]; row <= chosen.rows[1]; row += 1) {
      links[row].forEach((link, day) => {
        const begin = Math.max(chosen.begin - day * DAY_H, 0), end = Math.min(chosen.end - day * DAY_H, DAY_H);
        if (begin >= end) return;
        const mark = document.createElementNS(SVG, "rect");
        const size = { class: "selected", x: begin * HOUR_UNITS, width: (end - begin) * HOUR_UNITS, y: 0, height: CELL_HIGH };
        for (const [key, value] of Object.entries(size)) mark.setAttribute(key, value);
        link.firstElementChild.append(mark);
      });
    }
  }

  function show() {
    const chosen = range(), day = Math.floor(chosen.begin / DAY_H);
    draw(chosen);
    const gpus = chosen.rows[0] === chosen.rows[1] ? name(to.row) : `${name(chosen.rows[0])} to ${name(chosen.rows[1])}`;
    const others = overlapping(chosen);
    const conflict = others.length ? ` Overlaps with windows of ${others.join(", ")}.` : "";
    status.textContent = `${gpus}, ${days[day].textContent} ${clock(chosen.begin)}–${clock(chosen.end)}.${conflict}`;
    const midnight = Number(days[day].dataset.begin), since = chosen.begin - day * DAY_H;
    const utc = [since, since + chosen.end - chosen.begin].map((hour) => app.utc(new Date(1000 * (midnight + 3600 * hour))));
    status.title = utc.join(" to ");
    status.classList.toggle("problem", others.length > 0);
    const query = new URLSearchParams();
    for (let row = chosen.rows[0]; row <= chosen.rows[1]; row += 1) query.append("gpus", rows[row].dataset.gpu);
    query.set("days", days[day].dataset.weekday);
    query.set("start", clock(chosen.begin));
    query.set("end", clock(chosen.end));
    request.href = `${table.dataset.ask}?${query}`;
    request.hidden = false;
  }

  function clear() {
    from = null;
    for (const old of table.querySelectorAll(".selected")) old.remove();
    status.classList.remove("problem");
    status.title = "";
    status.textContent = window.matchMedia("(pointer: coarse)").matches ? "" : place.dataset.hint;
    request.hidden = true;
  }

  // ---- Drag, with a mouse or a pen; a finger scrolls and opens cells ----

  function spot(event) {
    const link = event.target.closest("#calendar td a");
    if (!link) return null;
    const row = rows.indexOf(link.closest("tr")), day = links[row].indexOf(link), box = link.getBoundingClientRect();
    const hour = clamp(Math.floor((DAY_H * (event.clientX - box.left)) / box.width), 0, DAY_H - 1);
    return { row, hour: day * DAY_H + hour };
  }

  let dragging = false;
  table.addEventListener("pointerdown", (event) => {
    const at = event.button === 0 && event.pointerType !== "touch" && spot(event);
    if (!at) return;
    event.preventDefault();
    dragging = true;
    from = to = at;
    show();
  });
  document.addEventListener("pointermove", (event) => {
    const at = dragging && event.target instanceof Element && spot(event);
    if (!at || (at.row === to.row && at.hour === to.hour)) return;
    to = at;
    show();
  });
  document.addEventListener("pointerup", () => { dragging = false; });
  table.addEventListener("click", (event) => {
    // A mouse selects; the button requests.
    if (event.detail > 0 && event.pointerType !== "touch" && event.target.closest("td a")) event.preventDefault();
  });

  // ---- Keyboard: one stop of the Tab key, arrow keys within ----

  function reach(at) {
    for (const row of links) for (const link of row) link.tabIndex = -1;
    const link = links[at.row][Math.floor(at.hour / DAY_H)];
    link.tabIndex = 0;
    return link;
  }

  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -DAY_H], PageDown: [0, DAY_H] };
  table.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (move && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      const before = to;
      to = { row: clamp(to.row + move[0], 0, rows.length - 1), hour: clamp(to.hour + move[1], 0, lastHour) };
      from = event.shiftKey ? from || before : to;
      reach(to).focus();
      show();
    } else if (event.key === "Enter" && from) {
      event.preventDefault();
      window.location.assign(request.href);
    } else if (event.key === "Escape") {
      clear();
    }
  });
  reach(to);
  clear();
})();
