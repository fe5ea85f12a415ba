"""The verifier: checks the results of a run that is over, independently.

    inputs (its own file, or the contract of a source) ─► re-computation ─┐
    sinks, by their file formats ─────────────────────────────────────────┼─► checks ─► verdict
    marks, by its own broker over the store ─► account ───────────────────┘

It imports nothing from Millstream except the wire modules of the stored data, so that it does not repeat a mistake in
the code that it checks. It runs as its own process, `python -m millstream_runner.chaos.oracle`.
"""
