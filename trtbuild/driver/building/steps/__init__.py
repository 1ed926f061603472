"""Run one step of a build, and publish the records of its results.

Input: a step whose inputs are in the store. Output: a `StepRun`, and records in the store. Begin with `run_step`.
`package_record` creates the records of packages. `unchecked` keeps the records of steps that start before the check of an
earlier step has ended. `refused_nodes` adds operators to an error of TensorRT. `exported_files` creates ``.pt2``
files, although no step exists for them.
This package imports no other package of `building`.
"""
