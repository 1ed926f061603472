"""A build system for TensorRT engines. The command line is `trtbuild.cli.main`; see docs/architecture.md."""
