"""
Move a site from another queue: `manage.py jobqueue migrate_from`.

* `broker`: messages of Celery that wait in Redis become tasks
* `scan`: read a code base by its syntax trees, without importing it
* `source`: the modules of a code base, and the meaning of the names in them
* `systems`: the tables of all systems, systems/*.toml: what becomes of their names and options
* `uses`: the uses that a scan has found, and an estimate of the work
"""
