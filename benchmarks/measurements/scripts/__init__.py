"""The scripts without trtbuild with which `benchmarks.measurements` compares it. Each runs in its own process."""
