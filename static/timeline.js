// The timeline: zooms, moves, and tells about a bar. Bars carry their times; this places them.
"use strict";
(() => {
  const app = window.gpucoord;
  const BACK_S = 24 * 3600, AHEAD_S = 6 * 3600, SHORTEST_S = 60;
  const STEPS = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600, 604800];
  const MOVE = 0.2, ZOOM = 1.6, MOST_TICKS = 10, LEAST_DRAG_PX = 6, LEAST_LABEL_PX = 28, LEAST_MARK_PX = 18, LETTER_PX = 6.5;
  const POINTER_PX = 14, EDGE_PX = 8, STEPS_SHOWN = 3600;
  // The chosen stretch in epoch seconds; null: everything, moving along with the time.
  let chosen = null;
  let drag = null;

  // Collections by class are kept by the browser; a selector would search thousands of bars.
  const plots = document.getElementsByClassName("tl-plot"), grids = document.getElementsByClassName("tl-grid");
  const box = () => document.querySelector("[data-timeline]");
  const clock = () => Date.now() / 1000 + app.skew;
  // The picture moves on by steps of less than a pixel: between them, drawing changes nothing.
  const settled = (length) => Math.floor(clock() / (length / STEPS_SHOWN)) * (length / STEPS_SHOWN);
  const everything = () => {
    const back = Number(box()?.dataset.back) || BACK_S, now = settled(back + AHEAD_S);
    return { since: now - back, until: now + AHEAD_S };
  };
  const span = () => chosen || everything();

  // ---- Places ----

  // Measured when all is drawn: a measurement after each update would lay out the page once more.
  let width = 0, scale = 1;
  function measure() {
    width = plots[0]?.clientWidth || 0;
    scale = letterScale();
  }

  function place(plots) {
    const { since, until } = span();
    const length = until - since, now = settled(length);
    for (const plot of plots) {
      const base = Number(plot.dataset.base);
      plot.dataset.placed = "";
      write(plot, "viewBox", `${(since - base).toFixed(1)} 0 ${length.toFixed(1)} 100`);
      for (const body of plot.querySelectorAll("[data-to]")) {
        write(body, "width", Math.max(1, now - base - body.getAttribute("x")).toFixed(1));
      }
      for (const rest of plot.querySelectorAll("[data-until]")) {
        write(rest, "x", (now - base).toFixed(1));
        write(rest, "width", Math.max(1, rest.dataset.until - (now - base)).toFixed(1));
      }
    }
    if (plots.length) placeLabels(plots, since, length, now);
  }

  // Most labels have no room, and most of the others stay where they are: only changes are written.
  function placeLabels(plots, since, length, now) {
    const x = (t) => Math.min(100, Math.max(0, (100 * (t - since)) / length));
    for (const plot of plots) {
      for (const label of plot.parentElement.querySelectorAll(".tl-label")) {
        const { from, to } = label.dataset;
        const begin = x(Number(from)), end = x(to === "now" ? now : Number(to));
        const room = ((end - begin) * width) / 100, isOff = room < scale * LEAST_MARK_PX;
        if (label.classList.contains("off") !== isOff) label.classList.toggle("off", isOff);
        if (isOff) continue;
        shorten(label, room < scale * LEAST_LABEL_PX ? 0 : Math.floor((room - 6) / (scale * LETTER_PX)));
        write(label, "x", `${begin.toFixed(2)}%`);
        write(label, "width", `${(end - begin).toFixed(2)}%`);
      }
    }
  }

  // A wall display has larger letters.
  function letterScale() {
    const text = document.body.classList.contains("kiosk") && box().querySelector(".tl-label text");
    return text ? parseFloat(window.getComputedStyle(text).fontSize) / 12 : 1;
  }

  function write(element, name, value) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }

  // A name that does not fit ends with an ellipsis. Without letters, the owner's mark stands there.
  function shorten(label, letters) {
    const text = label.firstElementChild;
    label.dataset.name ??= text.textContent;
    const name = label.dataset.name;
    const shown = !letters ? label.dataset.mark : name.length <= letters ? name : `${name.slice(0, Math.max(1, letters - 1)).trimEnd()}…`;
    if (text.textContent !== shown) text.textContent = shown;
  }

  // Hatching and patterns keep their size on the screen.
  function drawHatch() {
    const plot = box().querySelector(".tl-plot");
    const { since, until } = span();
    if (!plot?.clientWidth || !plot.clientHeight) return;
    for (const hatch of box().querySelectorAll(".tl-defs pattern")) {
      const px = Number(hatch.dataset.px);
      write(hatch, "width", ((px * (until - since)) / plot.clientWidth).toFixed(1));
      write(hatch, "height", ((px * 100) / plot.clientHeight).toFixed(1));
    }
  }

  function svg(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  }

  function tickText(t, step) {
    const date = new Date(t * 1000);
    const time = app.clock(date);
    if (step < 60) return time;
    if (time.startsWith("00:00")) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    return time.slice(0, 5);
  }

  function drawAxis() {
    const grid = box().querySelector(".tl-grid");
    const { since, until } = span();
    const scale = parseFloat(window.getComputedStyle(grid).fontSize) / 12;
    const most = Math.max(2, Math.min(MOST_TICKS, Math.floor(grid.clientWidth / (70 * scale))));
    const step = STEPS.find((each) => (until - since) / each <= most) || STEPS.at(-1);
    const offset = -60 * new Date().getTimezoneOffset();
    const x = (t) => `${((100 * (t - since)) / (until - since)).toFixed(3)}%`;
    const marks = [];
    const now = clock(), clear = ((44 * scale) / grid.clientWidth) * (until - since);
    const edge = ((20 * scale) / grid.clientWidth) * (until - since);
    for (let t = Math.ceil((since + offset) / step) * step - offset; t < until; t += step) {
      const isWhole = t > since + edge && t < until - edge;
      if (isWhole && Math.abs(t - now) > clear) {
        const tick = svg("text", { class: "tl-tick", x: x(t), y: "1em" }, tickText(t, step));
        tick.append(svg("title", {}, app.utc(new Date(t * 1000))));
        marks.push(tick);
      }
      marks.push(svg("rect", { class: "tl-line", x: x(t), y: "1.5em", width: 1, height: "100%" }));
    }
    if (now > since && now < until) {
      marks.push(svg("rect", { class: "tl-now", x: x(now), y: "1.5em", width: 2, height: "100%" }));
      marks.push(svg("text", { class: "tl-tick now", x: x(now), y: "1em" }, "now"));
    }
    grid.replaceChildren(...marks);
    grid.dataset.drawn = "";
  }

  let drawnAt = 0;
  function draw() {
    if (!box()) return;
    drawnAt = settled(span().until - span().since);
    measure();
    place(box().querySelectorAll(".tl-plot"));
    drawAxis();
    drawHatch();
  }

  function choose(since, until) {
    const all = everything();
    const length = Math.min(Math.max(SHORTEST_S, until - since), all.until - all.since);
    const begin = Math.min(Math.max(all.since, since), all.until - length);
    chosen = length >= all.until - all.since - 1 ? null : { since: begin, until: begin + length };
    window.history.replaceState(null, "", chosen
      ? `#t=${Math.round(chosen.since)}-${Math.round(chosen.until)}`
      : window.location.pathname + window.location.search);
    draw();
  }

  function zoom(factor, share = 0.5) {
    const { since, until } = span();
    const middle = since + share * (until - since), length = (until - since) / factor;
    choose(middle - share * length, middle + (1 - share) * length);
  }

  function move(share) {
    const { since, until } = span();
    choose(since + share * (until - since), until + share * (until - since));
  }

  // ---- What a bar says ----

  function dayTime(t) {
    const date = new Date(t * 1000);
    const time = app.clock(date).slice(0, 5);
    const isToday = date.toDateString() === new Date().toDateString();
    return isToday ? time : `${date.toLocaleDateString("en-GB", { weekday: "short" })} ${time}`;
  }

  function words(link) {
    const begin = Number(link.dataset.begin), end = Number(link.dataset.end);
    const row = link.closest(".tl-plot").getAttribute("aria-label");
    const from = begin > clock() ? `expected ~${dayTime(begin)}` : `from ${dayTime(begin)}`;
    const to = !end ? "" : end > clock() ? `, ends ~${dayTime(end)}` : ` to ${dayTime(end)} (${app.duration(end - begin)})`;
    const idle = link.querySelector(".idle") ? "; hatched: memory held idle" : "";
    return `${row}: ${link.getAttribute("aria-label")}, ${from}${to}${idle}`;
  }

  // The readout stands at the pointer, or below the bar that has the focus.
  function readout() {
    const shown = document.querySelector(".tl-said");
    if (shown) return shown;
    const made = document.createElement("p");
    made.className = "tl-said small";
    made.setAttribute("aria-live", "polite");
    document.body.append(made);
    return made;
  }

  function putReadout(x, y) {
    const said = readout();
    const right = document.documentElement.clientWidth - said.offsetWidth - EDGE_PX;
    const below = y + POINTER_PX, above = y - POINTER_PX - said.offsetHeight;
    said.style.left = `${Math.max(EDGE_PX, Math.min(x + POINTER_PX, right))}px`;
    said.style.top = `${below + said.offsetHeight < window.innerHeight ? below : above}px`;
  }

  function hideReadout() {
    const said = document.querySelector(".tl-said");
    if (said) said.remove();
    told = null;
  }

  // The words, and behind them the times in UTC where the viewer's zone is another one.
  function say(text, times) {
    const said = readout();
    const utc = times.map((t) => app.utc(new Date(t * 1000)));
    said.title = utc.join(" to ");
    said.textContent = text;
    if (!new Date(times[0] * 1000).getTimezoneOffset()) return;
    const behind = document.createElement("span");
    behind.className = "muted";
    behind.textContent = ` (${utc.map((each) => each.slice(11, 16)).join(" to ")} UTC)`;
    said.append(behind);
  }

  // A bar or band as it is found again in a row that an update has replaced.
  const addressOf = (part) => [part.closest(".tl-row").id, part.getAttribute("href") || part.dataset.say, part.dataset.begin];
  function findAgain([row, name, begin]) {
    const parts = [...document.querySelectorAll(`#${CSS.escape(row)} :is(.tl-link, .tl-band)`)]
      .filter((part) => (part.getAttribute("href") || part.dataset.say) === name);
    return parts.find((part) => part.dataset.begin === begin) || (parts.length === 1 ? parts[0] : null);
  }

  let told = null;
  function tell(target) {
    const link = target.closest(".tl-link"), band = target.closest(".tl-band");
    if (link || band) told = addressOf(link || band);
    const times = ({ dataset }) => [dataset.begin, dataset.end].map(Number).filter(Boolean);
    if (link) say(words(link), times(link));
    else if (band) say(`${band.dataset.say}, ${dayTime(band.dataset.begin)} to ${dayTime(band.dataset.end)}`, times(band));
  }

  document.addEventListener("pointermove", (event) => {
    const part = !drag && event.target.closest && event.target.closest(".tl-link, .tl-band");
    if (!part) {
      if (told && !isFocusTold()) hideReadout();
      return;
    }
    if (!told || addressOf(part).join() !== told.join()) tell(part);
    putReadout(event.clientX, event.clientY);
  });
  const isFocusTold = () => document.activeElement.matches(".tl-link");
  document.addEventListener("focusin", (event) => {
    const link = event.target.closest && event.target.closest(".tl-link");
    if (!link) return;
    tell(link);
    const place = link.getBoundingClientRect();
    putReadout(Math.max(place.left, 0), place.bottom - POINTER_PX);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.closest && event.target.closest(".tl-link")) hideReadout();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideReadout();
  });

  // ---- Pointer: drag zooms, with Shift it moves ----

  function share(event, area) {
    return Math.min(1, Math.max(0, (event.clientX - area.left) / area.width));
  }

  function mark(from, to) {
    const rows = box().querySelector(".tl-rows");
    let chosenArea = rows.querySelector(".tl-chosen");
    if (!chosenArea) {
      chosenArea = svg("svg", { class: "tl-chosen" });
      chosenArea.append(svg("rect", { height: "100%" }));
      rows.append(chosenArea);
      const box = rows.getBoundingClientRect();
      chosenArea.style.left = `${drag.area.left - box.left}px`;
      chosenArea.style.width = `${drag.area.width}px`;
    }
    const rect = chosenArea.firstChild;
    rect.setAttribute("x", `${100 * Math.min(from, to)}%`);
    rect.setAttribute("width", `${100 * Math.abs(to - from)}%`);
  }

  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest && event.target.closest(".tl-plot");
    if (!plot || event.button !== 0 || event.pointerType === "touch") return;
    // Measured once: an update may replace the row during the drag.
    const area = plot.getBoundingClientRect();
    drag = { area, x: event.clientX, from: share(event, area), moves: event.shiftKey, span: span(), far: false };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (Math.abs(event.clientX - drag.x) < LEAST_DRAG_PX && !drag.far) return;
    drag.far = true;
    const to = share(event, drag.area), { since, until } = drag.span;
    if (!drag.moves) mark(drag.from, to);
    else choose(since - (to - drag.from) * (until - since), until - (to - drag.from) * (until - since));
  });
  document.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    for (const area of document.querySelectorAll(".tl-chosen")) area.remove();
    if (!done || !done.far) return;
    // The click that follows would open the bar below.
    document.addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
    window.setTimeout(() => document.dispatchEvent(new Event("tl-dragged")), 0);
    if (done.moves) return;
    const { since, until } = done.span, to = share(event, done.area), length = until - since;
    choose(since + Math.min(done.from, to) * length, since + Math.max(done.from, to) * length);
  });
  document.addEventListener("dragstart", (event) => {
    if (event.target.closest && event.target.closest(".tl-plot")) event.preventDefault();
  });
  document.addEventListener("dblclick", (event) => {
    if (event.target.closest(".tl-plot") && !event.target.closest(".tl-link")) choose(-Infinity, Infinity);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-tl]");
    if (!button) return;
    if (button.dataset.tl === "all") choose(-Infinity, Infinity);
    else zoom(button.dataset.tl === "in" ? ZOOM : 1 / ZOOM);
  });

  // ---- Keys: arrows move, + and - zoom, 0 shows all, Page Up and Page Down go through the bars ----

  function nextBar(step) {
    const { since, until } = span();
    const links = [...box().querySelectorAll(".tl-link")].filter((link) =>
      Number(link.dataset.begin) < until && (Number(link.dataset.end) || clock()) > since);
    const at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step];
    if (next) next.focus();
  }

  const KEYS = {
    ArrowLeft: () => move(-MOVE), ArrowRight: () => move(MOVE),
    "+": () => zoom(ZOOM), "=": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM),
    0: () => choose(-Infinity, Infinity), PageDown: () => nextBar(1), PageUp: () => nextBar(-1),
  };

  document.addEventListener("keydown", (event) => {
    if (!event.target.matches || !event.target.matches("[data-timeline], .tl-link")) return;
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  // ---- Live: a changed row is placed when it comes, all of them as the time goes on ----

  // The focus and the told bar stay, whatever an update replaces.
  let focused = null;
  document.addEventListener("htmx:before:swap", (event) => {
    const active = document.activeElement, isInside = box() && box().contains(active);
    focused = isInside ? { bar: active.matches(".tl-link") ? addressOf(active) : null } : null;
    // Placed before they come, bars that stay equal those that are shown, and nothing is written.
    for (const { fragment } of event.detail.tasks || []) {
      if (fragment && width) place(fragment.querySelectorAll(".tl-plot"));
    }
  });

  function restore() {
    if (focused) {
      const wanted = (focused.bar && findAgain(focused.bar)) || box();
      if (document.activeElement !== wanted) wanted.focus({ preventScroll: true });
      focused = null;
    }
    // The bar may say something else now.
    const part = told && findAgain(told);
    if (part) tell(part);
  }

  document.addEventListener("htmx:after:swap", () => {
    if (!box()) return;
    restore();
    if (!width) measure();
    // An update loses the marks of what it replaces. Most updates are of other parts of the page.
    place([...plots].filter((plot) => plot.dataset.placed === undefined));
    if (grids[0].dataset.drawn === undefined) {
      drawAxis();
      drawHatch();
    }
  });
  window.setInterval(() => {
    if (!document.hidden && !drag && drawnAt !== settled(span().until - span().since)) draw();
  }, 15_000);
  window.addEventListener("resize", draw);

  const wanted = /^#t=(\d+)-(\d+)$/.exec(window.location.hash);
  if (wanted) choose(Number(wanted[1]), Number(wanted[2]));
  else draw();
})();
