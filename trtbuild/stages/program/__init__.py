"""The functional program: the one form in which graphs pass from step to step."""
