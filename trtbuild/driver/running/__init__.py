"""Commands that run packages: ``trtbuild run`` (`run`) and ``trtbuild bench`` (`bench`)."""
