"""Wall time of calls: the ledger, probes and timing in turns."""
