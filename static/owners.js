// The owner at the pointer, or with the focus, is lit up everywhere on the page.
"use strict";
(() => {
  const OWNED = ".tl-link, .owner, .owner-band";
  let lit = null;

  // An agent works for its user: "alice’s agent".
  const ownerOf = (part) => part.dataset.owner ?? part.textContent.trim().replace(/’s agent$/, "");

  function light(part) {
    const name = part ? ownerOf(part) : null;
    if (name === lit) return;
    lit = name;
    document.body.classList.toggle("is-lighting", Boolean(name));
    for (const each of document.querySelectorAll(OWNED)) {
      const isLit = Boolean(name) && ownerOf(each) === name;
      if (each.classList.contains("is-lit") !== isLit) each.classList.toggle("is-lit", isLit);
    }
  }

  const under = (event) => (event.target.closest ? event.target.closest(OWNED) : null);
  document.addEventListener("pointerover", (event) => light(under(event)));
  document.addEventListener("focusin", (event) => light(under(event)));
  document.addEventListener("focusout", () => light(null));
  // An update brings parts that are not lit.
  document.addEventListener("htmx:after:swap", () => {
    if (!lit) return;
    const name = lit;
    lit = null;
    const part = [...document.querySelectorAll(OWNED)].find((each) => ownerOf(each) === name);
    light(part || null);
    if (!part) document.body.classList.remove("is-lighting");
  });
})();
