package udftest_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

// line has the names of the fields of the same class in Python's test.
type line struct {
	Item   string         `json:"item"`
	Pieces int            `json:"pieces"`
	Price  float64        `json:"price"`
	Tags   []string       `json:"tags"`
	More   map[string]int `json:"more"`
}

type vector[T any] struct {
	Item, Value T
	Stored, Hex string
	Count       int64
	Seconds     int64
	Nanos       int32
	// Of timers, with the event time of the record that sets it.
	Clock          string
	AtUs, RecordUs int64
	OutputUs       *int64
}

func (v vector[T]) bytes(t *testing.T) []byte {
	t.Helper()
	if v.Stored != "" {
		return []byte(v.Stored)
	}
	data, err := hex.DecodeString(v.Hex)
	succeeds(t, err)
	return data
}

func succeeds(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nothing(context.Context, udf.Record) ([]udf.Message, error) { return nil, nil }

// stored returns the only entry of a state after set, and a context for its key.
func stored(t *testing.T, state udf.State, set func(context.Context) error) (udftest.StateEntry, context.Context) {
	t.Helper()
	states := udftest.NewStates(t, udf.NewMap(nothing, udf.States(state)))
	succeeds(t, set(states.Key("k")))
	all := states.All()
	if len(all) != 1 {
		t.Fatalf("%d entries", len(all))
	}
	return all[0], states.Key("k")
}

func checkItems[K udf.Item](t *testing.T, vectors []vector[K]) {
	t.Helper()
	for _, one := range vectors {
		state := udf.NewMapState[K, bool]("m")
		entry, key := stored(t, state, func(ctx context.Context) error { return state.Set(ctx, one.Item, true) })
		expect(t, string(entry.Item), string(one.bytes(t)))
		all, err := state.Entries(key)
		succeeds(t, err)
		expect(t, all, []udf.Entry[K, bool]{{Item: one.Item, Value: true}})
	}
}

func checkValues[T any](t *testing.T, vectors []vector[T]) {
	t.Helper()
	for _, one := range vectors {
		state := udf.NewValueState[T]("v")
		entry, key := stored(t, state, func(ctx context.Context) error { return state.Set(ctx, one.Value) })
		expect(t, string(entry.Value), string(one.bytes(t)))
		value, err := state.Get(key)
		succeeds(t, err)
		expect(t, value, one.Value)
	}
}

// tests/unit/udf_sdk/test_state_vectors.py does the same with the same file.
func TestStoredBytesAreThoseOfTheSDKForPython(t *testing.T) {
	data, err := os.ReadFile("testdata/states.json")
	succeeds(t, err)
	var vectors struct {
		TextItems          []vector[string]
		NumberItems        []vector[int64]
		BytesItems         []vector[string]
		Texts              []vector[string]
		Numbers            []vector[int64]
		Booleans           []vector[bool]
		Objects            []vector[line]
		Protobuf, Counters []vector[bool]
		Timers             []vector[string]
	}
	succeeds(t, json.Unmarshal(data, &vectors))
	checkItems(t, vectors.TextItems)
	checkItems(t, vectors.NumberItems)
	checkValues(t, vectors.Texts)
	checkValues(t, vectors.Numbers)
	checkValues(t, vectors.Booleans)
	checkValues(t, vectors.Objects)
	for _, one := range vectors.BytesItems {
		checkItems(t, []vector[[]byte]{{Item: one.bytes(t), Hex: one.Hex}})
		checkValues(t, []vector[[]byte]{{Value: one.bytes(t), Hex: one.Hex}})
	}
	for _, one := range vectors.Protobuf {
		state := udf.NewValueState[*timestamppb.Timestamp]("v")
		entry, key := stored(t, state, func(ctx context.Context) error {
			return state.Set(ctx, &timestamppb.Timestamp{Seconds: one.Seconds, Nanos: one.Nanos})
		})
		expect(t, string(entry.Value), string(one.bytes(t)))
		value, err := state.Get(key)
		succeeds(t, err)
		expect(t, value.AsTime().Unix(), one.Seconds)
	}
	for _, one := range vectors.Counters {
		state := udf.NewCounterState("c")
		entry, key := stored(t, state, func(ctx context.Context) error { _, err := state.Add(ctx, one.Count); return err })
		expect(t, string(entry.Value), string(one.bytes(t)))
		count, err := state.Get(key)
		succeeds(t, err)
		expect(t, count, one.Count)
	}
	for _, one := range vectors.Timers {
		checkTimer(t, one)
	}
}

func checkTimer(t *testing.T, one vector[string]) {
	t.Helper()
	timers, at := udf.NewTimers(), time.UnixMicro(one.AtUs)
	var options []udf.TimerOption
	if one.OutputUs != nil {
		options = append(options, udf.OutputAt(time.UnixMicro(*one.OutputUs)))
	}
	set := func(ctx context.Context, _ udf.Record) ([]udf.Message, error) {
		if one.Clock == "event" {
			return nil, timers.Set(ctx, one.Item, at, options...)
		}
		return nil, timers.SetByProcessingTime(ctx, one.Item, at, options...)
	}
	states := udftest.NewStates(t, udf.NewMap(set, udf.States(timers), udf.OnTimer(ignore)))
	expect(t, len(states.Map(udf.Record{EventTime: time.UnixMicro(one.RecordUs)}).Outcomes), 0)
	all, stored := states.All(), states.Timers()
	expect(t, []string{string(all[0].Item), string(all[0].Value)}, []string{one.Item, string(one.bytes(t))})
	expect(t, []any{stored[0].Name, stored[0].At.UnixMicro()}, []any{one.Item, one.AtUs})
}

func ignore(context.Context, udf.Timer) ([]udf.Message, error) { return nil, nil }
