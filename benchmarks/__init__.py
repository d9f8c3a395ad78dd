"""This project beside others and beside plain PostgreSQL, in one run on one private server."""
