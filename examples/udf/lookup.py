import asyncio

import millstream_udf as udf


@udf.map(concurrency=500)
class Lookup:
    async def setup(self, context: udf.Context) -> None:
        self.names = {b"AA": b"American"}

    async def process(self, value: bytes) -> bytes:
        await asyncio.sleep(0.02)  # a question to another service
        return self.names.get(value, b"unknown")

    async def close(self) -> None:
        self.names.clear()
