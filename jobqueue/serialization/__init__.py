"""
What goes into a row and comes out of it.

`json` encodes values and reads them back. `arguments` does so for a task's arguments, checked against its function.
`typed` reads the State and the Message of actors. `text` checks and shortens text columns. `ids` makes UUIDs.
`redaction` masks secrets.
"""
