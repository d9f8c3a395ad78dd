-- Reserve a unique key for a task, if it is free or its reservation has expired. Returns one row if this task has it now.
-- Parameters: backend, key, task_id; seconds: how long. Index: unique jobqueue_keyreservation_key, the primary key.
-- Locks: the reservation, also one that stays as it is: read it first. Waits for sessions that take or prune the key.
-- Why one statement: prune may delete the row between a read and an update, and another session may renew it.
-- A snapshot of REPEATABLE READ that does not show the row is refused with a serialization failure (40001).
INSERT INTO jobqueue_keyreservation AS reservation (backend, key, task_id, expires_at)
VALUES (%(backend)s, %(key)s, %(task_id)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (backend, key) DO UPDATE
SET task_id = excluded.task_id, expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE reservation.expires_at <= clock_timestamp()
RETURNING reservation.id
