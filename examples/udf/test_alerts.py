from alerts import Alerts

from millstream_udf.testing import Observed, run


def test_readings_above_the_threshold_are_alerts() -> None:
    readings = [{"region": "eu", "value": 9.5}, {"region": "eu", "value": 1.0}, {"region": "mars", "value": 99.0}]
    results = run(Alerts, readings, config={"threshold": 5}, secrets={"token": "any"})
    assert results.objects(dict) == [{"region": "eu", "value": 9.5}]
    assert results.metrics == {'alerts{region="eu"}': 1, "reading": Observed(count=2, total=10.5)}
