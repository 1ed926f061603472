"""The torch-side steps: trace, lower, partition, convert. They do not import one another. All of them use `program`."""
