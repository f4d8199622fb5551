// A job's page: follows its state and its log over a WebSocket; asks before it cancels.
"use strict";
(() => {
  const LAST_CODE = 4400;
  const MOST_CHARACTERS = 2_000_000;
  const card = document.getElementById("job-live");
  const log = document.getElementById("log");
  const box = document.getElementById("job-live-state");

  // ---- Cancel: asks once, in place ----

  const dialog = document.getElementById("cancel-dialog");
  const cancel = document.getElementById("cancel");
  if (dialog && cancel) {
    cancel.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.showModal();
    });
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  }

  // ---- The log: text is only ever added; a line that rewrites itself is one line ----

  const follow = document.querySelector("#log-follow input");
  let line = "";
  let tailNode = null;
  let characters = 0;

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    let amount = bytes;
    while (amount >= 1024 && at < 4) { amount /= 1024; at += 1; }
    return at ? `${Number(amount.toPrecision(3))} ${units[at]}` : `${bytes} B`;
  }

  function asSeen(text) {
    if (!text.includes("\r")) return text;
    return text.split("\n").map((each) => {
      const shown = each.replace(/\r+$/, "");
      return shown.slice(shown.lastIndexOf("\r") + 1);
    }).join("\n");
  }

  function startLog() {
    const text = log.textContent;
    const at = text.lastIndexOf("\n") + 1;
    log.textContent = "";
    line = text.slice(at);
    characters = at;
    log.append(text.slice(0, at));
    tailNode = document.createTextNode(line);
    log.append(tailNode);
    log.scrollTop = log.scrollHeight;
  }

  function addText(text) {
    const atEnd = follow.checked;
    const joined = line + text;
    const at = joined.lastIndexOf("\n") + 1;
    line = joined.slice(at);
    if (at) {
      const node = document.createTextNode(asSeen(joined.slice(0, at)));
      log.insertBefore(node, tailNode);
      characters += node.length;
    }
    tailNode.data = asSeen(line);
    if (line.length > 20_000) line = line.slice(line.lastIndexOf("\r") + 1);
    while (characters > MOST_CHARACTERS && log.firstChild !== tailNode) {
      characters -= log.firstChild.length;
      log.firstChild.remove();
    }
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  function skip(bytes) {
    document.getElementById("log-skipped").hidden = false;
    if (log.textContent) addText(`\n… ${size(bytes)} left out …\n`);
    else document.getElementById("log-skipped-size").textContent = size(bytes);
  }

  function takeLog(message) {
    if (message.anew) {
      log.textContent = "";
      startLog();
      attempt = message.anew;
    }
    has = message.to;
    log.hidden = has === 0;
    if (message.skipped) skip(message.skipped);
    addText(message.log);
    document.getElementById("log-size").textContent = size(has);
    document.getElementById("log-empty").hidden = has > 0;
  }

  // ---- The socket ----

  let attempt = 0, has = 0, wait = 500, ended = false, gone = false;

  function address() {
    const url = new URL(card.dataset.follow, window.location);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    if (log) {
      url.searchParams.set("attempt", attempt);
      url.searchParams.set("from", has);
    }
    return url;
  }

  function show(state, text) {
    box.hidden = ended;
    box.dataset.state = state;
    box.querySelector(".live-text").textContent = text;
  }

  function takeJob(message) {
    const before = card.querySelector(".factors");
    const hadFocus = before && before.contains(document.activeElement);
    card.innerHTML = message.job;
    const factors = card.querySelector(".factors");
    if (before && factors) {
      // What a person has opened stays open.
      factors.open = before.open;
      if (hadFocus) factors.querySelector("summary").focus();
    }
    document.dispatchEvent(new CustomEvent("htmx:after:swap"));
    const word = card.querySelector(".badge");
    document.title = document.title.replace(/(\[simulated\] )?.*? · /, `$1${word.textContent} · `);
    if (message.ended || message.state === "stopping") {
      if (cancel) cancel.remove();
      if (dialog) dialog.close();
    }
    if (message.ended) {
      ended = true;
      box.hidden = true;
    }
  }

  function connect() {
    const socket = new WebSocket(address());
    socket.addEventListener("open", () => {
      wait = 500;
      show("live", "live");
    });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.job) takeJob(message);
      if (message.n) {
        takeLog(message);
        socket.send(JSON.stringify({ ack: message.n }));
      }
    });
    socket.addEventListener("close", (event) => {
      gone = event.code >= LAST_CODE;
      if (gone) return show("off", "signed out");
      show("reconnecting", "reconnecting");
      window.setTimeout(connect, wait);
      wait = Math.min(5000, wait * 2);
    });
  }

  if (log) {
    document.getElementById("log-follow").hidden = !card.dataset.follow;
    has = Number(log.dataset.to);
    startLog();
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
