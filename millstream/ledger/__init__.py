"""The ledger of a vertex: its boundary (`protocol`), in JetStream and in memory."""
