package udf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/millstream/millstream/sdk/go/internal/keyed"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// timerNameBytesMax is the maximum number of bytes of the name of a timer.
const timerNameBytesMax = 255

// Timers are the timers of each key: set by name for the key of a record, they come to what [OnTimer] names when their
// time has come, exactly once. A function has at most one Timers, named to its map with [States]:
//
//	var timers = udf.NewTimers()
//
//	func visit(ctx context.Context, record udf.Record) ([]udf.Message, error) {
//		// The same name: each record moves the timer of its key.
//		return nil, timers.Set(ctx, "idle", record.EventTime.Add(30*time.Minute))
//	}
//
//	func leave(ctx context.Context, timer udf.Timer) ([]udf.Message, error) {
//		...
//
//	func main() { udf.Main(udf.NewMap(visit, udf.States(timers), udf.OnTimer(leave))) }
//
// Setting and cancelling counts like a change of a state: with the record that does it, or not at all.
type Timers struct{ declared }

// NewTimers declares the timers of a function.
func NewTimers() *Timers {
	timers := &Timers{}
	timers.declared, _ = declare(keyed.TimersName, udfv1.State_KIND_TIMER, "", "", nil)
	return timers
}

// OnTimer names what gets the [Timers] of a map. It uses the states of the timer's key with its context, returns what
// the map may return, and may set timers.
func OnTimer(function TimerFunc) Option {
	return func(served *Function) { served.onTimer = function }
}

// TimerOption is an option of a timer that is set: see [OutputAt].
type TimerOption func(*timerOptions)

type timerOptions struct{ outputAt *time.Time }

// OutputAt is the earliest event time of what a timer puts out, for outputs that belong to an earlier time than that for
// which it is set. Until it has fired, or is moved or cancelled, the watermark that those who follow see stays at that
// time or below.
func OutputAt(at time.Time) TimerOption {
	return func(options *timerOptions) { options.outputAt = &at }
}

// Set sets the timer of this name, or moves it. It fires when the watermark has reached that time.
func (t *Timers) Set(ctx context.Context, name string, at time.Time, options ...TimerOption) error {
	return t.set(ctx, name, at, udfv1.State_CLOCK_EVENT_TIME, options)
}

// SetByProcessingTime is as Set, with the clock of the vertex in place of the watermark.
func (t *Timers) SetByProcessingTime(ctx context.Context, name string, at time.Time, options ...TimerOption) error {
	return t.set(ctx, name, at, udfv1.State_CLOCK_PROCESSING_TIME, options)
}

// Cancel cancels the timer of this name, if there is one.
func (t *Timers) Cancel(ctx context.Context, name string) error {
	if err := checkTimerName(name); err != nil {
		return err
	}
	return t.put(ctx, []byte(name), nil)
}

func (t *Timers) set(
	ctx context.Context, name string, at time.Time, clock udfv1.State_Clock, options []TimerOption,
) error {
	if err := checkTimerName(name); err != nil {
		return err
	}
	var given timerOptions
	for _, option := range options {
		option(&given)
	}
	outputAt, holds := given.outputAt, given.outputAt != nil
	if !isTimerTime(at) {
		return fmt.Errorf("the time of timer %s is not in the years 1 to 9999", name)
	}
	if holds && !isTimerTime(*outputAt) {
		return fmt.Errorf("the udf.OutputAt of timer %s is not in the years 1 to 9999", name)
	}
	if holds && clock == udfv1.State_CLOCK_EVENT_TIME && outputAt.After(at) {
		return fmt.Errorf("the udf.OutputAt of timer %s is later than its time: leave it out, and give outputs that "+
			"belong to a later time one of their own (EventTime)", name)
	}
	entries, err := t.enter(ctx)
	if err != nil {
		return err
	}
	defer entries.Leave()
	first, eventUs := byte(clock), int64(0)
	switch {
	case holds:
		first, eventUs = first|keyed.TimerHolds, outputAt.UnixMicro()
	case clock == udfv1.State_CLOCK_PROCESSING_TIME:
		eventUs = entries.EventTimeUs()
	}
	value := binary.LittleEndian.AppendUint64([]byte{first}, uint64(at.UnixMicro()))
	return entries.Put([]byte(name), binary.LittleEndian.AppendUint64(value, uint64(eventUs)))
}

func isTimerTime(at time.Time) bool {
	year := at.UTC().Year()
	return !at.IsZero() && year >= 1 && year <= 9999
}

func checkTimerName(name string) error {
	if name == "" || len(name) > timerNameBytesMax || !utf8.ValidString(name) {
		return fmt.Errorf("the name of a timer has 1 to %d bytes of UTF-8, unlike %q", timerNameBytesMax, name)
	}
	return nil
}

// checkTimers adds to the fault of a function what is wrong with its timers.
func (f *Function) checkTimers() {
	hasTimers := false
	for _, state := range f.states {
		hasTimers = hasTimers || state.IsTimers()
	}
	switch {
	case hasTimers && f.onTimer == nil:
		f.fault = errors.Join(f.fault, errors.New("the function has timers, and nothing that gets them when their time "+
			"has come: name that to its map with udf.OnTimer"))
	case !hasTimers && f.onTimer != nil:
		f.fault = errors.Join(f.fault, errors.New("udf.OnTimer gets timers, and the function has none: name its "+
			"udf.NewTimers() to its map with udf.States"))
	}
}

// timersOf returns the timers of a call, from its records.
func (f *Function) timersOf(records []Record) ([]Timer, error) {
	if f.onTimer == nil {
		return nil, errors.New("the call has timers, and the function has none")
	}
	timers := make([]Timer, len(records))
	for i, record := range records {
		var due struct {
			Timer *string `json:"timer"`
			AtUs  *int64  `json:"at_us"`
			Clock string  `json:"clock"`
		}
		err := json.Unmarshal(record.Value, &due)
		byProcessingTime := due.Clock == "processing"
		if err == nil && (due.Timer == nil || due.AtUs == nil || (due.Clock != "event" && !byProcessingTime)) {
			err = errors.New("it has no name, time and clock")
		}
		if err != nil {
			return nil, fmt.Errorf("a record of a call of timers is none: %w", err)
		}
		timers[i] = Timer{
			Name: *due.Timer, At: time.UnixMicro(*due.AtUs).UTC(), ByProcessingTime: byProcessingTime,
			Keys: record.Keys, EventTime: record.EventTime, ID: record.ID,
		}
	}
	return timers, nil
}
