package udf

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// Labels of a series of a metric: few names, with few values.
type Labels map[string]string

const (
	seriesMax       = 1000
	metricNamesMax  = 100
	labelsMax       = 10
	boundsMax       = 50
	labelRunesMax   = 200
	overflowLabel   = "overflow"
	metricNamesText = "letters, digits and _, at most 63 characters"
)

var (
	// OpenTelemetry makes no difference between small and capital letters in the names of metrics.
	metricName     = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	labelName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	reservedLabels = []string{"pipeline", "vertex", "vertex_type", "replica", "role", overflowLabel, "le"}
	defaultBounds  = makeBounds()
)

func makeBounds() (bounds []float64) {
	for _, power := range []float64{1e-3, 1e-2, 1e-1, 1, 1e1, 1e2, 1e3, 1e4} {
		for _, digit := range []float64{1, 2, 5} {
			bounds = append(bounds, math.Round(digit*power*1e3)/1e3)
		}
	}
	return bounds
}

// CounterSeries is a number that only grows: see [Counter].
type CounterSeries struct{ *series }

// GaugeSeries is a number that goes up and down: see [Gauge].
type GaugeSeries struct{ *series }

// HistogramSeries is how often values were in which range: see [Histogram].
type HistogramSeries struct{ *series }

// Counter is what a function counts, exported by Millstream beside its own metrics, as udf_NAME_total:
//
//	udf.Counter("refused", udf.Labels{"reason": "price"}).Add(1)
//
// The same name and labels give the same series, from any goroutine. A name has one kind and the same labels everywhere;
// Counter panics where it is used differently, and for names that cannot be exported. A process has at most 1,000 series:
// more of a name are counted together, with the label overflow="true". A call whose answer is lost is made again, and
// counts again: these are numbers about the work, not about the records. The last second before a kill may be missing.
func Counter(name string, labels Labels) CounterSeries {
	return CounterSeries{metrics.series(udfv1.Series_KIND_COUNTER, name, labels, nil)}
}

// Gauge is a number that goes up and down. See [Counter].
func Gauge(name string, labels Labels) GaugeSeries {
	return GaugeSeries{metrics.series(udfv1.Series_KIND_GAUGE, name, labels, nil)}
}

// Histogram counts how often values are in which range. bounds are the upper bounds of its buckets, rising, at most 50; none
// are 0.001, 0.002, 0.005, 0.01 and so on up to 50,000. See [Counter].
func Histogram(name string, labels Labels, bounds ...float64) HistogramSeries {
	return HistogramSeries{metrics.series(udfv1.Series_KIND_HISTOGRAM, name, labels, bounds)}
}

// Add adds an amount. It panics if that is negative or not finite.
func (c CounterSeries) Add(amount float64) {
	if !(amount >= 0 && amount < math.Inf(1)) {
		panic(fmt.Sprintf("a counter only grows, so %v cannot be added; a gauge can have any value", amount))
	}
	c.change(func(s *series) { s.value += amount })
}

// Set sets the present value.
func (g GaugeSeries) Set(value float64) { g.change(func(s *series) { s.value = value }) }

// Record counts a value. It panics if that is not finite.
func (h HistogramSeries) Record(value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		panic(fmt.Sprintf("%v cannot be recorded: it is not a finite number", value))
	}
	h.change(func(s *series) {
		s.counts[sort.SearchFloat64s(s.bounds, value)]++
		s.value += value
	})
}

// series is one series, with what was added to it since the last collection.
type series struct {
	of     *registry
	name   string
	kind   udfv1.Series_Kind
	labels Labels
	bounds []float64
	// What is not counted is never collected.
	isCounted, isNoted bool
	value              float64
	counts             []uint64
}

func (s *series) change(by func(*series)) {
	s.of.mutex.Lock()
	defer s.of.mutex.Unlock()
	by(s)
	if s.isCounted && !s.isNoted {
		s.isNoted = true
		s.of.noted = append(s.of.noted, s)
		select {
		case s.of.changed <- struct{}{}:
		default:
		}
	}
}

// take returns what was collected, which is then forgotten.
func (s *series) take() *udfv1.Series {
	taken := &udfv1.Series{Name: s.name, Kind: s.kind, Labels: s.labels, Value: s.value}
	s.isNoted = false
	if s.kind == udfv1.Series_KIND_HISTOGRAM {
		taken.Bounds, taken.Counts = s.bounds, s.counts
		s.counts = make([]uint64, len(s.bounds)+1)
	}
	if s.kind != udfv1.Series_KIND_GAUGE {
		s.value = 0
	}
	return taken
}

// registry has all series of a process.
type registry struct {
	mutex sync.Mutex
	// Has an element if something has changed since the last collection.
	changed chan struct{}
	noted   []*series
	// A series of each name, for what all of them have in common.
	names    map[string]*series
	known    map[string]*series
	own      int
	reported map[string]bool
}

var metrics = newRegistry()

func newRegistry() *registry {
	return &registry{
		changed: make(chan struct{}, 1), names: map[string]*series{}, known: map[string]*series{},
		reported: map[string]bool{},
	}
}

// series returns the series of that name and labels, a new one at the first time.
func (r *registry) series(kind udfv1.Series_Kind, name string, labels Labels, bounds []float64) *series {
	r.mutex.Lock()
	made, warning, fault := r.find(kind, name, labels, bounds)
	r.mutex.Unlock()
	if fault != "" {
		panic(fault)
	}
	if warning != "" {
		slog.Warn(warning)
	}
	return made
}

func (r *registry) find(
	kind udfv1.Series_Kind, name string, labels Labels, bounds []float64,
) (made *series, warning, fault string) {
	id := idOfSeries(name, labels)
	if found := r.known[id]; found != nil && found.kind == kind && len(bounds) == 0 {
		return found, "", ""
	}
	if fault = faultOfMetric(name, labels, bounds); fault != "" {
		return nil, "", fault
	}
	named := r.names[name]
	if named != nil {
		if fault = named.misused(kind, labels, bounds); fault != "" {
			return nil, "", fault
		}
		bounds = named.bounds
	} else if kind == udfv1.Series_KIND_HISTOGRAM && len(bounds) == 0 {
		bounds = defaultBounds
	}
	made = &series{of: r, name: name, kind: kind, labels: shortened(labels), bounds: slices.Clone(bounds), isCounted: true}
	made.counts = make([]uint64, len(bounds)+1)
	if named == nil {
		if len(r.names) == metricNamesMax {
			made.isCounted = false
			return made, r.once("names", fmt.Sprintf("a function has at most %d metrics: %s and those after it are not counted",
				metricNamesMax, name)), ""
		}
		r.names[name] = made
	}
	if found := r.known[id]; found != nil {
		return found, "", ""
	}
	if r.own == seriesMax {
		warning = r.once("series", fmt.Sprintf("a function has at most %d series of metrics: what is new, such as %s with %v, "+
			"is counted with the label overflow=\"true\". Use labels with few values", seriesMax, name, labels))
		made.labels = Labels{overflowLabel: "true"}
		if id = idOfSeries(name, made.labels); r.known[id] != nil {
			return r.known[id], warning, ""
		}
	} else {
		r.own++
	}
	r.known[id] = made
	return made, warning, ""
}

// once returns the text of a warning at the first time.
func (r *registry) once(about, text string) string {
	if r.reported[about] {
		return ""
	}
	r.reported[about] = true
	return text
}

// take returns what has changed since the last collection.
func (r *registry) take() []*udfv1.Series {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	taken := make([]*udfv1.Series, len(r.noted))
	for i, one := range r.noted {
		taken[i] = one.take()
	}
	r.noted = r.noted[:0]
	return taken
}

// misused says how a name is used differently elsewhere.
func (s *series) misused(kind udfv1.Series_Kind, labels Labels, bounds []float64) string {
	switch {
	case s.kind != kind:
		return fmt.Sprintf("the metric %s is a %s elsewhere", s.name, strings.ToLower(strings.TrimPrefix(s.kind.String(), "KIND_")))
	case len(bounds) > 0 && !slices.Equal(bounds, s.bounds):
		return fmt.Sprintf("the histogram %s has other bounds elsewhere", s.name)
	case s.labels[overflowLabel] == "" && !slices.Equal(namesOf(labels), namesOf(s.labels)):
		return fmt.Sprintf("the metric %s has the labels %v, and %v elsewhere", s.name, namesOf(labels), namesOf(s.labels))
	}
	return ""
}

// faultOfMetric says why a metric cannot be exported.
func faultOfMetric(name string, labels Labels, bounds []float64) string {
	if !metricName.MatchString(name) {
		return fmt.Sprintf("%q is not the name of a metric: small %s", name, metricNamesText)
	}
	for _, label := range namesOf(labels) {
		if !labelName.MatchString(label) {
			return fmt.Sprintf("%q is not the name of a label: %s", label, metricNamesText)
		}
		if slices.Contains(reservedLabels, label) {
			return fmt.Sprintf("the metric %s cannot have the label %s, which Millstream uses", name, label)
		}
	}
	if len(labels) > labelsMax {
		return fmt.Sprintf("the metric %s has %d labels; at most %d are allowed", name, len(labels), labelsMax)
	}
	for i, bound := range bounds {
		if math.IsNaN(bound) || math.IsInf(bound, 0) || i > 0 && bound <= bounds[i-1] || len(bounds) > boundsMax {
			return fmt.Sprintf("the bounds of the histogram %s must be 1 to %d rising numbers", name, boundsMax)
		}
	}
	return ""
}

func namesOf(labels Labels) []string { return slices.Sorted(maps.Keys(labels)) }

// shortened cuts long values, and replaces what is not UTF-8.
func shortened(labels Labels) Labels {
	short := make(Labels, len(labels))
	for name, value := range labels {
		runes := []rune(strings.ToValidUTF8(value, "?"))
		short[name] = string(runes[:min(len(runes), labelRunesMax)])
	}
	return short
}

// idOfSeries is unique: names of labels have no separator, and values are quoted.
func idOfSeries(name string, labels Labels) string {
	short := shortened(labels)
	var id strings.Builder
	id.WriteString(name)
	for _, label := range namesOf(short) {
		fmt.Fprintf(&id, " %s=%q", label, short[label])
	}
	return id.String()
}
