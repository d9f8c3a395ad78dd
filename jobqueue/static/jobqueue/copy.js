/* Copy buttons. Without JavaScript, the style sheet hides them. */

function textOf(button) {
    const source = button.closest(".jq-copied").querySelector(".jq-value, code");
    return source.textContent.trim();
}

/* navigator.clipboard exists only on localhost and with HTTPS. */
async function copy(text) {
    if (navigator.clipboard) {
        return navigator.clipboard.writeText(text);
    }
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
}

document.addEventListener("click", async (event) => {
    const button = event.target.closest(".jq-copy");
    if (!button) {
        return;
    }
    await copy(textOf(button));
    const words = button.textContent;
    if (words !== button.dataset.copied) {
        button.textContent = button.dataset.copied;
        setTimeout(() => { button.textContent = words; }, 1500);
    }
});
