// Every page: durations and clock times in the browser's time zone. Loaded before the other scripts.
"use strict";
window.gpucoord = {};
(() => {
  const app = window.gpucoord;
  // Seconds that the server's clock is ahead of the browser's.
  app.skew = Number(document.querySelector("[data-now]").dataset.now) - Date.now() / 1000;

  app.duration = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    const minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
    if (s < 60) return `${s} s`;
    if (minutes < 60) return `${minutes} min`;
    if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
    return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  };

  app.utc = (date) => `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;

  // Formats that are made once: those of toLocaleTimeString are made anew at each call, which is slow.
  const format = (options) => new Intl.DateTimeFormat("en-GB", options);
  const CLOCK = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const DAY = format({ day: "numeric", month: "short" }), WEEKDAY = format({ weekday: "short" });
  const DATE = new Intl.DateTimeFormat("sv-SE");

  app.clock = (date) => CLOCK.format(date);

  // Formats: day "21 Nov", dayhm "21 Nov 14:00", weekday "Mon 21 Nov 14:00", hour "14", hm "14:00",
  // clock "14:00:00" today and "21 Nov 14:00" on other days, minute "14:00" today, stamp "2026-11-21 14:00".
  function moment(kind, date, today) {
    const hm = app.clock(date).slice(0, 5);
    const day = DAY.format(date), weekday = WEEKDAY.format(date);
    const isToday = date.toDateString() === today.toDateString();
    const dayYear = date.getFullYear() === today.getFullYear() ? day : `${day} ${date.getFullYear()}`;
    const forms = {
      day, dayhm: `${day} ${hm}`, dayorhm: hm === "00:00" ? day : hm,
      weekday: `${weekday} ${dayYear} ${hm}`, hour: hm.slice(0, 2), hm,
      stamp: `${DATE.format(date)} ${hm}`,
      minute: isToday ? hm : `${dayYear} ${hm}`,
      clock: isToday ? app.clock(date) : `${dayYear} ${hm}`,
    };
    return forms[kind];
  }

  // The server renders pages in this zone from the next request on.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `timezone=${zone}; path=/; max-age=31536000; samesite=lax`;

  // {hm:2026-11-22T05:00:00+00:00} in a text becomes that time in the browser's zone.
  function fill(template, today) {
    return template.replace(/\{(hm|weekday):([-+:.\dT]+)\}/g, (_, kind, at) => moment(kind, new Date(at), today));
  }

  const RELATIVE = ["short", "ago", "in", "since"];
  // A collection by name is kept by the browser; a selector would search thousands of bars.
  const times = document.getElementsByTagName("time");

  function freshenRelative(elements) {
    const now = Date.now() / 1000 + app.skew;
    for (const element of elements) {
      const kind = element.dataset.time;
      if (!RELATIVE.includes(kind)) continue;
      const at = Date.parse(element.getAttribute("datetime")) / 1000;
      const text = kind === "short" ? app.duration(now - at).split(" ", 2).join(" ")
        : kind === "ago" ? `${app.duration(now - at)} ago`
        : kind === "in" ? `in ${app.duration(at - now)}`
        : app.duration(now - at);
      if (element.firstChild.data !== text) element.firstChild.data = text;
    }
  }

  // Moments change their words at midnight only, and when an update brings other ones.
  function freshenMoments(within) {
    const today = new Date(Date.now() + 1000 * app.skew);
    if (within === document) shownOn = today.toDateString();
    for (const element of within.querySelectorAll("[data-time]")) {
      if (RELATIVE.includes(element.dataset.time)) continue;
      const text = moment(element.dataset.time, new Date(element.getAttribute("datetime")), today);
      // The text comes first; in an SVG a <title> follows it.
      if (element.firstChild.data !== text) element.firstChild.data = text;
    }
    for (const element of within.querySelectorAll("[data-label]")) {
      const text = fill(element.dataset.label, today);
      if (element.getAttribute("aria-label") === text) continue;
      element.setAttribute("aria-label", text);
      element.title = `${text} (${element.dataset.utc})`;
    }
    for (const element of within.querySelectorAll("[data-title]")) {
      const text = `${fill(element.dataset.title, today)} (${element.dataset.utc})`;
      if (element.title !== text) element.title = text;
    }
  }
  let shownOn = "";
  function tick() {
    if (new Date(Date.now() + 1000 * app.skew).toDateString() !== shownOn) freshenMoments(document);
    freshenRelative(times);
  }

  document.addEventListener("htmx:before:swap", (event) => {
    for (const { fragment } of event.detail.tasks || []) {
      if (!fragment) continue;
      freshenMoments(fragment);
      freshenRelative(fragment.querySelectorAll("time"));
    }
  });

  // ---- Work of each second: together with the figures that come then, so that one frame has all ----

  const ALONE_MS = 1000, WITH_FIGURES_MS = 1500, SHORTEST_MS = 700;
  const works = [];
  let timer = 0, ranAt = 0, pause = ALONE_MS;
  function second() {
    ranAt = performance.now();
    window.clearTimeout(timer);
    timer = window.setTimeout(() => { pause = ALONE_MS; second(); }, pause);
    for (const work of works) work();
  }
  app.everySecond = (work) => works.push(work);
  // Figures have come. The timer steps in when they stay away.
  app.figuresCame = () => {
    pause = WITH_FIGURES_MS;
    if (performance.now() - ranAt >= SHORTEST_MS) second();
  };
  app.everySecond(tick);
  second();
})();
