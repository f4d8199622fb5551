// Every page: live feed, theme, menu, keyboard. Elements declare what they need in data attributes.
"use strict";
(() => {
  const app = window.gpucoord;
  document.documentElement.classList.add("js");
  Object.assign(window.htmx.config, {
    morphIgnore: ["data-htmx-powered", "open"],
    ws: { reconnectDelay: 500, reconnectMaxDelay: 5000 },
  });
  const ACK_EVERY = 4;
  const SIGNED_OUT = 4401;
  const TOO_MANY_SOCKETS = 4429;
  // The `request_id` of live messages.
  const FEED = 1;
  const SCROLLING = ".table-wrap, .report-scroll";
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => document.querySelectorAll(selector);

  // ---- The live feed ----

  const feed = document.getElementById("feed");
  const hasReadings = feed && feed.dataset.topic !== "head" && !feed.dataset.topic.startsWith("region:");
  const order = { h: [], g: [], p: [] };
  const figures = {};
  let places = {}, moved = true;
  let socket = null, signedOut = false;
  let has = 0, unacknowledged = 0;

  function sig3(value) {
    if (value === 0) return "0";
    const decimals = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
    return value.toFixed(decimals);
  }

  // What is out of sight is written when it comes into view: most of the 64 rows of a board are.
  const outOfView = new WeakSet();
  const view = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) outOfView.delete(target);
      else outOfView.add(target);
    }
    writeValues();
  }, { rootMargin: "100px" });

  // Where each figure goes: [data-v] is a position in the values of the [data-live] around it.
  function findPlaces() {
    moved = false;
    const found = new Map();
    for (const element of all("[data-v]")) {
      const owner = element.closest("[data-live]");
      if (!owner) continue;
      const key = owner.dataset.live;
      if (!found.has(key)) found.set(key, []);
      view.observe(owner);
      found.get(key).push({
        element,
        owner,
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
      const share = (unknown || !place.top ? 0 : Math.min(100, (100 * value) / place.top)).toFixed(1) + "%";
      if (place.rect.getAttribute("width") !== share) place.rect.setAttribute("width", share);
      return;
    }
    const text = unknown ? "–" : place.precise ? sig3(value) : value.toFixed(0);
    // A text node that stays needs neither new styles nor a new box.
    const node = place.element.firstChild;
    if (!node) place.element.textContent = text;
    else if (node.data !== text) node.data = text;
    if (place.element.classList.contains("unknown") === unknown) return;
    place.element.classList.toggle("unknown", unknown);
    place.element.title = unknown ? "Unknown: not reported" : "";
  }

  function writeValues() {
    for (const [kind, rows] of Object.entries(figures)) {
      for (const [i, targets] of (places[kind] || []).entries()) {
        for (const place of targets) {
          if (!outOfView.has(place.owner)) write(place, rows[i] ? rows[i][place.slot] : null);
        }
      }
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
    for (const kind of Object.keys(order)) if (message[kind]) figures[kind] = message[kind];
    writeValues();
    if (message.x) refetchTable(message.x);
    has = message.n;
    if (message.t) app.skew = message.t + message.age - Date.now() / 1000;
    app.connection.report(message.problem || "");
    if (hasReadings) app.connection.readings(message.t || null, message.age);
    app.figuresCame();
    acknowledge(message.n);
  }

  // Messages are answers to this element: else htmx would search the whole page for it each time.
  let waiting = null;
  const awaitNext = () => waiting.set(FEED, { element: feed, timestamp: Infinity });

  if (feed) {
    const isFeed = (event) => event.target === feed;
    document.addEventListener("htmx:after:ws:connection", (event) => {
      if (!isFeed(event)) return;
      socket = event.detail.connection.socket;
      waiting = event.detail.connection.pendingRequests;
      awaitNext();
      has = 0;
      unacknowledged = 0;
      app.connection.link("feed", true);
    });
    document.addEventListener("htmx:ws:close", (event) => {
      if (!isFeed(event)) return;
      signedOut ||= event.detail.code === SIGNED_OUT;
      const reason = event.detail.code === TOO_MANY_SOCKETS ? "too many open pages" : "";
      if (signedOut) app.connection.signOut();
      else app.connection.link("feed", false, reason);
    });
    document.addEventListener("htmx:before:ws:connection", (event) => {
      if (isFeed(event) && signedOut) event.detail.connection.cancelled = true;
    });
    document.addEventListener("htmx:before:ws:message", (event) => {
      if (!isFeed(event)) return;
      const message = event.detail.message.json;
      awaitNext();
      app.connection.heard();
      if (message && message.beat) event.detail.message.cancelled = true;
      if (!message || message.beat || message.since === 0 || message.since === has) return;
      // The message builds on a frame that never arrived.
      event.detail.message.cancelled = true;
      say({ whole: true });
    });
    document.addEventListener("htmx:after:ws:message", (event) => {
      if (isFeed(event) && event.detail.message.json) receive(event.detail.message.json);
    });
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
  // Each update would leave the white space around it behind, in an open page for ever. The boxes
  // are grids, which do not show it.
  const GRIDS = ".page, .regions, .stack, .grid, .tl-rows";
  const touched = new Set();
  function removeBlanks() {
    for (const box of touched) {
      for (const node of box.matches(GRIDS) ? [...box.childNodes] : []) {
        if (node.nodeType === Node.TEXT_NODE && !node.data.trim()) node.remove();
      }
    }
    touched.clear();
  }

  // A message may swap several parts. What follows is done once, before the next frame; what
  // concerns tables and forms only if some came, because a search of a large page takes long.
  const afterForms = [];
  let isScheduled = false, haveFormsCome = false;
  document.addEventListener("htmx:before:swap", (event) => {
    for (const { target, fragment } of event.detail.tasks || []) {
      if (target && target.parentElement) touched.add(target.parentElement);
      haveFormsCome ||= !fragment || Boolean(fragment.querySelector(`form, ${SCROLLING}`));
    }
  });
  document.addEventListener("htmx:after:swap", () => {
    moved = true;
    if (isScheduled) return;
    isScheduled = true;
    window.requestAnimationFrame(() => {
      isScheduled = false;
      removeBlanks();
      if (haveFormsCome) for (const work of afterForms) work();
      haveFormsCome = false;
    });
  });

  // ---- Notifications and copy buttons work on https and on localhost only ----

  const insecure = document.getElementById("insecure");
  if (insecure) insecure.hidden = window.isSecureContext;
  document.documentElement.classList.toggle("no-clipboard", !window.isSecureContext);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  // ---- A chosen folder goes into the field above the list ----

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-folder]");
    if (!button) return;
    const input = button.closest(".field").querySelector("input");
    input.value = button.dataset.folder;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });

  // ---- Menus close when the reader goes on ----

  function closeMenus(except) {
    for (const menu of all("details.menu[open]")) if (menu !== except) menu.open = false;
  }
  document.addEventListener("click", (event) => closeMenus(event.target.closest("details.menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = document.activeElement.closest("details.menu[open]");
    if (menu) menu.querySelector("summary").focus();
    closeMenus(null);
  });

  // ---- What scrolls sideways can be scrolled by the keyboard ----

  function reachScrolling() {
    for (const box of all(SCROLLING)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  }
  reachScrolling();
  window.addEventListener("resize", reachScrolling);
  afterForms.push(reachScrolling);

  // ---- Parts that the reader has opened or closed stay so, whatever an update replaces ----

  document.addEventListener("htmx:before:swap", (event) => {
    for (const { fragment } of event.detail.tasks || []) {
      for (const part of fragment ? fragment.querySelectorAll("details[id]") : []) {
        const shown = document.getElementById(part.id);
        if (shown) part.open = shown.open;
      }
    }
  });

  // ---- An address that names a place in a closed part opens that part ----

  function openTarget() {
    const place = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
    const part = place && place.closest("details");
    if (!part || part.open) return;
    part.open = true;
    place.scrollIntoView();
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();

  // ---- A form that came back: the first field with a mistake has the focus ----

  function focusMistake() {
    const alert = one("form [role=alert]:not([data-focused])");
    const field = alert && alert.closest("form").querySelector("[aria-invalid=true]");
    if (!field) return;
    alert.dataset.focused = "";
    field.focus();
  }
  afterForms.push(focusMistake);
  focusMistake();
})();
