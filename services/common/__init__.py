import os

# Read once, when grpc is imported: its core writes lines of its own to standard error, in another form than the log's.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
