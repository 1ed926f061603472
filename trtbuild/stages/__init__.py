"""The torch-side steps: trace, lower, partition, convert. They do not import one another; `program` is what they share."""
