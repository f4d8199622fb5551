// Every page: one badge says whether the server answers and whether the page is up to date.
// Sockets and polled parts report here; nothing else decides about the state.
"use strict";
(() => {
  const app = window.gpucoord;
  const box = document.getElementById("connection");
  if (!box) return;

  // The server sends something at least every 1.5 s.
  const SILENCE_S = 4.5;
  // A request answered this long after the last message of a socket shows that only the socket is silent.
  const BEAT_S = 2;
  // Polled parts ask every 5 s at most; an older answer says nothing about the server now.
  const ANSWER_S = 7;
  const OLD_READING_S = 5;
  const SLOW_POLL_S = 8;
  const TOAST_MS = 6000, MOST_TOASTS = 4;

  const seconds = () => performance.now() / 1000;
  const links = new Map();
  const pending = new Map(), failed = new Map();
  let heardAt = seconds(), heardClock = Date.now();
  let answeredAt = -Infinity, answeredClock = null;
  let reading = null, waiting = false, problem = "", problemClock = 0;
  let signedOut = false, leaving = false;
  let state = "live";

  // A message of a socket.
  function heard() {
    heardAt = seconds();
    heardClock = Date.now();
  }

  // Whether requests are answered although the sockets are silent.
  function answersRequests() {
    return answeredAt - heardAt > BEAT_S && seconds() - answeredAt < ANSWER_S;
  }

  function readingAge() {
    return reading.age + seconds() - reading.arrivedAt;
  }

  function gone(element) {
    return !element.isConnected;
  }

  function pollTrouble() {
    for (const map of [pending, failed]) for (const element of map.keys()) if (gone(element)) map.delete(element);
    if (failed.size) return Math.min(...failed.values());
    const slow = [...pending.values()].filter((poll) => seconds() - poll.at > SLOW_POLL_S);
    return slow.length ? Math.min(...slow.map((poll) => poll.clock)) : null;
  }

  // The state, the text of the badge and the sentence in its title.
  function judge() {
    const at = (clock) => app.clock(new Date(clock));
    if (signedOut) return ["lost", "signed out", "You are signed out. Log in again to see current data."];
    const refused = [...links.values()].find((link) => !link.isOpen && link.reason);
    if (refused) return ["lost", refused.reason, "The server accepts no more pages from you. Close some of them."];
    if ([...links.values()].some((link) => !link.isOpen) || seconds() - heardAt > SILENCE_S) {
      if (answersRequests()) {
        return ["stale", `stale since ${at(heardClock)}`, "The server answers, but live updates do not arrive."];
      }
      const text = `no answer since ${at(heardClock)}`;
      return ["lost", text, `The server has not answered since ${at(heardClock)}. This page shows old data.`];
    }
    if (waiting && !problem) return ["stale", "waiting for the first reading", "The GPUs have not been read yet."];
    if (problem) return ["stale", `stale since ${at(reading ? reading.at * 1000 : problemClock)}`, problem];
    if (reading && readingAge() > OLD_READING_S) {
      return ["stale", `stale since ${at(reading.at * 1000)}`,
        "No new readings arrive. The status page shows whether the sampler runs."];
    }
    const trouble = pollTrouble();
    if (trouble !== null) {
      return ["stale", `stale since ${at(trouble)}`, "The server answers, but this page could not be updated."];
    }
    if (reading) return ["live", `live · ${at(reading.at * 1000)}`, "Readings arrive every second."];
    if (answeredClock) return ["live", `live · ${at(answeredClock)}`, "This page updates itself."];
    return ["live", "connected", "The server answers."];
  }

  // Pages before the login have no socket: they ask by themselves. Any answer will do.
  const ASK_MS = 2000;
  function ask() {
    window.fetch(box.dataset.ask, { method: "HEAD", cache: "no-store" }).then(heard, () => {}).finally(() => {
      show();
      window.setTimeout(ask, ASK_MS);
    });
  }

  // A toast stays while it is pointed at.
  function leave(note) {
    window.setTimeout(() => (note.matches(":hover") ? leave(note) : note.remove()), TOAST_MS);
  }

  function toast(text) {
    const note = document.createElement("p");
    note.className = "toast";
    note.textContent = text;
    const notes = document.getElementById("toasts");
    notes.append(note);
    while (notes.childElementCount > MOST_TOASTS) notes.firstElementChild.remove();
    leave(note);
  }

  // The results of actions arrive with the page. Screen readers announce what is added later.
  for (const note of document.querySelectorAll("#toasts .toast")) {
    window.setTimeout(() => { note.textContent = note.textContent.trim(); }, 300);
    leave(note);
  }

  function addLogInLink() {
    const link = document.createElement("a");
    link.href = box.dataset.login;
    link.textContent = "Log in again";
    box.append(link);
  }

  function show() {
    if (leaving) return;
    const [now, text, sentence] = judge();
    const label = box.querySelector(".connection-text");
    if (label.textContent !== text) label.textContent = text;
    if (box.title !== sentence) box.title = sentence;
    if (now === state) return;
    if (state === "lost" && now !== "lost") {
      toast("Reconnected");
      window.htmx.trigger(document.body, "reconnected");
    }
    state = now;
    box.dataset.state = now;
    document.body.classList.toggle("is-stale", now !== "live" && !waiting);
    document.body.classList.toggle("is-lost", now === "lost");
    document.getElementById("connection-said").textContent = now === "live" ? "" : sentence;
    if (signedOut) addLogInLink();
  }

  app.connection = {
    heard,
    // reason: why the server closed the socket, where it said so.
    link(name, isOpen, reason = "") {
      links.set(name, { isOpen, reason });
      if (isOpen) heard();
      show();
    },
    unlink(name) {
      links.delete(name);
      show();
    },
    // at: when the readings were taken (epoch seconds); null: there are none yet.
    readings(at, age) {
      waiting = at === null && reading === null;
      if (at !== null) reading = { at, age, arrivedAt: seconds() };
      show();
    },
    // Why the server has nothing newer; "" when all is well.
    report(trouble) {
      if (trouble && !problem) problemClock = Date.now();
      problem = trouble;
      show();
    },
    signOut() {
      signedOut = true;
      show();
    },
    toast,
  };

  // ---- Requests of htmx: polls, filters, forms ----

  const isGet = (ctx) => ctx.request.method.toUpperCase() === "GET";

  function isLogin(response) {
    return response.redirected && new URL(response.url).pathname === new URL(box.dataset.login, window.location).pathname;
  }

  function refuse(event, text) {
    // Without this htmx would replace the content with the error page's.
    event.preventDefault();
    if (!isGet(event.detail.ctx)) toast(text);
  }

  document.addEventListener("htmx:before:request", (event) => {
    pending.set(event.target, { at: seconds(), clock: Date.now() });
  });
  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail;
    answeredAt = seconds();
    if (isLogin(ctx.response.raw)) {
      refuse(event, "You are signed out. Nothing was sent. Log in again.");
      app.connection.signOut();
    } else if (ctx.response.status >= 500 || (isGet(ctx) && ctx.response.status >= 400)) {
      if (isGet(ctx)) failed.set(event.target, failed.get(event.target) || pending.get(event.target)?.clock || Date.now());
      refuse(event, `The server reported an error (${ctx.response.status}). Nothing was saved. Try again.`);
    } else {
      failed.delete(event.target);
      if (isGet(ctx)) answeredClock = Date.now();
    }
    show();
  });
  document.addEventListener("htmx:error", (event) => {
    const { ctx } = event.detail;
    if (!ctx || ctx.response) return;
    if (!isGet(ctx)) toast("The server did not answer. Nothing was sent. Try again.");
    else failed.set(event.target, failed.get(event.target) || heardClock);
    show();
  });
  document.addEventListener("htmx:finally:request", (event) => {
    pending.delete(event.target);
  });

  window.addEventListener("pagehide", () => { leaving = true; });
  window.addEventListener("pageshow", () => { leaving = false; });
  window.addEventListener("beforeunload", () => {
    leaving = true;
    // The reader may stay, for instance when the address is a download.
    window.setTimeout(() => { leaving = false; }, 2000);
  });
  if (!document.getElementById("feed")) ask();
  app.everySecond(show);
})();
