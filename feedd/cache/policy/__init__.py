"""What a cache decides: who stays, who goes, where to. Pure: no files, no clock, no tasks."""
