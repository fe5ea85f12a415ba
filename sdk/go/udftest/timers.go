package udftest

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
	"github.com/millstream/millstream/sdk/go/udf"
)

// timersMax is the maximum number of timers in a call, as a pipeline sends them.
const timersMax = 4096

// Timers returns the timers that are set, in the order in which they fire.
func (s *States) Timers() []udf.Timer {
	var set []udf.Timer
	for _, one := range s.All() {
		if one.State == keyed.TimersName {
			set = append(set, timerOf(one))
		}
	}
	slices.SortFunc(set, func(a, b udf.Timer) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(strings.Join(a.Keys, "\x1f"), strings.Join(b.Keys, "\x1f")),
			strings.Compare(a.Name, b.Name))
	})
	return set
}

// timerOf reads a stored timer.
func timerOf(stored StateEntry) udf.Timer {
	number := func(at int) time.Time {
		return time.UnixMicro(int64(binary.LittleEndian.Uint64(stored.Value[at:]))).UTC()
	}
	timer := udf.Timer{Name: string(stored.Item), At: number(1), Keys: stored.Key}
	timer.EventTime = timer.At
	timer.ByProcessingTime = stored.Value[0]&^keyed.TimerHolds == byte(udfv1.State_CLOCK_PROCESSING_TIME)
	if timer.ByProcessingTime || holds(stored.Value) {
		timer.EventTime = number(9)
	}
	return timer
}

func holds(value []byte) bool { return value[0]&keyed.TimerHolds != 0 }

// promise notes that a pipeline may have promised this watermark to those who follow, unless a timer holds it.
func (s *States) promise(watermark time.Time) {
	for _, one := range s.All() {
		if one.State != keyed.TimersName {
			continue
		}
		if timer := timerOf(one); !timer.ByProcessingTime || holds(one.Value) {
			watermark = earlier(watermark, timer.EventTime)
		}
	}
	s.promised = later(s.promised, watermark)
}

// FireTimers runs the function on the timers whose time has come, also on those that they set: by event time up to
// Watermark, then by processing time up to Now. The inputs of the results are the timers that have fired, in the order of
// their times, then of keys and names. One that fails or is to be retried fires once, and stays set.
func (s *States) FireTimers() Results {
	s.t.Helper()
	var all Results
	failed := map[string]bool{}
	for _, byProcessingTime := range []bool{false, true} {
		for {
			due := s.due(byProcessingTime, failed)
			if len(due) == 0 {
				break
			}
			results := s.fire(due, failed)
			for _, outcome := range results.Outcomes {
				outcome.Index += len(all.Timers)
				all.Outcomes = append(all.Outcomes, outcome)
			}
			for _, parent := range results.Parents {
				all.Parents = append(all.Parents, parent+len(all.Timers))
			}
			all.Messages, all.Timers = append(all.Messages, results.Messages...), append(all.Timers, results.Timers...)
		}
	}
	return all
}

// due returns the next timers that are due, at most one of a key: it may move or cancel the others.
func (s *States) due(byProcessingTime bool, failed map[string]bool) []udf.Timer {
	until, keys := s.Watermark, map[string]bool{}
	if byProcessingTime {
		until = s.Now
	}
	var due []udf.Timer
	for _, timer := range s.Timers() {
		if timer.ByProcessingTime != byProcessingTime || until.IsZero() || timer.At.After(until) || failed[idOf(timer)] {
			continue
		}
		if keys[nameOf(timer.Keys)] || len(due) == timersMax {
			break
		}
		keys[nameOf(timer.Keys)] = true
		due = append(due, timer)
	}
	return due
}

// fire runs the function on timers, as one call. Those that fail stay set, and are added to failed.
func (s *States) fire(timers []udf.Timer, failed map[string]bool) Results {
	s.t.Helper()
	fired, records, taken := slices.Clone(timers), make([]udf.Record, len(timers)), make([]storedEntry, len(timers))
	s.promise(s.Watermark)
	for i := range fired {
		timer := &fired[i]
		timer.EventTime = later(timer.EventTime, s.promised)
		records[i] = udf.Record{Value: dueOf(*timer), Keys: timer.Keys, EventTime: timer.EventTime}
		entries := s.stored[nameOf(timer.Keys)].entries
		taken[i] = entries[placeOf(*timer)]
		delete(entries, placeOf(*timer))
	}
	results := mapWith(s.t, s, s.function, records, fired)
	for _, outcome := range results.Outcomes {
		if outcome.Result == "error" || outcome.Result == "retry" {
			timer := timers[outcome.Index]
			s.stored[nameOf(timer.Keys)].entries[placeOf(timer)] = taken[outcome.Index]
			failed[idOf(timer)] = true
		}
	}
	results.Timers = fired
	return results
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func placeOf(timer udf.Timer) place { return place{keyed.TimersName, timer.Name} }

// idOf is the same for a timer that is set again for the same time.
func idOf(timer udf.Timer) string {
	return nameOf(append(slices.Clone(timer.Keys), string(dueOf(timer))))
}

// dueOf is the value of the record that a timer is when its time has come.
func dueOf(timer udf.Timer) []byte {
	clock := "event"
	if timer.ByProcessingTime {
		clock = "processing"
	}
	// Texts and numbers can always be written.
	value, _ := json.Marshal(struct {
		Timer string `json:"timer"`
		AtUs  int64  `json:"at_us"`
		Clock string `json:"clock"`
	}{timer.Name, timer.At.UnixMicro(), clock})
	return value
}
