"""The HTTP API: what requests look like, what answers look like, and the endpoints between the two."""
