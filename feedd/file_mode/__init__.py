"""``feedd files``: puts a node's objects of each channel below a directory, as ordinary files."""
