"""A function that speaks the protocol `lines`: the squares of numbers. It needs nothing of Millstream."""

import json
import os
from base64 import b64decode, b64encode
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any


class Squares(StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


def answer(message: dict[str, Any]) -> dict[str, Any]:
    if "call" not in message:
        return {"serves": ["map"], "calls": 4}
    squares = [int(b64decode(value)) ** 2 for value in message["values"]]
    return {"call": message["call"], "values": [b64encode(b"%d" % square).decode() for square in squares]}


if __name__ == "__main__":
    ThreadingUnixStreamServer(os.environ["LINES_SOCKET"], Squares).serve_forever()
