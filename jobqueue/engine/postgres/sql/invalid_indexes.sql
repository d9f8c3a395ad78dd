-- Return the invalid indexes of some tables, for `manage.py jobqueue doctor`: the planner does not use them.
-- Parameters: names. Index: none. Locks: none.
SELECT pg_class.relname, listed.name
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS listed (name, place)
JOIN pg_index ON pg_index.indrelid = to_regclass(quote_ident(listed.name))
JOIN pg_class ON pg_class.oid = pg_index.indexrelid
WHERE NOT pg_index.indisvalid
ORDER BY listed.place, pg_class.relname
