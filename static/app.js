// Every page: live feed, times, theme, keyboard. Elements say by data attributes what they want.
"use strict";
(() => {
  const STALE_S = 5;
  const ACK_EVERY = 4;
  const SIGNED_OUT = 4401;
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => document.querySelectorAll(selector);

  // ---- Times: texts that age, and clock times in the viewer's own zone ----

  let skew = Number(document.body.dataset.now) - Date.now() / 1000;

  function duration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    const minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
    if (s < 60) return `${s} s`;
    if (minutes < 60) return `${minutes} min`;
    if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
    return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  }

  function clock(date) {
    return date.toLocaleTimeString("en-GB");
  }

  // A moment as exactly as it is wanted: "21 Nov", "21 Nov 14:00", "14", "14:00"; today "14:00:00".
  function moment(kind, date, today) {
    const hm = clock(date).slice(0, 5);
    const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const forms = { day, dayhm: `${day} ${hm}`, dayorhm: hm === "00:00" ? day : hm, hour: hm.slice(0, 2), hm };
    if (kind !== "clock") return forms[kind];
    if (date.toDateString() === today.toDateString()) return clock(date);
    return date.getFullYear() === today.getFullYear() ? forms.dayhm : `${day} ${date.getFullYear()} ${hm}`;
  }

  function freshenTimes() {
    const now = Date.now() / 1000 + skew;
    for (const element of all("[data-time]")) {
      const kind = element.dataset.time;
      const date = Date.parse(element.getAttribute("datetime"));
      const text = kind === "ago" ? `${duration(now - date / 1000)} ago`
        : kind === "since" ? duration(now - date / 1000) : moment(kind, new Date(date), new Date(now * 1000));
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // ---- The live feed ----

  const feed = document.getElementById("feed");
  const order = { h: [], g: [], p: [] };
  let places = {}, moved = true;
  let socket = null, connected = false, signedOut = false;
  let has = 0, unacknowledged = 0;
  let readAt = null, age = 0, arrivedAt = 0, problem = "";

  function sig3(value) {
    if (value === 0) return "0";
    const decimals = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
    return value.toFixed(decimals);
  }

  // Where each figure goes: [data-v] is a position in the values of the [data-live] around it.
  function findPlaces() {
    moved = false;
    const found = new Map();
    for (const element of all("[data-v]")) {
      const owner = element.closest("[data-live]");
      if (!owner) continue;
      const key = owner.dataset.live;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push({
        element,
        slot: Number(element.dataset.v),
        rect: element.dataset.max === undefined ? null : element.firstElementChild,
        top: Number(element.dataset.max),
        precise: element.dataset.d === "3",
        shown: undefined,
      });
    }
    places = {};
    for (const kind of Object.keys(order)) {
      places[kind] = order[kind].map((id) => found.get(`${kind}:${id}`) || []);
    }
  }

  function write(place, value) {
    if (value === place.shown) return;
    place.shown = value;
    const unknown = value === null || value === undefined;
    if (place.rect) {
      place.element.classList.toggle("no-value", unknown || !place.top);
      const share = unknown || !place.top ? 0 : Math.min(100, (100 * value) / place.top);
      place.rect.setAttribute("width", share.toFixed(1));
      return;
    }
    place.element.classList.toggle("unknown", unknown);
    place.element.title = unknown ? "Unknown: the probe can't tell" : "";
    place.element.textContent = unknown ? "–" : place.precise ? sig3(value) : value.toFixed(0);
  }

  function writeValues(message) {
    for (const kind of Object.keys(order)) {
      const rows = message[kind];
      const targets = places[kind];
      if (!rows || !targets) continue;
      for (let i = 0; i < targets.length; i += 1) {
        for (const place of targets[i]) write(place, rows[i] ? rows[i][place.slot] : null);
      }
    }
  }

  function drawSparks(sparks) {
    for (const [id, [line, area]] of Object.entries(sparks)) {
      const svg = one(`[data-spark="${CSS.escape(id)}"]`);
      if (!svg) continue;
      svg.querySelector(".line").setAttribute("d", line);
      svg.querySelector(".area").setAttribute("d", area);
    }
  }

  // A page that holds a table of its own asks for it again when other rows are due; a long one
  // less often, because drawing it anew costs as much as a minute of figures.
  let askedAt = 0, asking = 0;
  function refetchTable(digest) {
    const table = one("[data-digest]");
    if (!table || table.dataset.digest === digest || asking) return;
    const pause = table.querySelectorAll("tr").length > 100 ? 6000 : 2000;
    const wait = Math.max(0, askedAt + pause - Date.now()) + Math.random() * 300;
    asking = window.setTimeout(() => {
      asking = 0;
      askedAt = Date.now();
      const now = one("[data-digest]");
      if (now) window.htmx.trigger(now, "refresh");
    }, wait);
  }

  function say(text) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(text));
  }

  function acknowledge(n) {
    unacknowledged += 1;
    if (unacknowledged >= ACK_EVERY) {
      unacknowledged = 0;
      say({ ack: n });
    }
  }

  function receive(message) {
    if (message.o) Object.assign(order, message.o);
    if (message.o || moved) findPlaces();
    writeValues(message);
    if (message.k) drawSparks(message.k);
    if (message.x) refetchTable(message.x);
    has = message.n;
    problem = message.problem || "";
    if (message.t) {
      readAt = message.t;
      age = message.age;
      arrivedAt = performance.now();
      skew = message.t + message.age - Date.now() / 1000;
    }
    acknowledge(message.n);
    showState();
  }

  const WORDS = {
    waiting: "waiting for the first reading",
    live: "live",
    stale: "stale",
    reconnecting: "reconnecting",
    off: "signed out",
  };

  function state() {
    if (signedOut) return "off";
    if (!connected) return readAt === null && !has ? "waiting" : "reconnecting";
    if (readAt === null) return "waiting";
    return problem || secondsOld() > STALE_S ? "stale" : "live";
  }

  function secondsOld() {
    return age + (performance.now() - arrivedAt) / 1000;
  }

  function askToLogIn(box) {
    const link = document.createElement("a");
    link.href = box.dataset.login;
    link.textContent = "log in again";
    box.append(link);
  }

  function showState() {
    const box = document.getElementById("live");
    if (!box) return;
    const now = state();
    let text = WORDS[now];
    if (readAt !== null) {
      text += now === "live" ? ` · ${clock(new Date(readAt * 1000))}`
        : ` · as of ${clock(new Date(readAt * 1000))}, ${duration(secondsOld())} ago`;
    }
    const label = box.querySelector(".live-text");
    if (label.textContent !== text) label.textContent = text;
    box.title = problem || (now === "stale" ? "No new reading arrives. Does the sampler run? See the status page." : "");
    if (box.dataset.state === now) return;
    box.dataset.state = now;
    if (now === "off") askToLogIn(box);
    document.body.classList.toggle("is-stale", now !== "live" && readAt !== null);
    document.getElementById("live-said").textContent = now === "live" ? "" : WORDS[now];
  }

  if (feed) {
    const isFeed = (event) => event.target === feed;
    document.addEventListener("htmx:after:ws:connection", (event) => {
      if (!isFeed(event)) return;
      socket = event.detail.connection.socket;
      connected = true;
      has = 0;
      unacknowledged = 0;
      showState();
    });
    document.addEventListener("htmx:ws:close", (event) => {
      if (!isFeed(event)) return;
      connected = false;
      signedOut ||= event.detail.code === SIGNED_OUT;
      showState();
    });
    document.addEventListener("htmx:before:ws:connection", (event) => {
      if (isFeed(event) && signedOut) event.detail.connection.cancelled = true;
    });
    document.addEventListener("htmx:before:ws:message", (event) => {
      if (!isFeed(event)) return;
      const message = event.detail.message.json;
      if (!message || message.since === 0 || message.since === has) return;
      // It builds on a frame that never came.
      event.detail.message.cancelled = true;
      say({ whole: true });
    });
    document.addEventListener("htmx:after:ws:message", (event) => {
      if (isFeed(event) && event.detail.message.json) receive(event.detail.message.json);
    });
    window.setInterval(showState, 1000);
  }

  // ---- Theme: automatic, light, dark; a cookie, so that the server sends the right one ----

  const THEMES = ["auto", "light", "dark"];
  function nextTheme() {
    const root = document.documentElement;
    const next = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
    root.dataset.theme = next;
    document.cookie = `theme=${next}; path=/; max-age=31536000; samesite=lax`;
    for (const button of all("[data-theme-toggle]")) button.title = `Theme: ${next}. Press to change`;
  }

  // ---- Keyboard: g then d, j, q, r goes; / filters; ? helps ----

  let pressedG = 0;
  function isTyping(target) {
    return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const going = Date.now() - pressedG < 1500;
    pressedG = event.key === "g" ? Date.now() : 0;
    const link = going && one(`[data-go="${CSS.escape(event.key)}"]`);
    const filter = event.key === "/" && one("[data-filter]");
    const help = event.key === "?" && document.getElementById("help");
    if (link) window.location.assign(link.href);
    else if (filter) filter.focus();
    else if (help) help.showModal();
    else return;
    event.preventDefault();
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-toggle]")) nextTheme();
    if (event.target.closest("[data-help]")) document.getElementById("help").showModal();
  });
  document.addEventListener("htmx:after:swap", () => {
    moved = true;
    freshenTimes();
  });
  freshenTimes();
  window.setInterval(freshenTimes, 1000);
})();
