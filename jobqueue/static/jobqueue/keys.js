/* Keys: / search, j k rows, x select, r requeue, c cancel, ? help. Requeue and cancel only lead to their button. */

const STORE = "jobqueue.keys";
const ROWS = "#result_list tbody tr, tr:has(input.action-select), .jq-causes > li";
const TEXT_FIELDS = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]";

const help = document.getElementById("jq-keys");
const button = document.getElementById("jq-keys-button");
const isOn = document.getElementById("jq-keys-on");

const KEYS = {
    "/": () => focus(document.getElementById("searchbar")),
    j: () => move(1),
    k: () => move(-1),
    x: () => boxOf(row())?.click(),
    r: () => lead("requeue"),
    c: () => lead("cancel"),
    "?": () => help.showModal(),
};

function focus(element) {
    element?.focus({ focusVisible: true });
    element?.select?.();
}

function row() {
    return document.activeElement?.closest(ROWS);
}

function boxOf(line) {
    return line?.querySelector("input.action-select");
}

function move(step) {
    const rows = Array.from(document.querySelectorAll(ROWS));
    const place = rows.indexOf(row());
    const next = place < 0 ? rows.at(step > 0 ? 0 : -1) : rows[place + step];
    focus(next?.querySelector("a") ?? boxOf(next));
    next?.scrollIntoView({ block: "nearest" });
}

/* Move the focus to the button of an action: on a list that of the selected rows, or of this row if none is selected. */
function lead(name) {
    const option = document.querySelector(`select[name=action] option[value="${name}_selected"]`);
    if (!option) {
        focus((row() ?? document).querySelector(`button.jq-${name}, button[value="${name}_selected"]`));
    } else if (row() || document.querySelector("input.action-select:checked")) {
        if (!document.querySelector("input.action-select:checked")) {
            boxOf(row()).click();
        }
        option.selected = true;
        focus(option.form.querySelector(".actions button[type=submit]"));
    }
}

document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.(TEXT_FIELDS) || event.ctrlKey || event.metaKey || event.altKey;
    const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
    if (act && isOn.checked && !isTyping && !help.open && !event.defaultPrevented) {
        event.preventDefault();
        act();
    }
});

isOn.checked = localStorage.getItem(STORE) !== "off";
isOn.addEventListener("change", () => localStorage.setItem(STORE, isOn.checked ? "on" : "off"));
button.addEventListener("click", () => help.showModal());
button.hidden = false;
document.querySelector(".jq-live")?.append(" ", button);
