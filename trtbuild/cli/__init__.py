"""The command line: `main` declares the commands; each calls the driver and shows what it returns.

Rooms, from the bottom: `terminal`, `screens`, `commands`.
"""
