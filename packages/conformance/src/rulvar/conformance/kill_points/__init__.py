"""Only for installations from before it moved."""
