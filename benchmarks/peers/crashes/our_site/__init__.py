"""A site whose tasks are run by jobqueue."""
