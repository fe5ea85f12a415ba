"""Services of Google Cloud: the address of one, and an authenticated channel to it."""
