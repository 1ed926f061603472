"""Builds and verifications on all GPUs of one host."""
