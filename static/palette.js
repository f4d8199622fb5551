// Every page: the command palette, and the state of the page in its title and icon.
"use strict";
(() => {
  const dialog = document.getElementById("palette");
  const icon = document.getElementById("favicon");
  const plainIcon = icon && icon.href;

  // ---- Title and icon: the number of incidents, and whether the server answers ----

  function showState() {
    const badge = document.getElementById("connection"), alerts = document.getElementById("region-alerts");
    if (!badge || !icon) return;
    const count = alerts ? Number(alerts.dataset.alerts) : 0, isLost = badge.dataset.state === "lost";
    const plain = document.title.replace(/^(\(\d+\) |\(no answer\) )/, "");
    const title = isLost ? `(no answer) ${plain}` : count ? `(${count}) ${plain}` : plain;
    if (document.title !== title) document.title = title;
    const href = isLost ? icon.dataset.lost : count ? icon.dataset.warning : plainIcon;
    if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
  }

  showState();
  window.gpucoord.everySecond(showState);

  // ---- The palette ----

  if (!dialog) return;
  const input = document.getElementById("palette-text"), list = document.getElementById("palette-list");
  const PAUSE_MS = 150, MOST = 12;
  // Of the site, then of the admin.
  const PAGES = ".menu-pages a, #help a[data-go], #content .page-head a.button, #user-tools a, #content-main th a";
  const ACTIONS = [
    ["Change theme", "[data-theme-toggle], .theme-toggle"],
    ["Keyboard shortcuts", "[data-help]"],
    ["Log out", ".top-end form button, #logout-form button"],
  ];
  let entries = [], at = 0, timer = 0, asked = 0;

  // Pages and actions: the links of the menu and of the help, and what buttons do.
  function commands() {
    const links = [...document.querySelectorAll(PAGES)];
    const seen = new Set();
    const pages = links.map((link) => ({ kind: "page", label: link.textContent.trim(), url: link.getAttribute("href") }))
      .filter((each) => !seen.has(each.url) && seen.add(each.url));
    const actions = ACTIONS.map(([label, selector]) => ({ kind: "action", label, button: document.querySelector(selector) }))
      .filter((each) => each.button).map(({ kind, label, button }) => ({ kind, label, act: () => button.click() }));
    return [...pages, ...actions];
  }

  function show() {
    list.replaceChildren(...entries.map((entry, i) => {
      const line = document.createElement("li"), kind = document.createElement("span");
      line.id = `palette-${i}`;
      line.setAttribute("role", "option");
      line.setAttribute("aria-selected", String(i === at));
      kind.className = "chip";
      kind.textContent = entry.kind;
      line.append(kind, ` ${entry.label}`);
      return line;
    }));
    if (!entries.length) {
      const line = document.createElement("li");
      line.className = "muted";
      line.textContent = "Nothing found";
      list.append(line);
    }
    if (entries.length) input.setAttribute("aria-activedescendant", `palette-${at}`);
    else input.removeAttribute("aria-activedescendant");
    const chosen = list.children[at];
    if (chosen) chosen.scrollIntoView({ block: "nearest" });
  }

  function matching(text) {
    const words = text.toLowerCase().split(/\s+/);
    return commands().filter((each) => words.every((word) => each.label.toLowerCase().includes(word)));
  }

  async function search(text) {
    asked += 1;
    const mine = asked;
    const url = `${dialog.dataset.search}?q=${encodeURIComponent(text)}`;
    let found = [];
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" } });
      if (answer.ok && !answer.redirected) found = (await answer.json()).results;
    } catch {
      // The connection badge tells that the server does not answer.
    }
    if (mine !== asked) return;
    entries = [...found, ...matching(text)].slice(0, MOST);
    at = Math.min(at, Math.max(0, entries.length - 1));
    show();
  }

  function update() {
    const text = input.value.trim();
    at = 0;
    asked += 1;
    entries = matching(text).slice(0, MOST);
    show();
    window.clearTimeout(timer);
    if (text) timer = window.setTimeout(() => search(text), PAUSE_MS);
  }

  function open() {
    if (dialog.open) return dialog.close();
    for (const other of document.querySelectorAll("dialog[open]")) other.close();
    input.value = "";
    dialog.showModal();
    input.focus();
    update();
  }

  function run(entry) {
    if (!entry) return;
    dialog.close();
    if (entry.act) entry.act();
    else window.location.assign(entry.url);
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  input.addEventListener("input", update);
  input.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move && entries.length) {
      event.preventDefault();
      at = (at + move + entries.length) % entries.length;
      show();
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(entries[at]);
    }
  });
  list.addEventListener("click", (event) => {
    const line = event.target.closest('[role="option"]');
    if (line) run(entries[[...list.children].indexOf(line)]);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) open();
  });
})();
