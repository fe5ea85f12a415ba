"""Speaks `lines`, too: squares, except for some numbers. 7 fails once, 13 fails always, and 21 ends the process."""

import json
import os
from base64 import b64decode
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any

import square


class Unlucky(StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


def answer(message: dict[str, Any]) -> dict[str, Any]:
    numbers = [int(b64decode(value)) for value in message.get("values", ())]
    if 21 in numbers:
        os._exit(3)
    unlucky = {13} if message.get("attempt") else {7, 13}
    failed = {index: f"{number} is unlucky" for index, number in enumerate(numbers) if number in unlucky}
    answered = square.answer(message)
    for index in failed:
        answered["values"][index] = None
    return {**answered, "failed": failed}


if __name__ == "__main__":
    ThreadingUnixStreamServer(os.environ["LINES_SOCKET"], Unlucky).serve_forever()
