"""The ledger of a vertex: its interface (`protocol`), what all implementations share, and the one in memory."""
