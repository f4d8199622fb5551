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

  app.clock = (date) => date.toLocaleTimeString("en-GB");

  // Formats: day "21 Nov", dayhm "21 Nov 14:00", weekday "Mon 21 Nov 14:00", hour "14", hm "14:00",
  // clock "14:00:00" today and "21 Nov 14:00" on other days, minute "14:00" today, stamp "2026-11-21 14:00".
  function moment(kind, date, today) {
    const hm = app.clock(date).slice(0, 5);
    const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const weekday = date.toLocaleDateString("en-GB", { weekday: "short" });
    const isToday = date.toDateString() === today.toDateString();
    const dayYear = date.getFullYear() === today.getFullYear() ? day : `${day} ${date.getFullYear()}`;
    const forms = {
      day, dayhm: `${day} ${hm}`, dayorhm: hm === "00:00" ? day : hm,
      weekday: `${weekday} ${dayYear} ${hm}`, hour: hm.slice(0, 2), hm,
      stamp: `${date.toLocaleDateString("sv-SE")} ${hm}`,
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

  // Dates in words are slow to make, and a page may have thousands of them: each is made once a day.
  const MOST_MADE = 10_000;
  const made = new Map();
  let madeOn = "";
  function once(key, make) {
    let text = made.get(key);
    if (text === undefined) {
      if (made.size >= MOST_MADE) made.clear();
      made.set(key, text = make());
    }
    return text;
  }

  app.freshenTimes = () => {
    const now = Date.now() / 1000 + app.skew;
    const today = new Date(now * 1000), day = today.toDateString();
    if (day !== madeOn) made.clear();
    madeOn = day;
    for (const element of document.querySelectorAll("[data-time]")) {
      const kind = element.dataset.time, at = element.getAttribute("datetime");
      const date = Date.parse(at);
      const text = kind === "short" ? app.duration(now - date / 1000).split(" ", 2).join(" ")
        : kind === "ago" ? `${app.duration(now - date / 1000)} ago`
        : kind === "in" ? `in ${app.duration(date / 1000 - now)}`
        : kind === "since" ? app.duration(now - date / 1000) : once(`${kind} ${at}`, () => moment(kind, new Date(date), today));
      // The text comes first; in an SVG a <title> follows it.
      if (element.firstChild.data !== text) element.firstChild.data = text;
    }
    for (const element of document.querySelectorAll("[data-label]")) {
      const template = element.dataset.label;
      const text = once(template, () => fill(template, today));
      if (element.getAttribute("aria-label") === text) continue;
      element.setAttribute("aria-label", text);
      element.title = `${text} (${element.dataset.utc})`;
    }
    for (const element of document.querySelectorAll("[data-title]")) {
      const template = element.dataset.title;
      const text = `${once(template, () => fill(template, today))} (${element.dataset.utc})`;
      if (element.title !== text) element.title = text;
    }
  };

  document.addEventListener("htmx:after:swap", app.freshenTimes);
  app.freshenTimes();
  window.setInterval(app.freshenTimes, 1000);
})();
