package udftest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func expect[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

// obey returns the outcome that the value names.
func obey(_ context.Context, record udf.Record) ([]udf.Message, error) {
	switch verb := string(record.Value); verb {
	case "none":
		return nil, nil
	case "two":
		return []udf.Message{{Value: []byte("1")}, {Value: []byte("2"), Keys: []string{}, Tags: []string{"t"}}}, nil
	case "headers":
		return []udf.Message{{Value: []byte("h"), Headers: map[string][]byte{"own": []byte("1")}}}, nil
	case "error":
		return nil, errors.New("first line\nsecond line")
	case "bytes":
		return nil, errors.New("not \xff text")
	case "panic":
		panic("lost")
	case "retry":
		return nil, fmt.Errorf("wrapped: %w", udf.Retry{Delay: 250 * time.Millisecond})
	case "dead":
		return nil, udf.DeadLetter{Reason: "poison"}
	case "drop":
		return nil, udf.Drop{Reason: "unwanted"}
	case "fallback":
		return nil, udf.Fallback{}
	case "time":
		return []udf.Message{{EventTime: time.UnixMicro(7)}}, nil
	case "key":
		return []udf.Message{{Keys: []string{"\xff"}}}, nil
	case "id":
		return []udf.Message{{Value: []byte(record.ID)}}, nil
	}
	return []udf.Message{{Value: record.Value}}, nil
}

func TestOutputsTakeOverWhatTheyLeaveOut(t *testing.T) {
	records := udftest.Values("a", "none", "two", "headers")
	for i := range records {
		records[i].Keys = []string{"k", strconv.Itoa(i)}
		records[i].Headers = map[string][]byte{"from": []byte(strconv.Itoa(i))}
		records[i].EventTime = time.UnixMicro(int64(i)).UTC()
	}
	results := udftest.Map(t, udf.NewMap(obey), records...)
	expect(t, results.Values(), []string{"a", "1", "2", "h"})
	expect(t, results.Parents, []int{0, 2, 2, 3})
	expect(t, results.Messages[0].Keys, []string{"k", "0"})
	expect(t, results.Messages[1].Keys, []string{"k", "2"})
	expect(t, results.Messages[2].Keys, []string{})
	expect(t, results.Messages[2].Tags, []string{"t"})
	expect(t, results.Messages[2].Headers, map[string][]byte{"from": []byte("2")})
	expect(t, results.Messages[3].Headers, map[string][]byte{"own": []byte("1")})
	expect(t, results.Messages[3].EventTime, time.UnixMicro(3).UTC())
	expect(t, len(results.Outcomes), 0)
}

func TestOutcomesLeaveNeighboursAlone(t *testing.T) {
	names := []string{"a", "error", "panic", "retry", "dead", "drop", "fallback", "time", "key", "bytes", "b"}
	results := udftest.Map(t, udf.NewMap(obey), udftest.Values(names...)...)
	expect(t, results.Values(), []string{"a", "b"})
	outcomes := map[string]udftest.Outcome{}
	for _, outcome := range results.Outcomes {
		name := names[outcome.Index]
		if strings.Contains(outcome.Reason, "\n") {
			t.Errorf("the reason of %s has several lines: %q", name, outcome.Reason)
		}
		outcome.Index = 0
		outcomes[name] = outcome
	}
	expect(t, outcomes["error"], udftest.Outcome{Result: "error", Reason: "first line", Detail: "first line\nsecond line"})
	expect(t, outcomes["panic"].Reason, "panic: lost")
	if !strings.Contains(outcomes["panic"].Detail, "udftest_test.obey") {
		t.Errorf("no stack: %q", outcomes["panic"].Detail)
	}
	expect(t, outcomes["retry"].Result, "retry")
	expect(t, outcomes["retry"].Delay, 250*time.Millisecond)
	expect(t, outcomes["dead"], udftest.Outcome{Result: "dead letter", Reason: "poison"})
	expect(t, outcomes["drop"], udftest.Outcome{Result: "drop", Reason: "unwanted"})
	expect(t, outcomes["fallback"].Reason, "Fallback is only for sinks; in a map return DeadLetter{Reason: ...}")
	expect(t, outcomes["time"].Reason, "only a source transform can set event times, because the watermark is computed after it")
	expect(t, outcomes["key"].Reason, `the key "\xff" is not UTF-8`)
	expect(t, outcomes["bytes"].Reason, "not \uFFFD text")
	expect(t, len(outcomes), 9)
}

// unreadable is an error whose methods panic for a nil pointer, as of `var err *unreadable; return nil, err`.
type unreadable struct{ reason string }

func (u *unreadable) Error() string { return u.reason }

// leave ends without returning, in the way that the value names.
func leave(value []byte) error {
	switch string(value) {
	case "text":
		panic("lost")
	case "error":
		panic(errors.New("an error"))
	case "struct":
		panic(struct{ number int }{7})
	case "nothing":
		panic(nil)
	case "goexit":
		runtime.Goexit()
	case "unread":
		var err *unreadable
		return err
	}
	return nil
}

func TestHoweverAFunctionLeavesOnlyItsRecordHasFailed(t *testing.T) {
	names := []string{"a", "text", "error", "struct", "nothing", "goexit", "unread", "b"}
	reasons := []string{
		"panic: lost", "panic: an error", "panic: {7}", "panic: panic called with nil argument", "runtime.Goexit",
		"cannot be read",
	}
	mapping := func(_ context.Context, record udf.Record) ([]udf.Message, error) {
		return []udf.Message{{Value: record.Value}}, leave(record.Value)
	}
	write := func(_ context.Context, record udf.Record) error { return leave(record.Value) }
	for _, concurrency := range []int{1, 3} {
		results := udftest.Map(t, udf.NewMap(mapping, udf.Concurrency(concurrency)), udftest.Values(names...)...)
		expect(t, results.Values(), []string{"a", "b"})
		written := udftest.Write(t, udf.NewSinkFunc(write, udf.Concurrency(concurrency)), udftest.Values(names...)...)
		for _, outcomes := range [][]udftest.Outcome{results.Outcomes, written.Outcomes} {
			expect(t, len(outcomes), len(reasons))
			for at, outcome := range outcomes {
				expect(t, outcome.Index, at+1)
				if !strings.Contains(outcome.Reason, reasons[at]) {
					t.Errorf("record %d: the reason is %q instead of %q", outcome.Index, outcome.Reason, reasons[at])
				}
			}
		}
	}
	for _, name := range names[1:7] {
		reduce := func(context.Context, udf.Group, iter.Seq[udf.Record]) ([]udf.Message, error) {
			return nil, leave([]byte(name))
		}
		reduced := udftest.Reduce(t, udf.NewReduce(reduce), udftest.Input{Records: udftest.Values("a")})
		expect(t, reduced[0].Failed != "", true)
	}
}

type order struct {
	Lines []struct{ Price float64 }
}

func TestAValueThatDoesNotFitHasACode(t *testing.T) {
	price := func(_ context.Context, record udf.Record) ([]udf.Message, error) {
		decoded, err := udf.FromJSON[order](record.Value)
		if err != nil {
			return nil, fmt.Errorf("order: %w", err)
		}
		return []udf.Message{{Value: strconv.AppendInt(nil, int64(len(decoded.Lines)), 10)}}, nil
	}
	results := udftest.Map(t, udf.NewMap(price), udftest.Values(
		`{"Lines": [{"Price": 1.5}]}`, `{"Lines": [{"Price": "much"}]}`, `{"Lines"`, `[]`)...)
	expect(t, results.Values(), []string{"1"})
	expect(t, results.Outcomes, []udftest.Outcome{
		{Index: 1, Result: "dead letter", Code: 3005,
			Reason: "order: the value does not fit udftest_test.order: field `Lines.Price` is string, where float64 is expected"},
		{Index: 2, Result: "dead letter", Code: 3005,
			Reason: "order: the value does not fit udftest_test.order: it is not JSON, at byte 8 of 8"},
		{Index: 3, Result: "dead letter", Code: 3005,
			Reason: "order: the value does not fit udftest_test.order: it is array, where udftest_test.order is expected"},
	})

	t.Setenv("MILLSTREAM_UDF_VALUES", "hidden")
	_, err := udf.FromJSON[uint8]([]byte("300"))
	expect(t, err.Error(), "the value does not fit uint8: it is number, where uint8 is expected")
}

func TestIds(t *testing.T) {
	results := udftest.Map(t, udf.NewMap(obey), udftest.Values("id", "id")...)
	expect(t, results.Values(), []string{"test/in-test/0/1/0", "test/in-test/0/1/1"})
	own := udf.Record{Value: []byte("id"), ID: "web-7"}
	expect(t, udftest.Map(t, udf.NewMap(obey), own).Values(), []string{"web-7"})
}

func TestASourceTransformSetsEventTimes(t *testing.T) {
	later := udf.Record{Value: []byte("a"), EventTime: time.UnixMicro(9).UTC()}
	results := udftest.Map(t, udf.NewSourceTransform(obey), udf.Record{Value: []byte("time")}, later)
	expect(t, results.Messages[0].EventTime, time.UnixMicro(7).UTC())
	expect(t, results.Messages[1].EventTime, time.UnixMicro(9).UTC())
}

func TestRecordsAreWorkedOnAtOnceAndOutputsStayInOrder(t *testing.T) {
	// No call returns before all have begun.
	var begun atomic.Int32
	all := make(chan struct{})
	together := func(_ context.Context, record udf.Record) ([]udf.Message, error) {
		if begun.Add(1) == 50 {
			close(all)
		}
		select {
		case <-all:
			return []udf.Message{{Value: record.Value}}, nil
		case <-time.After(10 * time.Second):
			return nil, errors.New("the others have not begun")
		}
	}
	values := make([]string, 50)
	for i := range values {
		values[i] = strconv.Itoa(i)
	}
	results := udftest.Map(t, udf.NewMap(together, udf.Concurrency(50)), udftest.Values(values...)...)
	expect(t, results.Values(), values)
}

func TestWithoutConcurrencyOneRecordIsWorkedOnAtATime(t *testing.T) {
	var running sync.Mutex
	alone := func(_ context.Context, record udf.Record) ([]udf.Message, error) {
		if !running.TryLock() {
			return nil, errors.New("another one is running")
		}
		defer running.Unlock()
		return []udf.Message{{Value: record.Value}}, nil
	}
	results := udftest.Map(t, udf.NewMap(alone), udftest.Values(make([]string, 1000)...)...)
	expect(t, len(results.Messages), 1000)
}

func TestTheCallSaysWhereRecordsComeFrom(t *testing.T) {
	var call udf.Call
	udftest.Map(t, udf.NewMap(func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		call = udf.CallFrom(ctx)
		return nil, nil
	}), udftest.Values("a")...)
	expect(t, call.Pipeline+" "+call.Vertex+" "+call.Lane, "test test in-test.0")
}

func TestRecordsHaveTheEdgeByWhichTheyCome(t *testing.T) {
	given := udf.Record{Value: []byte("a"), Edge: "in-test"}
	tell := func(_ context.Context, record udf.Record) ([]udf.Message, error) {
		return []udf.Message{{Value: []byte(record.Edge)}}, nil
	}
	expect(t, udftest.Map(t, udf.NewMap(tell), given).Values(), []string{"in-test"})
	expect(t, udftest.Map(t, udf.NewMap(tell), udftest.Values("a")...).Values(), []string{""})
	var edge string
	udftest.Write(t, udf.NewSinkFunc(func(_ context.Context, record udf.Record) error {
		edge = record.Edge
		return nil
	}), given)
	expect(t, edge, "in-test")
}

func TestReduce(t *testing.T) {
	total := func(_ context.Context, group udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
		sum := 0
		for record := range records {
			number, err := strconv.Atoi(string(record.Value))
			if err != nil {
				return nil, udf.Misfit{Reason: err.Error()}
			}
			if number < 0 {
				panic("negative\nnumber")
			}
			sum += number
		}
		large := udf.Message{Value: make([]byte, 1<<19), Tags: []string{"large"}}
		return []udf.Message{{Value: fmt.Appendf(nil, "%d at %d", sum, group.Start.Unix())}, large, large, large}, nil
	}
	window := func(key string) udf.Group {
		return udf.Group{Start: time.Unix(60, 0), End: time.Unix(120, 0), Keys: []string{key}}
	}
	reduced := udftest.Reduce(t, udf.NewReduce(total),
		udftest.Input{Group: window("a"), Records: udftest.Values("1", "2")},
		udftest.Input{Group: window("b"), Records: udftest.Values("x", "2")},
		udftest.Input{Group: window("c"), Records: udftest.Values("-1", "2")},
		udftest.Input{Group: window("d"), Records: udftest.Values("3")},
	)
	expect(t, reduced[0].Values()[0], "3 at 60")
	expect(t, reduced[0].Messages[0].Keys, []string{"a"})
	expect(t, reduced[0].Messages[3].Tags, []string{"large"})
	expect(t, reduced[1].Failed, `strconv.Atoi: parsing "x": invalid syntax`)
	expect(t, []int{reduced[1].Code, reduced[2].Code}, []int{3005, 0})
	expect(t, reduced[2].Failed, "panic: negative")
	if !strings.Contains(reduced[2].Detail, "number\n") || !strings.Contains(reduced[2].Detail, "goroutine") {
		t.Errorf("no stack: %q", reduced[2].Detail)
	}
	expect(t, reduced[3].Values()[0], "3 at 60")
	expect(t, len(reduced[3].Messages), 4)
}

// journal is a sink that records its calls.
type journal struct {
	said    *[]string
	failing string
}

func (j *journal) say(text string) error {
	*j.said = append(*j.said, text)
	if text == j.failing {
		return errors.New("cannot " + text)
	}
	return nil
}

func (j *journal) Open(context.Context) error { return j.say("open") }
func (j *journal) Write(_ context.Context, record udf.Record) error {
	if string(record.Value) == "bad" {
		return udf.Fallback{Reason: "not wanted"}
	}
	return j.say(record.ID + " " + string(record.Value))
}
func (j *journal) Flush(context.Context) error { return j.say("flush") }
func (j *journal) Close() error                { return j.say("close") }

func TestASinkIsFlushedBehindItsRecords(t *testing.T) {
	var said []string
	sink := udf.NewSink(func() udf.Sink { return &journal{said: &said} })
	results := udftest.Write(t, sink, udftest.Values("a", "bad", "c")...)
	expect(t, said, []string{"open", "test/in-test/0/1/0 a", "test/in-test/0/1/2 c", "flush", "close"})
	expect(t, results.Outcomes, []udftest.Outcome{{Index: 1, Result: "fallback", Reason: "not wanted"}})
}

// account keeps positions, and says what it is asked for.
type account struct{ journal }

func (a *account) Open(_ context.Context, lane udf.SinkLane) ([]byte, error) {
	return nil, a.say("open " + lane.Name)
}
func (a *account) Check(_ context.Context, record udf.Record) error {
	if string(record.Value) == "bad" {
		return udf.Drop{Reason: "not wanted"}
	}
	return nil
}
func (a *account) Flush(_ context.Context, position []byte) error {
	return a.say("flush " + string(position))
}

func TestASinkThatKeepsPositionsIsOneTransaction(t *testing.T) {
	var said []string
	sink := udf.NewPositionSink(func() udf.PositionSink { return &account{journal{said: &said}} })
	results := udftest.Write(t, sink, udftest.Values("a", "bad", "c")...)
	expect(t, said, []string{
		"open test/test.in-test.0", "test/in-test/0/1/0 a", "test/in-test/0/1/1 c", "flush test", "close",
	})
	expect(t, results.Outcomes, []udftest.Outcome{{Index: 1, Result: "drop", Reason: "not wanted"}})
}

func TestASinkThatKeepsPositionsRefusesRecordsInCheckAlone(t *testing.T) {
	var said []string
	sink := udf.NewPositionSink(func() udf.PositionSink { return &unchecked{account{journal{said: &said}}} })
	var failure string
	fatal := &fatals{TB: t, said: &failure}
	fatal.run(func() { udftest.Write(fatal, sink, udftest.Values("a", "bad")...) })
	if !strings.Contains(failure, "return it from Check") {
		t.Errorf("it failed with %q", failure)
	}
	expect(t, said, []string{"open test/test.in-test.0", "test/in-test/0/1/0 a", "close"})
}

// unchecked finds out too late.
type unchecked struct{ account }

func (u *unchecked) Check(context.Context, udf.Record) error { return nil }

func TestASinkFunc(t *testing.T) {
	var mutex sync.Mutex
	var written []string
	write := func(_ context.Context, record udf.Record) error {
		if len(record.Value) == 0 {
			panic("empty")
		}
		mutex.Lock()
		defer mutex.Unlock()
		written = append(written, string(record.Value))
		return nil
	}
	results := udftest.Write(t, udf.NewSinkFunc(write, udf.Concurrency(3)), udftest.Values("a", "", "c")...)
	slices.Sort(written)
	expect(t, written, []string{"a", "c"})
	expect(t, results.Outcomes[0].Reason, "panic: empty")
}

// counter is a source of the numbers below 25.
type counter struct {
	next      int
	committed *[]string
}

func (c *counter) Open(_ context.Context, start udf.SourceStart) (err error) {
	if len(start.Position) > 0 {
		c.next, err = strconv.Atoi(string(start.Position))
	}
	return err
}

func (c *counter) Read(ctx context.Context, recordsMax int) (udf.Batch, error) {
	if c.next == 20 {
		c.next = 21
		// No record arrives in time.
		<-ctx.Done()
		return udf.Batch{}, ctx.Err()
	}
	var batch udf.Batch
	for ; c.next < 25 && len(batch.Records) < recordsMax; c.next++ {
		batch.Records = append(batch.Records, udf.Record{Value: []byte(strconv.Itoa(c.next)), Keys: []string{"k"}})
	}
	batch.Position, batch.Ended = []byte(strconv.Itoa(c.next)), c.next == 25
	return batch, nil
}

func (c *counter) Committed(_ context.Context, position []byte) error {
	*c.committed = append(*c.committed, string(position))
	return nil
}

func (c *counter) Close() error { return nil }

func TestASourceGoesOnBehindItsPosition(t *testing.T) {
	var committed []string
	source := udf.NewSource(func() udf.Source { return &counter{committed: &committed} })
	batches := udftest.Read(t, source, udf.SourceStart{Position: []byte("10")}, 9, 10)
	expect(t, len(batches), 3)
	expect(t, len(batches[0].Records), 10)
	expect(t, string(batches[0].Records[0].Value), "10")
	expect(t, batches[0].Records[0].Keys, []string{"k"})
	// The read that timed out.
	expect(t, len(batches[1].Records), 0)
	expect(t, string(batches[1].Position), "20")
	expect(t, batches[2].Ended, true)
	expect(t, committed, []string{"20", "20", "25"})
}

func TestASinkThatCannotFlushHasWrittenNothing(t *testing.T) {
	var said []string
	sink := udf.NewSink(func() udf.Sink { return &journal{said: &said, failing: "flush"} })
	var failure string
	// With a fake test, whose fatal errors are inspected here.
	fatal := &fatals{TB: t, said: &failure}
	fatal.run(func() { udftest.Write(fatal, sink, udftest.Values("a")...) })
	expect(t, failure, "the call as a whole failed: cannot flush")
}

// fatals ends a function, and not its test, at a fatal error.
type fatals struct {
	testing.TB
	said *string
}

func (f *fatals) Fatalf(format string, values ...any) {
	*f.said = fmt.Sprintf(format, values...)
	panic(f)
}

func (f *fatals) run(work func()) {
	defer func() {
		if value := recover(); value != nil && value != any(f) {
			panic(value)
		}
	}()
	work()
}

// broken is a source whose batches cannot be sent.
type broken struct {
	counter
	batch udf.Batch
}

func (b *broken) Read(context.Context, int) (udf.Batch, error) { return b.batch, nil }

func TestBatchesThatCannotBeSentAreFailedReads(t *testing.T) {
	position := []byte("1")
	one, named := udf.Record{Value: []byte("a")}, udf.Record{Value: []byte("b"), ID: "b"}
	for expected, batch := range map[string]udf.Batch{
		"Read returned 3 records, but at most 2 were requested": {Records: []udf.Record{one, one, one}, Position: position},
		"Read returned records without a Position":              {Records: []udf.Record{one}},
		"either all records of a batch have an ID or none":      {Records: []udf.Record{one, named}, Position: position},
		`record 0 of the batch: the key "\xff" is not UTF-8`:    {Records: []udf.Record{{Keys: []string{"\xff"}}}, Position: position},
		"the records of one read came to 67108":                 {Records: []udf.Record{{Value: make([]byte, 64<<20)}}, Position: position},
	} {
		var failure string
		fatal := &fatals{TB: t, said: &failure}
		source := udf.NewSource(func() udf.Source { return &broken{batch: batch} })
		fatal.run(func() { udftest.Read(fatal, source, udf.SourceStart{}, 1, 2) })
		if !strings.Contains(failure, expected) {
			t.Errorf("got %q, want %q", failure, expected)
		}
	}
}
