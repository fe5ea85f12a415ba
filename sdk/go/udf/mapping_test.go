package udf

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// Of a frame that comes in and the answer that goes out, without gRPC: the time is that of 4,096 records of 100 bytes.
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
