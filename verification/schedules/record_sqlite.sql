-- Record on SQLite what virtual_clock.sql records on PostgreSQL.
CREATE TABLE entry (
    id integer PRIMARY KEY AUTOINCREMENT, source text NOT NULL, operation text NOT NULL, before text, after text
);
CREATE TRIGGER note_new_task AFTER INSERT ON jobqueue_task BEGIN
    INSERT INTO entry (source, operation, after) VALUES ('task', 'INSERT', json_object(
        'id', NEW.id, 'schedule_id', NEW.schedule_id, 'status', NEW.status, 'key', NEW.key, 'options', json(NEW.options)
    ));
END;
CREATE TRIGGER note_task AFTER UPDATE OF status ON jobqueue_task BEGIN
    INSERT INTO entry (source, operation, after)
    VALUES ('task', 'UPDATE', json_object('id', NEW.id, 'status', NEW.status));
END;
CREATE TRIGGER note_old_task AFTER DELETE ON jobqueue_task BEGIN
    INSERT INTO entry (source, operation, before) VALUES ('task', 'DELETE', json_object('id', OLD.id));
END;
CREATE TRIGGER note_new_tick AFTER INSERT ON jobqueue_scheduletick BEGIN
    INSERT INTO entry (source, operation, after) VALUES ('tick', 'INSERT', json_object(
        'schedule_id', NEW.schedule_id, 'trigger', NEW."trigger", 'tick_at', NEW.tick_at, 'last_at', NEW.last_at,
        'count', NEW.count, 'task_id', NEW.task_id, 'reason', NEW.reason
    ));
END;
CREATE TRIGGER note_tick AFTER UPDATE ON jobqueue_scheduletick BEGIN
    INSERT INTO entry (source, operation, before, after) VALUES ('tick', 'UPDATE', json_object(
        'tick_at', OLD.tick_at, 'last_at', OLD.last_at, 'count', OLD.count
    ), json_object(
        'schedule_id', NEW.schedule_id, 'trigger', NEW."trigger", 'tick_at', NEW.tick_at, 'last_at', NEW.last_at,
        'count', NEW.count, 'task_id', NEW.task_id, 'reason', NEW.reason
    ));
END;
CREATE TRIGGER note_waiting AFTER UPDATE OF waiting_at ON jobqueue_schedule BEGIN
    INSERT INTO entry (source, operation, after)
    VALUES ('schedule', 'UPDATE', json_object('id', NEW.id, 'waiting_at', NEW.waiting_at));
END
