"""The functional program: the form in which the steps pass graphs to one another."""
