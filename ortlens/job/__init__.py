"""What the command line and the magics have in common: what may be asked for, how it is done, what is written."""
