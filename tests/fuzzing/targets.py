"""What decodes bytes from outside, each as a function of any bytes. For the fuzzer and for the suite.

A target returns whatever it is given: it takes the one error that its decoder declares, and lets any other through,
which is a finding. What a check lets pass must be usable to the end: columns are read, cut and joined, and answers go
through the mapper to the frame that would be stored.
"""

from __future__ import annotations

from tests.fuzzing import answers, encoded, remembered, sent, stored

TARGETS = {**stored.TARGETS, **answers.TARGETS, **remembered.TARGETS, **sent.TARGETS, **encoded.TARGETS}
