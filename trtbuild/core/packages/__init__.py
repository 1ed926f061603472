"""Packages as values: what a package holds, its index, and how an index from an untrusted file is read.

Uses every room below.
"""
