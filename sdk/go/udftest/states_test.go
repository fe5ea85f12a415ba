package udftest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

// counted has one state of each kind.
type counted struct {
	total  *udf.ValueState[int64]
	seen   *udf.MapState[string, string]
	last   *udf.ListState[[]byte]
	clicks *udf.CounterState
}

func newCounted() counted {
	return counted{
		udf.NewValueState[int64]("total").WithDefault(7), udf.NewMapState[string, string]("seen"),
		udf.NewListState[[]byte]("last", udf.MaxItems(3)), udf.NewCounterState("clicks"),
	}
}

func (c counted) function(mapping udf.MapFunc, options ...udf.Option) *udf.Function {
	return udf.NewMap(mapping, append(options, udf.States(c.total, c.seen, c.last, c.clicks))...)
}

// keyed creates a record for each pair of a key and a value.
func keyed(pairs ...string) []udf.Record {
	var records []udf.Record
	for at := 0; at < len(pairs); at += 2 {
		records = append(records, udf.Record{Keys: []string{pairs[at]}, Value: []byte(pairs[at+1])})
	}
	return records
}

func outcomesOf(results udftest.Results) []string {
	var outcomes []string
	for _, outcome := range results.Outcomes {
		outcomes = append(outcomes, fmt.Sprint(outcome.Index, " ", outcome.Result))
	}
	return outcomes
}

// do changes all states, and then ends as the value says.
func (c counted) do(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	total, err := c.total.Get(ctx)
	if err == nil {
		err = c.total.Set(ctx, total+1)
	}
	if err == nil {
		err = c.seen.Set(ctx, string(record.Value), "yes")
	}
	if err == nil {
		err = c.last.Append(ctx, record.Value)
	}
	clicks, adding := c.clicks.Add(ctx, 2)
	if err := errors.Join(err, adding); err != nil {
		return nil, err
	}
	switch string(record.Value) {
	case "error":
		return nil, errors.New("away")
	case "panic":
		panic("lost")
	case "goexit":
		runtime.Goexit()
	case "retry":
		return nil, udf.Retry{Delay: time.Second}
	case "output":
		return []udf.Message{{Keys: []string{"\xff"}}}, nil
	case "dead":
		return nil, udf.DeadLetter{Reason: "poison"}
	case "drop":
		return nil, fmt.Errorf("wrapped: %w", udf.Drop{Reason: "unwanted"})
	case "misfit":
		return nil, udf.Misfit{Reason: "no"}
	}
	return []udf.Message{{Value: fmt.Appendf(nil, "%d %d", total+1, clicks)}}, nil
}

func TestARecordThatFailsLeavesNoChangeAndHoldsItsKeyUp(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		for _, how := range []string{"error", "panic", "goexit", "retry", "output"} {
			c := newCounted()
			states := udftest.NewStates(t, c.function(c.do, udf.Concurrency(concurrency)))
			results := states.Map(keyed("a", "1", "b", "1", "a", how, "a", "2", "b", "2", "a", "3")...)
			expect(t, results.Values(), []string{"8 2", "8 2", "9 4"})
			failed := map[string]string{"retry": "retry"}[how]
			if failed == "" {
				failed = "error"
			}
			expect(t, outcomesOf(results), []string{"2 " + failed, "3 held up", "5 held up"})
			checkStates(t, c, states.Key("a"), 8, []string{"1"}, 2)
			checkStates(t, c, states.Key("b"), 9, []string{"1", "2"}, 4)
			// In the next call, the key is processed again.
			expect(t, states.Map(keyed("a", "2")...).Values(), []string{"9 4"})
		}
	}
}

func TestAfterADecisionTheNextRecordsOfTheKeyAreProcessed(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		c := newCounted()
		states := udftest.NewStates(t, c.function(c.do, udf.Concurrency(concurrency)))
		results := states.Map(keyed("a", "dead", "a", "1", "a", "drop", "a", "misfit", "a", "2")...)
		expect(t, results.Values(), []string{"8 2", "9 4"})
		expect(t, outcomesOf(results), []string{"0 dead letter", "2 drop", "3 dead letter"})
		checkStates(t, c, states.Key("a"), 9, []string{"1", "2"}, 4)
	}
}

func checkStates(t *testing.T, c counted, key context.Context, total int64, values []string, clicks int64) {
	t.Helper()
	gotTotal, err := c.total.Get(key)
	succeeds(t, err)
	gotClicks, err := c.clicks.Get(key)
	succeeds(t, err)
	entries, err := c.seen.Entries(key)
	succeeds(t, err)
	last, err := c.last.All(key)
	succeeds(t, err)
	var seen, kept []string
	for _, entry := range entries {
		seen = append(seen, entry.Item)
	}
	for _, value := range last {
		kept = append(kept, string(value))
	}
	expect(t, []any{gotTotal, gotClicks, seen, kept}, []any{total, clicks, values, values})
}

func TestOtherKeysDoNotWait(t *testing.T) {
	total, arrived := udf.NewValueState[int]("total"), make(chan string, 6)
	allThere := make(chan struct{})
	// The first records of three keys wait for each other, and the second one of a key for the first.
	wait := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		before, err := total.Get(ctx)
		arrived <- string(record.Value)
		if len(arrived) == 3 {
			close(allThere)
		}
		<-allThere
		return []udf.Message{{Value: strconv.AppendInt(nil, int64(before+1), 10)}}, errors.Join(err, total.Set(ctx, before+1))
	}
	records := keyed("a", "0", "a", "1", "b", "2", "b", "3", "c", "4", "c", "5")
	results := udftest.Map(t, udf.NewMap(wait, udf.States(total), udf.Concurrency(3)), records...)
	expect(t, results.Values(), []string{"1", "2", "1", "2", "1", "2"})
	first := []string{<-arrived, <-arrived, <-arrived}
	slices.Sort(first)
	expect(t, first, []string{"0", "2", "4"})
}

func TestAStateIsUsedWithTheContextOfARecordOnly(t *testing.T) {
	total, other := udf.NewValueState[int]("total"), udf.NewCounterState("other")
	var kept context.Context
	states := udftest.NewStates(t, udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		kept = ctx
		// A context that was made from it, in a goroutine, is as good.
		made, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		set := make(chan error)
		go func() { set <- total.Set(made, 1) }()
		if err := <-set; err != nil {
			return nil, err
		}
		_, err := other.Add(ctx, 1)
		return nil, err
	}, udf.States(total)))
	results := states.Map(keyed("a", "1")...)
	expect(t, results.Outcomes[0].Reason, "state other is not one of the function that runs: name it to its map with udf.States")
	for _, ctx := range []context.Context{kept, context.Background()} {
		_, err := total.Get(ctx)
		for _, err := range []error{err, total.Set(ctx, 1), total.Delete(ctx)} {
			if err == nil || !strings.HasPrefix(err.Error(), "state total can only be used with the context of a record") {
				t.Error(err)
			}
		}
	}
	results = udftest.Map(t, udf.NewMap(func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		return nil, total.Set(ctx, 1)
	}), keyed("a", "1")...)
	expect(t, results.Outcomes[0].Reason, "state total is not one of the function that runs: name it to its map with udf.States")
}

func TestWhatIsDoneToAValueCountsOnlyWhenItIsSet(t *testing.T) {
	tags := udf.NewValueState[map[string]int]("tags").WithDefault(map[string]int{"a": 1})
	raw := udf.NewValueState[[]byte]("raw")
	seen := [2]string{}
	states := udftest.NewStates(t, udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		found, err := tags.Get(ctx)
		succeeds(t, err)
		found["b"] = 2
		bytes, err := raw.Get(ctx)
		succeeds(t, err)
		bytes = append(bytes[:0], record.Value...)
		succeeds(t, raw.Set(ctx, bytes))
		// It belongs to the function again.
		bytes[0] = 'X'
		after, err := raw.Get(ctx)
		succeeds(t, err)
		again, err := tags.Get(ctx)
		seen = [2]string{fmt.Sprint(again), string(after)}
		return nil, err
	}, udf.States(tags, raw)))
	succeeds(t, raw.Set(states.Key("a"), []byte("before")))
	states.Map(keyed("a", "after1", "a", "after2")...)
	expect(t, seen, [2]string{"map[a:1]", "after2"})
	value, err := raw.Get(states.Key("a"))
	succeeds(t, err)
	expect(t, string(value), "after2")
	expect(t, len(states.All()), 1)
}

func TestWhatADroppedRecordDidToAListIsUndone(t *testing.T) {
	last := udf.NewListState[string]("last")
	states := udftest.NewStates(t, udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		if string(record.Value) == "drop" {
			return nil, errors.Join(last.Remove(ctx, 0), last.Append(ctx, "x"), udf.Drop{})
		}
		all, err := last.All(ctx)
		return []udf.Message{{Value: []byte(strings.Join(all, " "))}}, err
	}, udf.States(last)))
	succeeds(t, last.Append(states.Key("a"), "1", "2", "3"))
	expect(t, states.Map(keyed("a", "drop", "a", "get", "a", "drop", "a", "get")...).Values(), []string{"1 2 3", "1 2 3"})
}

func TestTheMethodsOfEachKind(t *testing.T) {
	c := newCounted()
	states := udftest.NewStates(t, c.function(c.do))
	key := states.Key("a")
	_, stored, err := c.total.Lookup(key)
	expect(t, []any{stored, err}, []any{false, nil})
	succeeds(t, c.total.Set(key, 0))
	value, stored, err := c.total.Lookup(key)
	expect(t, []any{value, stored, err}, []any{int64(0), true, nil})
	succeeds(t, errors.Join(c.total.Delete(key), c.total.Delete(key)))

	succeeds(t, errors.Join(c.seen.Set(key, "b", "2"), c.seen.Set(key, "a", "1"), c.seen.Set(key, "", "")))
	has, err := c.seen.Has(key, "b")
	expect(t, []any{has, err}, []any{true, nil})
	succeeds(t, errors.Join(c.seen.Delete(key, "b"), c.seen.Delete(key, "b")))
	text, stored, err := c.seen.Lookup(key, "b")
	expect(t, []any{text, stored, err}, []any{"", false, nil})
	length, err := c.seen.Len(key)
	expect(t, []any{length, err}, []any{2, nil})
	entries, err := c.seen.Entries(key)
	expect(t, []any{entries, err}, []any{[]udf.Entry[string, string]{{Item: ""}, {Item: "a", Value: "1"}}, nil})
	if err := c.seen.Set(key, "\xff", ""); err == nil || err.Error() != `state seen: the item "\xff" is not UTF-8` {
		t.Error(err)
	}
	if err := c.seen.Set(key, "a", "\xff"); err == nil || err.Error() != "state seen: a string cannot be stored as json: a text in it is not UTF-8" {
		t.Error(err)
	}
	succeeds(t, c.seen.Clear(key))

	succeeds(t, c.last.Append(key, []byte("1"), []byte("2"), []byte("3"), []byte("4")))
	succeeds(t, errors.Join(c.last.Set(key, 0, []byte("two")), c.last.Remove(key, 1)))
	all, err := c.last.All(key)
	expect(t, []any{all, err}, []any{[][]byte{[]byte("two"), []byte("4")}, nil})
	last, err := c.last.At(key, 1)
	expect(t, []any{string(last), err}, []any{"4", nil})
	for _, index := range []int{-1, 2} {
		_, err := c.last.At(key, index)
		for _, err := range []error{err, c.last.Set(key, index, nil), c.last.Remove(key, index)} {
			expect(t, fmt.Sprint(err), fmt.Sprintf("state last has 2 values, and none at %d", index))
		}
	}
	succeeds(t, c.last.Clear(key))
	length, err = c.last.Len(key)
	expect(t, []any{length, err}, []any{0, nil})

	for _, limit := range []int64{math.MaxInt64, math.MinInt64} {
		_, err = c.clicks.Add(key, limit)
		succeeds(t, err)
		_, err = c.clicks.Add(key, limit/limit*map[bool]int64{true: 1, false: -1}[limit > 0])
		expect(t, fmt.Sprint(err), "counter clicks would have more than 64 bits")
		succeeds(t, c.clicks.Delete(key))
	}
	expect(t, states.All(), []udftest.StateEntry(nil))
}

func TestEntriesExpire(t *testing.T) {
	seen := udf.NewMapState[string, bool]("seen", udf.TTL(10*time.Second))
	token := udf.NewValueState[string]("token", udf.TTL(time.Minute), udf.ByProcessingTime())
	function := udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		was, err := seen.Has(ctx, string(record.Value))
		err = errors.Join(err, seen.Set(ctx, string(record.Value), true), token.Set(ctx, "t"))
		return []udf.Message{{Value: strconv.AppendBool(nil, was)}}, err
	}, udf.States(seen, token))
	states := udftest.NewStates(t, function)
	at := func(second int64, value string) udf.Record {
		return udf.Record{Keys: []string{"k"}, Value: []byte(value), EventTime: time.Unix(second, 0)}
	}
	began := time.Now()
	// A late record does not make an entry older, within a call and from call to call.
	states.Map(at(105, "a"), at(100, "a"), at(101, "b"))
	states.Map(at(90, "b"))
	all := states.All()
	expect(t, len(all), 3)
	expect(t, []time.Time{all[0].Expires, all[1].Expires}, []time.Time{time.Unix(115, 0).UTC(), time.Unix(111, 0).UTC()})
	if ends := all[2].Expires; ends.Before(began.Add(time.Minute).Truncate(time.Microsecond)) ||
		ends.After(time.Now().Add(time.Minute)) {
		t.Error(ends)
	}
	states.Watermark = time.Unix(111, 0)
	expect(t, states.Map(at(112, "a"), at(112, "b")).Values(), []string{"true", "false"})
	// Writing an entry keeps it for longer, also with the same value.
	states.Map(at(120, "a"))
	expect(t, states.All()[0].Expires, time.Unix(130, 0).UTC())
	states.Map(at(-100, "c"))
	expect(t, states.All()[2].Expires, time.Unix(-90, 0).UTC())
	states.Now = time.Now().Add(2 * time.Minute)
	_, stored, err := token.Lookup(states.Key("k"))
	expect(t, []any{stored, err}, []any{false, nil})
}

func TestVersions(t *testing.T) {
	type first struct{ Name string }
	type second struct{ First, Last string }
	type third struct{ Full string }
	one := udf.NewValueState[first]("profile")
	older := udftest.NewStates(t, udf.NewMap(nothing, udf.States(one)))
	succeeds(t, one.Set(older.Key("a"), first{"Ada L"}))
	split := udf.MigrateFrom(1, func(old first) (second, error) {
		before, after, found := strings.Cut(old.Name, " ")
		if !found {
			return second{}, errors.New("one name")
		}
		return second{before, after}, nil
	})
	join := udf.MigrateFrom(2, func(old second) (third, error) { return third{old.Last + ", " + old.First}, nil })
	three := udf.NewValueState[third]("profile", udf.StateVersion(3), split, join)
	newer := older.For(udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		found, err := three.Get(ctx)
		if err == nil && string(record.Value) == "set" {
			err = three.Set(ctx, found)
		}
		return []udf.Message{{Value: []byte(found.Full)}}, err
	}, udf.States(three)))
	expect(t, newer.Map(keyed("a", "get")...).Values(), []string{"L, Ada"})
	expect(t, newer.All()[0].Version, 1)
	// What is written has the new version.
	expect(t, newer.Map(keyed("a", "set", "a", "get")...).Values(), []string{"L, Ada", "L, Ada"})
	expect(t, newer.All()[0], udftest.StateEntry{
		Key: []string{"a"}, State: "profile", Item: []byte{}, Value: []byte(`{"Full":"L, Ada"}`), Version: 3,
	})
	back := newer.For(udf.NewMap(func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		// Its error is not returned, and the record fails all the same.
		_ = one.Delete(ctx)
		return nil, nil
	}, udf.States(one)))
	expect(t, back.Map(keyed("a", "")...).Outcomes[0].Reason,
		"state profile has values of version 3, and this function knows 1: run the function that wrote them, or a newer one")
	succeeds(t, one.Set(older.Key("b"), first{"Ada"}))
	expect(t, older.For(newerOf(three)).Map(keyed("b", "")...).Outcomes[0].Reason,
		"a stored value of state profile cannot be converted from version 1: one name")
	alone := udf.NewValueState[third]("profile", udf.StateVersion(3), join)
	expect(t, older.For(newerOf(alone)).Map(keyed("a", "")...).Outcomes[0].Reason,
		"state profile has values of version 1, and this function reads version 2 and later ones: add a step, such as "+
			"udf.MigrateFrom(1, convert)")
}

// newerOf reads a value.
func newerOf[T any](state *udf.ValueState[T]) *udf.Function {
	return udf.NewMap(func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		_, err := state.Get(ctx)
		return nil, err
	}, udf.States(state))
}

// A value of another version that is deleted and written again within a call is of the new version, also with the bytes
// that it had.
func TestTheSameBytesOfAnotherVersionAreAChange(t *testing.T) {
	euros := udf.NewValueState[int]("amount")
	older := udftest.NewStates(t, udf.NewMap(nothing, udf.States(euros)))
	succeeds(t, euros.Set(older.Key("a"), 5))
	cents := udf.NewValueState[int]("amount", udf.StateVersion(2),
		udf.MigrateFrom(1, func(euros int) (int, error) { return euros * 100, nil }))
	newer := older.For(udf.NewMap(func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		if string(record.Value) == "delete" {
			return nil, cents.Delete(ctx)
		}
		return nil, cents.Set(ctx, 5)
	}, udf.States(cents)))
	newer.Map(keyed("a", "delete", "a", "set")...)
	amount, err := cents.Get(newer.Key("a"))
	expect(t, []any{amount, err}, []any{5, nil})
}

type named string

type holder struct {
	Name   named
	Inside []any
	Rest   map[string]*named `json:",omitempty"`
	Raw    json.RawMessage   `json:",omitempty"`
	hidden string
}

func TestTextsThatAreNotUTF8AreRefusedWhereverTheyAre(t *testing.T) {
	bad := named("a\xff")
	state := udf.NewValueState[holder]("v")
	states := udftest.NewStates(t, udf.NewMap(nothing, udf.States(state)))
	key := states.Key("a")
	for _, value := range []holder{
		{Name: bad}, {Inside: []any{1, map[string]any{"a": string(bad)}}}, {Rest: map[string]*named{"a": &bad}},
		{Rest: map[string]*named{string(bad): nil}},
	} {
		if err := state.Set(key, value); err == nil || !strings.HasSuffix(err.Error(), "a text in it is not UTF-8") {
			t.Error(value, err)
		}
	}
	// The replacement character itself is one like any other.
	value := holder{Name: "\ufffd", Raw: json.RawMessage(`"\ufffd"`), hidden: string(bad)}
	succeeds(t, state.Set(key, value))
	stored, err := state.Get(key)
	expect(t, []any{stored.Name, string(stored.Raw), err}, []any{value.Name, string(value.Raw), nil})
}

func TestMessagePack(t *testing.T) {
	// Any package will do that has these two functions.
	state := udf.NewValueState[order]("v", udf.MessagePack(json.Marshal, json.Unmarshal))
	states := udftest.NewStates(t, udf.NewMap(nothing, udf.States(state)))
	succeeds(t, state.Set(states.Key("a"), order{}))
	value, err := state.Get(states.Key("a"))
	expect(t, []any{value, err}, []any{order{}, nil})
}

func TestDeclarationsThatCannotBe(t *testing.T) {
	step := udf.MigrateFrom(1, func(old int) (int, error) { return old, nil })
	for expected, states := range map[string][]udf.State{
		"the name of state to tal must have at most 63 letters": {udf.NewCounterState("to tal")},
		"the name of state 1st must have at most 63 letters":    {udf.NewCounterState("1st")},
		"the function has two states with the name n":           {udf.NewCounterState("n"), udf.NewValueState[int]("n")},
		"the TTL of state n must be at least a microsecond":     {udf.NewCounterState("n", udf.TTL(1))},
		"MaxItems of state n must be at least 1":                {udf.NewListState[int]("n", udf.MaxItems(0))},
		"is for list states":                                    {udf.NewValueState[int]("n", udf.MaxItems(1))},
		"counter n has neither versions":                        {udf.NewCounterState("n", udf.StateVersion(2))},
		"the version of state n must be a whole number":         {udf.NewValueState[int]("n", udf.StateVersion(0))},
		"the last one from 2":                                   {udf.NewValueState[int]("n", udf.StateVersion(3), step)},
		"converts values of json, and the state has bytes":      {udf.NewValueState[[]byte]("n", udf.StateVersion(2), step)},
		"the default cannot be a value":                         {udf.NewValueState[float64]("n").WithDefault(math.NaN())},
	} {
		err := udf.ServeListener(context.Background(), listener(t), udf.NewMap(nothing, udf.States(states...)))
		if err == nil || !strings.Contains(err.Error(), expected) || udf.ExitCode(err) != 2 {
			t.Errorf("got %v, want %q", err, expected)
		}
	}
	timers := udf.States(udf.NewTimers())
	for expected, options := range map[string][]udf.Option{
		"the function has timers, and nothing that gets them": {timers},
		"udf.OnTimer gets timers, and the function has none":  {udf.OnTimer(ignore)},
		"the function has two states with the name timers":    {timers, timers, udf.OnTimer(ignore)},
	} {
		err := udf.ServeListener(context.Background(), listener(t), udf.NewMap(nothing, options...))
		if err == nil || !strings.Contains(err.Error(), expected) || udf.ExitCode(err) != 2 {
			t.Errorf("got %v, want %q", err, expected)
		}
	}
	write := func(context.Context, udf.Record) error { return nil }
	counter := udf.States(udf.NewCounterState("n"))
	for _, function := range []*udf.Function{udf.NewSinkFunc(write, counter), udf.NewSourceTransform(nothing, counter)} {
		err := udf.ServeListener(context.Background(), listener(t), function)
		if err == nil || !strings.Contains(err.Error(), "cannot have states: they belong to maps") {
			t.Error(err)
		}
	}
}

// model is what Go's own values would be for a key.
type model struct {
	total  int64
	seen   map[string]string
	last   []string
	clicks int64
}

func (m model) clone() *model {
	seen := map[string]string{}
	for item, value := range m.seen {
		seen[item] = value
	}
	return &model{m.total, seen, slices.Clone(m.last), m.clicks}
}

func (m *model) text() string { return fmt.Sprint(m.total, m.seen, m.last, m.clicks) }

func (m *model) step(verb byte, n int) {
	item := strconv.Itoa(n)
	switch verb {
	case 't':
		m.total += int64(n)
	case 'T':
		m.total = 7
	case 's':
		m.seen[item] += item
	case 'S':
		delete(m.seen, item)
	case 'C':
		m.seen = map[string]string{}
	case 'l':
		m.last = append(m.last, item)
		m.last = m.last[max(0, len(m.last)-3):]
	case 'L':
		if n < len(m.last) {
			m.last = slices.Delete(m.last, n, n+1)
		}
	case 'r':
		if n < len(m.last) {
			m.last[n] = "r"
		}
	case 'E':
		m.last = nil
	case 'c':
		m.clicks += int64(n)
	case 'D':
		m.clicks = 0
	}
}

func (c counted) step(ctx context.Context, verb byte, n int) error {
	item := strconv.Itoa(n)
	length, err := c.last.Len(ctx)
	switch verb {
	case 't':
		total, err := c.total.Get(ctx)
		return errors.Join(err, c.total.Set(ctx, total+int64(n)))
	case 'T':
		return c.total.Delete(ctx)
	case 's':
		value, err := c.seen.Get(ctx, item)
		return errors.Join(err, c.seen.Set(ctx, item, value+item))
	case 'S':
		return c.seen.Delete(ctx, item)
	case 'C':
		return c.seen.Clear(ctx)
	case 'l':
		return c.last.Append(ctx, []byte(item))
	case 'L':
		if n < length {
			return c.last.Remove(ctx, n)
		}
	case 'r':
		if n < length {
			return c.last.Set(ctx, n, []byte("r"))
		}
	case 'E':
		return c.last.Clear(ctx)
	case 'c':
		_, err = c.clicks.Add(ctx, int64(n))
	case 'D':
		return c.clicks.Delete(ctx)
	}
	return err
}

func (c counted) text(ctx context.Context) string {
	total, err1 := c.total.Get(ctx)
	entries, err2 := c.seen.Entries(ctx)
	values, err3 := c.last.All(ctx)
	clicks, err4 := c.clicks.Get(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err.Error()
	}
	found := model{total, map[string]string{}, nil, clicks}
	for _, entry := range entries {
		found.seen[entry.Item] = entry.Value
	}
	for _, value := range values {
		found.last = append(found.last, string(value))
	}
	return found.text()
}

// obey does the steps of a value, such as "t3 C0", and ends as its last word says.
func (c counted) obey(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	steps := strings.Fields(string(record.Value))
	for _, step := range steps[:len(steps)-1] {
		if err := c.step(ctx, step[0], int(step[1]-'0')); err != nil {
			return nil, err
		}
	}
	switch steps[len(steps)-1] {
	case "error":
		return nil, errors.New("away")
	case "panic":
		panic("lost")
	case "drop":
		return nil, udf.Drop{}
	}
	return []udf.Message{{Value: []byte(c.text(ctx))}}, nil
}

// obeyed is what obey has to return for the records of a call, and outcomesOf.
func obeyed(models map[string]*model, records []udf.Record) (values, outcomes []string) {
	held := map[string]bool{}
	for i, record := range records {
		key, steps := record.Keys[0], strings.Fields(string(record.Value))
		if held[key] {
			outcomes = append(outcomes, fmt.Sprint(i, " held up"))
			continue
		}
		after := models[key].clone()
		for _, step := range steps[:len(steps)-1] {
			after.step(step[0], int(step[1]-'0'))
		}
		switch end := steps[len(steps)-1]; end {
		case "error", "panic":
			held[key] = true
			outcomes = append(outcomes, fmt.Sprint(i, " error"))
		case "drop":
			outcomes = append(outcomes, fmt.Sprint(i, " drop"))
		default:
			models[key] = after
			values = append(values, after.text())
		}
	}
	return values, outcomes
}

// Any records, in any calls: what a function remembers is what Go's own values for each key would be.
func TestAsAStructForEachKey(t *testing.T) {
	ends := []string{"ok", "ok", "ok", "ok", "ok", "ok", "error", "panic", "drop"}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := newCounted()
		states := udftest.NewStates(t, c.function(c.obey, udf.Concurrency(1+int(seed%2)*3)))
		models := map[string]*model{}
		for _, key := range []string{"a", "b"} {
			models[key] = &model{7, map[string]string{}, nil, 0}
		}
		for range 6 {
			var pairs []string
			for range 1 + random.IntN(8) {
				value := ""
				for range random.IntN(6) {
					value += fmt.Sprintf("%c%d ", "tTsSsSCllllLrEccD"[random.IntN(17)], random.IntN(4))
				}
				pairs = append(pairs, string("ab"[random.IntN(2)]), value+ends[random.IntN(len(ends))])
			}
			records := keyed(pairs...)
			values, outcomes := obeyed(models, records)
			results := states.Map(records...)
			if !slices.Equal(results.Values(), values) || !slices.Equal(outcomesOf(results), outcomes) {
				t.Fatalf("seed %d, %q:\ngot  %q %q\nwant %q %q", seed, pairs, results.Values(), outcomesOf(results), values, outcomes)
			}
			for key, model := range models {
				expect(t, c.text(states.Key(key)), model.text())
			}
		}
	}
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	found, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	succeeds(t, err)
	return found
}
