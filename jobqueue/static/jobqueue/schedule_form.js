/* The form of a schedule: a preview while the user types, and the arguments of the chosen task. */

const DELAY = 300; // milliseconds after the last change

const form = document.getElementById("jq-schedule");
const preview = document.getElementById("jq-preview");
let timer;
let request = new AbortController();

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
        const text = await response.text();
        if (response.ok) {
            preview.innerHTML = text;
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
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        if (response.ok && form.elements.task.value === typed.get("task")) {
            document.getElementById("jq-arguments").replaceWith(page.getElementById("jq-arguments"));
        }
    } catch {
        // Save shows the arguments, too.
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
