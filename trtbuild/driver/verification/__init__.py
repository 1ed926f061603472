"""``trtbuild verify``: what was built is what PyTorch computes, within a tolerance.

`models` verifies a project's models, `packages` packages alone; `document` says what was asked, and the answer. `jobs`
makes of a model's plan what is compared, `engines` runs engines for it, `records` keeps what was found, `replay` takes a
file of inputs for a point.
"""
