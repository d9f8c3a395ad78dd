"""
The commands of `manage.py`.

* `cli/`: the verbs of `manage.py jobqueue`
* `commands/`: what Django looks for
"""
