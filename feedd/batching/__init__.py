"""From samples to filled slots: gathering, layout, padding, packing, and what happens to bad samples."""
