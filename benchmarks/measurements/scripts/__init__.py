"""The scripts that `benchmarks.measurements` runs, each in its own process: those with which trtbuild is compared, and a
program that calls `trtbuild.compile`."""
