"""What is read, in which order, and by whom. Start at `structure.py`; each file names the next."""
