"use strict";
// Asks again for what is still being worked on, and stops when nothing is. Without this script, reload the page.
(() => {
  const gallery = document.getElementById("gallery");
  const live = gallery?.dataset.live ?? "/live/";
  const PATIENCE = 15000;
  let wait = 700;
  let timer;

  const isBusy = () => document.querySelector("[data-busy]") !== null;

  function address() {
    const query = new URLSearchParams();
    for (const card of document.querySelectorAll(".card[data-busy]")) query.append("photo", card.dataset.photo);
    return `${live}?${query}`;
  }

  function put(piece) {
    const old = document.getElementById(piece.id);
    if (!old || old.isEqualNode(piece)) return;
    const isOpen = old.querySelector("details")?.open;
    const focused = [...old.querySelectorAll("a, summary")].indexOf(document.activeElement);
    old.replaceWith(piece);
    if (isOpen) piece.querySelector("details")?.setAttribute("open", "");
    if (focused >= 0) piece.querySelectorAll("a, summary")[focused]?.focus();
  }

  async function look() {
    try {
      const answer = await fetch(address(), { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const piece of fresh.querySelectorAll("#summary, .card")) put(document.adoptNode(piece));
      wait = 700;
    } catch {
      wait = Math.min(2 * wait, PATIENCE);
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (isBusy() && !document.hidden) timer = setTimeout(look, wait);
  }

  document.addEventListener("visibilitychange", plan);
  plan();
})();
