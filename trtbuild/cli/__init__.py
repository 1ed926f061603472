"""The command line: commands of a few lines, and what a person sees."""
