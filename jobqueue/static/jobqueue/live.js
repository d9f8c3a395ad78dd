/* Live pages: fetch the page again at an interval, and replace the regions that changed. */

const CHOICES = [0, 2, 5, 15]; // seconds; 0 is off
const SLOWEST = 60; // seconds between requests while the server does not respond
const STORE = "jobqueue.live";
const REGIONS = "[data-live], #result_list, .paginator";

const bar = document.createElement("div");
const status = document.createElement("span");
let seconds = Number(localStorage.getItem(STORE)) || 0;
let failures = 0;
let timer;

function build(words) {
    bar.className = "jq-live";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", words.refresh);
    for (const choice of CHOICES) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = choice ? `${choice} s` : words.off;
        button.dataset.seconds = choice;
        button.addEventListener("click", () => choose(choice));
        bar.append(button);
    }
    status.setAttribute("aria-live", "polite");
    bar.prepend(words.refresh, " ");
    bar.append(status);
    document.querySelector("[data-live-words]").replaceWith(bar);
}

function choose(choice) {
    seconds = choice;
    failures = 0;
    localStorage.setItem(STORE, choice);
    for (const button of bar.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(Number(button.dataset.seconds) === seconds));
    }
    plan();
}

function plan() {
    clearTimeout(timer);
    if (seconds) {
        timer = setTimeout(refresh, 1000 * Math.min(seconds * 2 ** failures, SLOWEST));
    }
}

/* Do not replace regions while the user works with them. */
function isBusy() {
    return document.hidden
        || document.querySelector("input.action-select:checked") !== null
        || document.activeElement?.closest(REGIONS) != null
        || String(getSelection()) !== "";
}

async function refresh() {
    if (!isBusy()) {
        try {
            const answer = await fetch(words.dataset.address || location.href, { redirect: "error" });
            if (!answer.ok) {
                throw new Error(answer.status);
            }
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            failures = 0;
            if (!isBusy()) {
                swap(page);
                status.textContent = new Date().toLocaleTimeString();
            }
        } catch {
            failures += 1;
            status.textContent = "–";
        }
    }
    plan();
}

function key(region) {
    return region.dataset.live || region.id || region.className;
}

/* Opened details and ticked boxes of a region, to restore after its replacement. */
function choices(region) {
    const open = Array.from(region.querySelectorAll("details"), (part, place) => [part.dataset.key ?? place, part.open]);
    const ticked = Array.from(region.querySelectorAll("input[type=checkbox][name]"), (box) => [box.name, box.checked]);
    return { open: new Map(open), ticked: new Map(ticked) };
}

function restore(region, { open, ticked }) {
    region.querySelectorAll("details").forEach((part, place) => {
        part.open = open.get(part.dataset.key ?? place) ?? part.open;
    });
    region.querySelectorAll("input[type=checkbox][name]:not(.action-select)").forEach((box) => {
        box.checked = ticked.get(box.name) ?? box.checked;
    });
}

/* A region's HTML without the parts that differ in every response. */
function gist(region) {
    const copy = region.cloneNode(true);
    copy.querySelectorAll("input[name=csrfmiddlewaretoken]").forEach((field) => field.remove());
    copy.querySelectorAll("details").forEach((part) => part.removeAttribute("open"));
    return copy.innerHTML;
}

function swap(page) {
    const fresh = new Map(Array.from(page.querySelectorAll(REGIONS), (region) => [key(region), region]));
    let hasNewRows = false;
    for (const region of document.querySelectorAll(REGIONS)) {
        const next = fresh.get(key(region));
        if (next && gist(next) !== gist(region)) {
            const chosen = choices(region);
            region.replaceWith(next);
            restore(next, chosen);
            hasNewRows ||= next.id === "result_list";
        }
    }
    if (hasNewRows) {
        // The admin's script handles only check boxes that existed when the page was loaded.
        window.Actions?.(document.querySelectorAll("tr input.action-select"));
    }
}

const words = document.querySelector("[data-live-words]");
if (words) {
    build({ refresh: words.dataset.refresh, off: words.dataset.off });
    choose(seconds);
    document.addEventListener("visibilitychange", () => document.hidden || plan());
}
