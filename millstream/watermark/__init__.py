"""Watermarks: the promises of each lane, published beside the data and read back as a timeline."""
