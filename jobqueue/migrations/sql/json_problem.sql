-- Say what keeps JSON documents out of the queue, NULL when nothing does. For the functions beside it only.
-- Parameters: names, documents: one of each per document; nesting: levels of arrays and objects allowed.
--   The documents share one limit of size: that of MAX_PAYLOAD_BYTES by default, in bytes of compact JSON.
-- Index: none. Locks: none.
-- Trap: jsonb holds numbers that Python does not read back: integers of more than 4300 digits, the sign counted (an error), and
--   fractions beyond the range of a float (an infinity).
-- Trap: jsonb writes a space after each comma and colon, which Python does not.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_json_problem(names text[], documents jsonb[], nesting integer)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE
PARALLEL SAFE
SET search_path = ''
AS $$
DECLARE
    most_bytes CONSTANT integer := 1048576;
    too_deep CONSTANT jsonpath := format('strict $.**{%s} ? (@.type() == "array" || @.type() == "object")', nesting);
    immense CONSTANT jsonpath := 'strict $.** ? (@.type() == "number"'
        ' && (@ >= 1.7976931348623158e308 || @ <= -1.7976931348623158e308))';
    body text := array_to_string(documents, '');
    bytes bigint := octet_length(body);
    number text;
BEGIN
    IF bytes BETWEEN most_bytes + 1 AND 2 * most_bytes THEN
        body := regexp_replace(body, E'"(?:\\\\.|[^"\\\\])*"', '', 'g');
        bytes := bytes - (length(body) - length(replace(body, ' ', '')));
    END IF;
    IF bytes > most_bytes THEN
        RETURN format(
            '%s must not take more than %s bytes of JSON; pass a reference', array_to_string(names, ' and '), most_bytes
        );
    END IF;
    FOR i IN 1 .. cardinality(documents) LOOP
        IF jsonb_path_exists(documents[i], too_deep) THEN
            RETURN format('%s must not be nested deeper than %s levels', names[i], nesting);
        END IF;
        FOR number IN SELECT jsonb_path_query(documents[i], immense)::text LOOP
            IF position('.' IN number) > 0 THEN
                RETURN format('%s must not hold a number beyond the range of a float; write it as text', names[i]);
            ELSIF length(number) > 4300 THEN
                RETURN format(
                    '%s must not hold an integer of more than 4300 digits, which Python does not read back; '
                    'write it as text', names[i]
                );
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
