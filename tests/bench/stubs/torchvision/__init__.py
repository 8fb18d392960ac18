"""Names mosaicml-streaming imports from torchvision at import time; no bench path calls any of them."""
