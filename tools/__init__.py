"""Tools of the developers: an embedded PostgreSQL, a load test, and checks that `make lint` runs."""
