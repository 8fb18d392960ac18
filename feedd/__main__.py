"""``python -m feedd`` is the ``feedd`` command."""

from feedd.cli import main

if __name__ == "__main__":
    main()
