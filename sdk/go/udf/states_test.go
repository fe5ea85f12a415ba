package udf

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// answered returns the answer to a call.
func answered(function *Function, call *udfv1.MapCall) *udfv1.MapAnswer {
	answers := make(chan *udfv1.MapAnswer, 1)
	lane := &lane{most: function.concurrency}
	(&service{function: function}).beginMap(context.Background(), lane, &udfv1.Hello{Kind: udfv1.Kind_KIND_MAP}, call,
		func(answer *udfv1.MapAnswer) { answers <- answer })
	return <-answers
}

func calling(values ...string) *udfv1.MapCall {
	records := make([]Record, len(values))
	for i, value := range values {
		records[i].Value = []byte(value)
	}
	return &udfv1.MapCall{CallId: 7, Frame: frameOf(records)}
}

func placeOf(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func TestOnlyEntriesThatHaveChangedAreSent(t *testing.T) {
	total, seen, last := NewValueState[string]("total"), NewMapState[string, int]("seen"), NewListState[string]("last")
	function := NewMap(func(ctx context.Context, record Record) ([]Message, error) {
		name, value, _ := strings.Cut(string(record.Value), " ")
		switch name {
		case "total":
			return nil, total.Set(ctx, value)
		case "seen":
			return nil, seen.Set(ctx, value, 1)
		case "unsee":
			return nil, seen.Delete(ctx, value)
		case "last":
			return nil, last.Append(ctx, value)
		case "pop":
			return nil, last.Remove(ctx, 0)
		}
		_, err := total.Get(ctx)
		return nil, err
	}, States(total, seen, last))
	call := calling("total a", "get", "seen x", "total b", "total a", "seen y", "unsee y", "unsee x", "unsee none", "last c", "pop", "total n")
	call.States = &udfv1.StateEntries{
		RecordKeys: []uint32{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}, Keys: []uint32{0, 0, 0, 1}, States: []byte{2, 1, 0, 0},
		// The states of a key are in any order.
		Items:  columns.PackItems([][]byte{placeOf(4), []byte(`"x"`), nil, nil}),
		Values: columns.PackItems([]string{`"l"`, "0", `"a"`, `"q"`}),
	}
	answer := answered(function, call)
	if answer.Error != "" || len(answer.Outcomes) > 0 {
		t.Fatal(answer)
	}
	type change struct {
		key           uint32
		state         byte
		item, value   string
		deletedNumber byte
	}
	var changes []change
	items, values := columns.Texts(answer.Changes.Items), columns.Texts(answer.Changes.Values)
	for i, key := range answer.Changes.Keys {
		changes = append(changes, change{key, answer.Changes.States[i], items[i], values[i], answer.Changes.Deleted[i]})
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	expected := []change{
		{0, 1, `"x"`, "", 1}, {0, 2, string(placeOf(4)), "", 1}, {0, 2, string(placeOf(5)), `"c"`, 0}, {2, 0, "", `"n"`, 0},
	}
	if !reflect.DeepEqual(changes, expected) || answer.Changes.ExpiresUs != nil {
		t.Errorf("got  %q\nwant %q", changes, expected)
	}
	call = calling("get", "total a")
	call.States = &udfv1.StateEntries{
		RecordKeys: []uint32{0, 0}, Keys: []uint32{0}, States: []byte{0}, Values: columns.PackItems([]string{`"a"`}),
	}
	if answer := answered(function, call); answer.Changes != nil {
		t.Error(answer)
	}
}

func TestCallsThatDoNotFitTheStates(t *testing.T) {
	seen, total := NewMapState[string, int]("seen"), NewValueState[int]("total")
	function := NewMap(func(context.Context, Record) ([]Message, error) { return nil, nil }, States(seen, total))
	one := columns.PackItems([]string{"1"})
	two := columns.PackItems([]string{"1", "1"})
	for expected, states := range map[string]*udfv1.StateEntries{
		"this Millstream does not know functions with states": nil,
		"have keys for 1 records, the call has 2":             {RecordKeys: []uint32{0}},
		"are not numbered in the order":                       {RecordKeys: []uint32{1, 0}},
		"1 entries of states have 0 states":                   {RecordKeys: []uint32{0, 0}, Keys: []uint32{0}, Values: one},
		"a key or a state that does not exist": {
			RecordKeys: []uint32{0, 0}, Keys: []uint32{0}, States: []byte{2}, Values: one,
		},
		"are not ordered": {
			RecordKeys: []uint32{0, 0}, Keys: []uint32{0, 0}, States: []byte{0, 0}, Values: two,
			Items: columns.PackItems([]string{"b", "a"}),
		},
		"several entries of state total": {
			RecordKeys: []uint32{0, 0}, Keys: []uint32{0, 0}, States: []byte{1, 1}, Values: two,
			Items: columns.PackItems([]string{"", "a"}),
		},
		"are not together": {
			RecordKeys: []uint32{0, 1}, Keys: []uint32{0, 1, 0}, States: []byte{1, 1, 1},
			Values: columns.PackItems([]string{"1", "1", "1"}),
		},
	} {
		call := calling("a", "b")
		call.States = states
		if answer := answered(function, call); !strings.Contains(answer.Error, expected) || answer.Changes != nil {
			t.Errorf("got %q, want %q", answer.Error, expected)
		}
	}
}

const (
	benchRecords    = 500
	benchKeys       = 100_000
	benchValueBytes = 100
)

// benchCall is a call of 500 records, each of one of 100,000 keys, encoded; with what is remembered for these keys.
func benchCall(random *rand.Rand, hasStates bool) []byte {
	value := func() []byte {
		made := make([]byte, benchValueBytes)
		for i := range made {
			made[i] = "0123456789abcdef"[random.IntN(16)]
		}
		return made
	}
	records := make([]Record, benchRecords)
	states, numbers := &udfv1.StateEntries{}, map[string]uint32{}
	var values [][]byte
	for i := range records {
		key := fmt.Sprintf("key-%d", random.IntN(benchKeys))
		records[i] = Record{Value: value(), Keys: []string{key}}
		number, known := numbers[key]
		if !known {
			number = uint32(len(numbers))
			numbers[key] = number
			states.Keys, values = append(states.Keys, number), append(values, value())
		}
		states.RecordKeys = append(states.RecordKeys, number)
	}
	call := &udfv1.MapCall{CallId: 1, Frame: frameOf(records), IdPrefix: "state/in/0/1/"}
	if hasStates {
		states.States, states.Values = make([]byte, len(values)), columns.PackItems(values)
		call.States = states
	}
	data, err := proto.Marshal(&udfv1.MapRequest{Message: &udfv1.MapRequest_Call{Call: call}})
	if err != nil {
		panic(err)
	}
	return data
}

// From the bytes of a request to those of the answer. Each record reads the value of its key, and writes another one.
// Alternately with and without, so that other work on the machine meets both. benchmarks/state_calls.py does the same in
// Python.
func BenchmarkStates(b *testing.B) {
	// As when it is served.
	raiseHeapFloor()
	last := NewValueState[[]byte]("last")
	without := NewMap(func(_ context.Context, record Record) ([]Message, error) {
		return []Message{{Value: record.Value}}, nil
	})
	with := NewMap(func(ctx context.Context, record Record) ([]Message, error) {
		before, err := last.Get(ctx)
		if err == nil {
			err = last.Set(ctx, record.Value)
		}
		return []Message{{Value: before}}, err
	}, States(last))
	random := rand.New(rand.NewPCG(7, 7))
	var calls [2][][]byte
	for range 20 {
		calls[0], calls[1] = append(calls[0], benchCall(random, false)), append(calls[1], benchCall(random, true))
	}
	var taken [2][]float64
	for i := 0; b.Loop(); i++ {
		for kind, function := range []*Function{without, with} {
			began := time.Now()
			request := &udfv1.MapRequest{}
			if err := proto.Unmarshal(calls[kind][i%20], request); err != nil {
				b.Fatal(err)
			}
			answer := answered(function, request.GetCall())
			if _, err := proto.Marshal(answer); err != nil {
				b.Fatal(err)
			}
			taken[kind] = append(taken[kind], float64(time.Since(began).Nanoseconds())/benchRecords)
			if len(answer.Outcomes) > 0 || (answer.Changes != nil) != (kind == 1) {
				b.Fatal(answer)
			}
		}
	}
	median := func(all []float64) float64 { slices.Sort(all); return all[len(all)/2] }
	b.ReportMetric(median(taken[0]), "ns/record-without")
	b.ReportMetric(median(taken[1]), "ns/record-with")
	b.ReportMetric(median(taken[1])/median(taken[0]), "ratio")
}
