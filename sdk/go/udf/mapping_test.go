package udf

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/columns"
	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// From an incoming frame to the outgoing answer, without gRPC: the time is for 4,096 records of 100 bytes.
func BenchmarkMap(b *testing.B) {
	records := make([]Record, 4096)
	for i := range records {
		records[i].Value = make([]byte, 100)
	}
	call := &udfv1.MapCall{CallId: 1, Frame: frameOf(records), IdPrefix: "map/in-map/0/7/"}
	data, err := proto.Marshal(&udfv1.MapRequest{Message: &udfv1.MapRequest_Call{Call: call}})
	if err != nil {
		b.Fatal(err)
	}
	service := &service{function: NewMap(func(_ context.Context, record Record) ([]Message, error) {
		return []Message{{Value: record.Value}}, nil
	})}
	lane, hello := &lane{most: 1}, &udfv1.Hello{Kind: udfv1.Kind_KIND_MAP}
	answered := make(chan *udfv1.MapAnswer)
	b.ReportAllocs()
	for b.Loop() {
		request := &udfv1.MapRequest{}
		if err := proto.Unmarshal(data, request); err != nil {
			b.Fatal(err)
		}
		service.beginMap(context.Background(), lane, hello, request.GetCall(), func(answer *udfv1.MapAnswer) {
			answered <- answer
		})
		if _, err := proto.Marshal(<-answered); err != nil {
			b.Fatal(err)
		}
	}
}

// The memory of one call is reused for the next: it must not appear there, and records that a function kept must not
// change.
func TestCallsThatUseTheSameRoomDoNotSeeEachOther(t *testing.T) {
	var kept []Record
	service := &service{function: NewMap(func(_ context.Context, record Record) ([]Message, error) {
		kept = append(kept, record)
		switch string(record.Value) {
		case "panic":
			panic("at this one")
		case "two":
			return []Message{{Value: record.Value}, {Value: record.Value, Keys: []string{"k"}}}, nil
		case "none":
			return nil, nil
		}
		return []Message{{Value: record.Value}}, nil
	})}
	lane, answers := &lane{most: 1}, make(chan *udfv1.MapAnswer)
	calls := [][]string{{"a", "two", "panic", "b", "none", "panic"}, {"c"}, {"d", "e", "f", "two", "g", "h", "i"}, {}, {"j", "k"}}
	for number, values := range calls {
		records := make([]Record, len(values))
		for i, value := range values {
			records[i].Value = []byte(value)
		}
		call := &udfv1.MapCall{CallId: uint64(number), Frame: frameOf(records), IdPrefix: fmt.Sprintf("%d/", number), FirstIndex: 8}
		service.beginMap(context.Background(), lane, &udfv1.Hello{Kind: udfv1.Kind_KIND_MAP}, call, func(answer *udfv1.MapAnswer) {
			answers <- answer
		})
		answer := <-answers
		var expected []string
		var failed []uint32
		for i, value := range values {
			switch value {
			case "panic":
				failed = append(failed, uint32(i))
			case "two":
				expected = append(expected, value, value)
			case "none":
			default:
				expected = append(expected, value)
			}
		}
		var outcomes []uint32
		for _, outcome := range answer.Outcomes {
			outcomes = append(outcomes, outcome.Index)
		}
		if got := columns.Texts(answer.Values); !slices.Equal(got, expected) || !slices.Equal(outcomes, failed) {
			t.Errorf("call %d: got %q and failures of %d, want %q and %d", number, got, outcomes, expected, failed)
		}
	}
	at := 0
	for number, values := range calls {
		for i, value := range values {
			if id := fmt.Sprintf("%d/%d", number, 8+i); string(kept[at].Value) != value || kept[at].ID != id {
				t.Errorf("kept %q with id %q, want %q with %q", kept[at].Value, kept[at].ID, value, id)
			}
			at++
		}
	}
}

func TestTheEdgeIsThatOfTheCallOrOfTheStream(t *testing.T) {
	service := &service{function: NewMap(func(_ context.Context, record Record) ([]Message, error) {
		return []Message{{Value: []byte(record.Edge)}}, nil
	})}
	for _, one := range []struct{ stream, call, expected string }{{"a-b", "", "a-b"}, {"", "c-b", "c-b"}, {"", "", ""}} {
		call := &udfv1.MapCall{Frame: frameOf(make([]Record, 1)), Edge: one.call}
		answers := make(chan *udfv1.MapAnswer, 1)
		hello := &udfv1.Hello{Kind: udfv1.Kind_KIND_MAP, Edge: one.stream}
		service.beginMap(context.Background(), &lane{most: 1}, hello, call, func(answer *udfv1.MapAnswer) {
			answers <- answer
		})
		if got := columns.Texts((<-answers).Values); !slices.Equal(got, []string{one.expected}) {
			t.Errorf("got %q, want %q", got, one.expected)
		}
	}
}
