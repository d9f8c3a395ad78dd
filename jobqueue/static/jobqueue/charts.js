/* Charts: show the values of the column under the pointer below the chart. Without this script, they are tooltips. */

function readout(target) {
    return target.closest?.(".jq-chart")?.querySelector(".jq-readout");
}

document.addEventListener("pointerover", ({ target }) => {
    if (target.matches?.(".jq-hover")) {
        readout(target).textContent = target.textContent;
    }
});

document.addEventListener("pointerout", ({ target, relatedTarget }) => {
    if (target.matches?.(".jq-hover") && !relatedTarget?.matches?.(".jq-hover")) {
        const line = readout(target);
        line.textContent = line.dataset.summary;
    }
});
