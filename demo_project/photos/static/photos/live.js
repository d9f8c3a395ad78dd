"use strict";
// Asks again for what is still being worked on, and stops when nothing is. Without this script, reload the page.
//
// The page's [data-live] names an address that answers with pieces; each [data-piece] takes the place of the
// one with its id. Something is busy while a [data-busy] is there; its value is how many milliseconds to wait.
(() => {
  const live = document.querySelector("[data-live]")?.dataset.live;
  const [SOON, PATIENCE] = [700, 15000];
  let failures = 0;
  let timer;

  function address() {
    const url = new URL(live, location);
    for (const card of document.querySelectorAll("[data-photo][data-busy]")) url.searchParams.append("photo", card.dataset.photo);
    return url;
  }

  function put(piece) {
    const old = document.getElementById(piece.id);
    if (!old || old.isEqualNode(piece)) return;
    const isOpen = old.querySelector("details")?.open;
    const focused = [...old.querySelectorAll("a, button, summary")].indexOf(document.activeElement);
    old.replaceWith(piece);
    if (isOpen) piece.querySelector("details")?.setAttribute("open", "");
    if (focused >= 0) piece.querySelectorAll("a, button, summary")[focused]?.focus();
  }

  async function look() {
    try {
      const answer = await fetch(address(), { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const piece of fresh.querySelectorAll("[data-piece]")) put(document.adoptNode(piece));
      failures = 0;
    } catch {
      failures += 1;
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    const waits = [...document.querySelectorAll("[data-busy]")].map((piece) => Number(piece.dataset.busy) || SOON);
    if (waits.length && !document.hidden) timer = setTimeout(look, Math.min(Math.min(...waits) * 2 ** failures, PATIENCE));
  }

  if (live) {
    document.addEventListener("visibilitychange", plan);
    plan();
  }
})();
