"""The lane of a reduce vertex: it reads, stores windows until they close, and commits the results of an engine.

    inputs ─► intake ─► queue ─► closing ─► queue ─► results ─► jobs ─► engine
                 └──────────── progress ◄──────────────┘
                                  └─► units ─► commit

lane       wires the parts; opening makes them
intake     read ─► log ─► sync; closing: when windows are handed over; results: compute ─► release ─► commit
progress   the position of the lane, its watermark, and the order of commits
inputs     the buffers of the lane, read side by side
jobs       runs of the engine, and windows that fail
units      frames and accounts that are committed
milestones how a lost log is rebuilt up to the mark
"""
