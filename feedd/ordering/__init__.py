"""Which samples each step of each rank takes: epochs, windows, mixtures, cursors. Pure: no I/O, no asyncio."""
