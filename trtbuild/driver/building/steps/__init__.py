"""Run one step of a build, and publish the records of its results.

Input: a step whose inputs are in the store. Output: a `StepRun`, and records in the store. Begin with `run_step`.
`package_record` creates the records of packages. `unchecked` keeps records until the checks of earlier steps have ended.
`refused_nodes` adds operators to an error of TensorRT. `exported_files` creates ``.pt2`` files, for which there is no step.
This folder imports no other folder of `building`.
"""
