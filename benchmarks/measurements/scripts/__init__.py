"""The scripts that `benchmarks.measurements` runs, each in its own process. trtbuild is compared with all of
these scripts, except `compile_modules`, which calls `trtbuild.compile`."""
