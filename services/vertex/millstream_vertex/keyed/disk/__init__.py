"""The entries of a lane's state on disk, for more than memory holds, and so that the next owner reads little.

    changes of a result ─► image: keys in use, in memory ─► committed ─► store: LMDB, with its position
    keys of a call      ─► image ◄────────────────────────────────────── store
    takeover            ─► position of the store ─► the changelog after it, or all of it

The ledger is the truth. The store has what was committed up to a frame of the changelog, never more, and may be removed
at any time: `directory` finds one that can be trusted, `store` keeps entries as `rows`, and `image` has what is not in
the store yet.
"""
