"""
`manage.py jobqueue`. Each module has the functions of one or two verbs; their parameters are named after the flags.

console, tables and progress write; argument_types reads; audit logs changes; backends finds the engine.
"""
