"""The command line. `main` declares the commands; each calls the driver and shows the document that it returns.

Packages, from the lowest layer: `terminal`, `screens`, `commands`.
"""
