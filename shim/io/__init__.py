"""Our own descriptors: stdin, stdout, stderr, the log and the transcript."""
