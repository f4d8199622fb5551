// The board of GPUs: filters, the viewer's own rows, and the detail that opens below a row.
"use strict";
(() => {
  const REFRESH_MS = 10_000;
  const board = document.getElementById("board");

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
    for (const part of document.querySelectorAll("[data-owners]:not([data-mine])")) {
      if (part.dataset.owners.split(" ").includes(viewer)) part.dataset.mine = "";
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
  document.addEventListener("htmx:after:swap", markOwn);
  markOwn();
})();
