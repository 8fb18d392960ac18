"""Sample bytes to arrays, one module per family. Loaded in decode workers; image libraries only when needed."""
