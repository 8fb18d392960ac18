"""Files of the cache are opened without following a link at their end."""

from __future__ import annotations

import ast

from tests.tidy.tree import sources

ROOMS = ("feedd/cache/", "feedd/tables/", "feedd/batching/quarantine.py")
FOLDERS_ONLY = "os.O_DIRECTORY"


def test_every_open_of_a_cache_file_refuses_links() -> None:
    """A link in a directory of ours could only be somebody else's."""
    found = []
    for source in sources():
        path = str(source.path)
        if not path.startswith(ROOMS):
            continue
        for node in source.nodes:
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "os.open":
                continue
            flags = ast.unparse(node.args[1])
            if flags.isidentifier():  # a name of flags, which are written elsewhere in the file
                flags = source.text
            if "O_NOFOLLOW" not in flags and FOLDERS_ONLY not in flags and "O_TMPFILE" not in flags:
                found.append(f"{path}:{node.lineno}: {flags}")
    assert not found
