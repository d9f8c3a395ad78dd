"""A site whose tasks are run by procrastinate."""
