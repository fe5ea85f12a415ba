"""Watermarks: what each lane promises, published beside the data and read back as a timeline."""
