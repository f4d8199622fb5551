// The list of jobs: the selection survives updates; views can be saved in this browser.
"use strict";
(() => {
  const KEY = "gpucoord.job-views", MOST_VIEWS = 12, LONGEST_NAME = 40;
  const selected = new Set();
  const boxes = () => [...document.querySelectorAll('#jobs input[name="job"]')];

  // ---- Selection ----

  function show() {
    const here = boxes();
    for (const box of here) box.checked = selected.has(box.value);
    const all = document.getElementById("select-all");
    const count = here.filter((box) => box.checked).length;
    all.checked = count > 0 && count === here.length;
    all.indeterminate = count > 0 && count < here.length;
    document.getElementById("selected").textContent = count ? `${count} selected:` : "With selected jobs:";
    for (const button of document.querySelectorAll("#bulk button")) button.disabled = count === 0;
  }

  document.addEventListener("change", (event) => {
    const all = event.target.id === "select-all";
    if (!all && !event.target.matches('#jobs input[name="job"]')) return;
    for (const box of all ? boxes() : [event.target]) {
      if (event.target.checked) selected.add(box.value);
      else selected.delete(box.value);
    }
    show();
  });
  document.addEventListener("htmx:after:swap", show);
  window.addEventListener("pageshow", () => {
    // After going back, the filter box shows what the list is filtered by.
    const filter = document.getElementById("q");
    filter.value = filter.defaultValue;
    show();
  });

  // ---- Saved views ----

  const place = document.getElementById("saved-views");

  function views() {
    try {
      const found = JSON.parse(window.localStorage.getItem(KEY) || "[]");
      return found.filter((view) => typeof view.name === "string" && String(view.query).startsWith("?"));
    } catch {
      return [];
    }
  }

  function keep(all) {
    window.localStorage.setItem(KEY, JSON.stringify(all.slice(0, MOST_VIEWS)));
    showViews();
  }

  function button(text, label, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "button quiet";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  function showViews() {
    const here = place.dataset.view;
    place.replaceChildren();
    for (const view of views()) {
      const link = document.createElement("a");
      link.href = view.query;
      link.className = "chip";
      link.textContent = view.name;
      if (view.query === here) link.setAttribute("aria-current", "page");
      place.append(link);
    }
    const saved = views().find((view) => view.query === here);
    if (saved) {
      place.append(button("Remove view", `Remove the view ${saved.name}`, () =>
        keep(views().filter((view) => view.query !== here))));
    } else if (here !== "?") {
      place.append(button("Save view", "Save this view", () => {
        const name = window.prompt("Name of this view");
        if (name && name.trim()) keep([...views(), { name: name.trim().slice(0, LONGEST_NAME), query: here }]);
      }));
    }
  }

  showViews();
})();
