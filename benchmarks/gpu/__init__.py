"""What engines do on a real GPU: right at every shape, how fast, at what cost beside a bare loop. See docs/gpu.md."""
