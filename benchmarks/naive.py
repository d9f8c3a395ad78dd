"""
A naive protocol of actors, for comparison: one poll for each transaction, one statement for each step.

The steps are: claim, read and delete the messages, spawn, send to the parent and wake it, update. No message is
lost: the sender waits for the lock of the receiver's row, then wakes it. The protocol uses the same means as ours:
statements that psycopg prepares, a small table, an index of due tasks, and our storage parameters.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import psycopg

IDLE_SECONDS = 0.001

SCHEMA = """
CREATE SCHEMA naive;
CREATE TABLE naive.task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent_id bigint,
    n int NOT NULL,
    state jsonb,
    wake_at timestamptz DEFAULT clock_timestamp(),
    polls int NOT NULL DEFAULT 0
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000);
CREATE INDEX task_due ON naive.task (wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE naive.message (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id bigint NOT NULL,
    body jsonb NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000);
CREATE INDEX message_task ON naive.message (task_id);
"""
CLAIM = """
SELECT id, parent_id, n, state FROM naive.task
WHERE wake_at <= clock_timestamp() ORDER BY wake_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
"""
TAKE_MESSAGES = "DELETE FROM naive.message WHERE task_id = %s RETURNING body"
SPAWN = "INSERT INTO naive.task (parent_id, n) VALUES (%s, %s), (%s, %s)"
# No condition on wake_at: an UPDATE that skips rows awake in its snapshot would lose the wake-up.
TELL_PARENT = """
WITH sent AS (INSERT INTO naive.message (task_id, body) VALUES (%s, %s))
UPDATE naive.task SET wake_at = clock_timestamp() WHERE id = %s
"""
UPDATE = "UPDATE naive.task SET state = %s, wake_at = NULL, polls = polls + 1 WHERE id = %s"


def poll(connection: psycopg.Connection[Any]) -> bool:
    """Poll the task that is due first, in one transaction. Return whether there was one."""
    with connection.transaction():
        claimed = connection.execute(CLAIM).fetchone()
        if claimed is None:
            return False
        pk, parent_id, n, state = claimed
        messages = connection.execute(TAKE_MESSAGES, [pk]).fetchall()
        if state is None and n > 2:
            connection.execute(SPAWN, [pk, n - 1, pk, n - 2])
            state = {"total": 0, "pending": 2}
        elif state is None:
            state = {"total": 1, "pending": 0}
        else:
            state["total"] += sum(body for (body,) in messages)
            state["pending"] -= len(messages)
        if not state["pending"] and parent_id is not None:
            connection.execute(TELL_PARENT, [parent_id, json.dumps(state["total"]), parent_id])
        connection.execute(UPDATE, [json.dumps(state), pk])
    return True


def main(url: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with psycopg.connect(url, autocommit=True) as connection:
        print("ready", flush=True)
        while True:
            if not poll(connection):
                time.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
