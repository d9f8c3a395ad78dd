"""
The commands of `manage.py`.

* `cli/`: the verbs of `manage.py jobqueue`
* `commands/`: what Django looks for
* `migrate_from/`: what becomes of a site's code for another queue, and of its waiting tasks
"""
