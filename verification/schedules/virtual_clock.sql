-- Replace PostgreSQL's clock, and record what becomes of ticks.
-- A session with virtual_time before pg_catalog in its search_path reads the time from a sequence, which counts
-- microseconds since 1970. Each reading takes a microsecond. setval() sets the clock for all sessions at once.
CREATE SCHEMA virtual_time;
CREATE SEQUENCE virtual_time.microseconds;
CREATE FUNCTION virtual_time.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT timestamptz 'epoch' + nextval('virtual_time.microseconds') * interval '1 microsecond'
$$;

CREATE TABLE virtual_time.entry (
    id bigserial PRIMARY KEY, source text NOT NULL, operation text NOT NULL, before jsonb, after jsonb
) WITH (vacuum_truncate = off);
CREATE FUNCTION virtual_time.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO virtual_time.entry (source, operation, before, after)
    VALUES (TG_ARGV[0], TG_OP, to_jsonb(OLD), to_jsonb(NEW));
    RETURN NULL;
END
$$;
CREATE TRIGGER virtual_time AFTER INSERT OR DELETE OR UPDATE OF status ON jobqueue_task
FOR EACH ROW EXECUTE FUNCTION virtual_time.note('task');
CREATE TRIGGER virtual_time AFTER INSERT OR UPDATE ON jobqueue_scheduletick
FOR EACH ROW EXECUTE FUNCTION virtual_time.note('tick');
CREATE TRIGGER virtual_time AFTER UPDATE OF waiting_at ON jobqueue_schedule
FOR EACH ROW EXECUTE FUNCTION virtual_time.note('schedule')
