/* The form of a schedule: a preview while the user types, and the arguments of the chosen task. */

const DELAY = 300; // milliseconds after the last change

const form = document.getElementById("jq-schedule");
const preview = document.getElementById("jq-preview");
let timer;
let request = new AbortController();

/* Replace an element by the one with the same id in a response. */
async function show(id, response) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    document.getElementById(id).replaceWith(page.getElementById(id));
}

async function update() {
    request.abort();
    request = new AbortController();
    const typed = new URLSearchParams();
    for (const field of form.querySelectorAll("[data-timing] :is(input, select), [name=backend]")) {
        if (field.type !== "radio" || field.checked) {
            typed.set(field.name, field.value);
        }
    }
    try {
        const response = await fetch(`${form.dataset.preview}?${typed}`, { signal: request.signal, redirect: "error" });
        if (response.ok) {
            preview.innerHTML = await response.text();
        }
    } catch {
        // A newer request replaced this one, or the server is unreachable: the preview stays.
    }
}

async function choose() {
    const typed = new FormData(form);
    typed.set("choose", "1");
    try {
        const response = await fetch(location.href, { method: "POST", body: typed, redirect: "error" });
        if (response.ok) {
            await show("jq-arguments", response);
        }
    } catch {
        // The arguments are shown after Save, too.
    }
}

// Without these buttons, the Enter key saves.
form.querySelector("[data-choose]").remove();
form.querySelector("button[name=preview]").remove();
form.addEventListener("input", (event) => {
    if (event.target.closest("[data-timing]") || event.target.name === "backend") {
        clearTimeout(timer);
        timer = setTimeout(update, DELAY);
    }
});
form.elements.task.addEventListener("change", choose);
update();
