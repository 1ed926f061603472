"""Scripts that `benchmarks.measurements` runs in separate processes. trtbuild is compared with most of them.

Only `compile_modules` calls trtbuild.
"""
