"""Redis and Valkey: buffers are streams, a commit is one script, OT stores are hashes with a channel."""
