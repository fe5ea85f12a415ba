"""The lane of a reduce vertex: it reads, keeps windows until they close, and commits what an engine makes of them.

    inputs ─► intake ─► queue ─► closing ─► queue ─► results ─► jobs ─► engine
                 └──────────── progress ◄──────────────┘
                                  └─► units ─► commit

lane       wires the parts; opening makes them
intake     read ─► log ─► sync; closing: when windows are handed over; results: compute ─► release ─► commit
progress   where the lane stands, its watermark, and the order of what is sent to the commit
inputs     the buffers of the lane, read side by side
jobs       runs of the engine, and windows that fail
units      frames and accounts that are committed
milestones how a lost log finds its way to where the mark stands
"""
