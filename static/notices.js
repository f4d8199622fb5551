// Every page: messages about the user's own jobs as notifications of the browser, each once per browser.
// Asks only where the user allowed notifications; the server answers whether the user chose them.
"use strict";
(() => {
  const script = document.getElementById("notices");
  const EVERY_MS = 20_000, LATEST_MS = 5000;
  const allowed = () => window.isSecureContext && "Notification" in window
    && "locks" in navigator && window.Notification.permission === "granted";
  const lastKey = `gpucoord.notices.${script.dataset.user}`, askedKey = `${lastKey}.asked`;
  let timer = null;

  function show(notice) {
    let note;
    try {
      note = new window.Notification(notice.title, { body: notice.text, tag: `gpucoord-notice-${notice.id}` });
    } catch {
      // Browsers of phones have no notifications of pages.
      window.gpucoord.connection.toast(notice.title);
      return;
    }
    note.addEventListener("click", () => {
      window.focus();
      window.location.assign(notice.path);
      note.close();
    });
  }

  function stop() {
    window.clearInterval(timer);
    timer = null;
  }

  async function ask() {
    const last = window.localStorage.getItem(lastKey);
    const url = new URL(script.dataset.recent, window.location);
    url.searchParams.set("after", last || "0");
    // The header says that this is no use of the session.
    const answer = await fetch(url, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (answer && [401, 403].includes(answer.status)) stop();
    if (!answer || !answer.ok) return;
    window.localStorage.setItem(askedKey, String(Date.now()));
    const { enabled, newest, items } = await answer.json();
    if (!enabled) {
      window.localStorage.removeItem(lastKey);
      stop();
      return;
    }
    // Earlier messages do not appear in a browser that has just begun.
    if (last === null) window.localStorage.setItem(lastKey, String(newest));
    for (const notice of last === null ? [] : items) {
      window.localStorage.setItem(lastKey, String(notice.id));
      show(notice);
    }
  }

  // One page of the browser asks for all of them.
  function askOnce() {
    if (!allowed()) return stop();
    return navigator.locks.request("gpucoord-notices", { ifAvailable: true }, async (lock) => {
      const age = Date.now() - Number(window.localStorage.getItem(askedKey) || 0);
      if (lock && (age < 0 || age > EVERY_MS - LATEST_MS)) await ask();
    });
  }

  function begin() {
    if (timer !== null || !allowed()) return;
    askOnce();
    timer = window.setInterval(askOnce, EVERY_MS);
  }

  // ---- The page of the settings ----

  const section = document.getElementById("browser-notices");
  function showState() {
    const { permission } = window.Notification, box = section.querySelector("input");
    document.getElementById("browser-notices-allow").hidden = !box.checked || permission !== "default";
    document.getElementById("browser-notices-state").textContent = !box.checked ? ""
      : { granted: "This browser shows them.", default: "This browser does not show them yet.",
          denied: "This browser blocks them. Allow notifications of this site in its settings." }[permission];
  }

  async function allow() {
    if (section.querySelector("input").checked) await window.Notification.requestPermission();
    showState();
  }

  if (section && window.isSecureContext && "Notification" in window) {
    section.hidden = false;
    document.getElementById("browser-notices-insecure").hidden = true;
    showState();
    section.querySelector("input").addEventListener("change", allow);
    document.getElementById("browser-notices-allow").addEventListener("click", allow);
  }
  // Another page of this browser has begun, as after a change of the settings.
  window.addEventListener("storage", (event) => {
    if (event.key === lastKey && event.newValue !== null) begin();
  });
  begin();
})();
