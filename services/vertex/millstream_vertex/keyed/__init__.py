"""What a function remembers for the keys of its records, committed with what it puts out.

    records ─► keys ─► entries of the image ─► (the function) ─► changes ─► image
                                                                   └─► changelog ─► committed with the outputs

`image` has every entry of a lane in memory. `state` knows which states there are, what a call gets, and what becomes of
its changes. `steps` is their form in the changelog, and `changelog` reads and trims that. `stage` is the stage of such
a function in its lane.
"""
