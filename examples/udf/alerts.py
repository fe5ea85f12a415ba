from dataclasses import dataclass, field

import millstream_udf as udf


@dataclass
class Settings:
    threshold: float
    regions: list[str] = field(default_factory=lambda: ["eu", "us"])


@dataclass
class Reading:
    region: str
    value: float


settings = udf.config(Settings)


@udf.map
class Alerts:
    def setup(self, context: udf.Context) -> None:
        self.token = udf.secret("token")  # for a service that it asks

    def process(self, record: udf.Record[Reading], context: udf.Context) -> Reading | None:
        reading = record.value
        if reading.region not in settings.regions:
            return None
        udf.metrics.histogram("reading").record(reading.value)
        if reading.value <= settings.threshold:
            return None
        udf.metrics.counter("alerts", {"region": reading.region}).add()
        if record.attempt:
            context.logger.warning("tried again")
        return reading
