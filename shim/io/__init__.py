"""The shim's own input and output: stdin, stdout, stderr, the log and the transcript."""
