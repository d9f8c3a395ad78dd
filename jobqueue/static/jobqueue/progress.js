/* Keeps {% task_progress %} and {% task_status %} up to date: by server-sent events, or else by asking each second.
   At the end, the element sends the event "jobqueue:end", with the state as its detail. */

const SECONDS = 1;
const SLOWEST = 30; // between two requests while the server does not answer
const REFUSED = [403, 404];

function show(element, view) {
    element.dataset.state = view.state;
    for (const name of ["text", "progress", "note"]) {
        const part = element.querySelector(`[data-jobqueue="${name}"]`);
        if (part && part.textContent !== view[name]) {
            part.textContent = view[name];
        }
    }
    const bar = element.querySelector("progress");
    if (bar && view.max !== null) {
        bar.max = Number(view.max);
        bar.value = Number(view.value);
    } else if (bar && view.is_final) {
        bar.max = bar.value = 1;
    }
    if (view.is_final) {
        element.dispatchEvent(new CustomEvent("jobqueue:end", { bubbles: true, detail: view.state }));
    }
}

function ask(element, failures = 0) {
    setTimeout(async () => {
        try {
            const answer = await fetch(element.dataset.jobqueueTask, { headers: { Accept: "application/json" } });
            if (REFUSED.includes(answer.status)) {
                return; // the token has expired
            }
            if (!answer.ok) {
                throw new Error(answer.status);
            }
            const view = await answer.json();
            show(element, view);
            if (!view.is_final) {
                ask(element);
            }
        } catch {
            ask(element, failures + 1);
        }
    }, 1000 * Math.min(SECONDS * 2 ** failures, SLOWEST));
}

function listen(element) {
    const source = new EventSource(element.dataset.jobqueueTask);
    source.onmessage = (event) => {
        const view = JSON.parse(event.data);
        show(element, view);
        if (view.is_final) {
            source.close();
        }
    };
    source.onerror = () => {
        if (source.readyState === EventSource.CLOSED) { // otherwise the browser connects again
            ask(element);
        }
    };
}

/* One stream for each page: with HTTP/1.1, a browser has six connections to a site. */
let hasStream = false;
for (const element of document.querySelectorAll("[data-jobqueue-task]")) {
    if ("jobqueueStream" in element.dataset && !hasStream) {
        hasStream = true;
        listen(element);
    } else {
        ask(element);
    }
}
