// A job's page: follows its state and its log over a WebSocket; asks before it cancels.
"use strict";
(() => {
  const SIGNED_OUT = 4401, LAST_CODE = 4400;
  const TOO_MANY_SOCKETS = 4429;
  const MOST_LINES = 20_000, GUTTER_PX = 56;
  const card = document.getElementById("job-live");
  const log = document.getElementById("log");
  const { connection } = window.gpucoord;

  // ---- Cancel: asks once, in place ----

  const dialog = document.getElementById("cancel-dialog");
  if (dialog) {
    document.addEventListener("click", (event) => {
      if (!event.target.closest("#cancel")) return;
      event.preventDefault();
      dialog.showModal();
    });
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  }

  // ---- The log: text is only ever added; a line that rewrites itself is one line ----

  const follow = document.querySelector("#log-follow input");
  let line = "", tail = null, colours = [];
  // The number of the next line; null: unknown.
  let number = null;

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    let amount = bytes;
    while (amount >= 1024 && at < 4) { amount /= 1024; at += 1; }
    return at ? `${Number(amount.toPrecision(3))} ${units[at]}` : `${bytes} B`;
  }

  function asSeen(text) {
    const shown = text.replace(/\r+$/, "");
    return shown.slice(shown.lastIndexOf("\r") + 1);
  }

  // Colours: "ESC [ numbers m"; the basic 16 and bold, dim, italic, underlined.
  const COLOUR = /\x1b\[([0-9;]{0,40})m/;
  const within = (number, ...ranges) => ranges.some(([from, to]) => number >= from && number <= to);
  const isText = (number) => within(number, [30, 37], [90, 97]);
  const isBack = (number) => within(number, [40, 47], [100, 107]);
  const OFF = { 22: (n) => n < 3, 23: (n) => n === 3, 24: (n) => n === 4, 39: isText, 49: isBack };
  const without = (on, off) => on.filter((number) => !off(number));

  function colourAfter(on, numbers) {
    const rest = numbers.split(";").map(Number);
    while (rest.length) {
      const number = rest.shift();
      if (number === 38 || number === 48) rest.splice(0, { 5: 2, 2: 4 }[rest[0]] || 0);
      else if (number === 0) on = [];
      else if (OFF[number]) on = without(on, OFF[number]);
      else if (isText(number)) on = [...without(on, isText), number];
      else if (isBack(number)) on = [...without(on, isBack), number];
      else if (number <= 4) on = [...without(on, (each) => each === number), number];
    }
    return on;
  }

  // The nodes of a text that begins with the colours `on`, and the colours after it.
  function coloured(text, on) {
    const pieces = text.split(COLOUR);
    const nodes = [];
    for (let i = 0; i < pieces.length; i += 2) {
      if (i) on = colourAfter(on, pieces[i - 1]);
      if (!pieces[i]) continue;
      if (!on.length) {
        nodes.push(document.createTextNode(pieces[i]));
        continue;
      }
      const span = document.createElement("span");
      span.className = on.map((number) => `a${number}`).join(" ");
      span.textContent = pieces[i];
      nodes.push(span);
    }
    return [nodes, on];
  }

  // The lines that the server has rendered, with their colours as sequences again.
  function rawText() {
    return [...log.childNodes].map((node) =>
      node.nodeType === Node.TEXT_NODE ? node.data : `\x1b[${node.dataset.s}m${node.textContent}\x1b[0m`).join("");
  }

  function newLine() {
    const element = document.createElement("span");
    element.className = "line";
    if (number !== null) {
      element.id = `L${number}`;
      element.dataset.n = number;
      number += 1;
    }
    log.append(element);
    return element;
  }

  function startLog(text) {
    log.replaceChildren();
    line = "";
    colours = [];
    tail = newLine();
    addText(text);
    log.scrollTop = log.scrollHeight;
  }

  function addText(text) {
    const atEnd = follow.checked;
    const parts = (line + text).split("\n");
    line = parts.pop();
    for (const part of parts) {
      const [nodes, after] = coloured(`${asSeen(part)}\n`, colours);
      tail.replaceChildren(...nodes);
      mark(tail);
      colours = after;
      tail = newLine();
    }
    tail.replaceChildren(...coloured(asSeen(line), colours)[0]);
    if (line.length > 20_000) line = line.slice(line.lastIndexOf("\r") + 1);
    while (log.childElementCount > MOST_LINES) log.firstChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  // ---- Search, line links, copy ----

  const search = document.getElementById("log-search");
  let wanted = "", chosen = null;

  function mark(element) {
    element.classList.toggle("hit", wanted !== "" && element.textContent.toLowerCase().includes(wanted));
  }

  function hits() {
    return [...log.querySelectorAll(".line.hit")];
  }

  function choose(element) {
    if (chosen) chosen.classList.remove("chosen");
    chosen = element;
    element.classList.add("chosen");
    follow.checked = false;
    element.scrollIntoView({ block: "center" });
  }

  function sayHits() {
    const found = hits(), at = found.indexOf(chosen);
    document.getElementById("log-hits").textContent = !wanted ? ""
      : `${at >= 0 ? `${at + 1} of ` : ""}${found.length} line${found.length === 1 ? "" : "s"}`;
  }

  function nextHit(step) {
    const found = hits();
    if (!found.length) return;
    const at = found.indexOf(chosen);
    choose(found[(at < 0 ? (step > 0 ? 0 : found.length - 1) : at + step + found.length) % found.length]);
    sayHits();
  }

  function followHash() {
    const line = /^#L\d+$/.test(window.location.hash) && document.getElementById(window.location.hash.slice(1));
    if (line) choose(line);
  }

  function setUpTools() {
    search.addEventListener("input", () => {
      wanted = search.value.toLowerCase();
      log.querySelectorAll(".line").forEach(mark);
      sayHits();
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    });
    log.addEventListener("click", (event) => {
      const line = event.target.closest(".line[id]");
      if (!line || event.clientX - log.getBoundingClientRect().left > GUTTER_PX) return;
      window.history.replaceState(null, "", `#${line.id}`);
      choose(line);
    });
    const copy = document.getElementById("log-copy");
    // Browsers offer the clipboard on https and on localhost only.
    copy.hidden = !window.isSecureContext;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(log.textContent);
      connection.toast("The shown part of the log was copied.");
    });
    window.addEventListener("hashchange", followHash);
    followHash();
  }

  function skip(bytes) {
    number = null;
    tail.removeAttribute("id");
    delete tail.dataset.n;
    document.getElementById("log-skipped").hidden = false;
    if (log.textContent) addText(`\n… ${size(bytes)} left out …\n`);
    else document.getElementById("log-skipped-size").textContent = size(bytes);
  }

  function takeLog(message) {
    if (message.anew) {
      number = 1;
      startLog("");
      attempt = message.anew;
    }
    has = message.to;
    log.hidden = has === 0;
    if (message.skipped) skip(message.skipped);
    addText(message.log);
    document.getElementById("log-size").textContent = size(has);
    document.getElementById("log-empty").hidden = has > 0;
  }

  // ---- A notification of the browser when the job ends ----

  // Browsers offer notifications on https and on localhost only.
  const canNotify = window.isSecureContext && "Notification" in window;
  const notifyKey = `gpucoord.notify${window.location.pathname}`;
  const wantsNotice = () => window.sessionStorage.getItem(notifyKey) === "1";

  function showNotify() {
    const button = document.getElementById("notify");
    if (!button || !canNotify) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(wantsNotice()));
    button.textContent = wantsNotice() ? "Notification on" : "Tell me when it ends";
  }

  async function toggleNotify() {
    const allowed = wantsNotice() || await window.Notification.requestPermission() === "granted";
    if (!allowed) return connection.toast("Notifications are blocked. Allow them for this site in the browser's settings.");
    if (wantsNotice()) window.sessionStorage.removeItem(notifyKey);
    else window.sessionStorage.setItem(notifyKey, "1");
    connection.toast(wantsNotice() ? "A notification will appear when the job ends. Keep this tab open." : "No notification will appear.");
    showNotify();
    // It may have ended while the browser asked for the permission.
    if (ended) tellEnd(card.querySelector(".badge").textContent);
  }

  function tellEnd(word) {
    if (!canNotify || !wantsNotice()) return;
    window.sessionStorage.removeItem(notifyKey);
    const name = document.querySelector("h1").textContent.trim().replace(/\s+/g, " ");
    const note = new window.Notification(`${name}: ${word}`, { tag: notifyKey });
    note.addEventListener("click", () => window.focus());
  }

  showNotify();
  document.addEventListener("htmx:after:swap", showNotify);
  document.addEventListener("click", (event) => {
    if (event.target.closest("#notify")) toggleNotify();
  });

  // ---- The socket ----

  let attempt = 0, has = 0, wait = 500, ended = false;
  // The texts that the actions beside the state depend on.
  const shown = () => [".badge", ".why-headline"].map((part) => card.querySelector(part)?.textContent).join();
  let shownState = card && shown();

  function address() {
    const url = new URL(card.dataset.follow, window.location);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    if (log) {
      url.searchParams.set("attempt", attempt);
      url.searchParams.set("from", has);
    }
    return url;
  }

  async function takeJob(message) {
    await window.htmx.swap({ text: message.job, target: card, sourceElement: card, swap: "innerMorph" });
    const word = card.querySelector(".badge");
    document.title = document.title.replace(/^(\(\d+\) |\(no answer\) )?(\[simulated\] )?.*? · /, `$1$2${word.textContent} · `);
    if (shown() !== shownState) for (const part of ["#job-actions", "#job-offer", "#job-ahead"]) window.htmx.trigger(part, "refresh");
    shownState = shown();
    if (dialog && (message.ended || message.state === "stopping")) dialog.close();
    if (message.ended && !ended) tellEnd(word.textContent);
    ended ||= Boolean(message.ended);
  }

  function connect() {
    const socket = new WebSocket(address());
    socket.addEventListener("open", () => {
      wait = 500;
      connection.link("job", true);
    });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      connection.heard();
      if (message.job) takeJob(message);
      if (message.n) {
        takeLog(message);
        socket.send(JSON.stringify({ ack: message.n }));
      }
    });
    socket.addEventListener("close", (event) => {
      const tooMany = event.code === TOO_MANY_SOCKETS;
      if (event.code === SIGNED_OUT) return connection.signOut();
      if (event.code >= LAST_CODE && !tooMany) return connection.unlink("job");
      connection.link("job", false, tooMany ? "too many open pages" : "");
      window.setTimeout(connect, tooMany ? 5000 : wait);
      wait = Math.min(5000, wait * 2);
    });
  }

  if (log) {
    document.getElementById("log-follow").hidden = !card.dataset.follow;
    has = Number(log.dataset.to);
    number = log.dataset.line ? Number(log.dataset.line) : null;
    startLog(rawText());
    setUpTools();
    log.addEventListener("scroll", () => {
      follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
    });
    follow.addEventListener("change", () => {
      if (follow.checked) log.scrollTop = log.scrollHeight;
    });
  }
  if (card && card.dataset.follow) {
    attempt = Number(new URL(card.dataset.follow, window.location).searchParams.get("attempt"));
    connect();
  }
})();
