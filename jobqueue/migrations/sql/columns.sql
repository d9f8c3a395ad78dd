-- List the columns of tables, and whether an INSERT may leave each out. Missing tables have none.
-- Parameters: tables: their names. Index: catalogs. Locks: none, so that no statement waits for a locked table.
SELECT
    relname, attname::text,
    NOT attnotnull OR atthasdef OR attidentity::text <> '' OR attgenerated::text <> ''
FROM pg_class, pg_attribute
WHERE pg_class.oid IN (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
    AND attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
