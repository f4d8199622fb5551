// The list of jobs: the selection survives updates.
"use strict";
(() => {
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
})();
