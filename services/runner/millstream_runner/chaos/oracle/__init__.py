"""The verifier: what is true of a run that is over, found out by itself.

    inputs (its own file, or the contract of a source) ─► re-computation ─┐
    sinks, by their file formats ────────────────────────────────────────┼─► checks ─► verdict
    marks, by a broker of its own over the store ─► account ─────────────┘

It imports nothing of Millstream but the wire modules of what is stored: a mistake in the code it checks must not be
made twice. It runs as a process of its own, `python -m millstream_runner.chaos.oracle`.
"""
