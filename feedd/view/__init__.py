"""One view of a node, which ``feedd top`` and the web page show."""
