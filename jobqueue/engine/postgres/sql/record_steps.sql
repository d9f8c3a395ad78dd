-- Record calls of several workflows, each in its own journal, in one transaction. It waits for no other session.
-- Parameters: executor_id: of the claims; ids, claim_numbers, entries: of each workflow, in the same order; entries: a JSON
--   list of Entry.
-- Answer: the workflows that it recorded, and whether the cancel of each was requested. A missing one has a locked row
--   or a lost claim.
-- Index: the tasks' primary key. Locks: the tasks in id order FOR NO KEY UPDATE, skipping locked ones.
WITH given AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(claim_numbers)s::bigint[], %(entries)s::text[])
        AS given (task_id, claim_number, entries)
),
locked AS MATERIALIZED (
    SELECT id FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT task_id FROM given))
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
recorded AS MATERIALIZED (
    SELECT given.task_id, jobqueue_record(given.task_id, given.claim_number, %(executor_id)s, given.entries::json) AS is_asked
    FROM given JOIN locked ON locked.id = given.task_id
)
SELECT task_id, is_asked FROM recorded WHERE is_asked IS NOT NULL
