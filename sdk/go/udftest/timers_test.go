package udftest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

// reminded sets timers as the value of a record says, such as "a5 b9": by name and second; with a "-" in place of the
// second it cancels, and with a "!" it fails. The value of a timer that has fired is its name, second and count.
type reminded struct {
	timers *udf.Timers
	count  *udf.CounterState
}

func (r reminded) do(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	_, err := r.count.Add(ctx, 1)
	for _, step := range strings.Fields(string(record.Value)) {
		name, rest := step[:1], step[1:]
		switch {
		case rest == "-":
			err = errors.Join(err, r.timers.Cancel(ctx, name))
		case rest == "!":
			return nil, errors.New("away")
		case strings.HasPrefix(rest, "p"):
			err = errors.Join(err, r.timers.SetByProcessingTime(ctx, name, second(rest[1:])))
		default:
			err = errors.Join(err, r.timers.Set(ctx, name, second(rest)))
		}
	}
	return nil, err
}

func second(text string) time.Time {
	var seconds int64
	if _, err := fmt.Sscan(text, &seconds); err != nil {
		panic(err)
	}
	return time.Unix(seconds, 0).UTC()
}

func (r reminded) fired(ctx context.Context, timer udf.Timer) ([]udf.Message, error) {
	count, err := r.count.Add(ctx, 10)
	switch timer.Name {
	case "f":
		err = errors.Join(err, r.timers.Set(ctx, "g", timer.At), errors.New("away"))
	case "d":
		err = errors.Join(err, udf.DeadLetter{Reason: "not now"})
	case "n":
		// The next one, and the last one of its key.
		err = errors.Join(err, r.timers.Set(ctx, "m", timer.At.Add(time.Second)), r.timers.Cancel(ctx, "z"))
	}
	value := fmt.Appendf(nil, "%s %s %d %d", strings.Join(timer.Keys, "/"), timer.Name, timer.At.Unix(), count)
	return []udf.Message{{Value: value}}, err
}

func newReminded(t *testing.T, options ...udf.Option) (reminded, *udftest.States) {
	r := reminded{udf.NewTimers(), udf.NewCounterState("count")}
	options = append(options, udf.States(r.count, r.timers), udf.OnTimer(r.fired))
	return r, udftest.NewStates(t, udf.NewMap(r.do, options...))
}

func set(states *udftest.States) []string {
	var set []string
	for _, timer := range states.Timers() {
		set = append(set, fmt.Sprint(strings.Join(timer.Keys, "/"), " ", timer.Name, timer.At.Unix()))
	}
	return set
}

func TestTimersFireInOrderAndOnce(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		_, states := newReminded(t, udf.Concurrency(concurrency))
		states.Map(keyed("y", "a5 b3 n4 z9", "x", "a5", "y", "a6", "x", "c7 c-")...)
		expect(t, set(states), []string{"y b3", "y n4", "x a5", "y a6", "y z9"})
		expect(t, len(states.FireTimers().Timers), 0)
		states.Watermark = second("6")
		results := states.FireTimers()
		expect(t, results.Values(), []string{"y b 3 12", "y n 4 22", "x a 5 12", "y m 5 32", "y a 6 42"})
		expect(t, []any{results.Messages[3].EventTime, results.Messages[3].Keys}, []any{second("5"), []string{"y"}})
		expect(t, results.Parents, []int{0, 1, 2, 3, 4})
		expect(t, set(states), []string(nil))
		expect(t, len(states.FireTimers().Timers), 0)
	}
}

func TestATimerByProcessingTime(t *testing.T) {
	_, states := newReminded(t)
	states.Map(udf.Record{Value: []byte("ap100 b200"), EventTime: second("7")})
	states.Watermark = second("5")
	expect(t, len(states.FireTimers().Timers), 0)
	states.Now = second("100")
	results := states.FireTimers()
	expect(t, results.Timers, []udf.Timer{
		{Name: "a", At: second("100"), ByProcessingTime: true, EventTime: second("7")},
	})
	expect(t, results.Messages[0].EventTime, second("7"))
	states.Map(udf.Record{Value: []byte("ap100"), EventTime: second("7")})
	states.Watermark = second("9")
	expect(t, states.FireTimers().Messages[0].EventTime, second("9"))
}

func TestARecordOrTimerThatFailsSetsNone(t *testing.T) {
	r, states := newReminded(t)
	results := states.Map(keyed("x", "a5", "x", "a6 b7 c!", "x", "a8", "y", "f5 g-", "z", "d5")...)
	expect(t, outcomesOf(results), []string{"1 error", "2 held up"})
	expect(t, set(states), []string{"x a5", "y f5", "z d5"})
	states.Watermark = second("9")
	results = states.FireTimers()
	expect(t, results.Values(), []string{"x a 5 11"})
	expect(t, outcomesOf(results), []string{"1 error", "2 dead letter"})
	expect(t, results.Outcomes[0].Reason, "away")
	expect(t, set(states), []string{"y f5"})
	count, err := r.count.Get(states.Key("y"))
	expect(t, []any{count, err}, []any{int64(1), nil})
}

func TestTimersOfAKeyInATest(t *testing.T) {
	r, states := newReminded(t)
	succeeds(t, r.timers.Set(states.Key("x"), "a", second("5")))
	succeeds(t, r.timers.Set(states.Key("x"), "b", second("6")))
	succeeds(t, r.timers.Cancel(states.Key("x"), "a"))
	expect(t, set(states), []string{"x b6"})
}

func TestATimerSeesWhatExpiresWithIt(t *testing.T) {
	timers, seen := udf.NewTimers(), udf.NewValueState[int]("seen", udf.TTL(time.Second))
	states := udftest.NewStates(t, udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		return nil, errors.Join(seen.Set(ctx, 7), timers.Set(ctx, string(record.Value), second(string(record.Value))))
	}, udf.States(timers, seen), udf.OnTimer(func(ctx context.Context, _ udf.Timer) ([]udf.Message, error) {
		value, err := seen.Get(ctx)
		return []udf.Message{{Value: fmt.Append(nil, value)}}, err
	})))
	for _, at := range []string{"6", "7"} {
		states.Map(udf.Record{Value: []byte(at), EventTime: second("5")})
	}
	states.Watermark = second("9")
	expect(t, states.FireTimers().Values(), []string{"7", "0"})
}

func TestTimersThatCannotBeSet(t *testing.T) {
	r, states := newReminded(t)
	at := second("5")
	ada := states.Key("ada")
	for expected, err := range map[string]error{
		"the name of a timer has 1 to 255 bytes of UTF-8, unlike \"\"":    r.timers.Set(ada, "", at),
		"the name of a timer has 1 to 255 bytes of UTF-8, unlike \"\\xff": r.timers.Cancel(ada, "\xff"),
		"the name of a timer has 1 to 255 bytes of UTF-8, unlike \"aaaa":  r.timers.Set(ada, strings.Repeat("a", 256), at),
		"the time of timer a is not in the years 1 to 9999":               r.timers.Set(ada, "a", time.Time{}),
		"the time of timer b is not in the years 1 to 9999":               r.timers.SetByProcessingTime(ada, "b", at.AddDate(1e4, 0, 0)),
		"state timers can only be used with the context of a record":      r.timers.Set(context.Background(), "a", at),
		"state timers can only be used with the context of a record, unt": r.timers.Cancel(context.Background(), "a"),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), expected) {
			t.Errorf("got %v, want %q", err, expected)
		}
	}
	expect(t, set(states), []string(nil))
	results := udftest.Map(t, udf.NewMap(func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		return nil, r.timers.Set(ctx, "a", at)
	}, udf.States(r.count)), keyed("a", "1")...)
	expect(t, results.Outcomes[0].Reason, "state timers is not one of the function that runs: name it to its map with udf.States")
}

func TestAnOutputTimeIsHeldUntilTheTimerHasFired(t *testing.T) {
	timers := udf.NewTimers()
	set := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		return nil, errors.Join(
			timers.Set(ctx, "held", second("9"), udf.OutputAt(record.EventTime)),
			timers.SetByProcessingTime(ctx, "asked", second("50"), udf.OutputAt(second("4"))),
		)
	}
	fired := func(_ context.Context, timer udf.Timer) ([]udf.Message, error) {
		later, before := timer.EventTime.Add(time.Second), timer.EventTime.Add(-time.Second)
		if timer.Name == "asked" {
			return []udf.Message{{EventTime: before}}, nil
		}
		return []udf.Message{{}, {EventTime: later}}, nil
	}
	states := udftest.NewStates(t, udf.NewMap(set, udf.States(timers), udf.OnTimer(fired)))
	states.Watermark = second("5")
	states.Map(udf.Record{EventTime: second("6"), Keys: []string{"x"}}, udf.Record{EventTime: second("3"), Keys: []string{"y"}})
	states.Watermark = second("20")
	results := states.FireTimers()
	var times []int64
	for _, message := range results.Messages {
		times = append(times, message.EventTime.Unix())
	}
	// The watermark had passed what was set too late.
	expect(t, times, []int64{6, 7, 5, 6})
	states.Now = second("60")
	results = states.FireTimers()
	expect(t, outcomesOf(results), []string{"0 error", "1 error"})
	expect(t, results.Outcomes[0].Reason,
		"an output of the timer is 1s earlier than its EventTime: set the timer with udf.OutputAt, the earliest event time of its outputs")
	// Those of the clock hold the watermark, too: at 4, which had been passed when they were set.
	expect(t, results.Timers[0].EventTime, second("5"))
	expect(t, timers.Set(states.Key("z"), "a", second("5"), udf.OutputAt(second("6"))).Error(),
		"the udf.OutputAt of timer a is later than its time: leave it out, and give outputs that belong to a later time one of "+
			"their own (EventTime)")
}
