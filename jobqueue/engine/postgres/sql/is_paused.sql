-- Whether a queue is paused, and the pause has not ended by itself. queue: the row of jobqueue_queue.
-- Part of the statements that skip paused queues.
(queue.paused_at IS NOT NULL AND (queue.resume_at IS NULL OR queue.resume_at > clock_timestamp()))
