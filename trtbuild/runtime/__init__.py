"""Loading and running packages. Not written yet: packages are built, and nothing here runs them."""
