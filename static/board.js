// The board of GPUs: filters, the viewer's own rows, and the detail that opens below a row.
"use strict";
(() => {
  const REFRESH_MS = 2000;
  const board = document.getElementById("board");
  // A collection by class is kept by the browser; a selector would search thousands of bars.
  const cells = document.getElementsByClassName("b-cells");

  // ---- Filters: the address keeps the choice ----

  function choose(show) {
    board.dataset.show = show;
    for (const link of board.querySelectorAll(".b-filter a")) {
      if (link.dataset.show === show) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const address = new URL(window.location);
    if (show === "all") address.searchParams.delete("show");
    else address.searchParams.set("show", show);
    window.history.replaceState(null, "", address);
  }

  board.addEventListener("click", (event) => {
    const link = event.target.closest(".b-filter a, .b-none a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose(link.dataset.show || "all");
  });

  // All viewers are sent the same: their own parts are marked here.
  function markOwn() {
    const { viewer } = board.dataset;
    for (const part of [...cells, ...document.querySelectorAll("#region-queue li")]) {
      const isMine = part.dataset.owners.split(" ").includes(viewer);
      if (isMine && part.dataset.mine === undefined) part.dataset.mine = "";
    }
  }

  // ---- Details: fetched when they open, and again while they are open ----

  const contentOf = (more) => document.getElementById(more.id.replace("more-", "detail-"));

  function fetchDetail(more) {
    if (more.open) window.htmx.trigger(contentOf(more), "refresh");
  }

  board.addEventListener("toggle", (event) => {
    if (event.target.matches(".b-more")) fetchDetail(event.target);
  }, true);
  window.setInterval(() => {
    if (!document.hidden) board.querySelectorAll(".b-more[open]").forEach(fetchDetail);
  }, REFRESH_MS);

  // An update of the whole board brings rows without details: what is shown stays.
  document.addEventListener("htmx:before:swap", (event) => {
    for (const { fragment } of event.detail.tasks || []) {
      for (const more of fragment ? fragment.querySelectorAll(".b-more[open]") : []) {
        const shown = contentOf(more), incoming = fragment.querySelector(`[id="${CSS.escape(shown.id)}"]`);
        if (incoming) incoming.innerHTML = shown.innerHTML;
      }
    }
  });
  // ---- Wall display: rows fill the screen, in columns if there are many; dim at night ----

  const MANY_GPUS = 16, COLUMNS = 2, NIGHT_FROM = 22, NIGHT_TO = 6;
  const isWall = document.body.classList.contains("kiosk");
  const theme = document.documentElement.dataset.theme;

  function fitWall() {
    const rows = board.querySelectorAll(".b-gpu").length, hosts = board.querySelectorAll(".b-host").length;
    const lines = rows + (hosts > 1 ? hosts : 0);
    const perColumn = rows > MANY_GPUS ? Math.ceil(lines / COLUMNS) : lines;
    if (rows) document.body.style.setProperty("--rows", perColumn);
  }

  function dim() {
    const hour = new Date().getHours(), isNight = hour >= NIGHT_FROM || hour < NIGHT_TO;
    document.body.classList.toggle("is-night", isNight);
    document.documentElement.dataset.theme = isNight ? "dark" : theme;
  }

  if (isWall) {
    fitWall();
    dim();
    window.setInterval(dim, 60_000);
    document.addEventListener("htmx:after:swap", fitWall);
    // The timeline was placed for other letters.
    window.dispatchEvent(new Event("resize"));
  }
  document.addEventListener("htmx:after:swap", markOwn);
  markOwn();
})();
