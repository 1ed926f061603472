"""Compare converted or compiled partitions with PyTorch."""
