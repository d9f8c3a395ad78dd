-- Return which of these tables are emptied if the server crashes, for `manage.py jobqueue doctor`.
-- Parameters: names. Index: none. Locks: none.
SELECT listed.name
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS listed (name, place)
JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(listed.name))
WHERE pg_class.relpersistence = 'u'
ORDER BY listed.place
