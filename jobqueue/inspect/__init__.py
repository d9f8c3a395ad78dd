"""
What the admin, the command line and HTTP show of the queue, and the bulk actions that they share. Reads only.

- backends: options and databases of the backends in TASKS.
- queries: reading large tables through their indexes.
- task_detail: the page of one task, with explain (why it is in its state), tree (parents and children),
  inbox (messages) and audit_log (manual actions).
- stats: figures of queues and executors.
- findings, schedule_findings: what is wrong, for doctor and the overview, with links to the rows.
- periods: the counters of minutes and hours, for charts.
- bulk_actions: requeue, cancel, run now, discard and delete, with all their sentences.
- bulk: performs them on many tasks.
- formatting, payload_display: durations, names, errors and payloads as text.
"""
