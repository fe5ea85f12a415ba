from datetime import timedelta

import millstream_udf as udf


@udf.map
class Sessions:
    pages = udf.counter()

    def process(self, record: udf.Record) -> None:
        self.pages += 1
        # The same name: each record moves the timer of its key.
        udf.timer("idle", at=record.event_time + timedelta(minutes=30))
        if record.value == b"logout":
            udf.cancel_timer("idle")

    def on_timer(self, timer: udf.Timer) -> dict[str, str | int]:
        pages = self.pages.value
        del self.pages
        return {"user": timer.keys[0], "pages": pages, "until": timer.at.isoformat()}
