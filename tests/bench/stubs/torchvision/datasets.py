"""Empty stand-ins."""


class VisionDataset:
    """Base class of classes no bench uses."""


class CIFAR10:
    """Named by a converter no bench uses."""
