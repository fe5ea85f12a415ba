package udf

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

const (
	counterKind   = udfv1.Series_KIND_COUNTER
	gaugeKind     = udfv1.Series_KIND_GAUGE
	histogramKind = udfv1.Series_KIND_HISTOGRAM
)

func taken(r *registry) (found []string) {
	for _, one := range r.take() {
		labels := ""
		for _, name := range namesOf(one.Labels) {
			labels += fmt.Sprintf(" %s=%s", name, one.Labels[name])
		}
		found = append(found, fmt.Sprintf("%s%s %g %v", one.Name, labels, one.Value, one.Counts))
	}
	return found
}

func TestMetricsAddUpUntilTheyAreTaken(t *testing.T) {
	r := newRegistry()
	count := CounterSeries{r.series(counterKind, "refused", Labels{"reason": "price"}, nil)}
	count.Add(1)
	CounterSeries{r.series(counterKind, "refused", Labels{"reason": "price"}, nil)}.Add(2.5)
	age := GaugeSeries{r.series(gaugeKind, "age", nil, nil)}
	age.Set(4)
	age.Set(3)
	seen := HistogramSeries{r.series(histogramKind, "seen", nil, []float64{1, 10})}
	for _, value := range []float64{1, 1.5, 11, -2} {
		seen.Record(value)
	}
	want := []string{"refused reason=price 3.5 []", "age 3 []", "seen 11.5 [2 1 1]"}
	if found := taken(r); !slices.Equal(found, want) {
		t.Errorf("got %q", found)
	}
	if found := taken(r); len(found) > 0 {
		t.Errorf("%q is taken twice", found)
	}
	count.Add(1)
	seen.Record(5)
	if found := taken(r); !slices.Equal(found, []string{"refused reason=price 1 []", "seen 5 [0 1 0]"}) {
		t.Errorf("got %q", found)
	}
	if len(defaultBounds) != 24 || defaultBounds[0] != 0.001 || defaultBounds[23] != 50000 {
		t.Errorf("%v", defaultBounds)
	}
}

func TestMetricsHaveAnEnd(t *testing.T) {
	r := newRegistry()
	for number := range 2 * seriesMax {
		CounterSeries{r.series(counterKind, "users", Labels{"id": fmt.Sprint(number)}, nil)}.Add(1)
	}
	found := taken(r)
	if len(found) != seriesMax+1 || found[seriesMax] != fmt.Sprintf("users overflow=true %d []", seriesMax) {
		t.Errorf("%d, %q", len(found), found[len(found)-1])
	}
	for number := range 2 * metricNamesMax {
		CounterSeries{r.series(counterKind, fmt.Sprintf("name_%d", number), nil, nil)}.Add(1)
	}
	if found := taken(r); len(found) != metricNamesMax-1 || len(r.names) != metricNamesMax {
		t.Errorf("%d names", len(found))
	}
	long := r.series(gaugeKind, "users_of", Labels{}, nil)
	if long.isCounted {
		t.Error("there are more names than there may be")
	}
}

func TestMetricsThatCannotBe(t *testing.T) {
	r := newRegistry()
	r.series(histogramKind, "known", Labels{"a": "x"}, []float64{1})
	many := Labels{}
	for number := range labelsMax + 1 {
		many[fmt.Sprintf("l%d", number)] = ""
	}
	for expected, use := range map[string]func(){
		"is not the name of a metric":      func() { r.series(counterKind, "Refused", nil, nil) },
		"is not the name of a label":       func() { r.series(counterKind, "a", Labels{"a-b": ""}, nil) },
		"which Millstream uses":            func() { r.series(counterKind, "a", Labels{"vertex": ""}, nil) },
		"at most 10 are allowed":           func() { r.series(counterKind, "a", many, nil) },
		"rising numbers":                   func() { r.series(histogramKind, "a", nil, []float64{2, 1}) },
		"is a histogram elsewhere":         func() { r.series(counterKind, "known", Labels{"a": "x"}, nil) },
		"has the labels [b], and [a]":      func() { r.series(histogramKind, "known", Labels{"b": "x"}, nil) },
		"has other bounds elsewhere":       func() { r.series(histogramKind, "known", Labels{"a": "x"}, []float64{2}) },
		"so -1 cannot be added":            func() { Counter("negative", nil).Add(-1) },
		"it is not a finite number":        func() { Histogram("endless", nil).Record(math.NaN()) },
		"so +Inf cannot be added; a gauge": func() { Counter("negative", nil).Add(math.Inf(1)) },
	} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, expected) {
					t.Errorf("got %q, want %q", said, expected)
				}
			}()
			use()
		}()
	}
	short := r.series(gaugeKind, "text", Labels{"a": strings.Repeat("é", 300) + "\xff"}, nil)
	if len(short.labels["a"]) != 2*labelRunesMax {
		t.Errorf("a label has %d bytes", len(short.labels["a"]))
	}
}
