"""feedd: a per-node daemon that feeds PyTorch trainers from object storage."""

__version__ = "0.1.0"
