"""What a lens notes while a program runs: compilations, runs, the machine."""
