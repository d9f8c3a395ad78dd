"""The connections of the executor and of bodies."""
