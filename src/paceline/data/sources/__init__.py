"""Where data lives. Only memory so far: `arrays.py`."""
