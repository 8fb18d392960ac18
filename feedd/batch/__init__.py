"""Where the fields of a batch come from (gather) and where they go in a slot (layout). Pure arithmetic on columns."""
