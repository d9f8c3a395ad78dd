"""`--reload`: release what runs, and let the supervisor start a new process, when code changes."""

from __future__ import annotations

import threading

from django.utils import autoreload

from jobqueue.executor.process import ExecutorProcess


def watch_code(executor: ExecutorProcess) -> None:
    """Replace the executor when Django's autoreloader sees that code has changed."""
    reloader = autoreload.get_reloader()
    autoreload.autoreload_started.send(sender=reloader)  # templates, translations, and what the site adds
    ticker = reloader.tick()
    next(ticker)  # notes how the files are now, so that no later change is missed; takes a second

    def run() -> None:
        try:
            for _ in ticker:
                pass
        except SystemExit:  # how Django asks for a new process
            executor.replace()

    threading.Thread(target=run, name="reloader", daemon=True).start()
