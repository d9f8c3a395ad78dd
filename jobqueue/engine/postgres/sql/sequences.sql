-- List the sequences of ids and the last number that each gave, NULL for none, for `manage.py jobqueue doctor`.
-- Parameters: names: of tables. Index: catalogs. Locks: each sequence ACCESS SHARE. Leaves out those of other roles.
SELECT name, sequence, pg_sequence_last_value(sequence::regclass)
FROM unnest(%(names)s::text[]) AS name, pg_get_serial_sequence(quote_ident(name), 'id') AS sequence
WHERE sequence IS NOT NULL AND has_sequence_privilege(sequence, 'USAGE, SELECT')
