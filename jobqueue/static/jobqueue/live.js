/* Live pages: fetch the page again at an interval, and replace the regions that changed. Pause while a user works. */

const CHOICES = [0, 2, 5, 15]; // seconds; 0 is off
const USUAL = 5;
const SLOWEST = 60; // seconds between requests while the server does not respond
const STORE = "jobqueue.live";
const REGIONS = "[data-live], #result_list, .paginator";

const bar = document.createElement("div");
const status = document.createElement("span");
let seconds = Number(localStorage.getItem(STORE) ?? USUAL) || 0;
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
        button.addEventListener("click", () => {
            localStorage.setItem(STORE, choice);
            choose(choice);
        });
        bar.append(button);
    }
    bar.prepend(words.refresh, " ");
    bar.append(status);
    document.querySelector("[data-live-words]").replaceWith(bar);
}

function choose(choice) {
    seconds = choice;
    failures = 0;
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

/* Whether a user has changed a field, and not back. */
function isTouched(field) {
    if (field.type === "checkbox" || field.type === "radio") {
        return field.checked !== field.defaultChecked;
    }
    if (field.options) {
        const usual = Array.from(field.options).findIndex((option) => option.defaultSelected);
        return field.selectedIndex !== Math.max(usual, 0);
    }
    return field.type !== "hidden" && "defaultValue" in field && field.value !== field.defaultValue;
}

/* Do not replace regions while the user works with the page. */
function isBusy() {
    return document.hidden
        || Array.from(document.querySelectorAll("form:not([method=dialog]) :is(input, select, textarea)")).some(isTouched)
        || document.activeElement?.closest(`${REGIONS}, form:not([method=dialog])`) != null
        || String(getSelection()) !== "";
}

async function refresh() {
    if (isBusy()) {
        status.textContent = words.dataset.paused;
    } else {
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

/* Restore which details a user opened or closed. */
function restore(region, old) {
    const open = new Map(Array.from(old.querySelectorAll("details"), (part, place) => [part.dataset.key ?? place, part.open]));
    region.querySelectorAll("details").forEach((part, place) => {
        part.open = open.get(part.dataset.key ?? place) ?? part.open;
    });
}

/* A region's HTML without the parts that differ in every response. */
function gist(region) {
    const copy = region.cloneNode(true);
    copy.querySelectorAll("input[name=csrfmiddlewaretoken]").forEach((field) => field.remove());
    copy.querySelectorAll("details").forEach((part) => part.removeAttribute("open"));
    return copy.innerHTML;
}

/* Without rows, the admin's list has no table and no actions. */
function isEmpty(page) {
    return page.getElementById("result_list") === null;
}

function swap(page) {
    const fresh = new Map(Array.from(page.querySelectorAll(REGIONS), (region) => [key(region), region]));
    let hasNewRows = isEmpty(document) !== isEmpty(page);
    if (hasNewRows) {
        document.getElementById("changelist-form").replaceWith(page.getElementById("changelist-form"));
    }
    for (const region of document.querySelectorAll(REGIONS)) {
        const next = fresh.get(key(region));
        if (next && gist(next) !== gist(region)) {
            restore(next, region);
            region.replaceWith(next);
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
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && seconds) {
            clearTimeout(timer);
            refresh();
        }
    });
}
